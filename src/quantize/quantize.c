#include "src/quantize/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"
#include "src/machine/process.h"
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
    return job->format->kind == OT_QUANT_KIND_GPTQ;
}

/* ---- memory ---- */

static struct ot_stream_config stream_config(const struct ot_quantize *job) {
    int64_t a = job->calibration->most_tokens, b = job->held_out->most_tokens;
    return (struct ot_stream_config){.device = job->session->machine.device,
                                     .model = job->model,
                                     .dir = job->session->model.dir,
                                     .pool = job->session->machine.pool,
                                     .most_tokens = a > b   ? a
                                                    : b > 0 ? b
                                                            : 1,
                                     .hessian = uses_hessian(job)};
}

/* The number of parameters of the largest layer. */
static int64_t layer_params(const struct ot_quantize *job) {
    const struct ot_chain *chain = ot_model_chain(job->model);
    int64_t most = 0;
    for (int b = 1; b + 1 < chain->n_blocks; b++) {
        int64_t n = chain->slabs[ot_stream_layer_slab(chain, b)].n_params;
        most = ot_max(n, most);
    }
    return most;
}

/* *bytes: the memory of the most expensive unit. *cols: the width of the widest unit. */
static int most_hessian(const struct ot_quantize *job, int64_t *bytes, int64_t *cols) {
    const struct ot_chain *chain = ot_model_chain(job->model);
    *bytes = *cols = 0;
    for (int b = 1; uses_hessian(job) && b + 1 < chain->n_blocks; b++) {
        struct ot_quant_layer layer = {.format = job->format};
        OT_TRY(ot_quant_layer_begin(job->model, ot_stream_layer_slab(chain, b), &layer));
        for (int u = 0; u < layer.n_units; u++) {
            int64_t n = layer.units[u].cols;
            int64_t takes =
                n * n * (int64_t)sizeof(float) +
                ot_gptq_bytes(layer.units[u].rows, n, ot_pool_threads(job->session->machine.pool));
            *bytes = ot_max(takes, *bytes);
            *cols = ot_max(n, *cols);
        }
        ot_quant_layer_free(&layer);
    }
    return 0;
}

int ot_quantize_memory(const struct ot_quantize *job, struct ot_quantize_memory *out) {
    const struct ot_stream_config config = stream_config(job);
    int64_t cols;
    *out = (struct ot_quantize_memory){
        .activations =
            ot_stream_boundary_bytes(job->model, job->calibration->tokens + 2 * job->held_out->tokens),
        .weights = layer_params(job) * (int64_t)sizeof(float) + ot_stream_host_bytes(&config),
        .codes = ot_quant_layer_bytes(job->model, job->format),
        .hessians = ot_stream_hessian_bytes(&config)};
    return most_hessian(job, &out->hessian, &cols);
}

