/* The work of each kind of task, except tasks of the nvme lanes (nvme.c) and DECIDE tasks (decide.c). */
#include <assert.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/engine/engine_state.h"
#include "offload/plan/shadow_updates.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

static struct ot_engine_step *step_of(struct ot_engine *en, int64_t step) {
    return &en->steps[step & 1];
}

static size_t weight_bytes(const struct ot_engine *en, int64_t n) {
    return (size_t)n * ot_dtype_bytes(en->chain.dtype);
}

static size_t span_bytes(const struct ot_engine *en, const struct ot_task *task) {
    return ot_slab_bytes(&en->chain, task->slab, task->span.n);
}

/* ---- copies ---- */

/* True if the step has a micro-batch in this place. */
static bool has_micro(struct ot_engine *en, int64_t step, int micro) {
    return step_of(en, step)->micro_tokens[micro] > 0;
}

/* The address of the task's waiting gradients outside the device: at home, or in a tile slot. */
static char *grads_off_gpu(const struct ot_engine *en, const struct ot_task *task) {
    if (en->plan.slabs[task->slab].grads == OT_HOME_NVME)
        return (char *)ot_engine_at(en, task->from) + en->layout.slot_grads_offset;
    return ot_engine_at_unit(en, task->from, task->slab, task->span.first);
}

/* The address of the task's weights outside the device: at home, or in a tile slot. */
static char *weights_off_gpu(const struct ot_engine *en, const struct ot_task *task) {
    if (ot_slab_weights_pass(&en->plan, task->slab))
        return (char *)ot_engine_at(en, task->to) + en->layout.slot_weights_offset;
    return ot_engine_at_unit(en, task->to, task->slab, task->span.first);
}

static void copy_in(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int64_t first = task->span.first;
    ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_unit(en, task->to, task->slab, first),
                 ot_engine_at_unit(en, task->from, task->slab, first), span_bytes(en, task));
}

static void store(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_D2H, weights_off_gpu(en, task),
                 ot_engine_at_unit(en, task->from, task->slab, task->span.first),
                 weight_bytes(en, task->span.n));
}

/* Copies gradients to their home, or one tile's gradients into a slot. */
static void grad_out(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int64_t first = task->span.first;
    char *to =
        task->tile >= 0 ? ot_engine_at(en, task->to) : ot_engine_at_unit(en, task->to, task->slab, first);
    ot_lane_copy(lane, OT_COPY_D2H, to, ot_engine_at_unit(en, task->from, task->slab, first),
                 weight_bytes(en, task->span.n));
}

static void copy_activations(struct ot_engine *en, const struct ot_task *task, int64_t step,
                             struct ot_lane *lane, enum ot_copy_kind kind) {
    const struct ot_chain *chain = &en->chain;
    int64_t n = step_of(en, step)->micro_tokens[task->micro];
    if (!has_micro(en, step, task->micro))
        return;
    size_t bytes = task->saved_level == OT_KEEP_NONE
                       ? ot_chain_boundary_bytes(chain, n)
                       : chain->saved_bytes(chain->context, task->block, task->saved_level, n);
    ot_lane_copy(lane, kind, ot_engine_at(en, task->to), ot_engine_at(en, task->from), bytes);
}

static void batch_in(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    size_t bytes = ot_engine_batch_offset(en, step_of(en, step)->n_places, 0) * sizeof(int32_t);
    ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_parity(en, task->to, step),
                 ot_engine_at_parity(en, task->from, step), bytes);
}

/* Copies one slab's squared norms (task->slab >= 0), or the losses and the norms that are not copied yet. */
static void result_out(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    const struct ot_layout *layout = &en->layout;
    size_t norms = (size_t)(en->chain.n_slabs * layout->norms), before = 0;
    size_t ranks = (size_t)ot_shard_ranks(&en->plan.shard);
    size_t first = ot_plan_sends_norms(&en->plan) ? norms : 0;
    size_t end = norms + ranks * (size_t)layout->own_results;
    if (ot_plan_has_stages(&en->plan)) {
        before = (size_t)en->plan.shard.rank * ot_engine_stage_results(en);
        first = 0;
        end = ranks * ot_engine_stage_results(en);
    }
    if (task->slab >= 0) {
        first = before + (size_t)(task->slab * layout->norms);
        end = first + (size_t)layout->norms;
    }
    double *to = ot_engine_at_parity(en, task->to, step);
    const double *from = ot_engine_at(en, task->from);
    ot_lane_copy(lane, OT_COPY_D2H, to + first, from + first, (end - first) * sizeof(double));
}

