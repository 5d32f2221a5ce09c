/* Blocks that choose the parts of their slabs (plan/used_parts.h): first halves, the choice, and the content
 * of such a slab's fetches and decodings.
 *
 * The slot of the slab has the dense rest from the first fetch on, and after the second the used parts too.
 * Both contents belong to a round: their tags say how many micro-batches have chosen. A slot that still has
 * the slab when the next round comes needs the second fetch alone. The same holds for the weight slot into
 * which an encoded slab is decoded. */
#include "offload/schedule/program.h"

/* ---- contents ---- */

/* The number of micro-batches that have chosen after the round of `micro`. */
static int round_end(const struct ot_program *p, int micro) {
    for (int r = 0; p->pass == OT_PASS_TRAIN && r < ot_plan_rounds(p->plan); r++) {
        struct ot_round round = ot_plan_round(p->plan, r);
        if (micro < round.first + round.n)
            return round.first + round.n;
    }
    return p->pass == OT_PASS_TRAIN ? micro + 1 : p->visits[0].n_micro;
}

struct ot_tag ot_program_used_tag(const struct ot_program *p, const struct ot_task *task, int slab) {
    bool encoded = ot_slab_is_encoded(p->chain, slab);
    if (task->half == OT_HALF_CHOOSE) /* the dense rest, and perhaps the parts of an earlier round */
        return encoded ? p->decoded[slab] : p->in_slot[slab];
    return ot_tag(encoded ? OT_CONTENT_DECODED_USED : OT_CONTENT_USED, slab, round_end(p, task->micro), 0);
}

struct ot_tag ot_program_moved_tag(const struct ot_program *p, int slab, enum ot_fetched fetched) {
    if (fetched == OT_FETCH_ALL)
        return (struct ot_tag){0};
    if (fetched == OT_FETCH_DENSE)
        return ot_tag(OT_CONTENT_DENSE, slab, 0, 0);
    return ot_tag(fetched == OT_FETCH_USED ? OT_CONTENT_PARTS : OT_CONTENT_USED, slab,
                  p->chosen[ot_slab_block(p->chain, slab)], 0);
}

static struct ot_tag choice_tag(int block, int n_chosen) {
    return ot_tag(OT_CONTENT_CHOICE, block, n_chosen, 0);
}

/* ---- fetches ---- */

bool ot_program_may_fetch(const struct ot_program *p, int slab, int visit) {
    const struct ot_visit *v = &p->visits[visit];
    return !v->backward || !ot_slab_fetches_used(p->chain, p->plan, slab) ||
           p->chosen[v->block] == v->first_micro + v->n_micro;
}

enum ot_fetched ot_program_fetched(const struct ot_program *p, int slab, int visit) {
    if (!ot_slab_takes_used(p->chain, p->plan, slab))
        return OT_FETCH_ALL;
    return p->visits[visit].backward ? OT_FETCH_DENSE_AND_USED : OT_FETCH_DENSE;
}

static void read_choice(struct ot_program *p, struct ot_task *task) {
    int block = ot_slab_block(p->chain, task->slab);
    task->used = p->layout->used_host[0];
    task->n_chosen = p->chosen[block];
    ot_program_read(p, task, task->used, choice_tag(block, task->n_chosen));
    ot_program_narrow(task, block, 1);
    ot_program_last(task)->parity = true;
    ot_program_last(task)->on_host = ot_lane_is_device(task->lane);
}

void ot_program_move_parts(struct ot_program *p, struct ot_task *task, enum ot_fetched fetched) {
    int slab = task->slab, tiles = ot_slab_used_tiles(p->chain, p->plan, slab);
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    bool at_home = task->from == b->weights_host || task->from == b->weights_nvme;
    struct ot_tag moved = ot_program_moved_tag(p, slab, fetched), after = moved;
    task->fetched = fetched;
    ot_program_read(p, task, task->from, at_home ? ot_program_weights_tag(p, slab, 0) : moved);
    ot_program_narrow(task, 0, tiles);
    if (ot_fetched_has_used(fetched))
        read_choice(p, task);
    if (task->kind == OT_TASK_FETCH && fetched == OT_FETCH_USED) {
        after.content = OT_CONTENT_USED;
        ot_program_update(p, task, task->to, p->in_slot[slab], after);
    } else {
        ot_program_write(p, task, task->to, after);
    }
    ot_program_narrow(task, 0, tiles);
    if (task->kind == OT_TASK_FETCH)
        p->in_slot[slab] = after;
}