static int alloc_host(struct run *r) {
    const struct ot_quantize *job = r->job;
    int64_t bytes, cols;
    OT_TRY(most_hessian(job, &bytes, &cols));
    size_t hessian = (size_t)cols + 1;
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
    ot_stage_times_enter(&r->job->stages, OT_STAGE_READ);
    OT_TRY(ot_stream_load(r->stream, block, weights));
    ot_stage_times_enter(&r->job->stages, OT_STAGE_FORWARD);
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

static int quantize_unit(struct run *r, int u, const struct ot_quant_input *input) {
    struct ot_quantize *job = r->job;
    const struct ot_quant_unit *unit = &r->layer.units[u];
    float *weights = r->weights + unit->first;
    if (job->stopped())
        return ot_fail(OT_E_INTERRUPT, "stopped");
    ot_stage_times_enter(&job->stages, OT_STAGE_SOLVE);
    OT_TRY(ot_quant_unit_run(&r->layer, u, input, weights));
    ot_stage_times_enter(&job->stages, OT_STAGE_FORWARD);
    return ot_stream_set(r->stream, unit->first, unit->rows * unit->cols, weights);
}

/* GPTQ of n units from `first` on, which have one input: in one pass over the calibration rows. */
static int calibrate_units(struct run *r, int first, int n) {
    struct ot_quantize *job = r->job;
    const struct ot_quant_unit *unit = &r->layer.units[first];
    double fewest = job->format->least_share * (double)job->calibration->row_tokens, seconds;
    OT_TRY(ot_stream_hessians(r->stream, job->calibration, unit->input, ot_max(unit->expert, 0), n,
                              job->stopped, r->calibration, &seconds));
    ot_stage_times_move(&job->stages, OT_STAGE_HESSIAN, seconds);
    for (int i = 0; i < n; i++) {
        struct ot_quant_input input = {.rows = ot_stream_hessian_rows(r->stream, i)};
        bool enough = unit->expert < 0 || (double)input.rows >= fewest;
        ot_stage_times_enter(&job->stages, OT_STAGE_HESSIAN);
        if (enough)
            OT_TRY(ot_stream_get_hessian(r->stream, i, r->hessian));
        input.hessian = enough ? r->hessian : NULL;
        OT_TRY(quantize_unit(r, first + i, &input));
    }
    return 0;
}

static int quantize_units(struct run *r) {
    for (int u = 0, n; u < r->layer.n_units; u += n) {
        const struct ot_quant_unit *units = r->layer.units + u;
        int64_t room = uses_hessian(r->job) ? ot_stream_hessian_room(r->stream, units->cols) : 1;
        for (n = 1; n < room && u + n < r->layer.n_units && units[n].input == units->input; n++)
            continue;
        OT_TRY(uses_hessian(r->job) ? calibrate_units(r, u, n) : quantize_unit(r, u, NULL));
    }
    return 0;
}

double ot_quantize_map_error(const struct ot_quantize_map *map) {
    return map->power > 0 ? sqrt(map->error / map->power) : 0;
}

/* Adds a matrix to the sums of its name, which is the last one of its tensor's but "weight". */
static void add_map(struct ot_quantize_row *row, const struct ot_quant_map *map) {
    const char *name = map->tensor->name, *end = strstr(name, ".weight");
    int i = 0;
    end = end ? end : name + strlen(name);
    const char *begin = end;
    while (begin > name && begin[-1] != '.')
        begin--;
    int bytes = (int)(end - begin);
    while (i < row->n_maps &&
           (row->maps[i].bytes != bytes || memcmp(row->maps[i].name, begin, (size_t)bytes) != 0))
        i++;
    if (i == row->n_maps)
        row->maps[row->n_maps++] = (struct ot_quantize_map){.name = begin, .bytes = bytes};
    row->maps[i].error += map->error;
    row->maps[i].power += map->power;
}

static void report(const struct run *r, double seconds) {
    const struct ot_model_config *c = ot_model_get_config(r->job->model);
    struct ot_quantize_row row = {
        .layer = r->block - 1, .n_layers = r->chain->n_blocks - 2, .seconds = seconds};
    row.experts = ot_model_layer_has_experts(c, row.layer) ? c->n_experts : 0;
    for (int u = 0; u < r->layer.n_units; u++) {
        const struct ot_quant_unit *unit = &r->layer.units[u];
        row.rounded += unit->rounded && unit->input == OT_INPUT_DOWN;
        for (int m = 0; m < unit->n_maps && !unit->rounded; m++)
            add_map(&row, &unit->maps[m]);
    }
    r->job->done(r->job->context, &row);
}

static int quantize_layer(struct run *r, int block) {
    struct ot_quantize *job = r->job;
    double began = ot_clock_seconds();
    ot_quant_layer_free(&r->layer);
    OT_TRY(ot_quant_layer_begin(job->model, ot_stream_layer_slab(r->chain, block), &r->layer));
    r->block = block;
    OT_TRY(enter_block(r, block, r->weights));
    OT_TRY(ot_stream_forward(r->stream, job->held_out, job->stopped, r->before));
    OT_TRY(quantize_units(r));
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
        if (ot_stream_layer_slab(r->chain, b) == slab)
            return b;
    return 0;
}

static int give_tensors(void *context, const struct ot_tensor *tensor,
                        const void *tensors[OT_QUANT_TENSORS]) {
    struct run *r = context;
    int block = block_of(r, tensor->slab);
    if (block != r->block)
        OT_TRY(quantize_layer(r, block));
    ot_stage_times_enter(&r->job->stages, OT_STAGE_WRITE);
    return ot_quant_layer_tensors(&r->layer, tensor, tensors);
}

static int give_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct run *r = context;
    const struct ot_model *model = r->job->model;
    if (slab == r->chain->blocks[r->chain->n_blocks - 1].uses[0].slab && !r->finished)
        OT_TRY(finish(r));
    ot_stage_times_enter(&r->job->stages, OT_STAGE_WRITE);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (t->slab == slab && first >= t->first && first < t->first + t->rows * t->cols)
            return ot_model_dir_get(r->job->session->model.dir, t, first - t->first, n, values);
    }
    return ot_fail(OT_E_INTERNAL, "slab %d has no tensor at %lld", slab, (long long)first);
}

int ot_quantize_run(struct ot_quantize *job) {
    struct run r = {.job = job, .chain = ot_model_chain(job->model)};
    const struct ot_stream_config config = stream_config(job);
    struct ot_model_save save = *job->save;
    int rc;
    r.layer = (struct ot_quant_layer){.format = job->format, .pool = job->session->machine.pool};
    save.quant_source = give_tensors;
    OT_TRY_GOTO(ot_model_dir_check(job->session->model.dir, job->model), rc, out);
    OT_TRY_GOTO(alloc_host(&r), rc, out);
    OT_TRY_GOTO(ot_stream_open(&config, &r.stream), rc, out);
    OT_TRY_GOTO(embed(&r), rc, out);
    ot_stage_times_enter(&job->stages, OT_STAGE_WRITE);
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

/* ---- stage times ---- */

const char *ot_stage_name(enum ot_stage stage) {
    static const char *const names[OT_STAGES] = {"read", "forward", "hessian", "solve", "write"};
    return names[stage];
}

void ot_stage_times_begin(struct ot_stage_times *stages, enum ot_stage first) {
    *stages = (struct ot_stage_times){.now = first, .began = ot_clock_seconds()};
    ot_process_forget_peak();
}

static void end_present(struct ot_stage_times *stages) {
    double now = ot_clock_seconds();
    int64_t peak = ot_process_peak();
    stages->seconds[stages->now] += now - stages->began;
    stages->began = now;
    if (peak > stages->peak_bytes[stages->now])
        stages->peak_bytes[stages->now] = peak;
}

void ot_stage_times_enter(struct ot_stage_times *stages, enum ot_stage stage) {
    if (stage == stages->now)
        return;
    end_present(stages);
    stages->now = stage;
    ot_process_forget_peak();
}

void ot_stage_times_move(struct ot_stage_times *stages, enum ot_stage to, double seconds) {
    stages->seconds[to] += seconds;
    stages->seconds[stages->now] -= seconds;
    int64_t peak = ot_process_peak();
    if (peak > stages->peak_bytes[to])
        stages->peak_bytes[to] = peak;
}

double ot_stage_times_end(struct ot_stage_times *stages) {
    double sum = 0;
    end_present(stages);
    for (int i = 0; i < OT_STAGES; i++)
        sum += stages->seconds[i];
    return sum;
}