static void params_in(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    const struct ot_adamw_step *from = ot_engine_at_parity(en, task->from, step);
    struct ot_adamw_step *to = ot_engine_at(en, task->to);
    ot_lane_copy(lane, OT_COPY_H2D, to + task->slab, from + task->slab, sizeof *from);
}

static void scale_in(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at(en, task->to), ot_engine_at(en, task->from), sizeof(float));
}

static void loss_out(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    int64_t n = en->pass == OT_PASS_DECODE ? ot_engine_logits_of_pass(en, step) : 0;
    for (int m = 0; m < ot_plan_sections(&en->plan) && en->pass != OT_PASS_DECODE; m++)
        n += step_of(en, step)->micro_tokens[m];
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at_parity(en, task->to, step), ot_engine_at(en, task->from),
                 (size_t)n * sizeof(float));
}

/* ---- blocks ---- */

static void fill_run(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane,
                     struct ot_block_run *run) {
    const struct ot_engine_step *st = step_of(en, step);
    const int32_t *batch = ot_engine_at_parity(en, en->layout.batch_gpu[0], step);
    const struct ot_block_caller caller = {
        .chain = &en->chain,
        .lane = lane,
        .pass = en->pass,
        .constants = ot_engine_at(en, en->layout.constants),
        .x = task->x == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->x),
        .work = ot_engine_at(en, en->layout.work),
        .scratch = ot_engine_at(en, en->layout.scratch),
        .token_loss = ot_engine_at(en, en->layout.token_loss),
        .logits = ot_engine_at(en, en->layout.logits),
    };
    *run = ot_block_run_make(&caller, task->block, batch + ot_engine_batch_offset(en, task->micro, 0),
                             en->plan.micro_tokens, st->micro_tokens[task->micro],
                             st->micro_inputs[task->micro]);
    run->batch.grad_scale = st->grad_scale;
    run->marks_hits = en->pass == OT_PASS_EVAL;
    if (en->layout.loss_scale != OT_NO_BUFFER)
        run->batch.loss_scale = ot_engine_at(en, en->layout.loss_scale);
    run->random =
        (struct ot_run_random){en->optimizer.seed, ot_random_stream(OT_RANDOM_DROPOUT, (uint64_t)step,
                                                                    (uint64_t)st->micro_number[task->micro])};
    run->saved = task->saved == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->saved);
    run->saved_level = task->saved_level;
    for (int u = 0; u < OT_MAX_USES; u++) {
        run->weights[u] = task->weights[u] == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->weights[u]);
        run->grads[u] = task->grads[u] == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->grads[u]);
    }
    run->dxy = task->dxy == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->dxy);
    ot_engine_fill_row(en, task, run);
}

static void forward(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_block_run run;
    int32_t *used = task->half == OT_HALF_CHOOSE ? ot_engine_choice(en, task, lane) : NULL;
    if (!has_micro(en, step, task->micro) || ot_engine_has_given_up(en))
        return;
    fill_run(en, task, step, lane, &run);
    run.half = task->half;
    run.used = used;
    bool last = task->block == en->chain.n_blocks - 1;
    run.y = last || task->y == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->y);
    if (en->pass == OT_PASS_DECODE)
        ot_engine_find_cache(en, task, &run);
    en->chain.forward(en->chain.context, task->block, &run);
    bool ends =
        task->half != OT_HALF_CHOOSE && (task->phase == OT_PHASE_WHOLE || task->phase == OT_PHASE_END);
    if (en->diagnosis && !last && ends)
        ot_engine_diagnose_output(en, task, lane);
}

/* The sums of a step's first micro-batch, if it has no tokens. */
static void clear_sums(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_block_spec *block = &en->chain.blocks[task->block];
    for (int u = 0; u < block->n_uses; u++)
        if (task->grads[u] != OT_NO_BUFFER)
            ot_lane_fill(lane, ot_engine_at(en, task->grads[u]), 0,
                         (size_t)en->chain.slabs[block->uses[u].slab].n_params * sizeof(float));
}

/* Computes the losses of the micro-batch's comparisons and the weights of its tokens (block.h, COMPARISONS).
 * sums: [OT_COMPARE_SUMS]. */
