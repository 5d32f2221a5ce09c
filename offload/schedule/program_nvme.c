/* Tasks for data whose home is nvme: reads into host slots, and writes from host slots.
 *
 * This code does not look ahead. A read depends only on the last user of its slot and on the last write of
 * its extent, and its lane starts any ready task. So with n slots the reads run n ahead of the tasks that use
 * them, in forward and in backward. Writes follow later.
 *
 * GRADIENTS leave through a ring of slots of their own. A slot is free again when its content is on the disk,
 * and that write waits for nothing but the copy into the slot. So the ring cannot block: the copies wait for
 * the disk at most. In the slot of a tile the gradients are a tile of their own, with a read of their own:
 * they exist only after backward, and the read of state and weights must not wait for them.
 */
#include "offload/schedule/program.h"
#include "src/base/error.h"

/* A tile slot is a buffer of three tiles. */
enum { SLOT_STATE, SLOT_WEIGHTS, SLOT_GRADS };

/* ---- weights on their way to the device ---- */

/* True if the host slot has the bytes of a fetch. */
static bool has_fetched(const struct ot_program *p, int slab, enum ot_fetched fetched) {
    return ot_tags_match(p->in_host_slot[slab], ot_program_moved_tag(p, slab, fetched));
}

int ot_program_weights_on_host(struct ot_program *p, int slab, struct ot_tile_span span,
                               enum ot_fetched fetched) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    if (!ot_slab_weights_pass(p->plan, slab))
        return b->weights_host;
    struct ot_ring *ring = &p->host_weights[ot_slab_slot_kind(p->chain, slab)];
    int slot = ot_ring_find(ring, slab);
    if (slot < 0 || !has_fetched(p, slab, fetched)) {
        slot = slot < 0 ? ot_ring_victim(ring, NULL, 0) : slot;
        struct ot_task *task = ot_program_task(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ);
        task->slab = slab;
        task->span = span;
        task->from = b->weights_nvme;
        task->to = ring->buffers[slot];
        if (fetched == OT_FETCH_ALL)
            ot_program_move_weights(p, task, task->from, task->to);
        else
            ot_program_move_parts(p, task, fetched);
        p->in_host_slot[slab] = ot_program_moved_tag(p, slab, fetched);
        ring->owner[slot] = span.n == ot_program_whole(p, slab).n ? slab : -1;
    }
    ring->last[slot] = p->schedule->n_tasks;
    return ring->buffers[slot];
}

void ot_program_forget_weights(struct ot_program *p, int slab) {
    struct ot_ring *ring = &p->host_weights[ot_slab_slot_kind(p->chain, slab)];
    int slot = ot_ring_find(ring, slab);
    if (slot >= 0)
        ring->owner[slot] = -1;
}

/* ---- tiles ---- */

/* The tile's index among the tiles whose state is not on the device. */
static int state_tile(const struct ot_program *p, int slab, int tile) {
    return tile - p->plan->slabs[slab].tiles[OT_TILE_GPU];
}

struct ot_task *ot_program_tile_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane,
                                     int slab, int tile) {
    struct ot_task *task = ot_program_task(p, kind, lane);
    task->slab = slab;
    task->tile = tile;
    task->span = ot_slab_span(p->chain, p->plan, slab, tile, 1);
    return task;
}

/* Adds the accesses that move a part of a tile (its state, for example) between extent and slot. */
static void move_part(struct ot_program *p, struct ot_task *task, int extents, int extent_tile, int slot,
                      int part, struct ot_tag tag) {
    bool reads = task->kind == OT_TASK_NVME_READ;
    ot_program_read(p, task, reads ? extents : slot, tag);
    ot_program_narrow(task, reads ? extent_tile : part, 1);
    ot_program_write(p, task, reads ? slot : extents, tag);
    ot_program_narrow(task, reads ? part : extent_tile, 1);
}

static void move_tile(struct ot_program *p, struct ot_task *task, int slot, bool state, bool weights,
                      int version) {
    const struct ot_slab_buffers *b = &p->layout->slabs[task->slab];
    task->via = slot;
    if (state) {
        task->state = b->state_nvme;
        move_part(p, task, b->state_nvme, state_tile(p, task->slab, task->tile), slot, SLOT_STATE,
                  ot_tag(OT_CONTENT_STATE, task->slab, task->tile, version));
    }
    if (weights) {
        task->weights[0] = b->weights_nvme;
        move_part(p, task, b->weights_nvme, task->tile, slot, SLOT_WEIGHTS,
                  ot_tag(OT_CONTENT_WEIGHTS, task->slab, 0, version));
    }
}

static struct ot_tag grad_tag(int slab, int tile, int version) {
    return ot_tag(OT_CONTENT_GRAD, slab, tile + 1, version);
}

static void read_grads(struct ot_program *p, int slab, int tile, int slot, int version) {
    int home = p->layout->slabs[slab].grad_nvme;
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ, slab, tile);
    task->via = slot;
    task->grads[0] = home;
    move_part(p, task, home, state_tile(p, slab, tile), slot, SLOT_GRADS, grad_tag(slab, tile, version));
}

int ot_program_tile_in(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int version) {
    bool state = ot_slab_state_passes(p->plan, slab, engine), weights = ot_slab_weights_pass(p->plan, slab);
    bool grads = ot_slab_grads_pass(p->plan, slab, engine);
    if (!state && !weights && !grads)
        return OT_NO_BUFFER;
    int slot = p->layout->tile_slots[p->next_tile_slot++ % p->plan->tile_slots];
    bool reads_weights =
        weights && engine == OT_TILE_CPU; /* the other engines have the weights on the device */
    if (state || reads_weights) {
        struct ot_task *task = ot_program_tile_task(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ, slab, tile);
        move_tile(p, task, slot, state, reads_weights, version);
    }
    if (grads)
        read_grads(p, slab, tile, slot, version);
    return slot;
}

