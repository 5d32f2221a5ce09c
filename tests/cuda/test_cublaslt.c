/* The real libcublasLt has the functions, numbers and struct sizes that our table declares. The library needs
 * no GPU to be opened and to accept or refuse descriptors. Skipped where it is not installed. */
#include <stdio.h>

#include "kernels/cuda/cublaslt.h"
#include "tests/support/check.h"

enum { NEWEST_DRIVER = 99000 };

static struct ot_cublaslt lt;

static void test_desc_takes_attributes(void **state) {
    (void)state;
    struct ot_cublaslt_desc *desc;
    const int32_t transposed = OT_CUBLASLT_OP_T, bias_type = OT_CUBLASLT_R_16BF;
    const uint32_t epilogue = OT_CUBLASLT_EPILOGUE_BIAS;
    const void *bias = &epilogue;
    static const int computes[] = {OT_CUBLASLT_COMPUTE_32F, OT_CUBLASLT_COMPUTE_32F_PEDANTIC};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lt.desc_create(&desc, computes[i], OT_CUBLASLT_R_32F), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_TRANSA, &transposed, 4), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_TRANSB, &transposed, 4), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_EPILOGUE, &epilogue, 4), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_BIAS_DATA_TYPE, &bias_type, 4),
                         OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_BIAS_POINTER, &bias, 8), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.desc_set(desc, OT_CUBLASLT_DESC_TRANSA, &bias, 8), OT_CUBLASLT_INVALID_VALUE);
        assert_int_equal(lt.desc_destroy(desc), OT_CUBLASLT_SUCCESS);
    }
}

static void test_pref_takes_attributes(void **state) {
    (void)state;
    struct ot_cublaslt_pref *pref;
    const uint64_t workspace = 32 << 20;
    const uint32_t word = 2;
    assert_int_equal(lt.pref_create(&pref), OT_CUBLASLT_SUCCESS);
    assert_int_equal(lt.pref_set(pref, OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES, &workspace, 8),
                     OT_CUBLASLT_SUCCESS);
    assert_int_equal(lt.pref_set(pref, OT_CUBLASLT_PREF_REDUCTION_SCHEME_MASK, &word, 4),
                     OT_CUBLASLT_SUCCESS);
    for (int i = OT_CUBLASLT_PREF_MIN_ALIGNMENT_A_BYTES; i <= OT_CUBLASLT_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        assert_int_equal(lt.pref_set(pref, i, &word, 4), OT_CUBLASLT_SUCCESS);
    assert_int_equal(lt.pref_set(pref, OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES, &word, 4),
                     OT_CUBLASLT_INVALID_VALUE);
    assert_int_equal(lt.pref_destroy(pref), OT_CUBLASLT_SUCCESS);
}

static void test_layouts_and_algorithms(void **state) {
    (void)state;
    static const int types[] = {OT_CUBLASLT_R_32F, OT_CUBLASLT_R_16F, OT_CUBLASLT_R_16BF};
    for (int i = 0; i < 3; i++) {
        struct ot_cublaslt_layout *layout;
        assert_int_equal(lt.layout_create(&layout, types[i], 100, 200, 104), OT_CUBLASLT_SUCCESS);
        assert_int_equal(lt.layout_destroy(layout), OT_CUBLASLT_SUCCESS);
    }
    const struct ot_cublaslt_algo algo = {{0}};
    uint32_t reduction = 99;
    size_t written = 0;
    assert_int_equal(lt.algo_config_get(&algo, OT_CUBLASLT_CONFIG_REDUCTION_SCHEME, &reduction, 4, &written),
                     OT_CUBLASLT_SUCCESS);
    assert_true(written == 4 && reduction == OT_CUBLASLT_REDUCTION_NONE);
}

static void test_says_what_is_wrong(void **state) {
    (void)state;
    assert_string_not_equal(lt.get_status_string(OT_CUBLASLT_INVALID_VALUE),
                            lt.get_status_string(OT_CUBLASLT_NOT_SUPPORTED));
}

int main(void) {
    if (ot_cublaslt_open(NULL, NEWEST_DRIVER, &lt) < 0) {
        fprintf(stderr, "SKIP: %s\n", ot_error_text());
        return 77;
    }
    /* Scripts/gpu-check prints this line. */
    printf("cuBLASLt %d.%d.%d from %s\n", lt.major, lt.minor, lt.patch, lt.path);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_desc_takes_attributes),
        cmocka_unit_test(test_pref_takes_attributes),
        cmocka_unit_test(test_layouts_and_algorithms),
        cmocka_unit_test(test_says_what_is_wrong),
    };
    return cmocka_run_group_tests_name("cublaslt", tests, NULL, NULL);
}
