#include "src/quantize/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "offload/rows.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

enum { PIECE_VALUES = 1 << 16, ALIGN = 256 };

struct ot_stream {
    struct ot_stream_config config;
    const struct ot_chain *chain;
    struct ot_lane *lane;
    size_t item; /* bytes of a value on the device */
    int block;
    size_t own_at; /* where the layer's own slab lies in `weights` */
    void *constants, *weights, *x, *y, *work, *scratch, *hessian;
    int32_t *batch; /* device: [OT_MOST_TOKEN_ARRAYS, most_tokens] */
    float *losses;  /* device */
    char *staging;  /* host: a slab in the device's dtype; or losses */
    float *pieces;  /* host: [threads, PIECE_VALUES] */
    /* The Hessians of the last pass. */
    enum ot_layer_input input;
    int64_t width, first, n;
    int64_t *counted;               /* host: [n] */
    int32_t *offsets, *assignments; /* host, of experts: those of one sequence */
};

static size_t align(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- sizes ---- */

int ot_stream_layer_slab(const struct ot_chain *chain, int block) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    return spec->uses[spec->n_uses - 1].slab;
}

static size_t slab_bytes(const struct ot_chain *chain, int slab) {
    return align((size_t)chain->slabs[slab].n_params * ot_dtype_bytes(chain->dtype));
}

/* The bytes of the largest block's weights; *most_slab: those of the largest slab. */
static size_t most_weights(const struct ot_chain *chain, size_t *most_slab) {
    size_t most = 0;
    *most_slab = 0;
    for (int b = 0; b < chain->n_blocks; b++) {
        size_t bytes = 0;
        for (int u = 0; u < chain->blocks[b].n_uses; u++) {
            size_t slab = slab_bytes(chain, chain->blocks[b].uses[u].slab);
            *most_slab = ot_max(*most_slab, slab);
            bytes += slab;
        }
        most = ot_max(most, bytes);
    }
    return most;
}

static size_t square_bytes(int64_t width) {
    return (size_t)width * (size_t)width * sizeof(float);
}

int64_t ot_stream_hessian_bytes(const struct ot_stream_config *config) {
    const struct ot_chain *chain = ot_model_chain(config->model);
    size_t one = 0, experts = 0, slab, block = most_weights(chain, &slab);
    for (int b = 1; b + 1 < chain->n_blocks; b++)
        for (int i = 0; i < OT_LAYER_INPUTS; i++) {
            enum ot_layer_input input = (enum ot_layer_input)i;
            size_t bytes = square_bytes(ot_model_input_width(config->model, b, input));
            one = ot_max(one, bytes);
            if (ot_model_input_is_of_experts(config->model, b, input))
                experts = ot_max(experts, bytes * (size_t)ot_model_get_config(config->model)->n_experts);
        }
    return config->hessian ? (int64_t)ot_max(one, ot_min(experts, block)) : 0;
}

int64_t ot_stream_hessian_room(const struct ot_stream *s, int64_t width) {
    return ot_stream_hessian_bytes(&s->config) / (int64_t)square_bytes(width);
}

int64_t ot_stream_boundary_bytes(const struct ot_model *model, int64_t tokens) {
    const struct ot_chain *chain = ot_model_chain(model);
    return (int64_t)ot_chain_boundary_bytes(chain, tokens);
}

static size_t staging_bytes(const struct ot_stream_config *config) {
    size_t slab;
    most_weights(ot_model_chain(config->model), &slab);
    return ot_max(slab, (size_t)config->most_tokens * sizeof(float));
}

int64_t ot_stream_host_bytes(const struct ot_stream_config *config) {
    return (int64_t)(staging_bytes(config) +
                     (size_t)ot_pool_threads(config->pool) * PIECE_VALUES * sizeof(float));
}

/* ---- opening ---- */

static int alloc(struct ot_stream *s, size_t bytes, const char *name, void **out) {
    return ot_device_alloc(s->config.device, bytes ? align(bytes) : ALIGN, name, out);
}

static int put_constants(struct ot_stream *s) {
    void *host = malloc(s->chain->constant_bytes + 1);
    if (!host)
        return ot_fail(OT_E_BUDGET, "no memory for the model's tables");
    s->chain->fill_constants(s->chain->context, host);
    ot_lane_copy(s->lane, OT_COPY_H2D, s->constants, host, s->chain->constant_bytes);
    int rc = ot_lane_sync(s->lane);
    free(host);
    return rc;
}

