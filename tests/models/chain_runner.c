#include "tests/models/chain_runner_state.h"

#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { DEVICE_BYTES = 256 << 20 };

void *runner_alloc(struct runner *r, size_t bytes, const char *name) {
    void *memory;
    check_ok(ot_device_alloc(r->device, bytes ? bytes : 1, name, &memory));
    return memory;
}

void *runner_host_alloc(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    assert_non_null(memory);
    return memory;
}

static void upload(struct runner *r, void *to, const void *from, size_t bytes) {
    ot_lane_copy(r->lane, OT_COPY_H2D, to, from, bytes);
    check_ok(ot_lane_sync(r->lane));
}

void runner_download(struct runner *r, void *to, const void *from, size_t bytes) {
    ot_lane_copy(r->lane, OT_COPY_D2H, to, from, bytes);
    check_ok(ot_lane_sync(r->lane));
}

void runner_spoil(struct runner *r, void *memory, size_t bytes) {
    ot_lane_fill(r->lane, memory, 0xff, bytes);
}

size_t runner_boundary_bytes(const struct runner *r, int64_t n) {
    return ot_chain_boundary_bytes(r->chain, n);
}

/* ---- halves ---- */

/* Copies the pieces of a part from `from` to the slab, or spoils them if it is NULL. */
static void set_part(struct runner *r, int slab, int part, const char *from) {
    const struct ot_slab_spec *spec = &r->chain->slabs[slab];
    size_t item = ot_dtype_bytes(r->chain->dtype);
    for (int i = 0; i < spec->n_pieces; i++) {
        size_t at = (size_t)(spec->pieces[i].first + part * spec->pieces[i].each) * item;
        size_t bytes = (size_t)spec->pieces[i].each * item;
        if (from)
            upload(r, (char *)r->weights[slab] + at, from + at, bytes);
        else
            runner_spoil(r, (char *)r->weights[slab] + at, bytes);
    }
}

/* Runs the halves as an engine does that fetches the used parts alone, with NaNs in place of the others. */
static void forward_halves(struct runner *r, int block, int slab, struct ot_block_run *run) {
    const struct ot_slab_spec *spec = &r->chain->slabs[slab];
    int32_t *used = runner_host_alloc((size_t)spec->n_parts, sizeof *used);
    int n_used = 0;
    upload(r, r->used, used, (size_t)spec->n_parts * sizeof *used);
    for (int p = 0; p < spec->n_parts; p++)
        set_part(r, slab, p, NULL);
    run->half = OT_HALF_CHOOSE;
    run->used = r->used;
    r->chain->forward(r->chain->context, block, run);
    runner_download(r, used, r->used, (size_t)spec->n_parts * sizeof *used);
    for (int p = 0; p < spec->n_parts; p++) {
        n_used += used[p] != 0;
        if (used[p])
            set_part(r, slab, p, r->whole[slab]);
    }
    assert_true(n_used > 0);
    runner_spoil(r, r->work, r->work_bytes);
    runner_spoil(r, r->scratch, r->scratch_bytes);
    run->half = OT_HALF_REST;
    run->used = NULL;
    r->chain->forward(r->chain->context, block, run);
    check_ok(ot_lane_sync(r->lane));
    free(used);
}

void runner_forward(struct runner *r, int block, struct ot_block_run *run) {
    const struct ot_block_spec *spec = &r->chain->blocks[block];
    for (int u = 0; u < spec->n_uses && r->whole; u++)
        if (r->chain->slabs[spec->uses[u].slab].n_parts > 0) {
            forward_halves(r, block, spec->uses[u].slab, run);
            return;
        }
    r->chain->forward(r->chain->context, block, run);
}

void runner_use_halves(struct runner *r) {
    r->whole = runner_host_alloc((size_t)r->chain->n_slabs, sizeof *r->whole);
    for (int s = 0; s < r->chain->n_slabs; s++) {
        size_t bytes = (size_t)r->chain->slabs[s].n_params * ot_dtype_bytes(r->chain->dtype);
        if (r->chain->slabs[s].n_parts == 0)
            continue;
        r->whole[s] = runner_host_alloc(bytes, 1);
        runner_download(r, r->whole[s], r->weights[s], bytes);
    }
}

