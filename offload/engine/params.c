/* Copies parameters and state between their homes and the caller's fp32 arrays. */
#include <stdlib.h>
#include <string.h>

#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

/* Parameters that are converted at a time: few enough for the cache, enough for an efficient copy to a
 * device. */
enum { CHUNK_PARAMS = 1 << 18 };

/* The caller's end of a move. One pointer is NULL. */
struct host {
    const void *from; /* the values go from here to their homes */
    void *to;         /* they come here from their homes */
};

static struct host from_host(const void *values) {
    return (struct host){.from = values};
}

static struct host to_host(void *values) {
    return (struct host){.to = values};
}

/* Returns a move of another array, in the same direction. */
static struct host host_with(struct host host, void *array) {
    return host.from ? from_host(array) : to_host(array);
}

static struct host host_after(struct host host, size_t bytes) {
    return host.from ? from_host((const char *)host.from + bytes) : to_host((char *)host.to + bytes);
}

static void copy(void *home, struct host host, size_t bytes) {
    if (host.from)
        memcpy(home, host.from, bytes);
    else
        memcpy(host.to, home, bytes);
}

static int move(struct ot_engine *en, int buffer, size_t offset, struct host host, size_t bytes) {
    char *at = (char *)ot_engine_at(en, buffer) + offset;
    if (en->layout.buffers[buffer].tier == OT_TIER_HOST) {
        copy(at, host, bytes);
        return 0;
    }
    pthread_mutex_lock(&en->putting);
    if (host.from)
        ot_lane_copy(en->lane, OT_COPY_H2D, at, host.from, bytes);
    else
        ot_lane_copy(en->lane, OT_COPY_D2H, host.to, at, bytes);
    int rc = ot_lane_sync(en->lane);
    pthread_mutex_unlock(&en->putting);
    return rc;
}

static int check_range(struct ot_engine *en, int slab, int64_t first, int64_t n) {
    struct ot_shard_range held = {0};
    if (slab >= 0 && slab < en->chain.n_slabs)
        held = ot_slab_holding(&en->chain, &en->plan, slab);
    if (first < held.first || n < 0 || n > held.first + held.n - first)
        return ot_fail(OT_E_INTERNAL, "this rank does not hold parameters %lld..%lld of slab %d",
                       (long long)first, (long long)(first + n), slab);
    if (en->submitted != en->collected)
        return ot_fail(OT_E_INTERNAL, "collect and drain the steps in flight first");
    pthread_mutex_lock(&en->putting);
    int rc = ot_engine_drain(en);
    pthread_mutex_unlock(&en->putting);
    return rc;
}

/* Values of an array on nvme. */
struct on_nvme {
    enum ot_segment_array array;
    int slab, buffer, first_tile; /* first_tile: the tile of the buffer's first extent */
};

/* Moves the values of [first, first + n) that lie in the tile of `first`. Returns their number, or an error.
 * Advances *host. */
static int64_t move_in_tile(struct ot_engine *en, struct on_nvme where, int64_t first, int64_t n,
                            struct host *host) {
    int64_t held = ot_slab_holding(&en->chain, &en->plan, where.slab).first;
    int tile = (int)((first - held) / en->plan.tile_params);
    struct ot_tile_span span = ot_slab_span(&en->chain, &en->plan, where.slab, tile, 1);
    int extent = en->layout.buffers[where.buffer].first_extent + tile - where.first_tile;
    bool weights = where.array == OT_SEGMENT_WEIGHTS;
    struct ot_segment content = ot_segment_of(&en->chain, !weights, weights, span.n);
    struct ot_segment_values values = ot_segment_find(en->chain.dtype, &content, where.array);
    values.width = weights ? ot_slab_bytes(&en->chain, where.slab, 1) : values.width;
    n = ot_min(span.first + span.n - first, n);
    size_t bytes = ot_segment_value_bytes(values, n);
    struct ot_engine_staged *staged;
    pthread_mutex_lock(&en->putting);
    int kind = en->chain.slabs[where.slab].frozen ? OT_STAGED_FROZEN
               : weights                          ? OT_STAGED_WEIGHTS
                                                  : OT_STAGED_STATE;
    int rc = ot_engine_stage(en, kind, where.slab, extent, &staged);
    if (rc == 0) {
        char *at = staged->memory + values.offset + ot_segment_value_bytes(values, first - span.first);
        copy(at, *host, bytes);
        staged->changed = staged->changed || host->from;
    }
    pthread_mutex_unlock(&en->putting);
    *host = host_after(*host, bytes);
    return rc < 0 ? rc : n;
}