static int alloc_device(struct ot_stream *s) {
    const struct ot_chain *chain = s->chain;
    int64_t n = s->config.most_tokens;
    size_t work = 0, scratch = 0, slab, boundary = (size_t)ot_stream_boundary_bytes(s->config.model, n);
    void *batch, *losses;
    for (int b = 0; b < chain->n_blocks; b++) {
        work = ot_max(work, chain->work_bytes(chain->context, b, OT_KEEP_NONE, n));
        scratch = ot_max(scratch, chain->scratch_bytes(chain->context, b, n));
    }
    OT_TRY(alloc(s, chain->constant_bytes, "tables", &s->constants));
    OT_TRY(alloc(s, most_weights(chain, &slab), "weights of a block", &s->weights));
    OT_TRY(alloc(s, boundary, "activations", &s->x));
    OT_TRY(alloc(s, boundary, "activations", &s->y));
    OT_TRY(alloc(s, work, "inner activations", &s->work));
    OT_TRY(alloc(s, scratch, "scratch", &s->scratch));
    OT_TRY(alloc(s, OT_MOST_TOKEN_ARRAYS * (size_t)n * sizeof *s->batch, "tokens", &batch));
    s->batch = batch;
    OT_TRY(alloc(s, (size_t)n * sizeof *s->losses, "losses", &losses));
    s->losses = losses;
    size_t hessians = (size_t)ot_stream_hessian_bytes(&s->config);
    return hessians > 0 ? alloc(s, hessians, "Hessians", &s->hessian) : 0;
}

static int alloc_host(struct ot_stream *s) {
    const struct ot_model_config *c = ot_model_get_config(s->config.model);
    size_t experts = (size_t)c->n_experts, top = (size_t)c->top_experts;
    s->staging = malloc(staging_bytes(&s->config));
    s->pieces = malloc((size_t)ot_pool_threads(s->config.pool) * PIECE_VALUES * sizeof *s->pieces);
    s->counted = malloc((experts + 1) * sizeof *s->counted);
    s->offsets = malloc((experts + 1) * sizeof *s->offsets);
    s->assignments = malloc(((size_t)s->config.most_tokens * top + 1) * sizeof *s->assignments);
    if (!s->staging || !s->pieces || !s->counted || !s->offsets || !s->assignments)
        return ot_fail(OT_E_BUDGET, "no memory for the weights of a block");
    return 0;
}

int ot_stream_open(const struct ot_stream_config *config, struct ot_stream **out) {
    int rc;
    struct ot_stream *s = calloc(1, sizeof *s);
    if (!s)
        return ot_fail(OT_E_BUDGET, "no memory to run the model");
    s->config = *config;
    s->chain = ot_model_chain(config->model);
    s->item = ot_dtype_bytes(s->chain->dtype);
    OT_TRY_GOTO(alloc_host(s), rc, out);
    OT_TRY_GOTO(ot_lane_open(config->device, "quantize", &s->lane), rc, out);
    OT_TRY_GOTO(alloc_device(s), rc, out);
    OT_TRY_GOTO(put_constants(s), rc, out);
    *out = s;
    s = NULL;
out:
    ot_stream_close(s);
    return rc;
}

void ot_stream_close(struct ot_stream *s) {
    if (!s)
        return;
    ot_lane_close(s->lane);
    void *const memory[] = {s->constants, s->weights, s->x,      s->y,      s->work,
                            s->scratch,   s->batch,   s->losses, s->hessian};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        ot_device_free(s->config.device, memory[i]);
    free(s->staging);
    free(s->pieces);
    free(s->counted);
    free(s->offsets);
    free(s->assignments);
    free(s);
}

/* ---- weights ---- */

struct reading {
    struct ot_stream *s;
    const struct ot_tensor *tensor;
    float *values; /* of the slab; NULL: not wanted */
    pthread_mutex_t lock;
    struct ot_error error; /* the first one */
};

