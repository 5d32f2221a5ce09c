/* The lane and the buffers of a calibration (calibrate.h). */
#include "offload/predict/calibrate_state.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

enum { PATTERN_BYTES = 1 << 20 }; /* random numbers, repeated to fill a buffer */

/* ---- memory ---- */

static size_t inside_bytes(const struct ot_chain *chain, int block, int64_t n_tokens) {
    size_t most = 0;
    for (int i = 0; i < OT_KEEP_LEVELS; i++) {
        enum ot_keep_level level = (enum ot_keep_level)i;
        size_t bytes = chain->saved_bytes(chain->context, block, level, n_tokens) +
                       chain->work_bytes(chain->context, block, level, n_tokens);
        most = ot_max(bytes, most);
    }
    return most;
}

/* The next piece of the allocation. With base NULL it only adds up the bytes. */
static void *take(struct memory *m, size_t bytes) {
    size_t at = m->bytes;
    m->bytes += (bytes + 255) / 256 * 256; /* as the device's allocations are aligned */
    return m->base ? (char *)m->base + at : NULL;
}

static void cut(struct memory *m, const struct ot_chain *chain, int block, int64_t n_tokens) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(chain->dtype);
    size_t boundary = ot_chain_boundary_bytes(chain, n_tokens);
    m->bytes = 0;
    for (int u = 0; u < spec->n_uses; u++) {
        size_t params = (size_t)chain->slabs[spec->uses[u].slab].n_params;
        m->weights[u] = take(m, params * item);
        m->grads[u] = chain->slabs[spec->uses[u].slab].frozen ? NULL : take(m, params * sizeof(float));
    }
    m->x = take(m, boundary);
    m->y = take(m, boundary);
    m->dxy = take(m, boundary);
    m->dxy_first = take(m, boundary);
    m->inside = take(m, inside_bytes(chain, block, n_tokens));
    m->scratch = take(m, chain->scratch_bytes(chain->context, block, n_tokens));
    m->constants = take(m, chain->constant_bytes);
    m->token_loss = take(m, n * sizeof(float));
    m->loss_scale = take(m, sizeof(float));
    m->batch = take(m, (size_t)ot_chain_token_arrays(chain) * n * sizeof(int32_t));
}

size_t ot_calibrate_bytes(const struct ot_chain *chain, int block, int64_t n_tokens) {
    struct memory counted = {0};
    cut(&counted, chain, block, n_tokens);
    return counted.bytes;
}

/* Fills the pattern with numbers like initial weights: small and of both signs. */
static void fill_pattern(const struct bench *b) {
    enum ot_dtype dtype = b->config->chain->dtype;
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 2, 0);
    float normals[256];
    for (int64_t i = 0; i < PATTERN_BYTES / (int64_t)ot_dtype_bytes(dtype); i++) {
        if (i % 256 == 0)
            ot_random_normals(3, stream, (uint64_t)i, 256, normals);
        ot_dtype_write(dtype, b->pinned, i, 0.02f * normals[i % 256]);
    }
}

static void fill_random(const struct bench *b, void *to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PATTERN_BYTES)
        ot_lane_copy(b->lane, OT_COPY_H2D, (char *)to + at, b->pinned, ot_min(bytes - at, PATTERN_BYTES));
}

/* Half of the tokens are inputs, if the chain has pairs. */
static int64_t inputs_of(const struct ot_chain *chain, int64_t n) {
    return chain->has_pairs ? n / 2 : 0;
}

/* Makes a token part of a row whose inputs and targets are as long as each other, `half` tokens. */
static void pair_token(int32_t *ids, int64_t n, int64_t n_inputs, int64_t half, int64_t i) {
    int64_t part = i < n_inputs ? 0 : n_inputs, at = (i - part) % half, first = i - part - at;
    first = first < n_inputs ? first : 0; /* the last row has targets alone */
    int64_t end = ot_min(first + half, n_inputs);
    ids[OT_ARRAY_POSITION * n + i] = (int32_t)at;
    ids[OT_ARRAY_ROW_START * n + i] = (int32_t)(i - at);
    ids[OT_ARRAY_INPUT_FIRST * n + i] = (int32_t)first;
    ids[OT_ARRAY_INPUT_END * n + i] = (int32_t)end;
    ids[OT_ARRAY_KEY_END * n + i] = i < n_inputs ? (int32_t)end : (int32_t)(i + 1);
}

/* A batch of rows of `row` tokens. Every token is a trained one. */
static int fill_batch(const struct bench *b, int64_t n, int64_t row) {
    int32_t *ids = (int32_t *)(void *)(b->pinned + PATTERN_BYTES);
    const struct ot_chain *chain = b->config->chain;
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 3, 0), vocab = (uint64_t)chain->vocab;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)ot_random_below(4, stream, (uint64_t)i, vocab);
        ids[OT_ARRAY_TARGETS * n + i] = (int32_t)ot_random_below(5, stream, (uint64_t)i, vocab);
        ids[OT_ARRAY_POSITION * n + i] = (int32_t)(i % row);
        ids[OT_ARRAY_ROW_START * n + i] = (int32_t)(i - i % row);
        if (chain->has_pairs)
            pair_token(ids, n, inputs_of(chain, n), row > 1 ? row / 2 : 1, i);
    }
    ot_lane_copy(b->lane, OT_COPY_H2D, b->memory.batch, ids,
                 (size_t)ot_chain_token_arrays(chain) * (size_t)n * sizeof *ids);
    return ot_lane_sync(b->lane); /* after this the pinned room may be written again */
}