static int move_staged(struct ot_engine *en, struct on_nvme where, int64_t first, int64_t n,
                       struct host host) {
    for (int64_t end = first + n; first < end;) {
        int64_t moved = move_in_tile(en, where, first, end - first, &host);
        OT_TRY((int)moved);
        first += moved;
    }
    return 0;
}

/* Moves a range of one array of a slab's state between its homes and a host array. The first values may be on
 * the device, the rest on the host or on nvme. The scales of 8 bits: a range of whole groups. */
static int move_state(struct ot_engine *en, enum ot_segment_array array, int slab, int64_t first, int64_t n,
                      struct host host) {
    const struct ot_slab_buffers *b = &en->layout.slabs[slab];
    struct ot_tile_span on_gpu = ot_slab_engine_tiles(&en->chain, &en->plan, slab, OT_TILE_GPU);
    struct ot_tile_span off_gpu = ot_slab_state_off_gpu(&en->chain, &en->plan, slab);
    int64_t end = on_gpu.first + on_gpu.n, there = end - first < 0 ? 0 : ot_min(end - first, n);
    struct ot_segment_values values = ot_state_find(&en->chain, array, on_gpu.n);
    if (there > 0)
        OT_TRY(move(en, b->state_gpu, values.offset + ot_segment_value_bytes(values, first - on_gpu.first),
                    host, ot_segment_value_bytes(values, there)));
    if (there == n)
        return 0;
    struct host rest = host_after(host, ot_segment_value_bytes(values, there));
    if (b->state_nvme != OT_NO_BUFFER)
        return move_staged(en, (struct on_nvme){array, slab, b->state_nvme, off_gpu.first_tile},
                           first + there, n - there, rest);
    values = ot_state_find(&en->chain, array, off_gpu.n);
    return move(en, b->state_host,
                values.offset + ot_segment_value_bytes(values, first + there - off_gpu.first), rest,
                ot_segment_value_bytes(values, n - there));
}

/* ---- moments in another format than the engine's ---- */

/* Host memory for the moments of n parameters in the engine's format. NULL: no memory. */
static void *open_moments(const struct ot_engine *en, int64_t n, struct ot_state_arrays *out) {
    struct ot_segment segment = ot_segment_of(&en->chain, true, false, n);
    struct ot_segment_values v = ot_segment_find(OT_F32, &segment, OT_SEGMENT_V); /* OT_F32: no rest */
    struct ot_segment_values scales = ot_segment_find(OT_F32, &segment, OT_SEGMENT_SCALES);
    char *memory = malloc(ot_segment_bytes(OT_F32, &segment));
    *out = (struct ot_state_arrays){en->chain.state, memory, memory + v.offset,
                                    (struct ot_state_scale *)(void *)(memory + scales.offset)};
    if (!memory)
        ot_fail(OT_E_BUDGET, "no memory for the moments of %lld parameters", (long long)n);
    return memory;
}

static int put_moments(struct ot_engine *en, int slab, int64_t first, int64_t n,
                       struct ot_state_view moments) {
    OT_TRY(move_state(en, OT_SEGMENT_M, slab, first, n, from_host(moments.m)));
    OT_TRY(move_state(en, OT_SEGMENT_V, slab, first, n, from_host(moments.v)));
    return moments.format == OT_STATE_8BIT
               ? move_state(en, OT_SEGMENT_SCALES, slab, first, n, from_host(moments.scales))
               : 0;
}

static int get_moments(struct ot_engine *en, int slab, int64_t first, int64_t n,
                       const struct ot_state_arrays *moments) {
    OT_TRY(move_state(en, OT_SEGMENT_M, slab, first, n, to_host(moments->m)));
    OT_TRY(move_state(en, OT_SEGMENT_V, slab, first, n, to_host(moments->v)));
    return moments->format == OT_STATE_8BIT
               ? move_state(en, OT_SEGMENT_SCALES, slab, first, n, to_host(moments->scales))
               : 0;
}

