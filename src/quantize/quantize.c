#include "src/quantize/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/pool.h"
#include "src/quantize/stream.h"

struct run {
    struct ot_quantize *job;
    const struct ot_chain *chain;
    struct ot_stream *stream; /* NULL: nothing passes through the model */
    struct ot_quant_layer layer;
    int block;      /* the layer in `layer`; 0: none yet */
    bool finished;  /* the head has given its losses */
    float *weights; /* of the layer */
    float *hessian;
    char *calibration, *before, *after; /* boundary activations */
};

static bool uses_hessian(const struct ot_quantize *job) {
    return job->format->kind == OT_PACKED_GPTQ;
}

/* ---- memory ---- */

static struct ot_stream_config stream_config(const struct ot_quantize *job) {
    int64_t a = job->calibration->most_tokens, b = job->held_out->most_tokens;
    return (struct ot_stream_config){.device = job->session->device,
                                     .model = job->model,
                                     .dir = job->session->dir,
                                     .pool = job->session->pool,
                                     .most_tokens = a > b   ? a
                                                    : b > 0 ? b
                                                            : 1,
                                     .hessian = uses_hessian(job)};
}

static int64_t layer_params(const struct ot_quantize *job) {
    const struct ot_chain *chain = ot_model_chain(job->model);
    return chain->slabs[chain->blocks[1].uses[0].slab].n_params;
}

/* Of the unit that takes the most. */
static int64_t hessian_bytes(const struct ot_quantize *job) {
    struct ot_quant_layer layer = {0};
    int64_t most = 0;
    ot_quant_layer_begin(job->model, ot_model_chain(job->model)->blocks[1].uses[0].slab, &layer);
    for (int u = 0; u < OT_LAYER_INPUTS; u++) {
        int64_t cols = layer.units[u].cols;
        int64_t bytes = cols * cols * (int64_t)sizeof(float) +
                        ot_gptq_bytes(layer.units[u].rows, cols, ot_pool_threads(job->session->pool));
        most = bytes > most ? bytes : most;
    }
    return uses_hessian(job) ? most : 0;
}

struct ot_quantize_memory ot_quantize_memory(const struct ot_quantize *job) {
    const struct ot_stream_config config = stream_config(job);
    return (struct ot_quantize_memory){
        .activations =
            ot_stream_boundary_bytes(job->model, job->calibration->tokens + 2 * job->held_out->tokens),
        .weights = layer_params(job) * (int64_t)sizeof(float) + ot_stream_host_bytes(&config),
        .codes = ot_quant_layer_bytes(job->model, job->format),
        .hessian = hessian_bytes(job)};
}

static int64_t most_columns(const struct ot_model *model) {
    int64_t most = 0;
    for (int i = 0; i < OT_LAYER_INPUTS; i++) {
        int64_t width = ot_model_input_width(model, (enum ot_layer_input)i);
        most = width > most ? width : most;
    }
    return most;
}

static int alloc_host(struct run *r) {
    const struct ot_quantize *job = r->job;
    size_t hessian = uses_hessian(job) ? (size_t)most_columns(job->model) : 1;
    size_t held_out = (size_t)ot_stream_boundary_bytes(job->model, job->held_out->tokens) + 1;
    r->weights = malloc((size_t)layer_params(job) * sizeof *r->weights);
    r->hessian = malloc(hessian * hessian * sizeof *r->hessian);
    r->calibration = malloc((size_t)ot_stream_boundary_bytes(job->model, job->calibration->tokens) + 1);
    r->before = malloc(held_out);
    r->after = malloc(held_out);
    if (!r->weights || !r->hessian || !r->calibration || !r->before || !r->after)
        return ot_fail(OT_E_BUDGET, "no memory for the activations of the rows and the weights of a layer");
    return 0;
}

/* ---- the layers ---- */

static int enter_block(struct run *r, int block, float *weights) {
    ot_stages_enter(&r->job->stages, OT_STAGE_READ);
    OT_TRY(ot_stream_load(r->stream, block, weights));
    ot_stages_enter(&r->job->stages, OT_STAGE_FORWARD);
    return 0;
}

static int embed(struct run *r) {
    const struct ot_quantize *job = r->job;
    OT_TRY(enter_block(r, 0, NULL));
    OT_TRY(ot_stream_forward(r->stream, job->calibration, job->stopped, r->calibration));
    OT_TRY(ot_stream_forward(r->stream, job->held_out, job->stopped, r->before));
    memcpy(r->after, r->before, (size_t)ot_stream_boundary_bytes(job->model, job->held_out->tokens));
    return 0;
}

static int get_hessian(struct run *r, enum ot_layer_input input) {
    struct ot_quantize *job = r->job;
    double seconds;
    ot_stages_enter(&job->stages, OT_STAGE_FORWARD);
    OT_TRY(ot_stream_hessian(r->stream, job->calibration, input, job->stopped, r->calibration, &seconds));
    ot_stages_move(&job->stages, OT_STAGE_HESSIAN, seconds);
    ot_stages_enter(&job->stages, OT_STAGE_HESSIAN);
    return ot_stream_get_hessian(r->stream, r->hessian);
}

