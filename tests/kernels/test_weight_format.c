/* The storage types of frozen weights: layouts, codes and numbers of bitsandbytes
 * (scripts/golden/weights.py) and of torchao and transformers (scripts/golden/mxfp4.py), parts and threads,
 * numbers that are refused. */
#include "tests/kernels/weight_fixture.h"

#include <stdio.h>

#include "tests/support/golden.h"

static struct ot_golden *golden, *of_mxfp4;
static struct ot_pool *pool;

static int open_all(void **state) {
    (void)state;
    golden = golden_open("weights.bin");
    of_mxfp4 = golden_open("mxfp4.bin");
    return ot_pool_open(2, "encode", &pool);
}

static int close_all(void **state) {
    (void)state;
    golden_close(golden);
    golden_close(of_mxfp4);
    ot_pool_close(pool);
    return 0;
}

/* ---- golden arrays ---- */

static const char *path(const char *where, const char *name) {
    static char text[64];
    snprintf(text, sizeof text, "%s.%s", where, name);
    return text;
}

static const float *floats(const char *where, const char *name) {
    return golden_f32(golden, path(where, name), NULL);
}

static const void *words(const char *where, const char *name) {
    return golden_i32(golden, path(where, name), NULL);
}

/* NaNs do not occur; -0 differs from 0. */
static void check_bits(const char *where, const char *name, const void *got, const void *want,
                       int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        if (((const uint8_t *)got)[i] != ((const uint8_t *)want)[i])
            fail_msg("%s.%s differs at byte %lld of %lld", where, name, (long long)i, (long long)bytes);
}

/* Values of a dtype from fp32. The caller frees them. */
static void *values_of(enum ot_dtype dtype, const float *x, int64_t n) {
    void *values = malloc((size_t)n * ot_dtype_bytes(dtype));
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        ot_dtype_write(dtype, values, i, x[i]);
    return values;
}

static void check_decoded(const struct ot_weight *w, const void *encoded, enum ot_dtype dtype,
                          const char *where, const char *name, const void *want) {
    int64_t n = ot_weight_layout(w).n, bytes = n * (int64_t)ot_dtype_bytes(dtype);
    void *out = malloc((size_t)bytes);
    assert_non_null(out);
    ot_weight_decode(w, encoded, dtype, 0, n, out);
    check_bits(where, name, out, want, bytes);
    free(out);
}

/* ---- names, sizes, layouts ---- */

static void test_weight_format_names(void **state) {
    (void)state;
    for (int i = 0; i < OT_WEIGHT_FORMATS; i++) {
        enum ot_weight_format format = OT_WEIGHT_FORMATS;
        assert_true(ot_weight_format_from_name(ot_weight_format_name((enum ot_weight_format)i), &format));
        assert_int_equal(format, i);
        if (i <= OT_F16)
            assert_string_equal(ot_weight_format_name(format), ot_dtype_name((enum ot_dtype)i));
    }
    enum ot_weight_format kept = OT_WEIGHT_INT8;
    assert_false(ot_weight_format_from_name("nf", &kept));
    assert_false(ot_weight_format_from_name("", &kept));
    assert_int_equal(kept, OT_WEIGHT_INT8);
}