/* m or v as fp32. A compact state is moved in whole groups, and encoded again on its way to its homes. */
static int move_decoded(struct ot_engine *en, bool is_m, int slab, int64_t first, int64_t n,
                        struct host host) {
    int64_t lead = first % OT_STATE_GROUP, begin = first - lead;
    int64_t whole = (lead + n + OT_STATE_GROUP - 1) / OT_STATE_GROUP * OT_STATE_GROUP;
    float *m = calloc(2 * (size_t)whole, sizeof *m), *v = m + whole;
    struct ot_state_arrays compact, full = {OT_STATE_F32, m, v, NULL};
    void *memory = open_moments(en, whole, &compact);
    int rc;
    if (!m || !memory) {
        rc = ot_fail(OT_E_BUDGET, "no memory for the moments of %lld parameters", (long long)n);
        goto out;
    }
    OT_TRY_GOTO(get_moments(en, slab, begin, whole, &compact), rc, out);
    ot_state_convert(ot_state_view_of(&compact), &full, begin, whole, 0, 0);
    copy((is_m ? m : v) + lead, host, (size_t)n * sizeof *m);
    if (host.from) {
        ot_state_convert(ot_state_view_of(&full), &compact, begin, whole, en->optimizer.seed,
                         ot_random_stream(OT_RANDOM_ROUNDING, 0, (uint64_t)slab));
        rc = put_moments(en, slab, begin, whole, ot_state_view_of(&compact));
    }
out:
    free(memory);
    free(m);
    return rc;
}

/* Puts the moments of a segment that has another format than the engine. values: its arrays m, v and scales,
 * for [first, first + n). */
static int put_converted(struct ot_engine *en, const struct ot_segment *segment, struct ot_shard_range range,
                         struct ot_state_view values) {
    struct ot_state_arrays converted;
    if (range.first % OT_STATE_GROUP || range.n % OT_STATE_GROUP)
        return ot_fail(OT_E_INPUT, "slab %d: the state of parameters %lld..%lld is not of whole groups of %d",
                       segment->slab, (long long)range.first, (long long)(range.first + range.n),
                       OT_STATE_GROUP);
    void *memory = open_moments(en, range.n, &converted);
    if (!memory)
        return -OT_E_BUDGET;
    ot_state_convert(values, &converted, range.first, range.n, en->optimizer.seed,
                     ot_random_stream(OT_RANDOM_ROUNDING, 0, (uint64_t)segment->slab));
    int rc = put_moments(en, segment->slab, range.first, range.n, ot_state_view_of(&converted));
    free(memory);
    return rc;
}

/* Puts the bits of the masters that the weights lack. A segment of bf16 weights without masters has none: the
 * masters begin as the weights. An engine without masters takes none. */
static int put_rest(struct ot_engine *en, const struct ot_segment *segment, struct ot_shard_range range,
                    const void *values) {
    if (en->chain.dtype == OT_F32 || en->chain.masters == OT_MASTERS_NONE)
        return 0;
    if (values)
        return move_state(en, OT_SEGMENT_MASTER_REST, segment->slab, range.first, range.n, from_host(values));
    int16_t *zeros = calloc((size_t)range.n, sizeof *zeros);
    if (!zeros)
        return ot_fail(OT_E_BUDGET, "no memory for %lld parameters", (long long)range.n);
    int rc = move_state(en, OT_SEGMENT_MASTER_REST, segment->slab, range.first, range.n, from_host(zeros));
    free(zeros);
    return rc;
}

static size_t weight_offset(const struct ot_engine *en, int buffer, int slab, int64_t first) {
    int64_t index = ot_layout_index(&en->layout, &en->chain, &en->plan, buffer, slab, first);
    return ot_slab_bytes(&en->chain, slab, index);
}

/* Moves units (plan/slabs.h) of the weights from or to their homes. There may be two copies. The one on the
 * device is always up to date, so reads take it if it exists. */
