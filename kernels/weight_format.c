/* The reference of the storage types: kernels/weight_format.h operation by operation. The loops of encoding
 * work on 64 numbers at a time without branches, so the compiler makes vectors of them. */
#include "kernels/weight_format.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

static const char *const names[OT_WEIGHT_FORMATS] = {"fp32", "bf16",       "fp16", "int8",
                                                     "nf4",  "nf4-double", "mxfp4"};

const char *ot_weight_format_name(enum ot_weight_format format) {
    return names[format];
}

bool ot_weight_format_from_name(const char *name, enum ot_weight_format *out) {
    for (int i = 0; i < OT_WEIGHT_FORMATS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum ot_weight_format)i;
            return true;
        }
    return false;
}

int ot_weight_check(const struct ot_weight *w) {
    if ((unsigned)w->format >= OT_WEIGHT_FORMATS)
        return ot_fail(OT_E_INPUT, "%d is no storage type of weights", (int)w->format);
    if (w->rows < 1 || w->cols < 1)
        return ot_fail(OT_E_INPUT, "a matrix of %lld x %lld has no weights", (long long)w->rows,
                       (long long)w->cols);
    if (w->rows > OT_WEIGHT_MOST_ELEMS / w->cols)
        return ot_fail(OT_E_INPUT, "a matrix of %lld x %lld is too large: the most are 2^42 weights",
                       (long long)w->rows, (long long)w->cols);
    return 0;
}

/* ---- tables ---- */

static const float nf4_table[16] = {
    -1.0f,        -0.69619280f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.079580300f, 0.16093020f,  0.24611230f,  0.33791524f,  0.44070983f,  0.56261700f,  0.72295684f,   1.0f};

const float ot_weight_mx_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* One decade of the dynamic map: the means of neighbouring points of a line of n + 1 points from 0.1 to 1,
 * times power. The line is computed from both ends, as torch.linspace computes it on CPUs with fma. */
static void fill_decade(float *decade, int n, float power) {
    float point[65], step = (1.0f - 0.1f) / (float)n;
    for (int i = 0; i <= n; i++)
        point[i] = i < (n + 1) / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(n - i), 1.0f);
    for (int i = 0; i < n; i++)
        decade[i] = power * ((point[i] + point[i + 1]) / 2.0f);
}

void ot_weight_default_tables(struct ot_weight_tables *out) {
    static const float powers[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    memset(out, 0, sizeof *out);
    memcpy(out->table, nf4_table, sizeof out->table);
    /* 0 is at 127. Above it are decades of 1, 2, 4 ... 64 values, and 1; below it the same without 1. */
    for (int d = 0; d < 7; d++)
        fill_decade(out->map + 127 + (1 << d), 1 << d, powers[d]);
    for (int i = 0; i < 127; i++)
        out->map[126 - i] = -out->map[128 + i];
    out->map[255] = 1.0f;
}

static void middles_of(const float *table, int n, float *middles) {
    for (int i = 0; i + 1 < n; i++)
        middles[i] = (table[i] + table[i + 1]) / 2.0f;
}

/* ---- encoding ---- */

enum { BLOCK = OT_WEIGHT_BLOCK, MX_BLOCK = OT_WEIGHT_MX_BLOCK, CHUNK_ELEMENTS = 16384 };

struct encoding {
    const struct ot_weight *w;
    struct ot_weight_layout layout;
    const struct ot_weight_range *range;
    char *encoded;
    float *scales;              /* fp32 scales of the matrix; MXFP4 has none */
    _Atomic int64_t not_finite; /* the lowest index of the part that is not finite; n: none */
};

/* Reads n <= BLOCK values; the rest of the block becomes zeros. */
static void read_block(const struct ot_weight_range *range, int64_t at, int n, float *x) {
    if (n < BLOCK)
        memset(x, 0, BLOCK * sizeof *x);
    if (range->dtype == OT_F32) {
        memcpy(x, (const float *)range->values + at, (size_t)n * sizeof *x);
    } else if (range->dtype == OT_BF16) {
        const uint16_t *from = (const uint16_t *)range->values + at;
        for (int i = 0; i < n; i++)
            x[i] = ot_bf16_to_f32(from[i]);
    } else {
        const uint16_t *from = (const uint16_t *)range->values + at;
        for (int i = 0; i < n; i++)
            x[i] = ot_f16_to_f32(from[i]);
    }
}

/* The bits of the largest |x| of a block. The bits of numbers >= 0 are in the order of the numbers, with
 * infinity and NaNs at the end. */
static uint32_t largest_bits(const float *x) {
    uint32_t most = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint32_t bits = ot_f32_bits(x[i]) & 0x7fffffffu;
        most = ot_max(bits, most);
    }
    return most;
}