static void alloc_blocks(struct runner *r) {
    const struct ot_chain *chain = r->chain;
    r->grads = runner_host_alloc((size_t)chain->n_blocks, sizeof *r->grads);
    r->boundary = runner_host_alloc((size_t)chain->n_blocks, sizeof *r->boundary);
    r->boundary_grad = runner_host_alloc((size_t)chain->n_blocks, sizeof *r->boundary_grad);
    r->saved = runner_host_alloc((size_t)chain->n_blocks, sizeof *r->saved);
    for (int b = 0; b < chain->n_blocks; b++) {
        size_t saved = chain->saved_bytes(chain->context, b, OT_KEEP_ALL, r->max_tokens);
        for (int u = 0; u < chain->blocks[b].n_uses; u++) {
            const struct ot_slab_spec *slab = &chain->slabs[chain->blocks[b].uses[u].slab];
            int64_t n = slab->n_params;
            if (!slab->frozen)
                r->grads[b][u] = runner_alloc(r, (size_t)n * sizeof(float), "gradients");
        }
        if (b < chain->n_blocks - 1) {
            r->boundary[b] = runner_alloc(r, runner_boundary_bytes(r, r->max_tokens), "boundary");
            r->boundary_grad[b] =
                runner_alloc(r, runner_boundary_bytes(r, r->max_tokens), "boundary gradient");
        }
        if (saved)
            r->saved[b] = runner_alloc(r, saved, "saved");
        r->work_bytes =
            ot_max(r->work_bytes, chain->work_bytes(chain->context, b, OT_KEEP_NONE, r->max_tokens));
        r->scratch_bytes = ot_max(r->scratch_bytes, chain->scratch_bytes(chain->context, b, r->max_tokens));
    }
    r->work = runner_alloc(r, r->work_bytes, "work");
    r->scratch = runner_alloc(r, r->scratch_bytes, "scratch");
    r->dxy = runner_alloc(r, runner_boundary_bytes(r, r->max_tokens), "gradient of the boundary");
}

static void free_blocks(struct runner *r) {
    for (int b = 0; b < r->chain->n_blocks; b++) {
        for (int u = 0; u < OT_MAX_USES; u++)
            ot_device_free(r->device, r->grads[b][u]);
        ot_device_free(r->device, r->boundary[b]);
        ot_device_free(r->device, r->boundary_grad[b]);
        ot_device_free(r->device, r->saved[b]);
    }
    ot_device_free(r->device, r->work);
    ot_device_free(r->device, r->scratch);
    ot_device_free(r->device, r->dxy);
    free(r->grads);
    free(r->boundary);
    free(r->boundary_grad);
    free(r->saved);
}

/* The regularisers change the sizes of boundaries and buffers. */
void runner_set_regular(struct runner *r, const struct ot_regular *regular) {
    ot_model_set_regular(r->model, regular);
    free_blocks(r);
    alloc_blocks(r);
    runner_zero_grads(r);
}

void runner_set_chunk(struct runner *r, int64_t tokens) {
    ot_model_set_chunk(r->model, tokens);
    free_blocks(r);
    alloc_blocks(r);
}

static void alloc_batch(struct runner *r) {
    size_t bytes = (size_t)r->max_tokens * sizeof(int32_t);
    r->tokens = runner_alloc(r, bytes, "tokens");
    r->targets = runner_alloc(r, bytes, "targets");
    r->position = runner_alloc(r, bytes, "position");
    r->row_start = runner_alloc(r, bytes, "row_start");
    r->input_first = runner_alloc(r, bytes, "input_first");
    r->input_end = runner_alloc(r, bytes, "input_end");
    r->key_end = runner_alloc(r, bytes, "key_end");
    r->token_loss = runner_alloc(r, bytes, "token_loss");
    r->logits = runner_alloc(r, (size_t)r->chain->vocab * sizeof(float), "logits");
    r->used = runner_alloc(r, OT_MOST_EXPERTS * sizeof *r->used, "used");
}

struct runner *runner_open(const struct ot_model_config *config, const struct ot_model_setup *parts,
                           enum ot_dtype dtype, int64_t max_tokens, int threads) {
    struct runner *r = runner_host_alloc(1, sizeof *r);
    r->max_tokens = max_tokens;
    check_ok(ot_model_open_setup(config, dtype, config->max_position, parts, &r->model));
    tiny_open_device(DEVICE_BYTES, threads, 0, &r->device);
    check_ok(ot_lane_open(r->device, "compute", &r->lane));
    r->chain = ot_model_chain(r->model);
    r->weights = runner_host_alloc((size_t)r->chain->n_slabs, sizeof *r->weights);
    for (int s = 0; s < r->chain->n_slabs; s++) {
        size_t bytes = (size_t)r->chain->slabs[s].n_params * ot_dtype_bytes(dtype);
        r->weights[s] = runner_alloc(r, bytes, "weights");
        runner_spoil(r, r->weights[s], bytes);
    }
    alloc_blocks(r);
    alloc_batch(r);
    void *constants = runner_host_alloc(r->chain->constant_bytes, 1);
    r->constants = runner_alloc(r, r->chain->constant_bytes, "constants");
    r->chain->fill_constants(r->chain->context, constants);
    upload(r, r->constants, constants, r->chain->constant_bytes);
    free(constants);
    runner_zero_grads(r);
    return r;
}