static int move_weights(struct ot_engine *en, int slab, int64_t first, int64_t n, struct host host) {
    const struct ot_slab_buffers *b = &en->layout.slabs[slab];
    size_t bytes = ot_slab_bytes(&en->chain, slab, n);
    if (host.from && en->gather.n_tasks > 0) {
        en->stale = true;
        en->frozen_stale = en->frozen_stale || en->chain.slabs[slab].frozen;
    }
    if (b->weights_gpu != OT_NO_BUFFER)
        OT_TRY(move(en, b->weights_gpu, weight_offset(en, b->weights_gpu, slab, first), host, bytes));
    if (b->weights_nvme != OT_NO_BUFFER)
        OT_TRY(
            move_staged(en, (struct on_nvme){OT_SEGMENT_WEIGHTS, slab, b->weights_nvme, 0}, first, n, host));
    if (b->weights_host != OT_NO_BUFFER && (host.from || b->weights_gpu == OT_NO_BUFFER))
        OT_TRY(move(en, b->weights_host, weight_offset(en, b->weights_host, slab, first), host, bytes));
    return 0;
}

/* True if the parameters of the slab have a state. */
static bool has_state(const struct ot_engine *en, int slab) {
    return en->plan.train && !en->chain.slabs[slab].frozen;
}

/* bf16: splits the master into weight and remainder (state), or joins them. Without state or without masters
 * there is no remainder. */
static int move_split(struct ot_engine *en, int slab, int64_t first, int64_t n, struct host host) {
    const float *from = host.from;
    float *to = host.to;
    int rc = 0;
    uint16_t *high = calloc((size_t)n, sizeof *high);
    int16_t *low = calloc((size_t)n, sizeof *low);
    if (!high || !low) {
        rc = ot_fail(OT_E_BUDGET, "no memory for %lld parameters", (long long)n);
        goto out;
    }
    for (int64_t i = 0; from && i < n; i++)
        ot_split_f32(from[i], &high[i], &low[i]);
    OT_TRY_GOTO(move_weights(en, slab, first, n, host_with(host, high)), rc, out);
    if (has_state(en, slab) && en->chain.masters == OT_MASTERS_F32)
        OT_TRY_GOTO(move_state(en, OT_SEGMENT_MASTER_REST, slab, first, n, host_with(host, low)), rc, out);
    for (int64_t i = 0; to && i < n; i++)
        to[i] = ot_join_f32(high[i], low[i]);
out:
    free(high);
    free(low);
    return rc;
}

/* fp16: the master is in the state, and the weights are the rounded master. Without state there are only the
 * weights. */
static int move_rounded(struct ot_engine *en, int slab, int64_t first, int64_t n, struct host host) {
    const float *from = host.from;
    float *to = host.to;
    int rc = 0;
    if (has_state(en, slab))
        OT_TRY(move_state(en, OT_SEGMENT_MASTER_REST, slab, first, n, host));
    if (has_state(en, slab) && to)
        return 0;
    uint16_t *half = calloc((size_t)n, sizeof *half);
    if (!half)
        return ot_fail(OT_E_BUDGET, "no memory for %lld parameters", (long long)n);
    for (int64_t i = 0; from && i < n; i++)
        half[i] = ot_f16_from_f32(from[i]);
    OT_TRY_GOTO(move_weights(en, slab, first, n, host_with(host, half)), rc, out);
    for (int64_t i = 0; to && i < n; i++)
        to[i] = ot_f16_to_f32(half[i]);
out:
    free(half);
    return rc;
}

static int move_kind(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                     struct host host) {
    if (ot_slab_is_encoded(&en->chain, slab))
        return ot_fail(OT_E_INTERNAL, "the parameters of slab '%s' are encoded", en->chain.slabs[slab].name);
    if (kind == OT_SLAB_MASTER && en->chain.dtype == OT_BF16)
        return move_split(en, slab, first, n, host);
    if (kind == OT_SLAB_MASTER && en->chain.dtype == OT_F16)
        return move_rounded(en, slab, first, n, host);
    if (kind == OT_SLAB_MASTER)
        return move_weights(en, slab, first, n, host);
    if (!has_state(en, slab))
        return ot_fail(OT_E_INTERNAL, "slab '%s' is not trained: it has no optimizer state",
                       en->chain.slabs[slab].name);
    if (en->chain.state != OT_STATE_F32)
        return move_decoded(en, kind == OT_SLAB_M, slab, first, n, host);
    return move_state(en, kind == OT_SLAB_M ? OT_SEGMENT_M : OT_SEGMENT_V, slab, first, n, host);
}

