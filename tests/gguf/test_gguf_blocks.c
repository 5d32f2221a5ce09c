/* The codecs of GGUF blocks, against llama.cpp's, and the error that the search for scales leaves. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "tests/gguf/fixture.h"
#include "tests/support/golden.h"

enum { ROW = 256 };

static void check_same_bytes(const char *what, const void *got, const void *want, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)got)[i] != ((const unsigned char *)want)[i])
            fail_msg("%s: byte %zu is %02x, should be %02x", what, i, ((const unsigned char *)got)[i],
                     ((const unsigned char *)want)[i]);
}

/* Of types with a search: codes whose scale is 0 differ from llama.cpp's, so the values are compared. */
static void check_encoding(const struct ot_gguf_type *type, const float *values, int64_t n,
                           const void *blocks, const float *decoded) {
    int64_t n_blocks = n / type->block_values;
    unsigned char *made = malloc((size_t)(n_blocks * type->block_bytes));
    float *got = malloc((size_t)n * sizeof *got);
    type->encode(values, n_blocks, made);
    type->decode(made, n_blocks, got);
    if (type->block_values < ROW)
        check_same_bytes(type->name, made, blocks, (size_t)(n_blocks * type->block_bytes));
    for (int64_t i = 0; i < n; i++)
        if (got[i] != decoded[i])
            fail_msg("%s: value %d becomes %g, should become %g", type->name, (int)i, (double)got[i],
                     (double)decoded[i]);
    free(made);
    free(got);
}

/* The first blocks are those of the values; others follow, to be decoded. */
static void check_type(const struct ot_golden *golden, const struct ot_gguf_type *type) {
    char blocks_name[32], decoded_name[32];
    int64_t n_values, n_decoded, n_words;
    snprintf(blocks_name, sizeof blocks_name, "%s.blocks", type->name);
    snprintf(decoded_name, sizeof decoded_name, "%s.decoded", type->name);
    const float *values = golden_f32(golden, "values", &n_values);
    const float *decoded = golden_f32(golden, decoded_name, &n_decoded);
    const void *blocks = golden_i32(golden, blocks_name, &n_words);
    int64_t n_blocks = n_decoded / type->block_values;
    assert_true(n_blocks * type->block_bytes <= n_words * 4 && n_decoded >= n_values && n_values > 0);
    float *got = malloc((size_t)n_decoded * sizeof *got);
    type->decode(blocks, n_blocks, got);
    if (type->id != OT_GGUF_MXFP4) /* whose zeros have a sign here */
        check_same_bytes(decoded_name, got, decoded, (size_t)n_decoded * sizeof *got);
    for (int64_t i = 0; i < n_decoded; i++)
        assert_true(got[i] == decoded[i]);
    check_encoding(type, values, n_values, blocks, decoded);
    free(got);
}

static void test_blocks_are_those_of_llama_cpp(void **state) {
    static const enum ot_gguf_type_id ids[] = {OT_GGUF_F16,  OT_GGUF_BF16,  OT_GGUF_Q8_0, OT_GGUF_Q5_0,
                                               OT_GGUF_Q4_0, OT_GGUF_MXFP4, OT_GGUF_Q4_K, OT_GGUF_Q6_K};
    struct ot_golden *golden = golden_open("gguf/blocks.bin");
    (void)state;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        check_type(golden, ot_gguf_type(ids[i]));
    golden_close(golden);
}

/* Every scale with every code: what is decoded is encoded to what decodes to the same bits. */
static void test_mxfp4_is_kept(void **state) {
    const struct ot_gguf_type *type = ot_gguf_type(OT_GGUF_MXFP4);
    enum { N = 32, BYTES = 17, MOST_FINITE = 252 }; /* above it, 6 times the scale is infinite */
    (void)state;
    assert_int_equal(type->block_bytes, BYTES);
    for (int scale = 0; scale <= MOST_FINITE; scale++)
        for (int most = 0; most < 8; most++) {
            unsigned char block[BYTES] = {(unsigned char)scale}, again[BYTES];
            float values[N], got[N];
            for (int i = 0; i < 16; i++)
                block[1 + i] =
                    (unsigned char)(i % (most + 1) | (i % 2 * 8) | (most << 4) | (i % 3 % 2 * 128));
            type->decode(block, 1, values);
            type->encode(values, 1, again);
            type->decode(again, 1, got);
            check_same_bytes("MXFP4", got, values, sizeof values);
        }
    unsigned char no_number[BYTES] = {255};
    float values[N];
    type->decode(no_number, 1, values);
    assert_true(isnan(values[0]) && isnan(values[N - 1]));
}

/* The root of the mean square of (decoded - values), as a share of that of the values. */
static double error_of(const struct ot_gguf_type *type, const float *values) {
    unsigned char block[ROW];
    float got[ROW];
    assert_true(type->block_values == ROW && type->block_bytes <= ROW);
    type->encode(values, 1, block);
    type->decode(block, 1, got);
    for (int i = 0; i < ROW; i++)
        assert_true(isfinite(got[i]));
    return relative_error(got, values, ROW);
}

/* Fills the row with normal numbers: the sum of 12 uniform numbers less 6. */
static void fill_normal(float *values, uint64_t seed) {
    for (int i = 0; i < ROW; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++)
            sum += (double)(mix_bits(seed * 100000 + (uint64_t)(i * 12 + k)) >> 11) * 0x1p-53;
        values[i] = (float)sum;
    }
}

/* The error of rounding each part of n values to the nearest of even steps, with exact scales: over the
 * part's range, with 0 in it, or from -31 to 31. This is the error without a search. */
