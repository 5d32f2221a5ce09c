/* Parameters and state, from and to the caller's fp32 arrays, wherever their homes are. */
#include <stdlib.h>
#include <string.h>

#include "offload/engine/engine_state.h"
#include "src/base/error.h"

/* Converted at a time: small enough for the cache, large enough for a copy to a device. */
enum { CHUNK_PARAMS = 1 << 18 };

static int move(struct ot_engine *en, int buffer, size_t offset, void *host, size_t bytes, bool in) {
    char *at = (char *)ot_engine_at(en, buffer) + offset;
    if (en->layout.buffers[buffer].tier == OT_TIER_HOST) {
        memcpy(in ? at : host, in ? host : at, bytes);
        return 0;
    }
    ot_lane_copy(en->lane, in ? OT_COPY_H2D : OT_COPY_D2H, in ? at : host, in ? host : at, bytes);
    return ot_lane_sync(en->lane);
}

static int check_range(struct ot_engine *en, int slab, int64_t first, int64_t n) {
    if (slab < 0 || slab >= en->chain.n_slabs || first < 0 || n < 0 ||
        n > en->chain.slabs[slab].n_params - first)
        return ot_fail(OT_E_INTERNAL, "parameters %lld..%lld of slab %d do not exist", (long long)first,
                       (long long)(first + n), slab);
    if (en->submitted != en->collected)
        return ot_fail(OT_E_INTERNAL, "collect and drain the steps in flight first");
    return ot_engine_drain(en);
}

/* Values of [first, first + n) on nvme, tile by tile. The buffer's first extent is that of first_tile. */
static int move_staged(struct ot_engine *en, enum ot_part_array array, int slab, int buffer, int first_tile,
                       int64_t first, int64_t n, char *values, bool in) {
    bool weights = array == OT_PART_WEIGHTS;
    int kind = weights ? OT_STAGED_WEIGHTS : OT_STAGED_STATE;
    while (n > 0) {
        int tile = (int)(first / en->plan.tile_params);
        struct ot_tile_span span = ot_slab_span(&en->chain, &en->plan, slab, tile, 1);
        int64_t end = span.first + span.n, part = end - first < n ? end - first : n;
        struct ot_engine_staged *staged;
        int extent = en->layout.buffers[buffer].first_extent + tile - first_tile;
        OT_TRY(ot_engine_stage(en, kind, slab, extent, &staged));
        struct ot_part content = {.n = span.n, .has_state = !weights, .has_weights = weights};
        struct ot_part_place place = ot_part_find(en->chain.dtype, &content, array);
        char *at = staged->memory + place.offset + (size_t)(first - span.first) * place.width;
        memcpy(in ? at : values, in ? values : at, (size_t)part * place.width);
        staged->changed = staged->changed || in;
        values += (size_t)part * place.width;
        first += part;
        n -= part;
    }
    return 0;
}

/* Part of a slab's state between its home, or homes, and a host array. */
static int move_state(struct ot_engine *en, enum ot_part_array array, int slab, int64_t first, int64_t n,
                      void *values, bool in) {
    enum ot_dtype dtype = en->chain.dtype;
    size_t bytes = ot_part_width(dtype, array);
    const struct ot_slab_buffers *b = &en->layout.slabs[slab];
    struct ot_tile_span on_gpu = ot_slab_part(&en->chain, &en->plan, slab, OT_TILE_GPU);
    struct ot_tile_span off_gpu = ot_slab_state_off_gpu(&en->chain, &en->plan, slab);
    int64_t there = on_gpu.n - first < 0 ? 0 : on_gpu.n - first < n ? on_gpu.n - first : n;
    if (there > 0)
        OT_TRY(move(en, b->state_gpu, ot_state_offset(dtype, array, on_gpu.n) + (size_t)first * bytes, values,
                    (size_t)there * bytes, in));
    if (there == n)
        return 0;
    char *rest = (char *)values + (size_t)there * bytes;
    if (b->state_nvme != OT_NO_BUFFER)
        return move_staged(en, array, slab, b->state_nvme, off_gpu.first_tile, first + there, n - there, rest,
                           in);
    size_t at = ot_state_offset(dtype, array, off_gpu.n) + (size_t)(first + there - off_gpu.first) * bytes;
    return move(en, b->state_host, at, rest, (size_t)(n - there) * bytes, in);
}

/* Weights, where the plan has them: up to two copies, of which the resident one is up to date as a whole. */
static int move_weights(struct ot_engine *en, int slab, int64_t first, int64_t n, void *host, bool in) {
    const struct ot_slab_buffers *b = &en->layout.slabs[slab];
    size_t one = ot_dtype_bytes(en->chain.dtype), offset = (size_t)first * one, bytes = (size_t)n * one;
    if (b->weights_gpu != OT_NO_BUFFER)
        OT_TRY(move(en, b->weights_gpu, offset, host, bytes, in));
    if (b->weights_nvme != OT_NO_BUFFER)
        OT_TRY(move_staged(en, OT_PART_WEIGHTS, slab, b->weights_nvme, 0, first, n, host, in));
    if (b->weights_host != OT_NO_BUFFER && (in || b->weights_gpu == OT_NO_BUFFER))
        OT_TRY(move(en, b->weights_host, offset, host, bytes, in));
    return 0;
}

