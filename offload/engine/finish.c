/* Finishes gradients: their squared norm, and their rounding to the chain's dtype, in one pass over the sums.
 * In bf16 it moves 6 bytes a parameter; a pass for each would move 10.
 *
 * A plan may let the first tiles of a slab wait on the device and send the others away, through a stage. Then
 * the finished gradients of a slab go to two places. */
#include "offload/engine/engine_state.h"

#include "src/base/minmax.h"

/* The index of a parameter in a buffer of the task's slab. */
static int64_t index_of(const struct ot_engine *en, const struct ot_task *task, int buffer, int64_t first) {
    return ot_layout_index(&en->layout, &en->chain, &en->plan, buffer, task->slab, first);
}

/* Finished gradients of parameters below this one go to task->to, the others to task->stage. */
static int64_t finish_border(const struct ot_engine *en, const struct ot_task *task) {
    struct ot_tile_span stays = ot_slab_waiting_on_gpu(&en->chain, &en->plan, task->slab);
    return stays.first + stays.n;
}

/* The place of finished gradients from parameter `first` on; NULL: they stay in the sum. */
static void *finished_at(const struct ot_engine *en, const struct ot_task *task, int64_t first) {
    int to = first < finish_border(en, task) ? task->to : task->stage;
    if (to == OT_NO_BUFFER || to == task->from)
        return NULL;
    return (char *)ot_engine_at(en, to) +
           (size_t)index_of(en, task, to, first) * ot_dtype_bytes(en->chain.dtype);
}

static const float *sum_at(const struct ot_engine *en, const struct ot_task *task, int64_t first) {
    return (const float *)ot_engine_at(en, task->from) + index_of(en, task, task->from, first);
}

/* Rounds the gradients of the parameters from `first` to `end`, which may have two places. */
static void round_span(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int64_t first,
                       int64_t end) {
    int64_t border = finish_border(en, task);
    for (int64_t next; first < end; first = next) {
        void *to = finished_at(en, task, first);
        next = first < border && border < end ? border : end;
        if (to)
            en->ops->cast(lane, &(struct ot_cast){.from = OT_F32,
                                                  .to = en->chain.dtype,
                                                  .n = next - first,
                                                  .src = sum_at(en, task, first),
                                                  .dst = to});
    }
}

/* Like round_span; also adds the squares to the norm in the same pass. If there are two places, the span is
 * cut where chunks of the reduction begin, which changes no bit. The chunk with the border takes two passes.
 */
static void finish_span(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int64_t first,
                        int64_t end, double *norm) {
    int64_t border = finish_border(en, task);
    for (int64_t next; first < end; first = next) {
        int64_t before = (border - first) / OT_REDUCE_CHUNK * OT_REDUCE_CHUNK;
        next = border <= first || border >= end ? end : first + (before > 0 ? before : OT_REDUCE_CHUNK);
        next = ot_min(next, end);
        bool apart = first < border && border < next;
        en->ops->reduce(lane, &(struct ot_reduce){.n = next - first,
                                                  .x = sum_at(en, task, first),
                                                  .out = norm,
                                                  .squares = true,
                                                  .accumulate = true,
                                                  .rounded_dtype = en->chain.dtype,
                                                  .rounded = apart ? NULL : finished_at(en, task, first)});
        if (apart)
            round_span(en, task, lane, first, next);
    }
}

/* Takes the squared norm of one range (shard.h) over its trained groups, one after the other, and rounds all
 * of its gradients. */
static void finish_range(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                         struct ot_shard_range range, double *norm) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    ot_lane_fill(lane, norm, 0, sizeof *norm);
    for (int g = 0; g < slab->n_groups; g++) {
        const struct ot_param_group *group = &slab->groups[g];
        int64_t first = ot_max(group->first, range.first);
        int64_t group_end = group->first + group->n, end = range.first + range.n;
        end = ot_min(group_end, end);
        if (group->trained)
            finish_span(en, task, lane, first, end, norm);
        else
            round_span(en, task, lane, first, end);
    }
}

/* This rank's ranges cover its holding. */
void ot_engine_finish_grads(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_shard *shard = &en->plan.shard;
    int64_t n_params = en->chain.slabs[task->slab].n_params;
    int own = en->layout.own_norms, first = own < en->layout.norms ? shard->rank * own : 0;
    double *norms = ot_engine_results(en, task->state, task->slab);
    for (int i = 0; i < own; i++)
        finish_range(en, task, lane, ot_shard_norm_range(shard, n_params, first + i), norms + i);
}

void ot_engine_keep_grads(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, task->slab);
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at(en, task->to), sum_at(en, task, held.first),
                 (size_t)held.n * sizeof(float));
}