static void test_weight_sizes_are_checked(void **state) {
    (void)state;
    static const int64_t wrong[][2] = {{0, 4},         {4, 0},
                                       {-1, 4},        {4, INT64_MIN},
                                       {INT64_MAX, 2}, {(int64_t)1 << 33, (int64_t)1 << 32},
                                       {3, INT64_MAX}, {1, ((int64_t)1 << 42) + 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        check_fails(ot_weight_check(&(struct ot_weight){OT_WEIGHT_NF4, wrong[i][0], wrong[i][1]}), OT_E_INPUT,
                    wrong[i][0] < 1 || wrong[i][1] < 1 ? "has no weights" : "is too large");
    check_fails(ot_weight_check(&(struct ot_weight){OT_WEIGHT_FORMATS, 1, 1}), OT_E_INPUT, "storage type");
    check_fails(ot_weight_check(&(struct ot_weight){(enum ot_weight_format) - 1, 1, 1}), OT_E_INPUT,
                "storage type");
    check_ok(ot_weight_check(&(struct ot_weight){OT_WEIGHT_NF4, (int64_t)1 << 21, (int64_t)1 << 21}));
}

/* The parts follow each other at aligned places; a large matrix takes the bits that the header says. */
static void test_weight_layouts(void **state) {
    (void)state;
    static const double bits[OT_WEIGHT_FORMATS] = {32, 16, 16, 8 + 32.0 / 4096, 4.5, 4.126953125, 4.25};
    static const int64_t shapes[][2] = {{1, 1}, {1, 8191}, {3, 64}, {77, 129}, {1000, 1}, {4096, 4096}};
    for (int format = 0; format < OT_WEIGHT_FORMATS; format++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            struct ot_weight w = {(enum ot_weight_format)format, shapes[s][0], shapes[s][1]};
            struct ot_weight_layout l = ot_weight_layout(&w);
            bool nf4 = format == OT_WEIGHT_NF4 || format == OT_WEIGHT_NF4_DOUBLE;
            int64_t scale_bytes = format == OT_WEIGHT_NF4_DOUBLE || format == OT_WEIGHT_MXFP4 ? 1 : 4;
            int64_t ends[] = {l.code_bytes, l.scales + l.n_scales * scale_bytes,
                              l.group_scales + l.n_groups * 4,
                              l.tables + (nf4 ? (int64_t)sizeof(struct ot_weight_tables) : 0)};
            int64_t begins[] = {l.scales, l.group_scales, l.tables, l.bytes};
            for (int i = 0; i < 4; i++) {
                assert_true(ends[i] <= begins[i] && begins[i] - ends[i] < (i < 3 ? 256 : 4096));
                assert_int_equal(begins[i] % (i < 3 ? 256 : 4096), 0);
            }
            assert_true(l.n_scales * l.unit >= l.n || ot_weight_is_plain(w.format));
            assert_true((l.n_scales - 1) * l.unit < l.n);
            if (l.n == 4096 * 4096) /* and up to 8 KiB of padding and tables */
                assert_true(fabs((double)l.bytes * 8 / (double)l.n - bits[format]) <
                            8192 * 8.0 / (double)l.n);
        }
}

static void test_weight_tables(void **state) {
    (void)state;
    struct ot_weight_tables tables;
    ot_weight_default_tables(&tables);
    check_bits("nested", "map", tables.map, floats("nested", "map"), sizeof tables.map);
    for (int i = 1; i < 256; i++)
        assert_true(tables.map[i] > tables.map[i - 1] && (i > 15 || tables.table[i] > tables.table[i - 1]));
    assert_true(tables.offset == 0.0f);
}

/* ---- bitsandbytes ---- */

static void check_nf4(const char *where, enum ot_dtype dtype, const float *x, int64_t n) {
    struct ot_weight w = {OT_WEIGHT_NF4, 1, n};
    struct ot_weight_layout l = ot_weight_layout(&w);
    void *values = values_of(dtype, x, n), *encoded = weight_encoded(&w, dtype, values, pool, 0xaa);
    check_bits(where, "codes", encoded, words(where, "codes"), l.code_bytes);
    check_bits(where, "absmax", (char *)encoded + l.scales, floats(where, "absmax"), l.n_scales * 4);
    if (golden_has(golden, path(where, "f32")))
        check_decoded(&w, encoded, OT_F32, where, "f32", floats(where, "f32"));
    if (golden_has(golden, path(where, "bf16")))
        check_decoded(&w, encoded, OT_BF16, where, "bf16", words(where, "bf16"));
    if (golden_has(golden, path(where, "f16")))
        check_decoded(&w, encoded, OT_F16, where, "f16", words(where, "f16"));
    free(values);
    free(encoded);
}

static void test_nf4_is_that_of_bitsandbytes(void **state) {
    (void)state;
    int64_t n;
    float *x = weight_formula(64 * 48);
    check_nf4("nf4.f32", OT_F32, x, 64 * 48);
    check_nf4("nf4.bf16", OT_BF16, x, 64 * 48);
    check_nf4("nf4.f16", OT_F16, x, 64 * 48);
    const float *special = golden_f32(golden, "special.x", &n);
    check_nf4("special", OT_F32, special, n);
    static const int tails[] = {1, 2, 63, 65, 64 * 3 + 17};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        char where[16];
        snprintf(where, sizeof where, "tail.%d", tails[i]);
        check_nf4(where, OT_F32, x, tails[i]);
    }
    free(x);
}

/* Codes and scales of ours are the nearest, with the mean in double. bitsandbytes' own bytes, as a checkpoint
 * has them, decode to its numbers. */
static void test_double_nf4_is_that_of_bitsandbytes(void **state) {
    (void)state;
    enum { N = 64 * (256 + 77), LAST = 6000 };
    struct ot_weight w = {OT_WEIGHT_NF4_DOUBLE, 1, N};
    struct ot_weight_layout l = ot_weight_layout(&w);
    float *x = weight_formula(N), *out = malloc(LAST * sizeof *out);
    char *encoded = weight_encoded(&w, OT_F32, x, pool, 0x55);
    struct ot_weight_tables *tables = (struct ot_weight_tables *)(encoded + l.tables);
    assert_non_null(out);
    check_bits("nested", "offset", &tables->offset, floats("nested", "offset_double"), 4);
    check_bits("nested", "scales", encoded + l.scales, words("nested", "scales"), l.n_scales);
    check_bits("nested", "groups", encoded + l.group_scales, floats("nested", "groups"), l.n_groups * 4);
    memcpy(encoded + l.scales, words("nested", "cpu_scales"), (size_t)l.n_scales);
    memcpy(encoded + l.group_scales, floats("nested", "cpu_groups"), (size_t)l.n_groups * 4);
    tables->offset = *floats("nested", "offset");
    check_decoded(&w, encoded, OT_BF16, "nested", "cpu_bf16", words("nested", "cpu_bf16"));
    int64_t first = (N - LAST) / 64 * 64, skip = N - LAST - first;
    out = realloc(out, (size_t)(N - first) * sizeof *out);
    assert_non_null(out);
    ot_weight_decode(&w, encoded, OT_F32, first, N - first, out);
    check_bits("nested", "cpu_f32", out + skip, floats("nested", "cpu_f32"), LAST * 4);
    free(encoded);
    free(out);
    free(x);
}

static void test_int8_is_that_of_bitsandbytes(void **state) {
    (void)state;
    enum { ROWS = 40, COLS = 83 };
    static const char *const cases[] = {"int8.f32", "int8.bf16", "int8.f16"};
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        const char *where = cases[dtype];
        const float *x = floats("int8", "x");
        struct ot_weight w = {OT_WEIGHT_INT8, dtype == OT_F16 ? ROWS - 2 : ROWS, COLS};
        struct ot_weight_layout l = ot_weight_layout(&w);
        float *kept = malloc(ROWS * COLS * sizeof *kept);
        assert_non_null(kept);
        memcpy(kept, x, ROWS * COLS * sizeof *kept);
        if (dtype == OT_F16) /* without the rows that fp16 does not have */
            memmove(kept + 4 * COLS, kept + 6 * COLS, (ROWS - 6) * COLS * sizeof *kept);
        void *values = values_of((enum ot_dtype)dtype, kept, l.n);
        char *encoded = weight_encoded(&w, (enum ot_dtype)dtype, values, pool, 0x11);
        check_bits(where, "codes", encoded, words(where, "codes"), l.code_bytes);
        check_bits(where, "absmax", encoded + l.scales, floats(where, "absmax"), l.n_scales * 4);
        check_decoded(&w, encoded, (enum ot_dtype)dtype, where, "decoded",
                      dtype == OT_F32 ? (const void *)floats(where, "decoded") : words(where, "decoded"));
        free(encoded);
        free(values);
        free(kept);
    }
}