static double plain_error(const float *values, int n, int steps, bool is_signed) {
    float got[ROW];
    for (int part = 0; part < ROW; part += n) {
        float low = 0, high = 0;
        for (int i = part; i < part + n; i++) {
            low = fminf(low, values[i]);
            high = fmaxf(high, values[i]);
        }
        float step = is_signed ? fmaxf(high, -low) / (float)steps : (high - low) / (float)steps;
        float zero = is_signed ? 0 : low;
        for (int i = part; i < part + n; i++)
            got[i] = zero + step * rintf((values[i] - zero) / step);
    }
    return relative_error(got, values, ROW);
}

static void test_the_search_is_better_than_plain_rounding(void **state) {
    enum { ROWS = 64 };
    double q4 = 0, q6 = 0, plain4 = 0, plain6 = 0;
    (void)state;
    for (uint64_t row = 0; row < ROWS; row++) {
        float values[ROW];
        fill_normal(values, row);
        q4 += error_of(ot_gguf_type(OT_GGUF_Q4_K), values) / ROWS;
        q6 += error_of(ot_gguf_type(OT_GGUF_Q6_K), values) / ROWS;
        plain4 += plain_error(values, 32, 15, false) / ROWS;
        plain6 += plain_error(values, 16, 31, true) / ROWS;
    }
    printf("mean error: Q4_K %.4f, plain %.4f; Q6_K %.4f, plain %.4f\n", q4, plain4, q6, plain6);
    assert_true(q4 > plain4 / 2 && q4 < plain4);
    assert_true(q6 > plain6 / 2 && q6 < plain6);
}

/* Rows without a scale to search for: zeros, equal values, one value, tiny and huge values. */
static void test_searched_types_take_odd_rows(void **state) {
    static const enum ot_gguf_type_id types[] = {OT_GGUF_Q4_K, OT_GGUF_Q6_K};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        const struct ot_gguf_type *type = ot_gguf_type(types[t]);
        float row[ROW] = {0};
        unsigned char block[ROW];
        type->encode(row, 1, block);
        float got[ROW];
        type->decode(block, 1, got);
        assert_memory_equal(got, row, sizeof row);
        for (int i = 0; i < ROW; i++)
            row[i] = 2.5f;
        assert_true(error_of(type, row) < 0.01);
        for (int i = 0; i < ROW; i++)
            row[i] = -0.37f;
        assert_true(error_of(type, row) < 0.01);
        memset(row, 0, sizeof row);
        row[100] = -3;
        assert_true(error_of(type, row) < 0.04);
        for (int i = 0; i < ROW; i++)
            row[i] = i % 2 ? 1e-38f : -1e-38f; /* the scale is 0 as fp16 */
        assert_true(error_of(type, row) <= 1);
        for (int i = 0; i < ROW; i++)
            row[i] = (i % 2 ? 1.0f : -1.0f) * type->largest;
        assert_true(error_of(type, row) < 0.1);
    }
}

/* The id, the values and the bytes of a block: GGML_QUANT_SIZES of the Python package gguf 0.19. The sizes
 * say which bytes of a file are a tensor's. */
static const uint32_t SIZES[][3] = {
    {0, 1, 4},      {1, 1, 2},      {2, 32, 18},   {3, 32, 20},    {6, 32, 22},    {7, 32, 24},
    {8, 32, 34},    {9, 32, 40},    {10, 256, 84}, {11, 256, 110}, {12, 256, 144}, {13, 256, 176},
    {14, 256, 210}, {15, 256, 292}, {16, 256, 66}, {17, 256, 74},  {18, 256, 98},  {19, 256, 50},
    {20, 32, 18},   {21, 256, 110}, {22, 256, 82}, {23, 256, 136}, {24, 1, 1},     {25, 1, 2},
    {26, 1, 4},     {27, 1, 8},     {28, 1, 8},    {29, 256, 56},  {30, 1, 2},     {34, 256, 54},
    {35, 256, 66},  {39, 32, 17},   {40, 64, 36},  {41, 128, 18}};
enum { TYPES = sizeof SIZES / sizeof *SIZES };

/* Every type's size holds whole blocks, and no two types have one id or one name. */
static void test_the_table_of_types(void **state) {
    int n = 0;
    (void)state;
    for (int i = 0; i < TYPES; i++) {
        const struct ot_gguf_type *type = ot_gguf_type(SIZES[i][0]);
        assert_non_null(type);
        assert_int_equal(type->block_values, SIZES[i][1]);
        assert_int_equal(type->block_bytes, SIZES[i][2]);
    }
    for (uint32_t id = 0; id < 100; id++) {
        const struct ot_gguf_type *type = ot_gguf_type(id);
        if (!type)
            continue;
        assert_int_equal(type->id, id);
        assert_true(type->block_values > 0 && type->block_values <= OT_GGUF_MAX_BLOCK_VALUES);
        assert_int_equal(type->block_values & (type->block_values - 1), 0);
        assert_int_equal(type->decode != NULL, type->encode != NULL);
        assert_int_equal(type->decode != NULL, strstr(ot_gguf_readable_types(), type->name) != NULL &&
                                                   strcmp(type->name, "Q4_1") != 0);
        n++;
    }
    assert_int_equal(n, TYPES);
    assert_null(ot_gguf_type(UINT32_MAX));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_those_of_llama_cpp),
        cmocka_unit_test(test_mxfp4_is_kept),
        cmocka_unit_test(test_the_search_is_better_than_plain_rounding),
        cmocka_unit_test(test_searched_types_take_odd_rows),
        cmocka_unit_test(test_the_table_of_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