static bool is_finite(uint32_t bits) {
    return bits < 0x7f800000u;
}

/* Notes the first value of a block at `at` that is not finite. */
static void note_not_finite(struct encoding *e, int64_t at, const float *x) {
    while (is_finite(ot_f32_bits(*x) & 0x7fffffffu))
        x++, at++;
    int64_t known = atomic_load(&e->not_finite);
    while (at < known && !atomic_compare_exchange_weak(&e->not_finite, &known, at)) {
    }
}

/* 1 / a; for an a so small that this is infinite, and for 0, a number that makes codes of 0. */
static float inverse_of(float a) {
    return 1.0f / fmaxf(a, 1e-38f);
}

static void encode_nf4_block(const float *x, float inverse, const float *middles, uint8_t *codes, int bytes) {
    uint8_t code[BLOCK], packed[BLOCK / 2];
    for (int i = 0; i < BLOCK; i++) {
        float scaled = x[i] * inverse;
        uint32_t above = 0;
        for (int j = 0; j < 15; j++)
            above += scaled > middles[j];
        code[i] = (uint8_t)above;
    }
    for (int i = 0; i < BLOCK / 2; i++)
        packed[i] = (uint8_t)(code[2 * i] << 4 | code[2 * i + 1]);
    memcpy(codes, packed, (size_t)bytes);
}

/* begin, end: blocks of the part. */
static void encode_nf4_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct encoding *e = context;
    float x[BLOCK], middles[15];
    middles_of(nf4_table, 16, middles);
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * BLOCK, left = e->range->n - at;
        int n = left < BLOCK ? (int)left : BLOCK;
        read_block(e->range, at, n, x);
        uint32_t most = largest_bits(x);
        if (!is_finite(most)) {
            note_not_finite(e, at, x);
            continue;
        }
        int64_t first = e->range->first + at;
        float a = ot_f32_from_bits(most);
        e->scales[first / BLOCK] = a;
        encode_nf4_block(x, inverse_of(a), middles, (uint8_t *)e->encoded + first / 2, (n + 1) / 2);
    }
}

/* The codes of 32 numbers by the power of two that makes their largest a code. To the nearest, of two that
 * are equally near the even code: so every second middle belongs to the code above it. */
static void encode_mx_block(const float *x, float inverse, uint8_t *codes, int bytes) {
    uint8_t code[MX_BLOCK], packed[MX_BLOCK / 2];
    for (int i = 0; i < MX_BLOCK; i++) {
        float size = fabsf(x[i]) * inverse;
        uint32_t above = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
                         (size >= 3.5f) + (size > 5.0f);
        code[i] = (uint8_t)(above | (ot_f32_bits(x[i]) >> 28 & 8u));
    }
    for (int i = 0; i < MX_BLOCK / 2; i++)
        packed[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
    memcpy(codes, packed, (size_t)bytes);
}

/* begin, end: blocks of the part. */
static void encode_mx_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct encoding *e = context;
    for (int64_t block = begin; block < end; block++) {
        int64_t at = block * MX_BLOCK, left = e->range->n - at, first = e->range->first + at;
        int n = left < MX_BLOCK ? (int)left : MX_BLOCK;
        float x[BLOCK];
        read_block(e->range, at, n, x);
        uint32_t most = largest_bits(x), exponent = most >> 23, scale = exponent > 2 ? exponent - 2 : 0;
        if (!is_finite(most)) {
            note_not_finite(e, at, x);
            continue;
        }
        float inverse = ot_f32_from_bits((254 - scale) << 23); /* 2^(127 - scale), which is normal */
        ((uint8_t *)e->encoded)[e->layout.scales + first / MX_BLOCK] = (uint8_t)scale;
        encode_mx_block(x, inverse, (uint8_t *)e->encoded + first / 2, (n + 1) / 2);
    }
}

