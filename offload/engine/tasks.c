/* What each task of a schedule does. */
#include <assert.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"

static struct ot_engine_step *step_of(struct ot_engine *en, int64_t step) {
    return &en->steps[step & 1];
}

static size_t weight_bytes(const struct ot_engine *en, int64_t n) {
    return (size_t)n * ot_dtype_bytes(en->chain.dtype);
}

/* ---- copies ---- */

/* Values in the chain's dtype of the task's span, at parameter `first` of the buffer. */
static char *at_param(const struct ot_engine *en, int buffer, int64_t first) {
    return (char *)ot_engine_at(en, buffer) + weight_bytes(en, first);
}

/* The weights of the task's span off the device: at home, or in a tile slot. */
static char *weights_off_gpu(const struct ot_engine *en, const struct ot_task *task) {
    if (ot_slab_weights_pass(&en->plan, task->slab))
        return (char *)ot_engine_at(en, task->to) + en->layout.slot_weights_offset;
    return at_param(en, task->to, task->span.first);
}

static void copy_in(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int64_t first = task->span.first;
    ot_lane_copy(lane, OT_COPY_H2D, at_param(en, task->to, first), at_param(en, task->from, first),
                 weight_bytes(en, task->span.n));
}

static void store(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_D2H, weights_off_gpu(en, task), at_param(en, task->from, task->span.first),
                 weight_bytes(en, task->span.n));
}

/* Where they wait on the host there is nothing but them. */
static void grad_out(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at(en, task->to), at_param(en, task->from, task->span.first),
                 weight_bytes(en, task->span.n));
}

static void copy_boundary(struct ot_engine *en, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane, enum ot_copy_kind kind) {
    const struct ot_engine_step *st = step_of(en, step);
    if (task->micro >= st->n_micro)
        return;
    size_t bytes = weight_bytes(en, st->micro_tokens[task->micro] * en->chain.boundary_elems);
    ot_lane_copy(lane, kind, ot_engine_at(en, task->to), ot_engine_at(en, task->from), bytes);
}

/* Token arrays of micro-batch m, field f of tokens, targets, position, row_start. */
static size_t batch_offset(const struct ot_engine *en, int micro, int field) {
    return (size_t)(micro * 4 + field) * (size_t)en->plan.micro_tokens;
}

static void batch_in(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    size_t bytes = batch_offset(en, step_of(en, step)->n_micro, 0) * sizeof(int32_t);
    ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_parity(en, task->to, step),
                 ot_engine_at_parity(en, task->from, step), bytes);
}

/* One slab's squared norm (task->slab), or the losses and all the norms that are not out yet. */
static void result_out(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    size_t n_slabs = (size_t)en->chain.n_slabs, first = en->plan.clip ? 0 : n_slabs;
    size_t end = n_slabs + (size_t)en->plan.max_micro;
    if (task->slab >= 0) {
        first = (size_t)task->slab;
        end = first + 1;
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
    int64_t n = en->pass == OT_PASS_DECODE ? en->chain.vocab : step_of(en, step)->micro_tokens[0];
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at_parity(en, task->to, step), ot_engine_at(en, task->from),
                 (size_t)n * sizeof(float));
}

/* ---- blocks ---- */

static void fill_run(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane,
                     struct ot_block_run *run) {
    const struct ot_engine_step *st = step_of(en, step);
    const int32_t *batch = ot_engine_at_parity(en, en->layout.batch_gpu[0], step);
    *run = (struct ot_block_run){
        .lane = lane,
        .dtype = en->chain.dtype,
        .pass = en->pass,
        .batch = {.n_tokens = st->micro_tokens[task->micro],
                  .tokens = batch + batch_offset(en, task->micro, 0),
                  .targets = batch + batch_offset(en, task->micro, 1),
                  .position = batch + batch_offset(en, task->micro, 2),
                  .row_start = batch + batch_offset(en, task->micro, 3),
                  .grad_scale = st->grad_scale,
                  .loss_scale =
                      en->layout.loss_scale == OT_NO_BUFFER ? NULL : ot_engine_at(en, en->layout.loss_scale)},
        .constants = ot_engine_at(en, en->layout.constants),
        .saved = ot_engine_at(en, task->saved),
        .saved_valid = task->saved_valid,
        .scratch = ot_engine_at(en, en->layout.scratch),
        .token_loss = ot_engine_at(en, en->layout.token_loss),
        .logits = ot_engine_at(en, en->layout.logits),
    };
    for (int u = 0; u < OT_MAX_USES; u++) {
        run->weights[u] = task->weights[u] == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->weights[u]);
        run->grads[u] = task->grads[u] == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->grads[u]);
    }
    run->x = task->x == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->x);
    run->dxy = task->dxy == OT_NO_BUFFER ? NULL : ot_engine_at(en, task->dxy);
}