void ot_calibrate_fill_weights(const struct bench *b, int block) {
    const struct ot_chain *chain = b->config->chain;
    const struct ot_block_spec *spec = &chain->blocks[block];
    const struct memory *m = &b->memory;
    size_t item = ot_dtype_bytes(chain->dtype);
    for (int u = 0; u < spec->n_uses; u++) {
        size_t params = (size_t)chain->slabs[spec->uses[u].slab].n_params;
        fill_random(b, m->weights[u], params * item);
        if (m->grads[u])
            ot_lane_fill(b->lane, m->grads[u], 0, params * sizeof(float));
    }
}

int ot_calibrate_fill_inputs(struct bench *b, int block, int64_t n, int64_t row) {
    const struct ot_chain *chain = b->config->chain;
    const struct memory *m = &b->memory;
    size_t boundary = ot_chain_boundary_bytes(chain, n);
    cut(&b->memory, chain, block, n);
    fill_random(b, m->x, boundary);
    fill_random(b, m->dxy_first, boundary);
    char *room = b->pinned + PATTERN_BYTES;
    if (chain->constant_bytes > 0) {
        chain->fill_constants(chain->context, room);
        ot_lane_copy(b->lane, OT_COPY_H2D, m->constants, room, chain->constant_bytes);
        OT_TRY(ot_lane_sync(b->lane));
    }
    *(float *)(void *)room = 1;
    ot_lane_copy(b->lane, OT_COPY_H2D, m->loss_scale, room, sizeof(float));
    OT_TRY(ot_lane_sync(b->lane));
    return fill_batch(b, n, row);
}

struct ot_block_run ot_calibrate_run(const struct bench *b, int block, int64_t n) {
    const struct ot_chain *chain = b->config->chain;
    const struct memory *m = &b->memory;
    const struct ot_block_caller caller = {.chain = chain,
                                           .lane = b->lane,
                                           .pass = OT_PASS_TRAIN,
                                           .constants = m->constants,
                                           .x = m->x,
                                           .y = m->y,
                                           .scratch = m->scratch,
                                           .token_loss = m->token_loss};
    struct ot_block_run run = ot_block_run_make(&caller, block, m->batch, n, n, inputs_of(chain, n));
    run.batch.grad_scale = 1 / (float)n;
    run.batch.loss_scale = chain->dtype == OT_F16 ? m->loss_scale : NULL;
    run.scores = chain->compares;
    run.dxy = m->dxy;
    run.saved = m->inside;
    run.saved_level = OT_KEEP_ALL;
    memcpy(run.weights, m->weights, sizeof m->weights);
    memcpy(run.grads, m->grads, sizeof m->grads);
    return run;
}

/* ---- all of it ---- */

int ot_calibrate_alloc(struct bench *b, int block, int64_t n_tokens) {
    const struct ot_calibration *c = b->config;
    size_t bytes = ot_calibrate_bytes(c->chain, block, n_tokens);
    OT_TRY(ot_device_alloc(c->device, bytes, "calibration", &b->memory.base));
    cut(&b->memory, c->chain, block, n_tokens); /* weights and gradients come first in the allocation */
    ot_calibrate_fill_weights(b, block);
    return 0;
}

void ot_calibrate_free(struct bench *b) {
    ot_device_free(b->config->device, b->memory.base);
    b->memory = (struct memory){0};
}

int ot_calibrate_open(struct bench *b) {
    const struct ot_calibration *c = b->config;
    size_t batch = (size_t)ot_chain_token_arrays(c->chain) * (size_t)c->micro_tokens * sizeof(int32_t);
    size_t room = ot_max(c->chain->constant_bytes, batch);
    void *pinned;
    OT_TRY(ot_lane_open(c->device, "calibrate", &b->lane));
    for (int i = 0; i < AHEAD; i++) {
        OT_TRY(ot_event_create_timed(c->device, &b->begin[i]));
        OT_TRY(ot_event_create_timed(c->device, &b->end[i]));
    }
    OT_TRY(ot_device_alloc_pinned(c->device, PATTERN_BYTES + room, "calibration", &pinned));
    b->pinned = pinned;
    b->pinned_bytes = PATTERN_BYTES + room;
    fill_pattern(b);
    return 0;
}

void ot_calibrate_close(struct bench *b) {
    ot_lane_close(b->lane);
    for (int i = 0; i < AHEAD; i++) {
        ot_event_destroy(b->begin[i]);
        ot_event_destroy(b->end[i]);
    }
    ot_device_free_pinned(b->config->device, b->pinned, b->pinned_bytes);
}
