#include "kernels/cuda/cublaslt.h"

#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"

/* ---- finding the library ---- */

/* Finds the places on this machine where a libcublasLt may be.
 *
 * The dynamic loader's own search comes first (LD_LIBRARY_PATH, ldconfig): `libcublasLt.so.13`, `.12`, `.so`.
 * On rented machines the library is often elsewhere. So these folders follow; in each group version 13 comes
 * before version 12:
 *
 *   toolkits   $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /usr/local/cuda-1[23]*: lib64, lib, targets/T/lib
 *   Python     the packages nvidia/NAME/lib in the site-packages (or dist-packages) of $VIRTUAL_ENV, of
 *              $CONDA_PREFIX, of the `python3` that $PATH finds, of $HOME/.local and of /usr/local and /usr
 *   conda      $CONDA_PREFIX/lib
 *
 * The order depends on the folders and the environment of the machine alone, so a machine always takes the
 * same library.
 */

struct ot_cublaslt_places {
    char **paths; /* names for the loader first, then existing files */
    size_t n;
};

static int add(struct ot_cublaslt_places *places, const char *path) {
    for (size_t i = 0; i < places->n; i++)
        if (strcmp(places->paths[i], path) == 0)
            return 0;
    char **grown = realloc(places->paths, (places->n + 1) * sizeof *grown);
    char *copy = strdup(path);
    if (grown)
        places->paths = grown;
    if (!grown || !copy) {
        free(copy);
        return ot_fail(OT_E_BUDGET, "no host memory to look for libcublasLt");
    }
    places->paths[places->n++] = copy;
    return 0;
}

/* Adds the files that match prefix + pattern + version. A prefix of NULL or "" adds none. */
static int add_matches(struct ot_cublaslt_places *places, const char *prefix, const char *pattern,
                       const char *version) {
    char text[PATH_MAX];
    glob_t found = {0};
    if (!prefix || !*prefix)
        return 0;
    if (snprintf(text, sizeof text, "%s/%s/libcublasLt.so.%s", prefix, pattern, version) >= (int)sizeof text)
        return 0; /* a path this long cannot exist */
    int rc = 0, code = glob(text, GLOB_BRACE, NULL, &found);
    if (code == GLOB_NOSPACE)
        rc = ot_fail(OT_E_BUDGET, "no host memory to look for libcublasLt");
    for (size_t i = 0; code == 0 && i < found.gl_pathc && rc == 0; i++)
        rc = add(places, found.gl_pathv[i]);
    globfree(&found);
    return rc;
}

/* Writes the folder above the `bin` in which $PATH finds python3; false if $PATH finds none. Links are not
 * followed: a virtual environment's python3 is a link, and its packages are beside the link. */
static bool find_python_prefix(char prefix[PATH_MAX]) {
    const char *path = getenv("PATH");
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        char file[PATH_MAX];
        if (length > 0 && snprintf(file, sizeof file, "%.*s/python3", length, path) < (int)sizeof file &&
            access(file, X_OK) == 0) {
            snprintf(prefix, PATH_MAX, "%.*s/..", length, path);
            return true;
        }
        path += length + (path[length] == ':');
    }
    return false;
}

static int add_version(struct ot_cublaslt_places *places, const char *version) {
    static const char toolkit[] = "{lib64,lib,targets/*/lib}";
    static const char packages[] = "lib/python3*/{site-packages,dist-packages}/nvidia/*/lib";
    char python[PATH_MAX] = "", local[PATH_MAX] = "";
    const char *home = getenv("HOME"), *conda = getenv("CONDA_PREFIX");
    (void)find_python_prefix(python);
    if (home && *home)
        snprintf(local, sizeof local, "%s/.local", home);
    const struct {
        const char *prefix, *pattern;
    } places_of[] = {
        {getenv("CUDA_HOME"), toolkit},
        {getenv("CUDA_PATH"), toolkit},
        {"/usr/local/cuda", toolkit},
        {"/usr/local", "cuda-1[23]*/{lib64,lib,targets/*/lib}"},
        {getenv("VIRTUAL_ENV"), packages},
        {conda, packages},
        {conda, "lib"},
        {python, packages},
        {local, packages},
        {"/usr/local", packages},
        {"/usr", packages},
    };
    for (size_t i = 0; i < sizeof places_of / sizeof *places_of; i++)
        OT_TRY(add_matches(places, places_of[i].prefix, places_of[i].pattern, version));
    return 0;
}

/* Errors: OT_E_BUDGET. The caller calls cublaslt_places_free in either case. */
static int cublaslt_find_places(struct ot_cublaslt_places *out) {
    *out = (struct ot_cublaslt_places){0};
    OT_TRY(add(out, "libcublasLt.so.13"));
    OT_TRY(add(out, "libcublasLt.so.12"));
    OT_TRY(add(out, "libcublasLt.so"));
    OT_TRY(add_version(out, "13"));
    return add_version(out, "12");
}

