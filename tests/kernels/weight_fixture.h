/* Encoded matrices for tests: made from numbers that a formula gives (scripts/golden/weights.py has the same
 * one), and a case that decodes a part of one on a device. */
#ifndef OT_TESTS_KERNELS_WEIGHT_FIXTURE_H
#define OT_TESTS_KERNELS_WEIGHT_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/weight_format.h"
#include "src/base/thread.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

static inline uint32_t weight_mix(uint32_t x) {
    x *= 0x9e3779b1u;
    x ^= x >> 15;
    x *= 0x85ebca77u;
    return x ^ x >> 13;
}

/* Numbers in [-1, 1) times a power of two for each 64. The caller frees them. */
static inline float *weight_formula(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        int32_t value = (int32_t)(weight_mix((uint32_t)i) >> 8) - (1 << 23);
        int power = (int)(weight_mix((uint32_t)(i / 64) + 12345) % 7) - 29;
        x[i] = ldexpf((float)value, power);
    }
    return x;
}

/* Encodes a whole matrix of values of a dtype. The memory has the layout's bytes, aligned to 4096; before, it
 * was full of `fill`. The caller frees it. */
static inline void *weight_encoded(const struct ot_weight *w, enum ot_dtype dtype, const void *values,
                                   struct ot_pool *pool, int fill) {
    struct ot_weight_layout l = ot_weight_layout(w);
    struct ot_weight_range range = {dtype, 0, l.n, values};
    bool nested = w->format == OT_WEIGHT_NF4_DOUBLE;
    float *scales = nested ? malloc((size_t)l.n_scales * sizeof *scales) : NULL;
    void *encoded = aligned_bytes((size_t)l.bytes);
    memset(encoded, fill, (size_t)l.bytes);
    check_ok(ot_weight_check(w));
    ot_weight_begin(w, encoded);
    check_ok(ot_weight_encode(pool, w, &range, encoded, scales));
    ot_weight_end(pool, w, scales, encoded);
    free(scales);
    return encoded;
}

/* A matrix of a formula's numbers, with every byte among its codes if it is large enough, and with scales of
 * MXFP4 at both ends of fp32 and of fp16. */
static inline void *weight_example(const struct ot_weight *w) {
    struct ot_pool *pool;
    struct ot_weight_layout l = ot_weight_layout(w);
    float *x = weight_formula(l.n);
    check_ok(ot_pool_open(1, "encode", &pool));
    uint8_t *encoded = weight_encoded(w, OT_F32, x, pool, 0xff);
    ot_pool_close(pool);
    free(x);
    if (!ot_weight_is_plain(w->format))
        for (int64_t i = 0; i + 2 < l.code_bytes; i += 3)
            encoded[i] = (uint8_t)(i / 3);
    static const uint8_t extremes[] = {0, 1, 254, 252, 127 + 14, 127 - 24, 2};
    for (int64_t i = 0; w->format == OT_WEIGHT_MXFP4 && i < l.n_scales; i += 2)
        encoded[l.scales + i] = extremes[i / 2 % 7];
    return encoded;
}

struct weight_case {
    struct ot_weight weight;
    int64_t first, n;
    const void *encoded;
};

/* Decodes a part to f->dtype: the result "decoded". */
static inline void run_weight_case(struct ops_fixture *f, const void *argument) {
    const struct weight_case *c = argument;
    struct ot_weight_layout l = ot_weight_layout(&c->weight);
    void *encoded = ops_upload_ids(f, c->encoded, l.bytes / 4), *out = ops_blank_values(f, f->dtype, c->n);
    f->ops->decode(f->lane, &(struct ot_decode){c->weight, f->dtype, c->first, c->n, encoded, out});
    ops_collect(f, "decoded", f->dtype, out, c->n);
}

/* Calls check for the whole matrix and for parts, of all formats and several shapes. */
static inline void for_weight_cases(void (*check)(const struct weight_case *c, int number)) {
    static const int64_t shapes[][2] = {{1, 1},   {1, 7},   {3, 64},   {5, 83},  {9, 31},
                                        {8, 128}, {1, 513}, {67, 520}, {300, 72}};
    int number = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int format = 0; format < OT_WEIGHT_FORMATS; format++) {
            struct weight_case c = {.weight = {(enum ot_weight_format)format, shapes[s][0], shapes[s][1]}};
            struct ot_weight_layout l = ot_weight_layout(&c.weight);
            void *encoded = weight_example(&c.weight);
            int64_t units = (l.n + l.unit - 1) / l.unit;
            c.encoded = encoded;
            for (int range = 0; range < 3; range++) { /* all, the upper two thirds, units in the middle */
                int64_t begin = units * range / 3, end = range == 2 ? units - units / 8 : units;
                c.first = begin * l.unit;
                c.n = (end * l.unit < l.n ? end * l.unit : l.n) - c.first;
                check(&c, number++);
            }
            free(encoded);
        }
}

#endif
