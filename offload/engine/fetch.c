/* Fetches and decodings of slabs by their parts (plan/used_parts.h), and the choice of parts on its way. */
#include "offload/engine/engine_state.h"

static int32_t *choice_at(const struct ot_engine *en, int32_t *choices, int block) {
    return choices + (size_t)block * (size_t)en->layout.most_parts;
}

/* Host array: the parts of the slab's block that the micro-batches of the round have chosen. */
static const int32_t *choice_of(const struct ot_engine *en, const struct ot_task *task, int64_t step) {
    return choice_at(en, ot_engine_at_parity(en, en->layout.used_host[0], step),
                     ot_slab_block(&en->chain, task->slab));
}

struct ot_run_walk ot_engine_walk(const struct ot_engine *en, const struct ot_task *task, int64_t step) {
    return ot_run_walk(&en->chain.slabs[task->slab], task->fetched,
                       ot_fetched_has_used(task->fetched) ? choice_of(en, task, step) : NULL);
}

int32_t *ot_engine_choice(const struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    int32_t *used = choice_at(en, ot_engine_at(en, en->layout.used_gpu), task->block);
    if (task->first)
        ot_lane_fill(lane, used, 0, (size_t)ot_block_parts(&en->chain, task->block) * sizeof *used);
    return used;
}

void ot_engine_choice_out(struct ot_engine *en, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane) {
    ot_lane_copy(lane, OT_COPY_D2H, choice_at(en, ot_engine_at_parity(en, task->to, step), task->block),
                 choice_at(en, ot_engine_at(en, task->from), task->block),
                 (size_t)ot_block_parts(&en->chain, task->block) * sizeof(int32_t));
}

/* Test seam: fills memory that will hold only chosen parts with NaNs of every dtype. A read of another part
 * then shows. item: the bytes of a parameter or of a unit. */
static void poison(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                   const struct ot_piece_array *pieces, size_t item) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    for (int a = 0; a < slab->n_pieces; a++)
        ot_lane_fill(lane, (char *)ot_engine_at(en, task->to) + (size_t)pieces[a].first * item, 0xff,
                     (size_t)(slab->n_parts * pieces[a].each) * item);
}

/* Only the h2d lane's thread counts. */
static void count(struct ot_engine *en, const struct ot_task *task, const int32_t *used, size_t bytes) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    struct ot_engine_fetches *fetches = &en->fetches;
    fetches->bytes += (int64_t)bytes;
    if (!used)
        return;
    int n_used = 0;
    for (int p = 0; p < slab->n_parts; p++)
        n_used += used[p] != 0;
    fetches->parts += slab->n_parts;
    fetches->used += n_used;
    fetches->left_bytes +=
        (int64_t)ot_slab_bytes(&en->chain, task->slab, ot_slab_part_units(slab)) * (slab->n_parts - n_used);
}

void ot_engine_fetch(struct ot_engine *en, const struct ot_task *task, int64_t step, struct ot_lane *lane) {
    int slab = task->slab;
    size_t bytes = ot_slab_bytes(&en->chain, slab, task->span.n);
    if (task->fetched == OT_FETCH_ALL) {
        ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_unit(en, task->to, slab, task->span.first),
                     ot_engine_at_unit(en, task->from, slab, task->span.first), bytes);
        count(en, task, NULL, bytes);
        return;
    }
    struct ot_run_walk walk = ot_engine_walk(en, task, step);
    const struct ot_slab_spec *spec = &en->chain.slabs[slab];
    if (en->poisons_parts)
        poison(en, task, lane, spec->encoded_bytes > 0 ? spec->encoded : spec->pieces,
               ot_slab_bytes(&en->chain, slab, 1));
    bytes = 0;
    for (int64_t first, n; ot_run_next(&walk, &first, &n);) {
        size_t run = ot_slab_bytes(&en->chain, slab, n);
        ot_lane_copy(lane, OT_COPY_H2D, ot_engine_at_unit(en, task->to, slab, first),
                     ot_engine_at_unit(en, task->from, slab, first), run);
        bytes += run;
    }
    count(en, task, walk.used, bytes);
}

void ot_engine_decode_slab(struct ot_engine *en, const struct ot_task *task, int64_t step,
                           struct ot_lane *lane) {
    const struct ot_slab_decoding what = {
        .encoded = ot_engine_at(en, task->from),
        .weights = ot_engine_at(en, task->to),
        .dense = ot_fetched_has_dense(task->fetched),
        .parts = task->fetched != OT_FETCH_DENSE,
        .used = ot_fetched_has_used(task->fetched) ? choice_of(en, task, step) : NULL,
    };
    if (en->poisons_parts && task->fetched != OT_FETCH_ALL)
        poison(en, task, lane, en->chain.slabs[task->slab].pieces, ot_dtype_bytes(en->chain.dtype));
    en->chain.decode(en->chain.context, task->slab, lane, &what);
}

void ot_engine_get_fetches(const struct ot_engine *en, struct ot_engine_fetches *out) {
    *out = en->fetches;
}