/* ---- MXFP4 ---- */

static void check_mx(const char *where, enum ot_dtype dtype, const float *x, int64_t n) {
    struct ot_weight w = {OT_WEIGHT_MXFP4, n / 32, 32};
    struct ot_weight_layout l = ot_weight_layout(&w);
    void *values = values_of(dtype, x, n);
    char *encoded = weight_encoded(&w, dtype, values, pool, 0xaa);
    check_bits(where, "scales", encoded + l.scales, golden_i32(of_mxfp4, path(where, "scales"), NULL),
               l.n_scales);
    check_bits(where, "codes", encoded, golden_i32(of_mxfp4, path(where, "codes"), NULL), l.code_bytes);
    free(values);
    free(encoded);
}

static void test_mxfp4_is_that_of_torchao(void **state) {
    (void)state;
    int64_t n;
    float *x = weight_formula(64 * 48);
    check_mx("encode.f32", OT_F32, x, 64 * 48);
    check_mx("encode.bf16", OT_BF16, x, 64 * 48);
    const float *special = golden_f32(of_mxfp4, "special.x", &n);
    check_mx("special", OT_F32, special, n);
    free(x);
}

/* Every scale with 16 of the bytes, as a file of gpt-oss has them. bf16 has all of their numbers; large ones
 * are infinite in fp16, and from 2^128 on everywhere. */