void ot_program_tile_out(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int slot,
                         int version) {
    bool state = ot_slab_state_passes(p->plan, slab, engine), weights = ot_slab_weights_pass(p->plan, slab);
    if (!state && !weights)
        return;
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_NVME_WRITE, OT_LANE_NVME_WRITE, slab, tile);
    move_tile(p, task, slot, state, weights, version);
}

static void touch(struct ot_program *p, struct ot_task *task, int buffer, int tile, bool reads, bool writes,
                  struct ot_tag before, struct ot_tag after) {
    struct ot_access *a = ot_program_access(p, task, buffer, reads, writes);
    a->before = before;
    a->after = after;
    ot_program_narrow(task, tile, 1);
}

void ot_program_tile_state(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                           struct ot_tag before, struct ot_tag after) {
    bool passes = p->plan->slabs[task->slab].state == OT_HOME_NVME;
    task->state = passes ? slot : p->layout->slabs[task->slab].state_host;
    touch(p, task, task->state, passes ? SLOT_STATE : state_tile(p, task->slab, task->tile), reads, writes,
          before, after);
}

int ot_program_tile_weights(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                            struct ot_tag before, struct ot_tag after) {
    bool passes = ot_slab_weights_pass(p->plan, task->slab);
    int buffer = passes ? slot : p->layout->slabs[task->slab].weights_host;
    touch(p, task, buffer, passes ? SLOT_WEIGHTS : task->tile, reads, writes, before, after);
    return buffer;
}

int ot_program_tile_grads(struct ot_program *p, struct ot_task *task, int slot, int version) {
    int slab = task->slab, home = p->layout->slabs[slab].grad_host;
    if (p->plan->slabs[slab].grads != OT_HOME_NVME) {
        ot_program_read(p, task, home, ot_tag(OT_CONTENT_GRAD, slab, 0, version));
        return home;
    }
    ot_program_read(p, task, slot, grad_tag(slab, task->tile, version));
    ot_program_narrow(task, SLOT_GRADS, 1);
    return slot;
}

/* ---- gradients on their way out, and sums ---- */

static int next_grad_slot(struct ot_program *p) {
    return p->layout->host_grad_slots[p->next_grad_slot++ % p->plan->host_grad_slots];
}

/* Moves one extent of a buffer on nvme to or from a slot. */
static void move_extent(struct ot_program *p, enum ot_task_kind kind, int slab, struct ot_tile_span span,
                        int home, int extent, int slot, struct ot_tag tag) {
    bool reads = kind == OT_TASK_NVME_READ;
    struct ot_task *task = ot_program_task(p, kind, reads ? OT_LANE_NVME_READ : OT_LANE_NVME_WRITE);
    task->slab = slab;
    task->tile = span.first_tile;
    task->span = span;
    task->from = reads ? home : slot;
    task->to = reads ? slot : home;
    move_part(p, task, home, extent, slot, 0, tag);
}

void ot_program_grads_to_nvme(struct ot_program *p, int slab, int from) {
    struct ot_tile_span rest = ot_slab_state_off_gpu(p->chain, p->plan, slab);
    for (int i = 0; i < rest.n_tiles && p->rc >= 0; i++) {
        int tile = rest.first_tile + i, slot = next_grad_slot(p);
        struct ot_task *task = ot_program_tile_task(p, OT_TASK_GRAD_OUT, OT_LANE_D2H, slab, tile);
        task->from = from;
        task->to = slot;
        ot_program_read(p, task, from, ot_tag(OT_CONTENT_GRAD, slab, 0, 0));
        ot_program_write(p, task, slot, grad_tag(slab, tile, 0));
        move_extent(p, OT_TASK_NVME_WRITE, slab, task->span, p->layout->slabs[slab].grad_nvme, i, slot,
                    grad_tag(slab, tile, 0));
    }
}

/* Copies a piece into its place in the sum. The sum is complete only after the last piece. */
static void piece_in(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag before,
                     struct ot_tag after) {
    if (task->tile == 0)
        ot_program_write(p, task, buffer, after);
    else
        ot_program_update(p, task, buffer, before, after);
}

void ot_program_pass_sum(struct ot_program *p, enum ot_task_kind kind, int slab, int sum, int buffer,
                         struct ot_tag tag) {
    bool in = kind == OT_TASK_SUM_IN;
    int home = p->layout->sums[sum], n = ot_slab_pieces(p->chain, p->plan, slab);
    int id = sum + ot_layout_sum(p->chain->n_blocks, 0, 0) *
                       tag.micro; /* also counts the micro-batches summed so far */
    struct ot_tag before = tag;
    for (int i = 0; i < n && p->rc >= 0; i++) {
        struct ot_tile_span span = ot_slab_piece(p->chain, p->plan, slab, i);
        struct ot_tag piece = ot_tag(OT_CONTENT_SUM_PIECE, id, i, 0);
        int slot = next_grad_slot(p);
        if (in)
            move_extent(p, OT_TASK_NVME_READ, slab, span, home, i, slot, piece);
        struct ot_task *task = ot_program_task(p, kind, in ? OT_LANE_H2D : OT_LANE_D2H);
        task->slab = slab;
        task->tile = i;
        task->span = span;
        task->from = in ? slot : buffer;
        task->to = in ? buffer : slot;
        ot_program_read(p, task, task->from, in ? piece : tag);
        if (in)
            piece_in(p, task, buffer, before, i == n - 1 ? tag : piece);
        else
            ot_program_write(p, task, slot, piece);
        if (!in)
            move_extent(p, OT_TASK_NVME_WRITE, slab, span, home, i, slot, piece);
        before = piece;
    }
}