static void forward(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_block_run run;
    if (task->micro >= step_of(en, step)->n_micro || ot_engine_has_given_up(en))
        return;
    fill_run(en, task, step, lane, &run);
    bool last = task->block == en->chain.n_blocks - 1, first = task->block == 0;
    run.y = last ? NULL : ot_engine_at(en, task->y);
    if (en->pass == OT_PASS_DECODE && !last && !first) {
        size_t bytes = weight_bytes(en, en->kv_capacity * en->chain.kv_elems);
        char *k = en->kv_memory + 2 * bytes * (size_t)(task->block - 1);
        run.kv = (struct ot_kv_cache){k, k + bytes, en->kv_past, en->kv_capacity};
    }
    en->chain.forward(en->chain.context, task->block, &run);
    if (en->probe && !last)
        ot_engine_probe_output(en, task, lane);
}

static void backward(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    const struct ot_block_spec *block = &en->chain.blocks[task->block];
    struct ot_block_run run;
    if (task->micro >= step_of(en, step)->n_micro || ot_engine_has_given_up(en))
        return;
    fill_run(en, task, step, lane, &run);
    for (int u = 0; task->first && u < block->n_uses; u++)
        ot_lane_fill(lane, run.grads[u], 0,
                     (size_t)en->chain.slabs[block->uses[u].slab].n_params * sizeof(float));
    en->chain.backward(en->chain.context, task->block, &run);
    if (task->block < en->chain.n_blocks - 1)
        return;
    double *losses = (double *)ot_engine_at(en, en->layout.results_gpu) + en->chain.n_slabs;
    en->ops->reduce(
        lane, &(struct ot_reduce){.n = run.batch.n_tokens, .x = run.token_loss, .out = losses + task->micro});
}

/* ---- gradients ---- */

/* To the storage dtype: n of them from `first` on, which they keep as their place. */
static void round_grads(struct ot_engine *en, struct ot_lane *lane, const float *sum, char *to, int64_t first,
                        int64_t n) {
    char *dst = to + weight_bytes(en, first);
    if (en->chain.dtype == OT_F32)
        ot_lane_copy(lane, OT_COPY_D2D, dst, sum + first, weight_bytes(en, n));
    else
        en->ops->cast(
            lane,
            &(struct ot_cast){.from = OT_F32, .to = en->chain.dtype, .n = n, .src = sum + first, .dst = dst});
}

static void grad_finish(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    float *sum = ot_engine_at(en, task->from);
    double *norm = (double *)ot_engine_at(en, en->layout.results_gpu) + task->slab;
    bool more = false;
    for (int i = 1; i < task->n_uses; i++)
        en->ops->add(lane, &(struct ot_add){.dtype = OT_F32,
                                            .n = slab->n_params,
                                            .a = sum,
                                            .b = ot_engine_at(en, task->grads[i]),
                                            .out = sum});
    ot_lane_fill(lane, norm, 0, sizeof *norm);
    for (int g = 0; g < slab->n_groups; g++) {
        const struct ot_param_group *group = &slab->groups[g];
        if (!group->trained || group->n == 0)
            continue;
        en->ops->reduce(
            lane,
            &(struct ot_reduce){
                .n = group->n, .x = sum + group->first, .out = norm, .squares = true, .accumulate = more});
        more = true;
    }
    struct ot_tile_span stays = ot_slab_waiting_on_gpu(&en->chain, &en->plan, task->slab);
    if (task->to != OT_NO_BUFFER && task->to != task->from)
        round_grads(en, lane, sum, ot_engine_at(en, task->to), 0, stays.n);
    if (task->stage != OT_NO_BUFFER)
        round_grads(en, lane, sum, ot_engine_at(en, task->stage), stays.n, slab->n_params - stays.n);
}

static void grad_keep(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    size_t bytes = (size_t)en->chain.slabs[task->slab].n_params * sizeof(float);
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at(en, task->to), ot_engine_at(en, task->from), bytes);
}