static int read_piece(const struct reading *r, int64_t begin, int64_t n, float *piece) {
    const struct ot_stream *s = r->s;
    OT_TRY(ot_model_dir_get(s->config.dir, r->tensor, begin, n, piece));
    int64_t bad = ot_f32_first_not_finite(piece, n);
    if (bad >= 0)
        return ot_fail(OT_E_INPUT, "%s: tensor %s holds %g at element %lld; the weights are damaged",
                       ot_model_dir_path(s->config.dir), r->tensor->name, (double)piece[bad],
                       (long long)(begin + bad));
    for (int64_t i = 0; i < n; i++)
        ot_dtype_write(s->chain->dtype, s->staging, r->tensor->first + begin + i, piece[i]);
    if (r->values)
        memcpy(r->values + r->tensor->first + begin, piece, (size_t)n * sizeof *piece);
    return 0;
}

static void read_on_pool(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct reading *r = context;
    (void)chunk;
    int rc = read_piece(r, begin, end - begin, r->s->pieces + (int64_t)worker * PIECE_VALUES);
    if (rc == 0)
        return;
    pthread_mutex_lock(&r->lock);
    if (r->error.code == 0)
        ot_error_save(&r->error, rc);
    pthread_mutex_unlock(&r->lock);
}

static int read_tensor(struct ot_stream *s, const struct ot_tensor *tensor, float *values) {
    struct reading r = {.s = s, .tensor = tensor, .values = values, .lock = PTHREAD_MUTEX_INITIALIZER};
    ot_pool_run(s->config.pool, tensor->rows * tensor->cols, PIECE_VALUES, read_on_pool, &r);
    return ot_error_load(&r.error);
}

static int load_slab(struct ot_stream *s, int slab, float *values, size_t at) {
    const struct ot_model *model = s->config.model;
    size_t bytes = slab_bytes(s->chain, slab);
    memset(s->staging, 0, bytes);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (ot_model_tensor(model, i)->slab == slab)
            OT_TRY(read_tensor(s, ot_model_tensor(model, i), values));
    ot_lane_copy(s->lane, OT_COPY_H2D, (char *)s->weights + at, s->staging, bytes);
    return ot_lane_sync(s->lane);
}

int ot_stream_load(struct ot_stream *s, int block, float *values) {
    const struct ot_block_spec *spec = &s->chain->blocks[block];
    size_t at = 0;
    s->block = block;
    for (int u = 0; u < spec->n_uses; u++) {
        s->own_at = at;
        OT_TRY(load_slab(s, spec->uses[u].slab, u + 1 == spec->n_uses ? values : NULL, at));
        at += slab_bytes(s->chain, spec->uses[u].slab);
    }
    return 0;
}

int ot_stream_set(struct ot_stream *s, int64_t first, int64_t n, const float *values) {
    for (int64_t i = 0; i < n; i++)
        ot_dtype_write(s->chain->dtype, s->staging, i, values[i]);
    ot_lane_copy(s->lane, OT_COPY_H2D, (char *)s->weights + s->own_at + (size_t)first * s->item, s->staging,
                 (size_t)n * s->item);
    return ot_lane_sync(s->lane);
}

/* ---- passes ---- */

static int refuse_stop(void) {
    return ot_fail(OT_E_INTERRUPT, "stopped");
}

/* Copies a sequence to the device, and describes the call. x: on the host; block 0 does not read it. */
static struct ot_block_run begin_run(struct ot_stream *s, const struct ot_sequence *q, const char *x) {
    const struct ot_block_spec *spec = &s->chain->blocks[s->block];
    int64_t room = s->config.most_tokens;
    size_t at = 0;
    const struct ot_block_caller caller = {.chain = s->chain,
                                           .lane = s->lane,
                                           .pass = OT_PASS_EVAL,
                                           .constants = s->constants,
                                           .x = s->x,
                                           .y = s->y,
                                           .work = s->work,
                                           .scratch = s->scratch,
                                           .token_loss = s->losses};
    struct ot_block_run run = ot_block_run_make(&caller, s->block, s->batch, room, q->n_tokens, q->n_inputs);
    for (int f = 0; f < ot_chain_token_arrays(s->chain); f++)
        ot_lane_copy(s->lane, OT_COPY_H2D, s->batch + f * room, q->arrays + f * q->stride,
                     (size_t)q->n_tokens * sizeof(int32_t));
    for (int u = 0; u < spec->n_uses; u++) {
        run.weights[u] = (char *)s->weights + at;
        at += slab_bytes(s->chain, spec->uses[u].slab);
    }
    if (run.x)
        ot_lane_copy(s->lane, OT_COPY_H2D, s->x, x + ot_stream_boundary_bytes(s->config.model, q->first),
                     (size_t)ot_stream_boundary_bytes(s->config.model, q->n_tokens));
    return run;
}

