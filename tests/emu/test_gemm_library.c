/* The cuda device's choice of libcublasLt: where it looks, which libraries it passes over, and the error when
 * it finds none that it can use. A fake library (tests/fakes/fake_cublaslt.h) appears under real paths. Also
 * the file of the algorithms that were chosen, when it is damaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_gemm_cache.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/support/check.h"

enum { DRIVER = 13000 };

static struct ot_cuda_gemm_config config_of(const char *folder) {
    return (struct ot_cuda_gemm_config){
        .gpu = "Emulated", .sm_count = 8, .arch = 80, .driver_version = DRIVER, .cache_folder = folder};
}

static int setup(void **state) {
    (void)state;
    unsetenv("OFFLOAD_TRAIN_CUBLASLT");
    ot_fake_cublaslt_reset();
    return 0;
}

static void check_open_fails(const char *words) {
    const struct ot_cuda_gemm_config config = config_of(NULL);
    struct ot_cuda_gemm *gemm;
    check_fails(ot_cuda_gemm_open(&config, &gemm), OT_E_DEVICE, words);
    assert_null(gemm);
    assert_int_equal(ot_fake_cublaslt.open_libraries, 0);
    assert_int_equal(ot_fake_cublaslt.live_objects, 0);
}

static void test_library_that_does_not_do(void **state) {
    (void)state;
    struct ot_fake_library *library = ot_fake_cublaslt.libraries;
    library->missing_symbol = "cublasLtMatmulAlgoCheck";
    check_open_fails("has no function cublasLtMatmulAlgoCheck");
    library->missing_symbol = NULL;
    library->major = 11;
    check_open_fails("libcublasLt.so.13 is cuBLASLt 11.1.0, which this program does not support: install");
    library->major = 14;
    check_open_fails("cuBLASLt 14.1.0");
    library->major = 13;
    library->cudart_version = 14000;
    check_open_fails("was made for CUDA 14, but the driver supports CUDA 13.0: update the driver, or set");
    library->path = NULL;
    check_open_fails("found no libcublasLt.so.13 or .12: the loader, the CUDA toolkits and the Python "
                     "packages here have none; install");
    setenv("OFFLOAD_TRAIN_CUBLASLT", "/nowhere/lib.so", 1);
    check_open_fails("the given libcublasLt cannot be opened: ");
}

static void check_opens(int driver_version, const char *name) {
    struct ot_cuda_gemm_config config = config_of(NULL);
    struct ot_cuda_gemm *gemm;
    config.driver_version = driver_version;
    check_ok(ot_cuda_gemm_open(&config, &gemm));
    assert_string_equal(ot_cuda_gemm_name(gemm), name);
    ot_cuda_gemm_close(gemm);
    assert_int_equal(ot_fake_cublaslt.open_libraries, 1); /* stays open until the process ends */
    ot_fake_cublaslt.open_libraries = 0;
}

static void test_library_that_does(void **state) {
    (void)state;
    const struct ot_fake_library libraries[3] = {{"libcublasLt.so.13", 13, 1, 0, 13000, NULL},
                                                 {"libcublasLt.so.12", 12, 8, 4, 12080, NULL},
                                                 {"/elsewhere/lib.so", 12, 0, 1, 12000, NULL}};
    memcpy(ot_fake_cublaslt.libraries, libraries, sizeof libraries);
    check_opens(13000, "cuBLASLt 13.1.0");
    check_opens(12040, "cuBLASLt 12.8.4"); /* the driver is too old for version 13 */
    setenv("OFFLOAD_TRAIN_CUBLASLT", "/elsewhere/lib.so", 1);
    check_opens(13000, "cuBLASLt 12.0.1");
    setenv("OFFLOAD_TRAIN_CUBLASLT", "", 1);
    ot_fake_cublaslt.libraries[0].path = "libcublasLt.so";
    ot_fake_cublaslt.libraries[1].path = NULL;
    check_opens(13000, "cuBLASLt 13.1.0");
}

/* The environment variables that lead to a library. The test points them into its own folder. */
static const char *const machine_variables[] = {"CUDA_HOME",    "CUDA_PATH", "VIRTUAL_ENV",
                                                "CONDA_PREFIX", "PATH",      "HOME"};
enum { MACHINE_VARIABLES = sizeof machine_variables / sizeof *machine_variables };

/* One library, which the loader does not find, in each kind of folder. The environment variable `variable`
 * leads to it. */
static void check_found_in(const char *root, const char *variable, const char *value, const char *file) {
    char path[600], text[600];
    struct ot_cublaslt lt;
    for (int i = 0; i < MACHINE_VARIABLES; i++)
        unsetenv(machine_variables[i]);
    snprintf(text, sizeof text, "%s%s", root, value);
    setenv(variable, text, 1);
    snprintf(path, sizeof path, "%s%s", root, file);
    write_under(root, file + 1, "");
    ot_fake_cublaslt.libraries[0].path = path;
    check_ok(ot_cublaslt_open(NULL, DRIVER, &lt));
    assert_string_equal(lt.path, path);
    assert_int_equal(unlink(path), 0);
    check_fails(ot_cublaslt_open(NULL, DRIVER, &lt), OT_E_DEVICE, "found no libcublasLt.so.13 or .12");
}