/* ---- updates ---- */

/* Where state lies: of n parameters, of which the task's span begins with number `first`. */
struct state_place {
    char *memory;
    int64_t n, first;
};

/* At home on the host, or the tile by itself in a slot. */
static struct state_place state_off_gpu(const struct ot_engine *en, const struct ot_task *task) {
    char *memory = ot_engine_at(en, task->state);
    if (en->plan.slabs[task->slab].state == OT_HOME_NVME)
        return (struct state_place){memory, task->span.n, 0};
    struct ot_tile_span home = ot_slab_state_off_gpu(&en->chain, &en->plan, task->slab);
    return (struct state_place){memory, home.n, task->span.first - home.first};
}

/* AdamW on the task's span; weight and grad: the span's. */
static struct ot_adamw span_update(const struct ot_engine *en, const struct ot_task *task,
                                   const struct ot_adamw_step *step, struct state_place at, void *weight,
                                   const void *grad) {
    enum ot_dtype dtype = en->chain.dtype;
    char *rest = at.memory + ot_state_offset(dtype, OT_PART_REST, at.n);
    return (struct ot_adamw){.dtype = dtype,
                             .n = task->span.n,
                             .step = step,
                             .weight = weight,
                             .low = dtype == OT_BF16 ? (int16_t *)(void *)rest + at.first : NULL,
                             .master = dtype == OT_F16 ? (float *)(void *)rest + at.first : NULL,
                             .m = (float *)(at.memory + ot_state_offset(dtype, OT_PART_M, at.n)) + at.first,
                             .v = (float *)(at.memory + ot_state_offset(dtype, OT_PART_V, at.n)) + at.first,
                             .grad = grad};
}

/* The part of a group inside the task's span, as an update of its own; false where there is none. */
static bool group_update(const struct ot_task *task, const struct ot_param_group *g,
                         const struct ot_adamw *whole, struct ot_adamw *part) {
    int64_t first = task->span.first, end = first + task->span.n;
    int64_t from = g->first > first ? g->first : first;
    int64_t to = g->first + g->n < end ? g->first + g->n : end;
    if (!g->trained || to <= from)
        return false;
    *part = ot_adamw_slice(whole, from - first, to - from);
    part->decay = g->decay;
    return true;
}

static void update_on_device(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                             const struct ot_adamw *whole) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    struct ot_adamw part;
    for (int g = 0; g < slab->n_groups; g++)
        if (group_update(task, &slab->groups[g], whole, &part))
            en->ops->adamw(lane, &part);
}

static void update_gpu(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_adamw_step *params = ot_engine_at(en, en->layout.params_gpu);
    struct state_place state = {ot_engine_at(en, task->state), task->span.n, 0};
    struct ot_adamw whole =
        span_update(en, task, params + task->slab, state, at_param(en, task->to, task->span.first),
                    at_param(en, task->from, task->span.first));
    update_on_device(en, task, lane, &whole);
}

/* Of the tile in the slot, where they waited on the host. */
static char *slot_grads(const struct ot_engine *en, int slot) {
    return (char *)ot_engine_at(en, slot) + ot_state_bytes(en->chain.dtype, en->layout.slot_params);
}

static void update_stream(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_adamw_step *params = ot_engine_at(en, en->layout.params_gpu);
    const char *grad =
        task->from != OT_NO_BUFFER ? at_param(en, task->from, task->span.first) : slot_grads(en, task->state);
    struct state_place state = {ot_engine_at(en, task->state), en->layout.slot_params, 0};
    struct ot_adamw whole =
        span_update(en, task, params + task->slab, state, at_param(en, task->to, task->span.first), grad);
    update_on_device(en, task, lane, &whole);
}

/* One tile's state between the host and a slot of the device. */
static void copy_state(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int slot,
                       enum ot_copy_kind kind) {
    struct state_place host = state_off_gpu(en, task);
    int64_t n = task->span.n, room = en->layout.slot_params;
    char *device = ot_engine_at(en, slot);
    enum ot_dtype dtype = en->chain.dtype;
    for (enum ot_part_array array = OT_PART_M; array <= OT_PART_REST; array++) {
        size_t width = ot_part_width(dtype, array);
        char *h = host.memory + ot_state_offset(dtype, array, host.n) + (size_t)host.first * width;
        char *d = device + ot_state_offset(dtype, array, room);
        if (width > 0)
            ot_lane_copy(lane, kind, kind == OT_COPY_H2D ? d : h, kind == OT_COPY_H2D ? h : d,
                         (size_t)n * width);
    }
}