static void test_mxfp4_decodes_as_in_transformers(void **state) {
    (void)state;
    enum { N = 255 * 32 };
    static float f32[N];
    static uint16_t bf16[N], f16[N];
    struct ot_weight w = {OT_WEIGHT_MXFP4, 255, 32};
    uint8_t *encoded = aligned_bytes((size_t)ot_weight_layout(&w).bytes);
    ot_weight_begin(&w, encoded);
    for (int i = 0; i < N / 2; i++)
        encoded[i] = (uint8_t)i;
    for (int s = 0; s < 255; s++)
        encoded[ot_weight_layout(&w).scales + s] = (uint8_t)s;
    ot_weight_decode(&w, encoded, OT_F32, 0, N, f32);
    ot_weight_decode(&w, encoded, OT_BF16, 0, N, bf16);
    ot_weight_decode(&w, encoded, OT_F16, 0, N, f16);
    check_bits("decode", "bf16", bf16, golden_i32(of_mxfp4, "decode.bf16", NULL), sizeof bf16);
    check_bits("decode", "f16", f16, golden_i32(of_mxfp4, "decode.f16", NULL), sizeof f16);
    int infinite = 0;
    for (int i = 0; i < N; i++) {
        infinite += isinf(f32[i]) != 0;
        assert_int_equal(ot_f32_bits(f32[i]), (uint32_t)bf16[i] << 16);
        assert_true((ot_dtype_read(OT_F16, f16, i) > 65504.0f) == (f32[i] >= 65520.0f));
    }
    /* Scale 254 has bytes e0..ef: -4 in each upper half, 2 or more in half of the lower ones. Scale 253 has
     * d0..df: 4 or 6 in a quarter of the lower ones. */
    assert_int_equal(infinite, 16 + 8 + 4);
    free(encoded);
}

/* Random blocks of every scale: encoding what they decode to gives bytes with the same numbers, and the same
 * bytes where the header says so. */