void runner_close(struct runner *r) {
    void *single[] = {r->constants, r->tokens,      r->targets,   r->position, r->row_start, r->token_loss,
                      r->logits,    r->input_first, r->input_end, r->key_end,  r->used};
    ot_lane_close(r->lane);
    for (size_t i = 0; i < sizeof single / sizeof single[0]; i++)
        ot_device_free(r->device, single[i]);
    for (int s = 0; s < r->chain->n_slabs; s++) {
        ot_device_free(r->device, r->weights[s]);
        free(r->whole ? r->whole[s] : NULL);
    }
    free_blocks(r);
    ot_device_close(r->device);
    ot_model_close(r->model);
    free(r->whole);
    free(r->weights);
    free(r);
}

struct ot_model *runner_model(struct runner *r) {
    return r->model;
}

static void set_values(struct runner *r, int slab, int64_t first, int64_t n, const float *values) {
    size_t item = ot_dtype_bytes(r->chain->dtype);
    void *rounded = runner_host_alloc((size_t)n, item);
    for (int64_t i = 0; i < n; i++)
        ot_dtype_write(r->chain->dtype, rounded, i, values[i]);
    upload(r, (char *)r->weights[slab] + (size_t)first * item, rounded, (size_t)n * item);
    free(rounded);
}

void runner_set_tensor(struct runner *r, const struct ot_tensor *tensor, const float *values) {
    set_values(r, tensor->slab, tensor->first, tensor->rows * tensor->cols, values);
}

void runner_init_weights(struct runner *r, uint64_t seed) {
    for (int s = 0; s < r->chain->n_slabs; s++) {
        int64_t n = r->chain->slabs[s].n_params;
        float *values = runner_host_alloc((size_t)n, sizeof *values);
        ot_model_init_values(r->model, seed, s, 0, n, values);
        set_values(r, s, 0, n, values);
        free(values);
    }
}

static void fill_grads(struct runner *r, int byte) {
    for (int b = 0; b < r->chain->n_blocks; b++)
        for (int u = 0; u < r->chain->blocks[b].n_uses; u++) {
            int64_t n = r->chain->slabs[r->chain->blocks[b].uses[u].slab].n_params;
            if (r->grads[b][u])
                ot_lane_fill(r->lane, r->grads[b][u], byte, (size_t)n * sizeof(float));
        }
    check_ok(ot_lane_sync(r->lane));
}

void runner_zero_grads(struct runner *r) {
    fill_grads(r, 0);
}

void runner_begin_grads(struct runner *r) {
    fill_grads(r, 0xff);
    r->first = true;
}

void runner_upload_batch(struct runner *r, const struct runner_batch *batch) {
    size_t bytes = (size_t)batch->n * sizeof(int32_t);
    assert_true(batch->n <= r->max_tokens);
    upload(r, r->tokens, batch->tokens, bytes);
    upload(r, r->targets, batch->targets, bytes);
    upload(r, r->position, batch->position, bytes);
    upload(r, r->row_start, batch->row_start, bytes);
    if (!r->chain->has_pairs)
        return;
    int32_t *key_end = runner_host_alloc((size_t)batch->n, sizeof *key_end);
    int64_t past = r->caches ? r->caches[1].n_past : 0;
    for (int64_t i = 0; i < batch->n; i++)
        key_end[i] = past + i < batch->n_inputs ? batch->input_end[i] : (int32_t)(past + i + 1);
    upload(r, r->input_first, batch->input_first, bytes);
    upload(r, r->input_end, batch->input_end, bytes);
    upload(r, r->key_end, key_end, bytes);
    free(key_end);
}