/* begin, end: rows of the part. */
static void encode_int8_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct encoding *e = context;
    int64_t cols = e->w->cols;
    for (int64_t row = begin; row < end; row++) {
        float x[BLOCK];
        uint32_t most = 0;
        for (int64_t col = 0; col < cols; col += BLOCK) {
            read_block(e->range, row * cols + col, cols - col < BLOCK ? (int)(cols - col) : BLOCK, x);
            uint32_t bits = largest_bits(x);
            if (!is_finite(bits))
                note_not_finite(e, row * cols + col, x);
            most = ot_max(bits, most);
        }
        if (!is_finite(most))
            continue;
        int64_t first = e->range->first + row * cols;
        float a = ot_f32_from_bits(most), k = fminf(1.0f / a * 127.0f, FLT_MAX);
        e->scales[first / cols] = a;
        for (int64_t col = 0; col < cols; col += BLOCK) {
            int n = cols - col < BLOCK ? (int)(cols - col) : BLOCK;
            int8_t code[BLOCK];
            read_block(e->range, row * cols + col, n, x);
            for (int i = 0; i < BLOCK; i++) /* the sum rounds to an integer, and has it in its lowest bits */
                code[i] = (int8_t)(uint8_t)ot_f32_bits(x[i] * k + 0x1.8p23f);
            memcpy(e->encoded + first + col, code, (size_t)n);
        }
    }
}

static void convert_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct encoding *e = context;
    enum ot_dtype to = (enum ot_dtype)e->w->format;
    const struct ot_weight_range *range = e->range;
    size_t bytes = ot_dtype_bytes(to);
    char *out = e->encoded + (size_t)(range->first + begin) * bytes;
    if (to == range->dtype) {
        memcpy(out, (const char *)range->values + (size_t)begin * bytes, (size_t)(end - begin) * bytes);
        return;
    }
    for (int64_t at = begin; at < end; at += BLOCK) {
        float x[BLOCK];
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        read_block(range, at, n, x);
        for (int i = 0; i < n; i++)
            ot_dtype_write(to, out, at - begin + i, x[i]);
    }
}

static void clear(char *encoded, int64_t from, int64_t to) {
    memset(encoded + from, 0, (size_t)(to - from));
}

void ot_weight_begin(const struct ot_weight *w, void *encoded) {
    struct ot_weight_layout l = ot_weight_layout(w);
    clear(encoded, l.code_bytes, l.scales);
    clear(encoded, l.scales + l.n_scales * l.scale_bytes, l.group_scales);
    clear(encoded, l.group_scales + l.n_groups * 4, l.bytes);
    if (ot_weight_is_nf4(w->format)) {
        struct ot_weight_tables tables;
        ot_weight_default_tables(&tables);
        if (w->format == OT_WEIGHT_NF4)
            memset(tables.map, 0, sizeof tables.map);
        memcpy((char *)encoded + l.tables, &tables, sizeof tables);
    }
}

int ot_weight_encode(struct ot_pool *pool, const struct ot_weight *w, const struct ot_weight_range *range,
                     void *encoded, float *scales) {
    struct encoding e = {w, ot_weight_layout(w), range, encoded, scales, range->n};
    int64_t unit = e.layout.unit, units = (range->n + unit - 1) / unit, chunk = CHUNK_ELEMENTS / unit;
    assert(ot_weight_is_range(w, range->first, range->n));
    assert((w->format == OT_WEIGHT_NF4_DOUBLE) == (scales != NULL));
    if (!scales)
        e.scales = (float *)(e.encoded + e.layout.scales);
    ot_pool_run(pool, units, chunk > 0 ? chunk : 1,
                ot_weight_is_plain(w->format)  ? convert_chunk
                : w->format == OT_WEIGHT_INT8  ? encode_int8_chunk
                : w->format == OT_WEIGHT_MXFP4 ? encode_mx_chunk
                                               : encode_nf4_chunk,
                &e);
    if (e.not_finite < range->n) {
        int64_t at = range->first + e.not_finite;
        return ot_fail(OT_E_INPUT,
                       "the weight at row %lld, column %lld is not a finite number: %s cannot store it",
                       (long long)(at / w->cols), (long long)(at % w->cols), names[w->format]);
    }
    return 0;
}

/* ---- double quantisation ---- */