static void state_in(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    copy_state(en, task, lane, task->to, OT_COPY_H2D);
    if (task->from == OT_NO_BUFFER)
        return;
    struct ot_tile_span stays = ot_slab_waiting_on_gpu(&en->chain, &en->plan, task->slab);
    ot_lane_copy(lane, OT_COPY_H2D, slot_grads(en, task->to),
                 at_param(en, task->from, task->span.first - stays.n), weight_bytes(en, task->span.n));
}

static void state_out(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    copy_state(en, task, lane, task->from, OT_COPY_D2H);
    if (task->to != OT_NO_BUFFER)
        ot_lane_copy(lane, OT_COPY_D2H, weights_off_gpu(en, task),
                     at_param(en, task->weights[0], task->span.first), weight_bytes(en, task->span.n));
}

static void update_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct ot_adamw part = ot_adamw_slice(context, begin, end - begin);
    ot_adamw_run(&part);
}

/* Chunks of a thread: long enough to amortise the hand-over, short enough to balance; a multiple of every
 * vector. */
enum { UPDATE_CHUNK_PARAMS = 1 << 16 };

static void update_cpu(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    const struct ot_adamw_step *params = ot_engine_at_parity(en, en->layout.params_host[0], step);
    struct ot_tile_span stays = ot_slab_waiting_on_gpu(&en->chain, &en->plan, task->slab);
    struct ot_adamw part,
        whole = span_update(en, task, params + task->slab, state_off_gpu(en, task), weights_off_gpu(en, task),
                            at_param(en, task->from, task->span.first - stays.n));
    for (int g = 0; g < slab->n_groups && !whole.step->skip; g++)
        if (group_update(task, &slab->groups[g], &whole, &part))
            ot_pool_run(en->pool, part.n, UPDATE_CHUNK_PARAMS, update_chunk, &part);
}

/* Whether the task changes weights or state where they are at home, or what will be written there on nvme. */
static bool changes_homes(enum ot_task_kind kind) {
    return kind == OT_TASK_UPDATE_CPU || kind == OT_TASK_UPDATE_GPU || kind == OT_TASK_UPDATE_STREAM ||
           kind == OT_TASK_STORE || kind == OT_TASK_STATE_OUT || kind == OT_TASK_UPLOAD;
}

int ot_engine_run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    struct ot_engine *en = context;
    if (changes_homes(task->kind))
        ot_snapshot_pass(en->snapshot, task->slab, task->span);
    switch (task->kind) {
    case OT_TASK_SCALE_IN:
        scale_in(en, task, lane);
        break;
    case OT_TASK_BATCH_IN:
        batch_in(en, task, step, lane);
        break;
    case OT_TASK_FETCH:
    case OT_TASK_UPLOAD:
        copy_in(en, task, lane);
        break;
    case OT_TASK_FORWARD:
        forward(en, task, step, lane);
        break;
    case OT_TASK_BOUNDARY_OUT:
        copy_boundary(en, task, step, lane, OT_COPY_D2H);
        break;
    case OT_TASK_BOUNDARY_IN:
        copy_boundary(en, task, step, lane, OT_COPY_H2D);
        break;
    case OT_TASK_BACKWARD:
        backward(en, task, step, lane);
        break;
    case OT_TASK_GRAD_FINISH:
        grad_finish(en, task, lane);
        break;
    case OT_TASK_GRAD_OUT:
        grad_out(en, task, lane);
        break;
    case OT_TASK_GRAD_KEEP:
        grad_keep(en, task, lane);
        break;
    case OT_TASK_RESULT_OUT:
        result_out(en, task, step, lane);
        break;
    case OT_TASK_DECIDE:
        return ot_engine_decide(en, task, step);
    case OT_TASK_PARAMS_IN:
        params_in(en, task, step, lane);
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
    case OT_TASK_LOSS_OUT:
        loss_out(en, task, step, lane);
        break;
    case OT_TASK_NVME_READ: /* the nvme lanes': ot_engine_start_task */
    case OT_TASK_NVME_WRITE:
    case OT_TASK_KINDS:
        assert(!"a task of this lane");
    }
    return 0;
}