struct ot_block_run runner_make_run(struct runner *r, int block, enum ot_pass pass,
                                    const struct runner_batch *batch) {
    const struct ot_block_spec *spec = &r->chain->blocks[block];
    struct ot_block_run run = {
        .lane = r->lane,
        .dtype = r->chain->dtype,
        .pass = pass,
        .batch = {.n_tokens = batch->n,
                  .tokens = r->tokens,
                  .targets = r->targets,
                  .position = r->position,
                  .row_start = r->row_start,
                  .grad_scale = batch->grad_scale,
                  .n_inputs = batch->n_inputs,
                  .input_first = r->input_first,
                  .input_end = r->input_end,
                  .key_end = r->key_end},
        .random = {12345, ot_random_stream(OT_RANDOM_DROPOUT, 1, 0)},
        .constants = r->constants,
        .x = block > 0 ? r->boundary[block - 1] : NULL,
        .y = block < r->chain->n_blocks - 1 ? r->boundary[block] : NULL,
        .work = r->work,
        .scratch = r->scratch,
        .token_loss = r->token_loss,
        .logits = r->logits,
    };
    for (int u = 0; u < spec->n_uses; u++)
        run.weights[u] = r->weights[spec->uses[u].slab];
    runner_spoil(r, r->work, r->work_bytes);
    runner_spoil(r, r->scratch, r->scratch_bytes);
    return run;
}

/* The bytes of `saved` that the level does not keep are NaNs. */
static void keep_inside(struct runner *r, int block, enum ot_keep_level level, int64_t n,
                        struct ot_block_run *run) {
    size_t all = r->chain->saved_bytes(r->chain->context, block, OT_KEEP_ALL, r->max_tokens);
    size_t bytes = r->chain->saved_bytes(r->chain->context, block, level, n);
    run->saved = bytes > 0 ? r->saved[block] : NULL;
    run->saved_level = level;
    if (all > bytes)
        runner_spoil(r, (char *)r->saved[block] + bytes, all - bytes);
}

/* The same for a forward: what an earlier one kept would hide what this one does not write. */
static void keep_afresh(struct runner *r, int block, enum ot_keep_level level, int64_t n,
                        struct ot_block_run *run) {
    keep_inside(r, block, level, n, run);
    if (run->saved)
        runner_spoil(r, run->saved, r->chain->saved_bytes(r->chain->context, block, level, n));
}

void runner_train(struct runner *r, const struct runner_batch *batch, enum ot_keep_level level,
                  float *token_loss) {
    const struct ot_chain *chain = r->chain;
    runner_upload_batch(r, batch);
    for (int b = 0; b < chain->n_blocks; b++) {
        struct ot_block_run run = runner_make_run(r, b, OT_PASS_TRAIN, batch);
        keep_afresh(r, b, level, batch->n, &run);
        runner_forward(r, b, &run);
    }
    runner_spoil(r, r->dxy, runner_boundary_bytes(r, r->max_tokens));
    for (int b = chain->n_blocks - 1; b >= ot_chain_first_trained(chain); b--) {
        struct ot_block_run run = runner_make_run(r, b, OT_PASS_TRAIN, batch);
        memcpy(run.grads, r->grads[b], sizeof run.grads);
        run.first = r->first;
        run.y = NULL;
        run.dxy = r->dxy;
        keep_inside(r, b, level, batch->n, &run);
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            if (!chain->blocks[b].uses[u].needed_in_backward)
                run.weights[u] = NULL;
        chain->backward(chain->context, b, &run);
        if (b > 0)
            ot_lane_copy(r->lane, OT_COPY_D2D, r->boundary_grad[b - 1], r->dxy,
                         runner_boundary_bytes(r, batch->n));
    }
    r->first = false;
    check_ok(ot_lane_sync(r->lane));
    if (token_loss)
        runner_download(r, token_loss, r->token_loss, (size_t)batch->n * sizeof(float));
}

void *runner_forward_saved(struct runner *r, const struct runner_batch *batch, enum ot_keep_level level,
                           int last_block) {
    size_t bytes = r->chain->saved_bytes(r->chain->context, last_block, level, batch->n);
    void *saved = runner_host_alloc(bytes, 1);
    runner_upload_batch(r, batch);
    for (int b = 0; b <= last_block; b++) {
        struct ot_block_run run = runner_make_run(r, b, OT_PASS_TRAIN, batch);
        keep_afresh(r, b, level, batch->n, &run);
        runner_forward(r, b, &run);
    }
    runner_download(r, saved, r->saved[last_block], bytes);
    return saved;
}

void *runner_boundary_grad(struct runner *r, int boundary, int64_t n) {
    void *grad = runner_host_alloc(runner_boundary_bytes(r, n), 1);
    runner_download(r, grad, r->boundary_grad[boundary], runner_boundary_bytes(r, n));
    return grad;
}

