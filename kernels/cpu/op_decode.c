/* Frozen weights from their storage type to the compute dtype (kernels/weight_format.h). */
#include "kernels/cpu/op_parts.h"

/* ---- NF4 and MXFP4 ---- */

/* The codes of 16 weights from `bytes` <= 8 bytes. The shifts take the upper half of each byte first, or for
 * MXFP4 the lower one. */
static OT_INLINE ot_vi nibbles(const uint8_t *from, int64_t bytes, bool mx) {
    const ot_vu upper_first = {4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24};
    const ot_vu lower_first = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
    const ot_vu shift = mx ? lower_first : upper_first;
    const ot_vu first = (ot_vu)vec_first(OT_LANES / 2);
    uint32_t words[2] = {0};
    memcpy(words, from, (size_t)bytes);
    ot_vu all = (first & words[0]) | (~first & words[1]);
    return (ot_vi)(all >> shift & 15u);
}

static OT_INLINE void decode_block(enum ot_dtype dtype, const uint8_t *codes, bool mx, const float *table,
                                   float scale, void *out, int64_t at_out, int64_t n) {
    const ot_vf scales = vec_repeat(scale);
    OT_FOR_LANES(i, lanes, n, {
        ot_vf value = vec_lookup(table, nibbles(codes + i / 2, (lanes + 1) / 2, mx));
        vec_store(dtype, out, at_out + i, lanes, value * scales);
    });
}

static OT_INLINE void decode_nf4_span(enum ot_dtype dtype, const struct ot_decode *op, int64_t begin,
                                      int64_t end) {
    struct ot_weight_layout l = ot_weight_layout(&op->weight);
    const char *encoded = op->encoded;
    const struct ot_weight_tables *tables = (const struct ot_weight_tables *)(encoded + l.tables);
    const float *group_scales = (const float *)(encoded + l.group_scales);
    bool nested = op->weight.format == OT_WEIGHT_NF4_DOUBLE;
    for (int64_t i = begin; i < end; i += OT_WEIGHT_BLOCK) {
        int64_t block = (op->first + i) / OT_WEIGHT_BLOCK, n = ot_min(end - i, OT_WEIGHT_BLOCK);
        const uint8_t *codes = (const uint8_t *)encoded + block * (OT_WEIGHT_BLOCK / 2);
        float scale;
        if (nested)
            scale = tables->map[((const uint8_t *)encoded)[l.scales + block]] *
                        group_scales[block / OT_WEIGHT_GROUP] +
                    tables->offset;
        else
            scale = ((const float *)(encoded + l.scales))[block];
        if (n == OT_WEIGHT_BLOCK)
            decode_block(dtype, codes, false, tables->table, scale, op->out, i, OT_WEIGHT_BLOCK);
        else
            decode_block(dtype, codes, false, tables->table, scale, op->out, i, n);
    }
}

static void decode_nf4_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_decode *op = context;
    WITH_DTYPE(op->dtype, decode_nf4_span, op, begin, end);
}

static OT_INLINE void decode_mx_span(enum ot_dtype dtype, const struct ot_decode *op, int64_t begin,
                                     int64_t end) {
    struct ot_weight_layout l = ot_weight_layout(&op->weight);
    const uint8_t *encoded = op->encoded, *scales = encoded + l.scales;
    for (int64_t i = begin; i < end; i += OT_WEIGHT_MX_BLOCK) {
        int64_t block = (op->first + i) / OT_WEIGHT_MX_BLOCK, n = ot_min(end - i, OT_WEIGHT_MX_BLOCK);
        const uint8_t *codes = encoded + block * (OT_WEIGHT_MX_BLOCK / 2);
        float scale = ot_f32_from_bits(OT_WEIGHT_MX_SCALE(scales[block]));
        if (n == OT_WEIGHT_MX_BLOCK)
            decode_block(dtype, codes, true, ot_weight_mx_table, scale, op->out, i, OT_WEIGHT_MX_BLOCK);
        else
            decode_block(dtype, codes, true, ot_weight_mx_table, scale, op->out, i, n);
    }
}

static void decode_mx_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_decode *op = context;
    WITH_DTYPE(op->dtype, decode_mx_span, op, begin, end);
}

/* ---- int8 ---- */

static OT_INLINE ot_vf vec_from_int8(const int8_t *from, int64_t count) {
    ot_vb codes = {0};
    memcpy(&codes, from, (size_t)count);
    return __builtin_convertvector(codes, ot_vf);
}

/* row: counted from the row of op->first. */
static OT_INLINE void decode_int8_row(enum ot_dtype dtype, const struct ot_decode *op, int64_t row) {
    struct ot_weight_layout l = ot_weight_layout(&op->weight);
    int64_t cols = op->weight.cols, first = op->first + row * cols;
    const int8_t *codes = (const int8_t *)op->encoded + first;
    const ot_vf scale = vec_repeat(((const float *)((const char *)op->encoded + l.scales))[first / cols]);
    OT_FOR_LANES(i, lanes, cols, {
        ot_vf value = vec_from_int8(codes + i, lanes) * scale * OT_WEIGHT_INT8_STEP;
        vec_store(dtype, op->out, row * cols + i, lanes, value);
    });
}

static void decode_int8_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_decode *op = context;
    for (int64_t row = begin; row < end; row++)
        WITH_DTYPE(op->dtype, decode_int8_row, op, row);
}

/* ---- all ---- */

static void run_decode(struct ot_lane *lane, const void *args) {
    const struct ot_decode *op = args;
    int64_t cols = op->weight.cols;
    if (op->weight.format == OT_WEIGHT_INT8)
        ot_pool_run(ot_cpu_lane_pool(lane), op->n / cols, rows_per_chunk(cols), decode_int8_chunk,
                    (void *)op);
    else
        ot_pool_run(ot_cpu_lane_pool(lane), op->n, CHUNK_ELEMENTS,
                    op->weight.format == OT_WEIGHT_MXFP4 ? decode_mx_chunk : decode_nf4_chunk, (void *)op);
}

static void cpu_decode(struct ot_lane *lane, const struct ot_decode *op) {
    assert(ot_weight_is_range(&op->weight, op->first, op->n));
    assert((uintptr_t)op->encoded % OT_WEIGHT_ALIGN == 0);
    enum ot_dtype plain = (enum ot_dtype)op->weight.format;
    if (ot_weight_is_plain(op->weight.format))
        cpu_cast(lane,
                 &(struct ot_cast){plain, op->dtype, op->n, at(plain, op->encoded, op->first), op->out});
    else
        ot_cpu_lane_push(lane, run_decode, op, sizeof *op);
}