static void compare(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_block_run *run,
                    double *sums) {
    struct ot_block_run scores = *run;
    float *weights = ot_engine_at(en, en->layout.token_weights);
    const int32_t *batch = ot_engine_at_parity(en, en->layout.batch_gpu[0], step);
    const void *comparisons =
        batch + ot_engine_batch_offset(en, task->micro, ot_token_arrays(en->chain.has_pairs));
    scores.scores = true;
    en->chain.forward(en->chain.context, task->block, &scores);
    en->ops->compare(run->lane, &(struct ot_compare){.objective = en->objective,
                                                     .tokens = run->batch.n_tokens,
                                                     .n = step_of(en, step)->comparisons[task->micro],
                                                     .comparisons = comparisons,
                                                     .token_loss = run->token_loss,
                                                     .weights = weights,
                                                     .answers = ot_engine_at(en, en->layout.answers),
                                                     .sums = sums});
    run->batch.weights = weights;
}

static void keys(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_block_run run;
    ot_engine_clear_key_sums(en, task, lane);
    if (!has_micro(en, step, task->micro) || ot_engine_has_given_up(en))
        return;
    fill_run(en, task, step, lane, &run);
    en->chain.keys(en->chain.context, task->block, &run);
}

static void backward(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_block_run run;
    bool last = task->block == en->chain.n_blocks - 1;
    double *loss = ot_engine_results(en, en->layout.results_gpu, -1) + task->micro * en->layout.micro_results;
    if (task->keys != OT_NO_BUFFER)
        ot_engine_clear_key_sums(en, task, lane);
    if (!has_micro(en, step, task->micro) || ot_engine_has_given_up(en)) {
        if (task->first && task->phase <= OT_PHASE_BEGIN)
            clear_sums(en, task, lane);
        if (last) /* a section behind its sequence's last token adds nothing */
            ot_lane_fill(lane, loss, 0, (size_t)en->layout.micro_results * sizeof *loss);
        return;
    }
    fill_run(en, task, step, lane, &run);
    run.first = task->first;
    if (last && en->chain.compares)
        compare(en, task, step, &run, loss);
    en->chain.backward(en->chain.context, task->block, &run);
    if (last && !en->chain.compares)
        en->ops->reduce(lane, &(struct ot_reduce){.n = run.batch.n_tokens, .x = run.token_loss, .out = loss});
}

/* ---- gradients ---- */

/* The span of a sum, between its place on the device and the begin of a buffer on the host. */
static void move_sum(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    bool in = task->kind == OT_TASK_SUM_IN;
    float *device = (float *)ot_engine_at(en, in ? task->to : task->from) + task->span.first;
    void *host = ot_engine_at(en, in ? task->from : task->to);
    ot_lane_copy(lane, in ? OT_COPY_H2D : OT_COPY_D2H, in ? device : host, in ? host : device,
                 (size_t)task->span.n * sizeof(float));
}

static void grad_merge(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    float *sum = ot_engine_at(en, task->to);
    en->ops->add(lane, &(struct ot_add){.dtype = OT_F32,
                                        .n = en->chain.slabs[task->slab].n_params,
                                        .a = sum,
                                        .b = ot_engine_at(en, task->from),
                                        .out = sum});
}

/* ---- updates ---- */

/* A buffer with the state of n parameters; the task's span begins at parameter `first` of it. */
struct state_place {
    char *memory;
    int64_t n, first;
};

/* The state at home on the host, or the tile's state in a tile slot. */
static struct state_place state_off_gpu(const struct ot_engine *en, const struct ot_task *task) {
    char *memory = ot_engine_at(en, task->state);
    if (en->plan.slabs[task->slab].state == OT_HOME_NVME)
        return (struct state_place){memory, task->span.n, 0};
    struct ot_tile_span home = ot_slab_state_off_gpu(&en->chain, &en->plan, task->slab);
    return (struct state_place){memory, home.n, task->span.first - home.first};
}