static void test_decoded_mxfp4_stays(void **state) {
    (void)state;
    enum { BLOCKS = 253 * 16, N = BLOCKS * 32 };
    struct ot_weight w = {OT_WEIGHT_MXFP4, BLOCKS, 32};
    struct ot_weight_layout l = ot_weight_layout(&w);
    uint8_t *file = aligned_bytes((size_t)l.bytes);
    float *once = malloc(N * sizeof *once), *twice = malloc(N * sizeof *twice);
    int same = 0;
    assert_true(once && twice);
    ot_weight_begin(&w, file);
    for (int block = 0; block < BLOCKS; block++) {
        /* The largest magnitude of a block has at most the code block % 8. */
        for (int i = 0; i < 16; i++) {
            uint32_t random = weight_mix((uint32_t)(block * 16 + i));
            uint32_t low = (random & 7) % (uint32_t)(block % 8 + 1),
                     high = (random >> 3 & 7) % (uint32_t)(block % 8 + 1);
            file[block * 16 + i] = (uint8_t)(low | (random & 64) >> 3 | high << 4 | (random & 128));
        }
        file[l.scales + block] = (uint8_t)(block / 16);
    }
    ot_weight_decode(&w, file, OT_F32, 0, N, once);
    uint8_t *again = weight_encoded(&w, OT_F32, once, pool, 0x77);
    ot_weight_decode(&w, again, OT_F32, 0, N, twice);
    check_bits("mxfp4", "twice", twice, once, N * sizeof *once);
    for (int block = 0; block < BLOCKS; block++) {
        uint8_t most = 0;
        for (int i = 0; i < 32; i++) {
            uint8_t code = file[block * 16 + i / 2] >> (i % 2 * 4) & 7;
            most = code > most ? code : most;
        }
        if (most < 6 && file[l.scales + block] > 0)
            continue;
        assert_memory_equal(file + block * 16, again + block * 16, 16);
        assert_int_equal(file[l.scales + block], again[l.scales + block]);
        same++;
    }
    assert_true(same > BLOCKS / 5 && same < BLOCKS / 3);
    free(again);
    free(twice);
    free(once);
    free(file);
}

/* ---- codes ---- */

/* All 256 bytes, each with several scales, against the two products of the header. */
static void test_every_nibble_decodes(void **state) {
    (void)state;
    static const float scales[] = {1, 0, 3e-5f, 0x1p-149f, 1.7e38f, -2.5f};
    enum { BLOCKS = 6 * 8, N = BLOCKS * 64 };
    static float out[N];
    struct ot_weight w = {OT_WEIGHT_NF4, BLOCKS, 64};
    struct ot_weight_layout l = ot_weight_layout(&w);
    char *encoded = weight_example(&w);
    const struct ot_weight_tables *tables = (const struct ot_weight_tables *)(encoded + l.tables);
    for (int i = 0; i < N / 2; i++)
        encoded[i] = (char)(i % 256);
    for (int i = 0; i < BLOCKS; i++)
        ((float *)(encoded + l.scales))[i] = scales[i / 8];
    ot_weight_decode(&w, encoded, OT_F32, 0, N, out);
    for (int i = 0; i < N; i++) {
        float want = tables->table[i % 2 ? i / 2 % 16 : i / 2 % 256 / 16] * scales[i / 64 / 8];
        assert_int_equal(ot_f32_bits(out[i]), ot_f32_bits(want));
    }
    free(encoded);
}

/* What was decoded to fp32 has the same codes and scales again. NF4_DOUBLE has not: its scales change. */
static void test_decoded_weights_stay(void **state) {
    (void)state;
    struct ot_weight w = {OT_WEIGHT_NF4, 61, 331};
    struct ot_weight_layout l = ot_weight_layout(&w);
    float *x = weight_formula(l.n), *decoded = malloc((size_t)l.n * sizeof *decoded);
    assert_non_null(decoded);
    memset(x + 640, 0, 64 * sizeof *x);
    void *once = weight_encoded(&w, OT_F32, x, pool, 0);
    ot_weight_decode(&w, once, OT_F32, 0, l.n, decoded);
    void *twice = weight_encoded(&w, OT_F32, decoded, pool, 0xff);
    assert_memory_equal(once, twice, (size_t)l.bytes);
    free(twice);
    free(once);
    free(decoded);
    free(x);
}

/* The error of a weight is at most half the widest gap of the table (0.304), or half a step of int8, times
 * the largest of the block; double quantisation adds the error of the scale. A block of MXFP4 has a largest
 * of 4 to 8 of its scale: numbers of up to 6 are off by 1 at most, those above by less than 2 of 8. */