void runner_keep(struct runner *r, enum ot_keep_level level) {
    r->level = level;
}

void runner_eval(struct runner *r, const struct runner_batch *batch, float *token_loss) {
    runner_upload_batch(r, batch);
    for (int b = 0; b < r->chain->n_blocks; b++) {
        struct ot_block_run run = runner_make_run(r, b, OT_PASS_EVAL, batch);
        keep_afresh(r, b, r->level, batch->n, &run);
        runner_forward(r, b, &run);
    }
    runner_download(r, token_loss, r->token_loss, (size_t)batch->n * sizeof(float));
}

void runner_text_logits(struct runner *r, const struct runner_batch *batch, float *logits) {
    size_t bytes = (size_t)(batch->n * r->chain->vocab) * sizeof *logits;
    struct ot_kv_text *texts = runner_host_alloc((size_t)batch->n, sizeof *texts);
    void *on_device = runner_alloc(r, bytes, "logits");
    struct ot_block_run run = runner_make_run(r, r->chain->n_blocks - 1, OT_PASS_DECODE, batch);
    run.kv.texts = texts;
    run.logits = on_device;
    runner_forward(r, r->chain->n_blocks - 1, &run);
    runner_download(r, logits, on_device, bytes);
    ot_device_free(r->device, on_device);
    free(texts);
}

void runner_decode_begin(struct runner *r, int64_t capacity) {
    size_t bytes = (size_t)(capacity * r->chain->kv_elems) * ot_dtype_bytes(r->chain->dtype);
    r->caches = runner_host_alloc((size_t)r->chain->n_blocks, sizeof *r->caches);
    r->kv_capacity = capacity;
    for (int b = 1; b < r->chain->n_blocks - 1; b++) {
        struct ot_kv_cache *cache = &r->caches[b];
        *cache =
            (struct ot_kv_cache){runner_alloc(r, bytes, "keys"), runner_alloc(r, bytes, "values"), 0, NULL};
        runner_spoil(r, cache->k, bytes);
        runner_spoil(r, cache->v, bytes);
    }
}

void runner_decode_begin_pair(struct runner *r, int64_t n_inputs, int64_t capacity) {
    runner_decode_begin(r, capacity);
    r->kv_inputs = n_inputs;
}

void runner_decode(struct runner *r, const int32_t *tokens, int64_t n, float *logits) {
    int32_t *fields =
        runner_host_alloc((size_t)n * 4, sizeof *fields); /* positions, row starts, ranges of inputs */
    int64_t past = r->caches[1].n_past;
    assert_true(past + n <= r->kv_capacity);
    for (int64_t i = 0; i < n; i++) {
        int64_t part = past + i < r->kv_inputs ? 0 : r->kv_inputs;
        fields[i] = (int32_t)(past + i - part);
        fields[n + i] = (int32_t)part;
        fields[3 * n + i] = (int32_t)r->kv_inputs;
    }
    const struct runner_batch batch = {n, tokens,       fields + n,     fields,        fields + n,
                                       0, r->kv_inputs, fields + 2 * n, fields + 3 * n};
    runner_upload_batch(r, &batch);
    for (int b = 0; b < r->chain->n_blocks; b++) {
        struct ot_block_run run = runner_make_run(r, b, OT_PASS_DECODE, &batch);
        run.kv = r->caches[b];
        keep_afresh(r, b, r->level, n, &run);
        runner_forward(r, b, &run);
        r->caches[b].n_past += n;
    }
    runner_download(r, logits, r->logits, (size_t)r->chain->vocab * sizeof(float));
    free(fields);
}

void runner_decode_end(struct runner *r) {
    for (int b = 1; b < r->chain->n_blocks - 1; b++) {
        ot_device_free(r->device, r->caches[b].k);
        ot_device_free(r->device, r->caches[b].v);
    }
    free(r->caches);
    r->caches = NULL;
    r->kv_inputs = 0;
}

float *runner_slab_grad(struct runner *r, int slab) {
    size_t n = (size_t)r->chain->slabs[slab].n_params;
    float *sum = runner_host_alloc(n, sizeof *sum), *part = runner_host_alloc(n, sizeof *part);
    for (int b = 0; b < r->chain->n_blocks; b++)
        for (int u = 0; u < r->chain->blocks[b].n_uses; u++) {
            if (r->chain->blocks[b].uses[u].slab != slab)
                continue;
            runner_download(r, part, r->grads[b][u], n * sizeof *part);
            for (size_t i = 0; i < n; i++)
                sum[i] += part[i];
        }
    free(part);
    return sum;
}