struct nesting {
    const float *scales;
    int64_t n;
    float offset, middles[255];
    uint8_t *codes;
    float *group_scales;
};

/* Counts the middles that are less than x. */
static uint8_t map_code(const float *middles, float x) {
    int code = 0;
    for (int step = 128; step > 0; step /= 2)
        code += x > middles[code + step - 1] ? step : 0;
    return (uint8_t)code;
}

static void nest_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct nesting *nesting = context;
    for (int64_t group = begin; group < end; group++) {
        int64_t first = group * OT_WEIGHT_GROUP, left = nesting->n - first;
        int64_t n = ot_min(left, OT_WEIGHT_GROUP);
        float most = 0;
        for (int64_t i = first; i < first + n; i++)
            most = fmaxf(most, fabsf(nesting->scales[i] - nesting->offset));
        nesting->group_scales[group] = most;
        for (int64_t i = first; i < first + n; i++)
            nesting->codes[i] =
                map_code(nesting->middles, (nesting->scales[i] - nesting->offset) * inverse_of(most));
    }
}

void ot_weight_end(struct ot_pool *pool, const struct ot_weight *w, const float *scales, void *encoded) {
    if (w->format != OT_WEIGHT_NF4_DOUBLE)
        return;
    struct ot_weight_layout l = ot_weight_layout(w);
    struct ot_weight_tables *tables = (struct ot_weight_tables *)((char *)encoded + l.tables);
    double sum = 0;
    for (int64_t i = 0; i < l.n_scales; i++)
        sum += (double)scales[i];
    tables->offset = (float)(sum / (double)l.n_scales);
    struct nesting nesting = {.scales = scales,
                              .n = l.n_scales,
                              .offset = tables->offset,
                              .codes = (uint8_t *)encoded + l.scales,
                              .group_scales = (float *)((char *)encoded + l.group_scales)};
    middles_of(tables->map, 256, nesting.middles);
    ot_pool_run(pool, l.n_groups, 64, nest_chunk, &nesting);
}

/* ---- decoding ---- */

static float scale_of(const struct ot_weight *w, const struct ot_weight_layout *l, const char *encoded,
                      int64_t unit) {
    if (w->format == OT_WEIGHT_MXFP4)
        return ot_f32_from_bits(OT_WEIGHT_MX_SCALE(((const uint8_t *)encoded)[l->scales + unit]));
    if (w->format != OT_WEIGHT_NF4_DOUBLE)
        return ((const float *)(encoded + l->scales))[unit];
    const struct ot_weight_tables *tables = (const struct ot_weight_tables *)(encoded + l->tables);
    uint8_t code = ((const uint8_t *)encoded)[l->scales + unit];
    float group = ((const float *)(encoded + l->group_scales))[unit / OT_WEIGHT_GROUP];
    return tables->map[code] * group + tables->offset;
}

static float weight_at(const struct ot_weight *w, const struct ot_weight_layout *l, const char *encoded,
                       int64_t i, float scale) {
    if (ot_weight_is_plain(w->format))
        return ot_dtype_read((enum ot_dtype)w->format, encoded, i);
    if (w->format == OT_WEIGHT_INT8)
        return (float)((const int8_t *)encoded)[i] * scale * OT_WEIGHT_INT8_STEP;
    bool mx = w->format == OT_WEIGHT_MXFP4;
    int code = ((const uint8_t *)encoded)[i / 2] >> ((i % 2 == 0) == mx ? 0 : 4) & 15;
    if (mx)
        return ot_weight_mx_table[code] * scale;
    return ((const struct ot_weight_tables *)(encoded + l->tables))->table[code] * scale;
}

void ot_weight_decode(const struct ot_weight *w, const void *encoded, enum ot_dtype dtype, int64_t first,
                      int64_t n, void *out) {
    struct ot_weight_layout l = ot_weight_layout(w);
    assert(ot_weight_is_range(w, first, n));
    for (int64_t begin = first; begin < first + n; begin += l.unit) {
        int64_t end = ot_min(begin + l.unit, first + n);
        float scale = l.n_scales > 0 ? scale_of(w, &l, encoded, begin / l.unit) : 1;
        for (int64_t i = begin; i < end; i++)
            ot_dtype_write(dtype, out, i - first, weight_at(w, &l, encoded, i, scale));
    }
}