static void test_library_in_other_folders(void **state) {
    (void)state;
    char *root = make_folder(), *old[MACHINE_VARIABLES];
    for (int i = 0; i < MACHINE_VARIABLES; i++)
        old[i] = getenv(machine_variables[i]) ? strdup(getenv(machine_variables[i])) : NULL;
    check_found_in(root, "CUDA_HOME", "/tk", "/tk/lib64/libcublasLt.so.13");
    check_found_in(root, "CUDA_PATH", "/tk", "/tk/targets/x86_64-linux/lib/libcublasLt.so.12");
    check_found_in(root, "VIRTUAL_ENV", "/env",
                   "/env/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
    check_found_in(root, "CONDA_PREFIX", "/conda", "/conda/lib/libcublasLt.so.12");
    check_found_in(root, "HOME", "/home",
                   "/home/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libcublasLt.so.12");
    write_under(root, "py/bin/python3", "");
    char python[600];
    snprintf(python, sizeof python, "%s/py/bin/python3", root);
    assert_int_equal(chmod(python, 0755), 0);
    struct ot_cublaslt lt;
    char path[600], found[600];
    for (int i = 0; i < MACHINE_VARIABLES; i++)
        unsetenv(machine_variables[i]);
    snprintf(path, sizeof path, "/nowhere::%s/py/bin", root);
    setenv("PATH", path, 1);
    write_under(root, "py/lib/python3.12/dist-packages/nvidia/cublas/lib/libcublasLt.so.12", "");
    snprintf(found, sizeof found,
             "%s/py/bin/../lib/python3.12/dist-packages/nvidia/cublas/lib/libcublasLt.so.12", root);
    ot_fake_cublaslt.libraries[0].path = found;
    check_ok(ot_cublaslt_open(NULL, DRIVER, &lt));
    assert_string_equal(lt.path, found);
    /* A given path comes before all paths that are searched. */
    ot_fake_cublaslt.libraries[0].path = "/given/lib.so";
    check_ok(ot_cublaslt_open("/given/lib.so", DRIVER, &lt));
    assert_string_equal(lt.path, "/given/lib.so");
    for (int i = 0; i < MACHINE_VARIABLES; i++)
        if (old[i])
            setenv(machine_variables[i], old[i], 1);
        else
            unsetenv(machine_variables[i]);
    for (int i = 0; i < MACHINE_VARIABLES; i++)
        free(old[i]);
    remove_folder(root);
}

static void test_library_that_does_not_start(void **state) {
    (void)state;
    const struct ot_cuda_gemm_config config = config_of(NULL);
    struct ot_cuda_gemm *gemm;
    ot_fake_cublaslt.create_status = 1;
    check_fails(ot_cuda_gemm_open(&config, &gemm), OT_E_DEVICE, "cuBLASLt 13.1.0 does not start on this GPU");
    assert_int_equal(ot_fake_cublaslt.live_objects, 0);
}

/* ---- the file of choices ---- */

static void write_bytes(const char *path, const unsigned char *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static size_t read_bytes(const char *path, unsigned char *bytes, size_t room) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t n = fread(bytes, 1, room, file);
    fclose(file);
    assert_true(n < room);
    return n;
}

static size_t choices_in(const char *path, const char *identity) {
    struct ot_gemm_choice *choices;
    size_t n;
    check_ok(ot_gemm_cache_read(path, identity, &choices, &n));
    free(choices);
    return n;
}

static void test_damaged_file(void **state) {
    (void)state;
    char *folder = make_folder(), *path;
    unsigned char bytes[1024];
    static const char identity[] = "a GPU";
    static const struct ot_gemm_choice choices[2] = {{.key = {.m = 1}, .algo = {{1}}}, {.key = {.m = 2}}};
    check_ok(ot_gemm_cache_path(folder, identity, &path));
    assert_int_equal(choices_in(path, identity), 0); /* the file does not exist */
    check_ok(ot_gemm_cache_write(path, identity, choices, 2));
    assert_int_equal(choices_in(path, identity), 2);
    assert_int_equal(choices_in(path, "a UPG"), 0);
    size_t n = read_bytes(path, bytes, sizeof bytes);
    for (size_t i = 0; i < n; i++) { /* every byte wrong in turn, and every shorter file */
        bytes[i] ^= 0x10;
        write_bytes(path, bytes, n);
        assert_int_equal(choices_in(path, identity), 0);
        bytes[i] ^= 0x10;
        write_bytes(path, bytes, i);
        assert_int_equal(choices_in(path, identity), 0);
    }
    write_bytes(path, bytes, n);
    assert_int_equal(choices_in(path, identity), 2);
    free(path);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_library_that_does_not_do, setup),
        cmocka_unit_test_setup(test_library_that_does, setup),
        cmocka_unit_test_setup(test_library_in_other_folders, setup),
        cmocka_unit_test_setup(test_library_that_does_not_start, setup),
        cmocka_unit_test_setup(test_damaged_file, setup),
    };
    return cmocka_run_group_tests_name("the library of products", tests, NULL, NULL);
}