/* The AdamW update of the task's span. weight, grad: addresses of the span. */
static struct ot_adamw span_update(const struct ot_engine *en, const struct ot_task *task,
                                   const struct ot_adamw_step *step, struct state_place at, void *weight,
                                   const void *grad) {
    enum ot_dtype dtype = en->chain.dtype;
    void *arrays[OT_SEGMENT_STATE_ARRAYS];
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_STATE_ARRAYS; array++) {
        struct ot_segment_values where = ot_state_find(&en->chain, array, at.n);
        arrays[array] =
            where.width ? at.memory + where.offset + ot_segment_value_bytes(where, at.first) : NULL;
    }
    return (struct ot_adamw){.dtype = dtype,
                             .state = en->chain.state,
                             .masters = en->chain.masters,
                             .first = task->span.first,
                             .n = task->span.n,
                             .step = step,
                             .weight = weight,
                             .low = dtype == OT_BF16 ? arrays[OT_SEGMENT_MASTER_REST] : NULL,
                             .master = dtype == OT_F16 ? arrays[OT_SEGMENT_MASTER_REST] : NULL,
                             .m = arrays[OT_SEGMENT_M],
                             .v = arrays[OT_SEGMENT_V],
                             .scales = arrays[OT_SEGMENT_SCALES],
                             .grad = grad};
}

/* Cuts out the range of a group inside the update. Returns false if nothing is to be updated. */
static bool group_update(const struct ot_param_group *g, const struct ot_adamw *whole,
                         struct ot_adamw *slice) {
    int64_t first = whole->first, end = first + whole->n;
    int64_t from = ot_max(g->first, first);
    int64_t to = ot_min(g->first + g->n, end);
    if (!g->trained || to <= from)
        return false;
    *slice = ot_adamw_slice(whole, from - first, to - from);
    slice->decay = g->decay;
    slice->rate = g->rate;
    return true;
}

static void update_on_device(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                             const struct ot_adamw *whole) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    struct ot_adamw slice;
    for (int g = 0; g < slab->n_groups; g++)
        if (group_update(&slab->groups[g], whole, &slice))
            en->ops->adamw(lane, &slice);
}

static void update_gpu(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_adamw_step *params = ot_engine_at(en, en->layout.params_gpu);
    struct state_place state = {ot_engine_at(en, task->state), task->span.n, 0};
    struct ot_adamw whole = span_update(en, task, params + task->slab, state,
                                        ot_engine_at_unit(en, task->to, task->slab, task->span.first),
                                        ot_engine_at_unit(en, task->from, task->slab, task->span.first));
    update_on_device(en, task, lane, &whole);
}

/* The gradients in a state slot, for a tile whose gradients waited off the device. */
static char *slot_grads(const struct ot_engine *en, int slot) {
    return (char *)ot_engine_at(en, slot) + ot_state_bytes(&en->chain, en->layout.slot_params);
}

/* The weights in a state slot, for a tile of a slab with one copy. */
static char *slot_weights(const struct ot_engine *en, int slot) {
    return slot_grads(en, slot) + weight_bytes(en, en->layout.slot_params);
}

static void update_stream(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_adamw_step *params = ot_engine_at(en, en->layout.params_gpu);
    int64_t first = task->span.first;
    const char *grad = task->from != OT_NO_BUFFER ? ot_engine_at_unit(en, task->from, task->slab, first)
                                                  : slot_grads(en, task->state);
    char *weights = task->to != OT_NO_BUFFER ? ot_engine_at_unit(en, task->to, task->slab, first)
                                             : slot_weights(en, task->state);
    struct state_place state = {ot_engine_at(en, task->state), en->layout.slot_params, 0};
    struct ot_adamw whole = span_update(en, task, params + task->slab, state, weights, grad);
    update_on_device(en, task, lane, &whole);
}

/* Copies one tile's state between the host and a state slot of the device. */
static void copy_state(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int slot,
                       enum ot_copy_kind kind) {
    struct state_place host = state_off_gpu(en, task);
    int64_t n = task->span.n, room = en->layout.slot_params;
    char *device = ot_engine_at(en, slot);
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_STATE_ARRAYS; array++) {
        struct ot_segment_values where = ot_state_find(&en->chain, array, host.n);
        char *h = host.memory + where.offset + ot_segment_value_bytes(where, host.first);
        char *d = device + ot_state_find(&en->chain, array, room).offset;
        if (where.width > 0)
            ot_lane_copy(lane, kind, kind == OT_COPY_H2D ? d : h, kind == OT_COPY_H2D ? h : d,
                         ot_segment_value_bytes(where, n));
    }
}

static void state_in(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    copy_state(en, task, lane, task->to, OT_COPY_H2D);
    if (task->weights[0] != OT_NO_BUFFER)
        ot_lane_copy(lane, OT_COPY_H2D, slot_weights(en, task->to),
                     ot_engine_at_unit(en, task->weights[0], task->slab, task->span.first),
                     weight_bytes(en, task->span.n));
    if (task->from == OT_NO_BUFFER)
        return;
    ot_lane_copy(lane, OT_COPY_H2D, slot_grads(en, task->to), grads_off_gpu(en, task),
                 weight_bytes(en, task->span.n));
}