int ot_stream_forward(struct ot_stream *s, const struct ot_sequences *sequences, bool (*stopped)(void),
                      void *x) {
    for (int64_t i = 0; i < sequences->n; i++) {
        const struct ot_sequence *q = &sequences->list[i];
        if (stopped())
            return refuse_stop();
        struct ot_block_run run = begin_run(s, q, x);
        s->chain->forward(s->chain->context, s->block, &run);
        ot_lane_copy(s->lane, OT_COPY_D2H, (char *)x + ot_stream_boundary_bytes(s->config.model, q->first),
                     s->y, (size_t)ot_stream_boundary_bytes(s->config.model, q->n_tokens));
        OT_TRY(ot_lane_sync(s->lane));
    }
    return 0;
}

int ot_stream_losses(struct ot_stream *s, const struct ot_sequences *sequences, const void *x, double *sum,
                     int64_t *trained) {
    float *losses = (float *)(void *)s->staging;
    *sum = 0;
    *trained = 0;
    for (int64_t i = 0; i < sequences->n; i++) {
        const struct ot_sequence *q = &sequences->list[i];
        struct ot_block_run run = begin_run(s, q, x);
        s->chain->forward(s->chain->context, s->block, &run);
        ot_lane_copy(s->lane, OT_COPY_D2H, losses, s->losses, (size_t)q->n_tokens * sizeof *losses);
        OT_TRY(ot_lane_sync(s->lane));
        for (int64_t t = 0; t < q->n_tokens; t++)
            if (q->arrays[OT_ARRAY_TARGETS * q->stride + t] >= 0) {
                *sum += (double)losses[t];
                ++*trained;
            }
    }
    return 0;
}

/* ---- Hessians ---- */

/* Copies the groups of an input of experts to the host. */
static int get_groups(struct ot_stream *s, const struct ot_layer_rows *in, int64_t n_tokens) {
    const struct ot_model_config *c = ot_model_get_config(s->config.model);
    ot_lane_copy(s->lane, OT_COPY_D2H, s->offsets, in->offsets,
                 ((size_t)c->n_experts + 1) * sizeof *s->offsets);
    ot_lane_copy(s->lane, OT_COPY_D2H, s->assignments, in->assignments,
                 (size_t)(n_tokens * c->top_experts) * sizeof *s->assignments);
    return ot_lane_sync(s->lane);
}

/* The number of an expert's rows that are real tokens. Rows are ordered by token, so padding comes last. */
static int64_t count_rows(const struct ot_stream *s, const struct ot_sequence *q, int64_t expert) {
    int64_t top = ot_model_get_config(s->config.model)->top_experts, n = 0;
    while (s->offsets[expert] + n < s->offsets[expert + 1] &&
           s->assignments[s->offsets[expert] + n] / top < q->n_rows)
        n++;
    return n;
}

/* Adds the products of rows x, [n_rows, width], to Hessian i. */
static void add_rows(struct ot_stream *s, int64_t i, const void *x, int64_t n_rows) {
    void *hessian = (char *)s->hessian + (size_t)i * square_bytes(s->width);
    const struct ot_gemm product = {.dtype = s->chain->dtype,
                                    .c_dtype = OT_F32,
                                    .trans_a = true,
                                    .m = s->width,
                                    .n = s->width,
                                    .k = n_rows,
                                    .a = x,
                                    .b = x,
                                    .addend = s->counted[i] > 0 ? hessian : NULL,
                                    .c = hessian,
                                    .lda = s->width,
                                    .ldb = s->width,
                                    .ldc = s->width};
    if (n_rows == 0)
        return;
    ot_device_ops(s->config.device)->gemm(s->lane, &product);
    s->counted[i] += n_rows;
}