static void test_weights_are_near(void **state) {
    (void)state;
    static const double most[] = {[OT_WEIGHT_INT8] = 0.5 / 127 + 1e-6,
                                  [OT_WEIGHT_NF4] = 0.1520,
                                  [OT_WEIGHT_NF4_DOUBLE] = 0.1520,
                                  [OT_WEIGHT_MXFP4] = 0.25};
    struct ot_weight w = {OT_WEIGHT_INT8, 40, 64 * 16};
    int64_t n = ot_weight_layout(&w).n;
    float *x = weight_formula(n), *out = malloc((size_t)n * sizeof *out);
    assert_non_null(out);
    for (int format = OT_WEIGHT_INT8; format < OT_WEIGHT_FORMATS; format++) {
        w.format = (enum ot_weight_format)format;
        struct ot_weight_layout l = ot_weight_layout(&w);
        void *encoded = weight_encoded(&w, OT_F32, x, pool, 0);
        ot_weight_decode(&w, encoded, OT_F32, 0, n, out);
        for (int64_t unit = 0; unit < l.n_scales; unit++) {
            float largest = 0;
            for (int64_t i = unit * l.unit; i < (unit + 1) * l.unit; i++)
                largest = fmaxf(largest, fabsf(x[i]));
            /* the largest scale is 1, and the widest gap of the map 0.0141 of the group's */
            double scale_error = format == OT_WEIGHT_NF4_DOUBLE ? 0.0071 : 0;
            for (int64_t i = unit * l.unit; i < (unit + 1) * l.unit; i++)
                assert_true(fabs((double)out[i] - (double)x[i]) <=
                            most[format] * (double)largest + scale_error);
        }
        free(encoded);
    }
    free(out);
    free(x);
}

/* ---- parts, threads, padding ---- */

/* Parts in any order, any number of threads, whatever was in the memory before: the same bytes. */
static void test_parts_and_threads_do_not_change_bytes(void **state) {
    (void)state;
    for (int format = 0; format < OT_WEIGHT_FORMATS; format++) {
        struct ot_weight w = {(enum ot_weight_format)format, 131, 389};
        struct ot_weight_layout l = ot_weight_layout(&w);
        float *x = weight_formula(l.n), *scales = malloc((size_t)(l.n_scales + 1) * sizeof *scales);
        void *whole = weight_encoded(&w, OT_F32, x, pool, 0), *parts = aligned_bytes((size_t)l.bytes);
        assert_non_null(scales);
        for (int threads = 1; threads <= 5; threads += 2) {
            struct ot_pool *other;
            float *kept = format == OT_WEIGHT_NF4_DOUBLE ? scales : NULL;
            check_ok(ot_pool_open(threads, "parts", &other));
            memset(parts, 0xff, (size_t)l.bytes);
            ot_weight_begin(&w, parts);
            int64_t units = (l.n + l.unit - 1) / l.unit, step = units / (3 + threads);
            for (int64_t end = units; end > 0; end -= step) {
                int64_t begin = end > step ? end - step : 0, first = begin * l.unit;
                int64_t n = (end * l.unit < l.n ? end * l.unit : l.n) - first;
                struct ot_weight_range range = {OT_F32, first, n, x + first};
                check_ok(ot_weight_encode(other, &w, &range, parts, kept));
            }
            ot_weight_end(other, &w, kept, parts);
            assert_memory_equal(whole, parts, (size_t)l.bytes);
            ot_pool_close(other);
        }
        free(parts);
        free(whole);
        free(scales);
        free(x);
    }
}

/* Plain formats round once, from any dtype, and keep NaNs and infinities. */
static void test_plain_weights(void **state) {
    (void)state;
    enum { N = 3 * 43 };
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = ldexpf(1.2345678f + (float)i * 0.01f, i % 60 - 30);
    x[5] = INFINITY, x[6] = NAN, x[7] = -0.0f;
    for (int from = OT_F32; from <= OT_F16; from++)
        for (int to = OT_F32; to <= OT_F16; to++) {
            struct ot_weight w = {(enum ot_weight_format)to, 3, 43};
            void *values = values_of((enum ot_dtype)from, x, N);
            void *encoded = weight_encoded(&w, (enum ot_dtype)from, values, pool, 0xff);
            for (int i = 0; i < N; i++) {
                uint16_t want[2] = {0};
                ot_dtype_write((enum ot_dtype)to, want, 0, ot_dtype_read((enum ot_dtype)from, values, i));
                assert_memory_equal((char *)encoded + (size_t)i * ot_dtype_bytes((enum ot_dtype)to), want,
                                    ot_dtype_bytes((enum ot_dtype)to));
            }
            free(encoded);
            free(values);
        }
}