static int move_chunks(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                       struct host host) {
    OT_TRY(check_range(en, slab, first, n));
    for (int64_t i = 0; i < n; i += CHUNK_PARAMS) {
        int64_t chunk = ot_min(n - i, CHUNK_PARAMS);
        OT_TRY(move_kind(en, kind, slab, first + i, chunk, host_after(host, (size_t)i * sizeof(float))));
    }
    return 0;
}

int ot_engine_set(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  const float *values) {
    return move_chunks(en, kind, slab, first, n, from_host(values));
}

int ot_engine_get(struct ot_engine *en, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  float *values) {
    return move_chunks(en, kind, slab, first, n, to_host(values));
}

static int move_encoded(struct ot_engine *en, int slab, int64_t first, int64_t n, struct host host) {
    OT_TRY(check_range(en, slab, first, n));
    if (!ot_slab_is_encoded(&en->chain, slab))
        return ot_fail(OT_E_INTERNAL, "slab '%s' is not encoded", en->chain.slabs[slab].name);
    return move_weights(en, slab, first, n, host);
}

int ot_engine_set_encoded(struct ot_engine *en, int slab, int64_t first, int64_t n, const void *bytes) {
    return move_encoded(en, slab, first, n, from_host(bytes));
}

int ot_engine_get_encoded(struct ot_engine *en, int slab, int64_t first, int64_t n, void *bytes) {
    return move_encoded(en, slab, first, n, to_host(bytes));
}

/* The parameters of a segment that this rank holds; n is 0 if there are none. */
static struct ot_shard_range held_of(const struct ot_engine *en, const struct ot_segment *segment) {
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, segment->slab);
    int64_t first = ot_max(segment->first, held.first);
    int64_t end = segment->first + segment->n, held_end = held.first + held.n;
    end = ot_min(end, held_end);
    return (struct ot_shard_range){first, end > first ? end - first : 0};
}

bool ot_engine_holds(const struct ot_engine *en, const struct ot_segment *segment) {
    return segment->slab >= 0 && segment->slab < en->chain.n_slabs && held_of(en, segment).n > 0;
}

int ot_engine_put(struct ot_engine *en, const struct ot_segment *segment, const void *memory) {
    const char *from = memory;
    if (segment->slab < 0 || segment->slab >= en->chain.n_slabs || segment->first < 0 || segment->n < 0 ||
        segment->n > en->chain.slabs[segment->slab].n_params - segment->first)
        return ot_fail(OT_E_INTERNAL, "there are no parameters %lld..%lld of slab %d",
                       (long long)segment->first, (long long)(segment->first + segment->n), segment->slab);
    struct ot_shard_range held = held_of(en, segment);
    if (held.n == 0)
        return 0;
    const char *arrays[OT_SEGMENT_ARRAYS];
    OT_TRY(check_range(en, segment->slab, held.first, held.n));
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values values = ot_segment_find(en->chain.dtype, segment, array);
        arrays[array] =
            values.width ? from + values.offset + ot_segment_value_bytes(values, held.first - segment->first)
                         : NULL;
    }
    bool same = segment->state == en->chain.state, state = segment->has_state && en->plan.train;
    struct ot_state_view moments = {segment->state, arrays[OT_SEGMENT_M], arrays[OT_SEGMENT_V],
                                    (const struct ot_state_scale *)(const void *)arrays[OT_SEGMENT_SCALES]};
    if (state && !segment->lacks_moments)
        OT_TRY(same ? put_moments(en, segment->slab, held.first, held.n, moments)
                    : put_converted(en, segment, held, moments));
    if (state)
        OT_TRY(put_rest(en, segment, held, arrays[OT_SEGMENT_MASTER_REST]));
    if (!segment->has_weights)
        return 0;
    return move_weights(en, segment->slab, held.first, held.n, from_host(arrays[OT_SEGMENT_WEIGHTS]));
}

int ot_engine_get_grad(struct ot_engine *en, int slab, int64_t first, int64_t n, float *values) {
    OT_TRY(check_range(en, slab, first, n));
    int buffer = en->layout.slabs[slab].kept_grad;
    if (buffer == OT_NO_BUFFER)
        return ot_fail(OT_E_INTERNAL, "this plan keeps no gradients");
    int64_t index = ot_layout_index(&en->layout, &en->chain, &en->plan, buffer, slab, first);
    return move(en, buffer, (size_t)index * sizeof(float), to_host(values), (size_t)n * sizeof(float));
}