static void state_out(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    copy_state(en, task, lane, task->from, OT_COPY_D2H);
    int from = task->weights[0];
    const char *weights = from != OT_NO_BUFFER ? ot_engine_at_unit(en, from, task->slab, task->span.first)
                                               : slot_weights(en, task->from);
    if (task->to != OT_NO_BUFFER)
        ot_lane_copy(lane, OT_COPY_D2H, weights_off_gpu(en, task), weights, weight_bytes(en, task->span.n));
}

/* The pool's work on one tile. */
struct tile_work {
    const struct ot_slab_spec *slab;
    struct ot_segment tile; /* state and weights, as in a frame */
    struct ot_adamw whole;
    enum ot_tile_work kind;
    char *frame; /* NULL for OT_TILE_UPDATE */
};

/* Copies a chunk of the tile to the frame or back. */
static void move_frame(const struct tile_work *work, const struct ot_adamw *chunk, int64_t begin) {
    void *const arrays[OT_SEGMENT_ARRAYS] = {
        [OT_SEGMENT_M] = chunk->m,
        [OT_SEGMENT_V] = chunk->v,
        [OT_SEGMENT_MASTER_REST] = chunk->low ? (void *)chunk->low : (void *)chunk->master,
        [OT_SEGMENT_SCALES] = chunk->scales,
        [OT_SEGMENT_WEIGHTS] = chunk->weight,
    };
    for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values where = ot_segment_find(chunk->dtype, &work->tile, array);
        char *kept = work->frame + where.offset + ot_segment_value_bytes(where, begin);
        bool undo = work->kind == OT_TILE_UNDO;
        if (where.width > 0)
            memcpy(undo ? arrays[array] : kept, undo ? kept : arrays[array],
                   ot_segment_value_bytes(where, chunk->n));
    }
}

static void work_on_chunk(void *context, int64_t begin, int64_t end, int64_t number, int worker) {
    (void)number, (void)worker;
    const struct tile_work *work = context;
    struct ot_adamw chunk = ot_adamw_slice(&work->whole, begin, end - begin), slice;
    if (work->frame)
        move_frame(work, &chunk, begin);
    for (int g = 0; g < work->slab->n_groups && work->kind != OT_TILE_UNDO; g++)
        if (group_update(&work->slab->groups[g], &chunk, &slice))
            ot_adamw_run(&slice);
}

/* Parameters of a thread's chunk: large compared with the cost of handing it over, a multiple of every vector
 * length and of OT_STATE_GROUP. Tiles begin at such a multiple too. At the end of a tile threads wait for the
 * last chunk, so a chunk is small: a tile of 2 Mi parameters has 128 of them, enough for many cores. With two
 * threads that wait is too short to measure (0.4 % with chunks four times as large), so a second tile need
 * not be in flight. */
enum { UPDATE_CHUNK_PARAMS = 1 << 14 };

static char *frame_of(struct ot_engine *en, const struct ot_task *task) {
    const struct ot_frame *frame = &en->layout.frames[task->frame];
    return (char *)ot_engine_at(en, frame->buffer) + (size_t)frame->tile * en->layout.frame_bytes;
}

void ot_engine_work_on_tile(struct ot_engine *en, const struct ot_task *task, enum ot_tile_work kind,
                            const struct ot_adamw_step *step) {
    struct tile_work work = {.slab = &en->chain.slabs[task->slab],
                             .tile = ot_segment_of(&en->chain, true, true, task->span.n),
                             .whole = span_update(en, task, step, state_off_gpu(en, task),
                                                  weights_off_gpu(en, task), grads_off_gpu(en, task)),
                             .kind = kind,
                             .frame = kind == OT_TILE_UPDATE ? NULL : frame_of(en, task)};
    ot_pool_run(en->pool, work.whole.n, UPDATE_CHUNK_PARAMS, work_on_chunk, &work);
}

static void update_cpu(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const struct ot_adamw_step *params = ot_engine_at_parity(en, en->layout.params_host[0], step);
    const struct ot_adamw_step *own = params + task->slab;
    if (!ot_engine_settle_shadow(en, task, own) && !own->skip)
        ot_engine_work_on_tile(en, task, OT_TILE_UPDATE, own);
}