/* ---- numbers that are refused ---- */

static void test_numbers_that_are_not_finite_are_refused(void **state) {
    (void)state;
    enum { ROWS = 400, COLS = 128 };
    static const int64_t places[] = {0, 63, 64, 127, 128, 17000, 30001, ROWS * COLS - 1};
    float *x = weight_formula(ROWS * COLS), *scales = malloc(ROWS * COLS / 64 * sizeof *scales);
    assert_non_null(scales);
    for (int format = OT_WEIGHT_INT8; format < OT_WEIGHT_FORMATS; format++) {
        struct ot_weight w = {(enum ot_weight_format)format, ROWS, COLS};
        struct ot_weight_range range = {OT_F32, 0, ROWS * COLS, x};
        void *encoded = aligned_bytes((size_t)ot_weight_layout(&w).bytes);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            char words_wanted[64];
            float before = x[places[i]], last = x[ROWS * COLS - 1];
            x[ROWS * COLS - 1] = NAN; /* the first one is named */
            x[places[i]] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            snprintf(words_wanted, sizeof words_wanted, "row %lld, column %lld is not a finite number",
                     (long long)(places[i] / COLS), (long long)(places[i] % COLS));
            check_fails(
                ot_weight_encode(pool, &w, &range, encoded, format == OT_WEIGHT_NF4_DOUBLE ? scales : NULL),
                OT_E_INPUT, words_wanted);
            x[places[i]] = before;
            x[ROWS * COLS - 1] = last;
        }
        free(encoded);
    }
    free(scales);
    free(x);
}

/* Rows of int8 beyond the range of bitsandbytes: so small that 127 / a is infinite. */
static void test_int8_of_tiny_rows(void **state) {
    (void)state;
    float x[3][2] = {{0x1p-149f, 0}, {2e-39f, -1e-39f}, {3e-37f, -3e-37f}}, out[6];
    struct ot_weight w = {OT_WEIGHT_INT8, 3, 2};
    void *encoded = weight_encoded(&w, OT_F32, x, pool, 0);
    static const int8_t codes[] = {0, 0, 1, 0, 102, -102};
    assert_memory_equal(encoded, codes, sizeof codes);
    ot_weight_decode(&w, encoded, OT_F32, 0, 6, out);
    for (int i = 0; i < 6; i++)
        assert_true(isfinite(out[i]));
    free(encoded);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_format_names),
        cmocka_unit_test(test_weight_sizes_are_checked),
        cmocka_unit_test(test_weight_layouts),
        cmocka_unit_test(test_weight_tables),
        cmocka_unit_test(test_nf4_is_that_of_bitsandbytes),
        cmocka_unit_test(test_double_nf4_is_that_of_bitsandbytes),
        cmocka_unit_test(test_int8_is_that_of_bitsandbytes),
        cmocka_unit_test(test_mxfp4_is_that_of_torchao),
        cmocka_unit_test(test_mxfp4_decodes_as_in_transformers),
        cmocka_unit_test(test_decoded_mxfp4_stays),
        cmocka_unit_test(test_every_nibble_decodes),
        cmocka_unit_test(test_decoded_weights_stay),
        cmocka_unit_test(test_weights_are_near),
        cmocka_unit_test(test_parts_and_threads_do_not_change_bytes),
        cmocka_unit_test(test_plain_weights),
        cmocka_unit_test(test_numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(test_int8_of_tiny_rows),
    };
    return cmocka_run_group_tests_name("weight_format", tests, open_all, close_all);
}