/* ---- decodings ---- */

/* The content that a decoding expects in the slot to which the slab was fetched. */
static struct ot_tag fetched_tag(const struct ot_program *p, int slab, enum ot_fetched fetched) {
    if (!ot_slab_is_streamed(p->plan, slab))
        return ot_program_weights_tag(p, slab, 0);
    return fetched == OT_FETCH_DENSE ? p->in_slot[slab]
                                     : ot_program_moved_tag(p, slab, OT_FETCH_DENSE_AND_USED);
}

void ot_program_decode_parts(struct ot_program *p, struct ot_task *task, enum ot_fetched fetched) {
    int slab = task->slab;
    struct ot_tag after = ot_tag(OT_CONTENT_DECODED_DENSE, slab, 0, 0);
    task->fetched = fetched;
    ot_program_read(p, task, task->from, fetched_tag(p, slab, fetched));
    ot_program_narrow(task, 0, ot_slab_used_tiles(p->chain, p->plan, slab));
    if (ot_fetched_has_used(fetched)) {
        read_choice(p, task);
        after = ot_tag(OT_CONTENT_DECODED_USED, slab, task->n_chosen, 0);
    }
    if (fetched == OT_FETCH_USED)
        ot_program_update(p, task, task->to, p->decoded[slab], after);
    else
        ot_program_write(p, task, task->to, after);
    p->decoded[slab] = after;
}

/* ---- first halves ---- */

void ot_program_note_choice(struct ot_program *p, struct ot_task *task) {
    int used = p->layout->used_gpu, first = task->micro - ot_plan_place(p->plan, task->micro);
    struct ot_tag before = choice_tag(task->block, task->micro);
    task->first = task->micro == first;
    task->used = used;
    ot_program_update(p, task, used, task->first ? (struct ot_tag){0} : before,
                      choice_tag(task->block, task->micro + 1));
    ot_program_narrow(task, task->block, 1);
}

static void choice_out(struct ot_program *p, int block, int n_chosen) {
    struct ot_task *task = ot_program_task(p, OT_TASK_USED_OUT, OT_LANE_D2H);
    task->block = block;
    task->from = p->layout->used_gpu;
    task->to = p->layout->used_host[0];
    ot_program_read(p, task, task->from, choice_tag(block, n_chosen));
    ot_program_narrow(task, block, 1);
    ot_program_write(p, task, task->to, choice_tag(block, n_chosen));
    ot_program_narrow(task, block, 1);
    ot_program_last(task)->parity = true;
    p->chosen[block] = n_chosen;
}

enum ot_half ot_program_choose(struct ot_program *p, const struct ot_visit *visit) {
    const struct ot_block_spec *block = &p->chain->blocks[visit->block];
    int end = visit->first_micro + visit->n_micro;
    if (!ot_block_chooses(p->chain, p->plan, visit->block))
        return OT_HALF_BOTH;
    for (int m = visit->first_micro; m < end && p->rc >= 0; m++)
        ot_program_forward(p, visit->block, m, OT_HALF_CHOOSE);
    choice_out(p, visit->block, end);
    for (int u = 0; u < block->n_uses && p->rc >= 0; u++) {
        int slab = block->uses[u].slab;
        if (!ot_slab_takes_used(p->chain, p->plan, slab))
            continue;
        if (ot_slab_is_streamed(p->plan, slab))
            ot_program_fetch(p, slab, ot_ring_find(ot_program_fetch_ring(p, slab), slab),
                             ot_program_whole(p, slab), OT_FETCH_USED);
        if (ot_slab_is_encoded(p->chain, slab))
            ot_program_decode_used(p, slab);
    }
    return OT_HALF_REST;
}
