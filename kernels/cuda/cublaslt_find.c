#include "kernels/cuda/cublaslt_find.h"

#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

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

int ot_cublaslt_find_places(struct ot_cublaslt_places *out) {
    *out = (struct ot_cublaslt_places){0};
    OT_TRY(add(out, "libcublasLt.so.13"));
    OT_TRY(add(out, "libcublasLt.so.12"));
    OT_TRY(add(out, "libcublasLt.so"));
    OT_TRY(add_version(out, "13"));
    return add_version(out, "12");
}

void ot_cublaslt_places_free(struct ot_cublaslt_places *places) {
    for (size_t i = 0; i < places->n; i++)
        free(places->paths[i]);
    free(places->paths);
    *places = (struct ot_cublaslt_places){0};
}