static int add_sequence(struct ot_stream *s, const struct ot_sequence *q, const void *x, double *seconds) {
    struct ot_block_run run = begin_run(s, q, x);
    const struct ot_layer_rows in = ot_model_layer_input(s->config.model, s->block, s->input, &run);
    OT_TRY(in.offsets ? get_groups(s, &in, q->n_tokens) : ot_lane_sync(s->lane));
    double began = ot_clock_seconds();
    for (int64_t i = 0; i < s->n; i++) {
        size_t row = in.offsets ? (size_t)s->offsets[s->first + i] : 0;
        add_rows(s, i, (const char *)in.x + row * (size_t)s->width * s->item,
                 in.offsets ? count_rows(s, q, s->first + i) : q->n_rows);
    }
    OT_TRY(ot_lane_sync(s->lane));
    *seconds += ot_clock_seconds() - began;
    return 0;
}

int ot_stream_hessians(struct ot_stream *s, const struct ot_sequences *sequences, enum ot_layer_input input,
                       int64_t first, int64_t n, bool (*stopped)(void), const void *x, double *seconds) {
    s->input = input;
    s->width = ot_model_input_width(s->config.model, s->block, input);
    s->first = first;
    s->n = n;
    memset(s->counted, 0, (size_t)n * sizeof *s->counted);
    *seconds = 0;
    for (int64_t i = 0; i < sequences->n; i++) {
        if (stopped())
            return refuse_stop();
        OT_TRY(add_sequence(s, &sequences->list[i], x, seconds));
    }
    return 0;
}

int64_t ot_stream_hessian_rows(const struct ot_stream *s, int64_t i) {
    return s->counted[i];
}

int ot_stream_get_hessian(struct ot_stream *s, int64_t i, float *hessian) {
    int64_t n = s->width * s->width;
    ot_lane_copy(s->lane, OT_COPY_D2H, hessian, (char *)s->hessian + (size_t)i * square_bytes(s->width),
                 (size_t)n * sizeof *hessian);
    OT_TRY(ot_lane_sync(s->lane));
    for (int64_t at = 0; at < n; at++)
        hessian[at] /= (float)s->counted[i];
    return 0;
}

/* ---- batches ---- */

/* arrays: of each sequence, with room for `room` tokens each. */
static int fill(struct ot_batcher *batcher, int arrays, int64_t room, int64_t multiple,
                struct ot_sequences *out) {
    for (int64_t i = 0; i < out->n; i++) {
        struct ot_step_batch batch;
        OT_TRY(ot_batcher_next(batcher, &batch));
        const struct ot_micro_batch *micro = &batch.input.micro[0];
        int64_t padded = (micro->n_tokens + multiple - 1) / multiple * multiple;
        int32_t *memory = out->memory + i * arrays * room;
        ot_rows_copy(arrays, micro, 0, padded, memory, room);
        out->list[i] = (struct ot_sequence){.n_tokens = padded,
                                            .n_rows = micro->n_tokens,
                                            .n_inputs = micro->n_inputs,
                                            .first = out->tokens,
                                            .arrays = memory,
                                            .stride = room};
        out->tokens += padded;
        out->row_tokens += micro->n_tokens;
        out->most_tokens = ot_max(padded, out->most_tokens);
    }
    return 0;
}

int ot_sequences_open(struct ot_packing *packing, const struct ot_dataset *dataset, int64_t seq_len,
                      int64_t most, int64_t multiple, struct ot_sequences *out) {
    const struct ot_batch_config config = {.packing = packing,
                                           .dataset = dataset,
                                           .seq_len = seq_len,
                                           .step_sequences = 1,
                                           .micro_sequences = 1};
    int64_t n = ot_packing_sequences(packing), room = (seq_len + multiple - 1) / multiple * multiple;
    int arrays = ot_token_arrays(ot_dataset_has_pairs(dataset));
    struct ot_batcher *batcher;
    *out = (struct ot_sequences){.n = ot_min(n, most)};
    out->list = calloc((size_t)out->n, sizeof *out->list);
    out->memory = malloc((size_t)(out->n * arrays * room) * sizeof *out->memory);
    if (!out->list || !out->memory)
        return ot_fail(OT_E_BUDGET, "no memory for %lld sequences of tokens", (long long)out->n);
    OT_TRY(ot_batcher_open(&config, &batcher));
    int rc = fill(batcher, arrays, room, multiple, out);
    ot_batcher_close(batcher);
    return rc;
}

void ot_sequences_free(struct ot_sequences *sequences) {
    free(sequences->list);
    free(sequences->memory);
    *sequences = (struct ot_sequences){0};
}