/* True if the task changes weights or state at home, or a tile slot that is then written to nvme. */
static bool changes_homes(enum ot_task_kind kind) {
    return kind == OT_TASK_UPDATE_CPU || kind == OT_TASK_UPDATE_GPU || kind == OT_TASK_UPDATE_STREAM ||
           kind == OT_TASK_STORE || kind == OT_TASK_STATE_OUT || kind == OT_TASK_UPLOAD;
}

int ot_engine_run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_engine *en = context;
    if (changes_homes(task->kind))
        ot_snapshot_wait_copied(en->snapshot, task->slab, task->span);
    switch (task->kind) {
    case OT_TASK_SCALE_IN:
        scale_in(en, task, lane);
        break;
    case OT_TASK_BATCH_IN:
        batch_in(en, task, step, lane);
        break;
    case OT_TASK_FETCH:
        ot_engine_fetch(en, task, step, lane);
        break;
    case OT_TASK_UPLOAD:
        copy_in(en, task, lane);
        break;
    case OT_TASK_DECODE:
        ot_engine_decode_slab(en, task, step, lane);
        break;
    case OT_TASK_FORWARD:
        forward(en, task, step, lane);
        break;
    case OT_TASK_USED_OUT:
        ot_engine_choice_out(en, task, step, lane);
        break;
    case OT_TASK_BOUNDARY_OUT:
    case OT_TASK_KEPT_OUT:
        copy_activations(en, task, step, lane, OT_COPY_D2H);
        break;
    case OT_TASK_BOUNDARY_IN:
    case OT_TASK_KEPT_IN:
        copy_activations(en, task, step, lane, OT_COPY_H2D);
        break;
    case OT_TASK_KEYS:
        keys(en, task, step, lane);
        break;
    case OT_TASK_KEYS_IN:
    case OT_TASK_KEYS_OUT:
        ot_engine_move_keys(en, task, step, lane);
        break;
    case OT_TASK_BACKWARD:
        backward(en, task, step, lane);
        break;
    case OT_TASK_SUM_OUT:
    case OT_TASK_SUM_IN:
        move_sum(en, task, lane);
        break;
    case OT_TASK_GRAD_MERGE:
        grad_merge(en, task, lane);
        break;
    case OT_TASK_GRAD_FINISH:
        ot_engine_finish_grads(en, task, lane);
        break;
    case OT_TASK_GRAD_OUT:
        grad_out(en, task, lane);
        break;
    case OT_TASK_GRAD_KEEP:
        ot_engine_keep_grads(en, task, lane);
        break;
    case OT_TASK_RESULT_OUT:
        result_out(en, task, step, lane);
        break;
    case OT_TASK_DECIDE:
        return ot_engine_decide(en, task, step);
    case OT_TASK_PARAMS_IN:
        params_in(en, task, step, lane);
        break;
    case OT_TASK_SHADOW:
        ot_engine_run_shadow(en, task, step);
        break;
    case OT_TASK_UPDATE_CPU:
        update_cpu(en, task, step);
        break;
    case OT_TASK_UPDATE_GPU:
        update_gpu(en, task, lane);
        break;
    case OT_TASK_STORE:
        store(en, task, lane);
        break;
    case OT_TASK_STATE_IN:
        state_in(en, task, lane);
        break;
    case OT_TASK_UPDATE_STREAM:
        update_stream(en, task, lane);
        break;
    case OT_TASK_STATE_OUT:
        state_out(en, task, lane);
        break;
    case OT_TASK_CACHE_IN:
    case OT_TASK_CACHE_OUT:
        ot_engine_copy_cache(en, task, step, lane);
        break;
    case OT_TASK_LOSS_OUT:
        loss_out(en, task, step, lane);
        break;
    case OT_TASK_GATHER:
    case OT_TASK_MEET:
    case OT_TASK_GRAD_NARROW:
    case OT_TASK_EXCHANGE:
    case OT_TASK_TRANSFER:
    case OT_TASK_GRAD_JOIN:
    case OT_TASK_GRAD_GATHER:
    case OT_TASK_RESULT_GATHER:
        ot_engine_run_rank_task(en, task, step, lane);
        break;
    case OT_TASK_NVME_READ: /* started by ot_engine_start_task */
    case OT_TASK_NVME_WRITE:
    case OT_TASK_KINDS:
        assert(!"a task of this lane");
    }
    return 0;
}