/* bf16: the high half, and the remainder where there is one (a plan that only runs forward keeps none). */
static int move_split(struct ot_engine *en, int slab, int64_t first, int64_t n, float *values, bool in) {
    int rc = 0;
    uint16_t *high = calloc((size_t)n, sizeof *high);
    int16_t *low = calloc((size_t)n, sizeof *low);
    if (!high || !low) {
        rc = ot_fail(OT_E_BUDGET, "no memory for %lld parameters", (long long)n);
        goto out;
    }
    for (int64_t i = 0; in && i < n; i++)
        ot_split_f32(values[i], &high[i], &low[i]);
    OT_TRY_GOTO(move_weights(en, slab, first, n, high, in), rc, out);
    if (en->plan.train)
        OT_TRY_GOTO(move_state(en, OT_PART_REST, slab, first, n, low, in), rc, out);
    for (int64_t i = 0; !in && i < n; i++)
        values[i] = ot_join_f32(high[i], low[i]);
out:
    free(high);
    free(low);
    return rc;
}

/* fp16: the master lies in the state, and the weights are its rounding. A plan that only runs forward has the
 * weights alone. */
static int move_rounded(struct ot_engine *en, int slab, int64_t first, int64_t n, float *values, bool in) {
    int rc = 0;
    if (en->plan.train)
        OT_TRY(move_state(en, OT_PART_REST, slab, first, n, values, in));
    if (en->plan.train && !in)
        return 0;
    uint16_t *half = calloc((size_t)n, sizeof *half);
    if (!half)
        return ot_fail(OT_E_BUDGET, "no memory for %lld parameters", (long long)n);
    for (int64_t i = 0; in && i < n; i++)
        half[i] = ot_f16_from_f32(values[i]);
    OT_TRY_GOTO(move_weights(en, slab, first, n, half, in), rc, out);
    for (int64_t i = 0; !in && i < n; i++)
        values[i] = ot_f16_to_f32(half[i]);
out:
    free(half);
    return rc;
}

static int move_kind(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                     float *values, bool in) {
    if (kind == OT_SLAB_MASTER && en->chain.dtype == OT_BF16)
        return move_split(en, slab, first, n, values, in);
    if (kind == OT_SLAB_MASTER && en->chain.dtype == OT_F16)
        return move_rounded(en, slab, first, n, values, in);
    if (kind == OT_SLAB_MASTER)
        return move_weights(en, slab, first, n, values, in);
    if (!en->plan.train)
        return ot_fail(OT_E_INTERNAL, "a plan that only runs forward has no optimizer state");
    return move_state(en, kind == OT_SLAB_M ? OT_PART_M : OT_PART_V, slab, first, n, values, in);
}

static int move_chunks(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                       float *values, bool in) {
    OT_TRY(check_range(en, slab, first, n));
    for (int64_t i = 0; i < n; i += CHUNK_PARAMS) {
        int64_t chunk = n - i < CHUNK_PARAMS ? n - i : CHUNK_PARAMS;
        OT_TRY(move_kind(en, kind, slab, first + i, chunk, values + i, in));
    }
    return 0;
}

int ot_engine_set(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  const float *values) {
    return move_chunks(en, kind, slab, first, n, (float *)values, true); /* only read when moving in */
}

int ot_engine_get(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  float *values) {
    return move_chunks(en, kind, slab, first, n, values, false);
}

int ot_engine_put(struct ot_engine *en, const struct ot_part *part, const void *memory) {
    char *from = (char *)memory; /* only read when moving in */
    OT_TRY(check_range(en, part->slab, part->first, part->n));
    for (enum ot_part_array array = OT_PART_M; array <= OT_PART_REST && en->plan.train; array++) {
        struct ot_part_place place = ot_part_find(en->chain.dtype, part, array);
        if (place.width > 0)
            OT_TRY(move_state(en, array, part->slab, part->first, part->n, from + place.offset, true));
    }
    from += ot_part_find(en->chain.dtype, part, OT_PART_WEIGHTS).offset;
    return part->has_weights ? move_weights(en, part->slab, part->first, part->n, from, true) : 0;
}

int ot_engine_get_grad(struct ot_engine *en, int slab, int64_t first, int64_t n, float *values) {
    OT_TRY(check_range(en, slab, first, n));
    int buffer = en->layout.slabs[slab].kept_grad;
    if (buffer == OT_NO_BUFFER)
        return ot_fail(OT_E_INTERNAL, "this plan keeps no gradients");
    return move(en, buffer, (size_t)first * sizeof(float), values, (size_t)n * sizeof(float), false);
}