static void cublaslt_places_free(struct ot_cublaslt_places *places) {
    for (size_t i = 0; i < places->n; i++)
        free(places->paths[i]);
    free(places->paths);
    *places = (struct ot_cublaslt_places){0};
}

/* ---- cublaslt ---- */

#ifdef OT_EMU
#include "tests/fakes/fake_cublaslt.h"
#define library_open   ot_fake_cublaslt_dlopen
#define library_symbol ot_fake_cublaslt_dlsym
#define library_close  ot_fake_cublaslt_dlclose
#define library_error  ot_fake_cublaslt_dlerror
#define library_path   ot_fake_cublaslt_path
#else
#include <dlfcn.h>
#define library_open(path) dlopen(path, RTLD_NOW | RTLD_LOCAL)
#define library_symbol     dlsym
#define library_close      dlclose
#define library_error      dlerror

/* The file that a function was loaded from; NULL if the loader does not know. */
static const char *library_path(const void *function) {
    Dl_info info;
    return dladdr(function, &info) ? info.dli_fname : NULL;
}
#endif

/* ---- our declarations, compared with NVIDIA's header if it is installed ---- */

#if !defined(OT_EMU) && defined(__has_include)
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(OT_CUBLASLT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(OT_CUBLASLT_NOT_INITIALIZED, CUBLAS_STATUS_NOT_INITIALIZED);
SAME(OT_CUBLASLT_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED);
SAME(OT_CUBLASLT_INVALID_VALUE, CUBLAS_STATUS_INVALID_VALUE);
SAME(OT_CUBLASLT_ARCH_MISMATCH, CUBLAS_STATUS_ARCH_MISMATCH);
SAME(OT_CUBLASLT_EXECUTION_FAILED, CUBLAS_STATUS_EXECUTION_FAILED);
SAME(OT_CUBLASLT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
SAME(OT_CUBLASLT_R_32F, CUDA_R_32F);
SAME(OT_CUBLASLT_R_16F, CUDA_R_16F);
SAME(OT_CUBLASLT_R_16BF, CUDA_R_16BF);
SAME(OT_CUBLASLT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(OT_CUBLASLT_COMPUTE_32F_PEDANTIC, CUBLAS_COMPUTE_32F_PEDANTIC);
SAME(OT_CUBLASLT_OP_N, CUBLAS_OP_N);
SAME(OT_CUBLASLT_OP_T, CUBLAS_OP_T);
SAME(OT_CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_DEFAULT);
SAME(OT_CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
SAME(OT_CUBLASLT_REDUCTION_NONE, CUBLASLT_REDUCTION_SCHEME_NONE);
SAME(OT_CUBLASLT_REDUCTION_INPLACE, CUBLASLT_REDUCTION_SCHEME_INPLACE);
SAME(OT_CUBLASLT_REDUCTION_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(OT_CUBLASLT_REDUCTION_OUTPUT_TYPE, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
SAME(OT_CUBLASLT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(OT_CUBLASLT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(OT_CUBLASLT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(OT_CUBLASLT_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(OT_CUBLASLT_DESC_BIAS_DATA_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(OT_CUBLASLT_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(OT_CUBLASLT_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(OT_CUBLASLT_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(OT_CUBLASLT_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(OT_CUBLASLT_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(OT_CUBLASLT_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
SAME(0, MAJOR_VERSION);
SAME(1, MINOR_VERSION);
SAME(2, PATCH_LEVEL);
SAME(sizeof(struct ot_cublaslt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct ot_cublaslt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct ot_cublaslt_heuristic, workspace_bytes),
     offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(struct ot_cublaslt_heuristic, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(offsetof(struct ot_cublaslt_heuristic, waves), offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
SAME(sizeof(int), sizeof(cublasStatus_t));
SAME(sizeof(int), sizeof(cublasLtMatmulDescAttributes_t));
#endif
#endif

/* ---- opening ---- */

#define HOW_TO_GET                                                                                           \
    "install the cuBLAS of CUDA 12 or 13 (the toolkit, a package such as libcublas-13-0, or the Python "     \
    "package nvidia-cublas), or set OFFLOAD_TRAIN_CUBLASLT to the path of a libcublasLt.so"

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cublasLtGetProperty", offsetof(struct ot_cublaslt, get_property)},
    {"cublasLtGetCudartVersion", offsetof(struct ot_cublaslt, get_cudart_version)},
    {"cublasLtGetStatusString", offsetof(struct ot_cublaslt, get_status_string)},
    {"cublasLtCreate", offsetof(struct ot_cublaslt, create)},
    {"cublasLtDestroy", offsetof(struct ot_cublaslt, destroy)},
    {"cublasLtMatrixLayoutCreate", offsetof(struct ot_cublaslt, layout_create)},
    {"cublasLtMatrixLayoutDestroy", offsetof(struct ot_cublaslt, layout_destroy)},
    {"cublasLtMatmulDescCreate", offsetof(struct ot_cublaslt, desc_create)},
    {"cublasLtMatmulDescDestroy", offsetof(struct ot_cublaslt, desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", offsetof(struct ot_cublaslt, desc_set)},
    {"cublasLtMatmulPreferenceCreate", offsetof(struct ot_cublaslt, pref_create)},
    {"cublasLtMatmulPreferenceDestroy", offsetof(struct ot_cublaslt, pref_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", offsetof(struct ot_cublaslt, pref_set)},
    {"cublasLtMatmulAlgoGetHeuristic", offsetof(struct ot_cublaslt, get_heuristic)},
    {"cublasLtMatmulAlgoCheck", offsetof(struct ot_cublaslt, algo_check)},
    {"cublasLtMatmulAlgoConfigGetAttribute", offsetof(struct ot_cublaslt, algo_config_get)},
    {"cublasLtMatmul", offsetof(struct ot_cublaslt, matmul)},
};

/* Fills the table of functions. path: for error texts. */
static int read_table(void *library, const char *path, struct ot_cublaslt *out) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = library_symbol(library, functions[i].name);
        if (!function)
            return ot_fail(OT_E_DEVICE, "%s has no function %s: %s", path, functions[i].name, HOW_TO_GET);
        memcpy((char *)out + functions[i].offset, &function, sizeof function);
    }
    int *const versions[] = {&out->major, &out->minor, &out->patch};
    for (int i = 0; i < 3; i++)
        if (out->get_property(i, versions[i]) != OT_CUBLASLT_SUCCESS)
            return ot_fail(OT_E_DEVICE, "%s does not report its version: %s", path, HOW_TO_GET);
    if (out->major != 12 && out->major != 13)
        return ot_fail(OT_E_DEVICE, "%s is cuBLASLt %d.%d.%d, which this program does not support: %s", path,
                       out->major, out->minor, out->patch, HOW_TO_GET);
    return 0;
}

/* On a driver for CUDA 12, a library for CUDA 13 opens, but none of its functions work. */
static int check_driver(const struct ot_cublaslt *lt, const char *path, int driver_version) {
    int made_for = (int)lt->get_cudart_version();
    if (made_for / 1000 <= driver_version / 1000)
        return 0;
    return ot_fail(OT_E_DEVICE,
                   "%s was made for CUDA %d, but the driver supports CUDA %d.%d: update the driver, or set "
                   "OFFLOAD_TRAIN_CUBLASLT to the path of a libcublasLt.so.%d",
                   path, made_for / 1000, driver_version / 1000, driver_version % 1000 / 10,
                   driver_version / 1000);
}

/* Checks an open library and closes it if it cannot be used. */
static int take_library(void *library, const char *path, int driver_version, struct ot_cublaslt *out) {
    int rc = read_table(library, path, out);
    if (rc >= 0)
        rc = check_driver(out, path, driver_version);
    if (rc < 0) {
        library_close(library);
        return rc;
    }
    const char *file = library_path((const void *)(uintptr_t)out->matmul);
    snprintf(out->path, sizeof out->path, "%s", file ? file : path);
    return 0;
}

static int open_given(const char *path, int driver_version, struct ot_cublaslt *out) {
    void *library = library_open(path);
    if (!library)
        return ot_fail(OT_E_DEVICE, "the given libcublasLt cannot be opened: %s", library_error());
    return take_library(library, path, driver_version, out);
}

/* Opens the first usable library of the machine. If no library is usable, returns the error of the first
 * library that exists, because this is the one that the user can fix. */
static int open_any(const struct ot_cublaslt_places *places, int driver_version, struct ot_cublaslt *out) {
    struct ot_error why = {0};
    for (size_t i = 0; i < places->n; i++) {
        void *library = library_open(places->paths[i]);
        int rc = library ? take_library(library, places->paths[i], driver_version, out) : -1;
        if (rc >= 0) {
            if (strchr(places->paths[i], '/')) /* not a name that the loader searches for */
                ot_log(OT_LOG_INFO, "cublas  cuBLASLt %d.%d.%d is taken from %s", out->major, out->minor,
                       out->patch, out->path);
            return 0;
        }
        if (library && why.code == 0)
            ot_error_save(&why, rc);
    }
    if (why.code != 0)
        return ot_error_load(&why);
    return ot_fail(
        OT_E_DEVICE,
        "found no libcublasLt.so.13 or .12: the loader, the CUDA toolkits and the Python packages here "
        "have none; %s",
        HOW_TO_GET);
}

int ot_cublaslt_open(const char *given, int driver_version, struct ot_cublaslt *out) {
    if (!given || !*given)
        given = getenv("OFFLOAD_TRAIN_CUBLASLT");
    if (given && *given)
        return open_given(given, driver_version, out);
    struct ot_cublaslt_places places;
    int rc = cublaslt_find_places(&places);
    if (rc >= 0)
        rc = open_any(&places, driver_version, out);
    cublaslt_places_free(&places);
    return rc;
}