static int quantize_unit(struct run *r, enum ot_layer_input input) {
    struct ot_quantize *job = r->job;
    const struct ot_quant_unit *unit = &r->layer.units[input];
    float *weights = r->weights + unit->first;
    if (job->stopped())
        return ot_fail(OT_E_INTERRUPT, "stopped");
    if (uses_hessian(job))
        OT_TRY(get_hessian(r, input));
    ot_stages_enter(&job->stages, OT_STAGE_SOLVE);
    OT_TRY(ot_quant_unit_run(&r->layer, input, uses_hessian(job) ? r->hessian : NULL, weights));
    ot_stages_enter(&job->stages, OT_STAGE_FORWARD);
    return ot_stream_set(r->stream, unit->first, unit->rows * unit->cols, weights);
}

static void report(const struct run *r, double seconds) {
    struct ot_quantize_row row = {
        .layer = r->block - 1, .n_layers = r->chain->n_blocks - 2, .seconds = seconds};
    for (int u = 0; u < OT_LAYER_INPUTS; u++)
        for (int m = 0; m < r->layer.units[u].n_maps; m++) {
            const struct ot_quant_map *map = &r->layer.units[u].maps[m];
            const char *end = strrchr(map->tensor->name, '.'), *begin = end;
            while (begin > map->tensor->name && begin[-1] != '.')
                begin--;
            row.maps[row.n_maps].name = begin;
            row.maps[row.n_maps].bytes = (int)(end - begin);
            row.maps[row.n_maps++].error = map->error;
        }
    r->job->done(r->job->context, &row);
}

static int quantize_layer(struct run *r, int block) {
    struct ot_quantize *job = r->job;
    double began = ot_clock_seconds();
    ot_quant_layer_free(&r->layer);
    ot_quant_layer_begin(job->model, r->chain->blocks[block].uses[0].slab, &r->layer);
    r->block = block;
    OT_TRY(enter_block(r, block, r->weights));
    OT_TRY(ot_stream_forward(r->stream, job->held_out, job->stopped, r->before));
    for (int input = 0; input < OT_LAYER_INPUTS; input++)
        OT_TRY(quantize_unit(r, (enum ot_layer_input)input));
    OT_TRY(ot_stream_forward(r->stream, job->held_out, job->stopped, r->after));
    if (block + 2 < r->chain->n_blocks) /* nothing reads the calibration rows behind the last layer */
        OT_TRY(ot_stream_forward(r->stream, job->calibration, job->stopped, r->calibration));
    report(r, ot_clock_seconds() - began);
    return 0;
}

static int finish(struct run *r) {
    struct ot_quantize *job = r->job;
    struct ot_quantize_loss *loss = &job->loss;
    double before, after;
    r->finished = true;
    if (job->held_out->n == 0)
        return 0;
    OT_TRY(enter_block(r, r->chain->n_blocks - 1, NULL));
    OT_TRY(ot_stream_losses(r->stream, job->held_out, r->before, &before, &loss->trained));
    OT_TRY(ot_stream_losses(r->stream, job->held_out, r->after, &after, &loss->trained));
    loss->before = before / (double)loss->trained;
    loss->after = after / (double)loss->trained;
    if (isfinite(loss->before) && isfinite(loss->after))
        return 0;
    return ot_fail(OT_E_NUMERIC, "the loss of the %s model on the held-out rows is not a finite number",
                   isfinite(loss->before) ? "quantized" : "original");
}

/* ---- the save asks for tensors ---- */

/* The layer's number in the chain; 0: the tensor is not of a layer. */
static int block_of(const struct run *r, int slab) {
    for (int b = 1; b + 1 < r->chain->n_blocks; b++)
        if (r->chain->blocks[b].uses[0].slab == slab)
            return b;
    return 0;
}

static int give_parts(void *context, const struct ot_tensor *tensor, const void *parts[OT_PACK_PARTS]) {
    struct run *r = context;
    int block = block_of(r, tensor->slab);
    if (block != r->block)
        OT_TRY(quantize_layer(r, block));
    ot_stages_enter(&r->job->stages, OT_STAGE_WRITE);
    return ot_quant_layer_parts(&r->layer, tensor, parts);
}

static int give_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct run *r = context;
    const struct ot_model *model = r->job->model;
    if (slab == r->chain->blocks[r->chain->n_blocks - 1].uses[0].slab && !r->finished)
        OT_TRY(finish(r));
    ot_stages_enter(&r->job->stages, OT_STAGE_WRITE);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (t->slab == slab && first >= t->first && first < t->first + t->rows * t->cols)
            return ot_model_dir_get(r->job->session->dir, t, first - t->first, n, values);
    }
    return ot_fail(OT_E_INTERNAL, "slab %d has no tensor at %lld", slab, (long long)first);
}

int ot_quantize_run(struct ot_quantize *job) {
    struct run r = {.job = job, .chain = ot_model_chain(job->model)};
    const struct ot_stream_config config = stream_config(job);
    struct ot_model_save save = *job->save;
    int rc;
    r.layer = (struct ot_quant_layer){.format = job->format, .pool = job->session->pool};
    save.pack_source = give_parts;
    OT_TRY_GOTO(ot_model_dir_check(job->session->dir, job->model), rc, out);
    OT_TRY_GOTO(alloc_host(&r), rc, out);
    OT_TRY_GOTO(ot_stream_open(&config, &r.stream), rc, out);
    OT_TRY_GOTO(embed(&r), rc, out);
    ot_stages_enter(&job->stages, OT_STAGE_WRITE);
    rc = ot_model_dir_save(&save, give_values, &r);
out:
    ot_stream_close(r.stream);
    ot_quant_layer_free(&r.layer);
    free(r.weights);
    free(r.hessian);
    free(r.calibration);
    free(r.before);
    free(r.after);
    return rc;
}
