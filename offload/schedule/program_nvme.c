/* What lives on nvme, as tasks: reads into slots of the host, and writes from them.
 *
 * Nothing here looks ahead. A read depends on the last user of its slot and on the last write of its extent,
 * and its lane starts whatever is ready: so with n slots the reads run n ahead of what uses them, through
 * backward and forward, and writes trail behind.
 */
#include "offload/schedule/program.h"
#include "src/base/error.h"

/* A tile slot's two tiles. */
enum { SLOT_STATE, SLOT_WEIGHTS };

/* ---- weights on their way to the device ---- */

int ot_program_weights_on_host(struct ot_program *p, int slab, struct ot_tile_span span) {
    const struct ot_slab_buffers *b = &p->layout->slabs[slab];
    if (!ot_slab_weights_pass(p->plan, slab))
        return b->weights_host;
    struct ot_ring *ring = &p->host_weights[ot_slab_slot_kind(p->chain, slab)];
    int slot = ot_ring_find(ring, slab);
    if (slot < 0) {
        slot = ot_ring_victim(ring, NULL, 0);
        struct ot_task *task = ot_program_task(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ);
        task->slab = slab;
        task->span = span;
        task->from = b->weights_nvme;
        task->to = ring->buffers[slot];
        ot_program_move_weights(p, task, task->from, task->to);
        ring->owner[slot] = span.n == p->chain->slabs[slab].n_params ? slab : -1;
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

/* The number of the tile among those whose state is off the device. */
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

/* One part of a tile between its extent and the slot. */
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
    task->stage = slot;
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

int ot_program_tile_in(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int version) {
    bool state = ot_slab_state_passes(p->plan, slab, engine), weights = ot_slab_weights_pass(p->plan, slab);
    if (!state && !weights)
        return OT_NO_BUFFER;
    int slot = p->layout->tile_slots[p->next_tile_slot++ % p->plan->tile_slots];
    bool reads_weights = weights && engine == OT_TILE_CPU; /* the others have them on the device */
    if (!state && !reads_weights)
        return slot;
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ, slab, tile);
    move_tile(p, task, slot, state, reads_weights, version);
    return slot;
}

void ot_program_tile_out(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int slot,
                         int version) {
    if (slot == OT_NO_BUFFER)
        return;
    struct ot_task *task = ot_program_tile_task(p, OT_TASK_NVME_WRITE, OT_LANE_NVME_WRITE, slab, tile);
    move_tile(p, task, slot, ot_slab_state_passes(p->plan, slab, engine), ot_slab_weights_pass(p->plan, slab),
              version);
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

/* ---- boundaries ---- */

static int boundary_extent(const struct ot_program *p, int boundary, int micro) {
    return p->layout->boundary_nvme[boundary * p->plan->max_micro + micro];
}

static int next_slot(struct ot_program *p) {
    return p->layout->host_activation_slots[p->next_host_activation++ % p->plan->host_activation_slots];
}

int ot_program_boundary_home(struct ot_program *p, int boundary, int micro) {
    if (p->layout->boundary_nvme)
        return next_slot(p);
    return p->layout->boundary_host[boundary * p->plan->max_micro + micro];
}

static void move_boundary(struct ot_program *p, enum ot_task_kind kind, int boundary, int micro, int from,
                          int to) {
    struct ot_task *task =
        ot_program_task(p, kind, kind == OT_TASK_NVME_READ ? OT_LANE_NVME_READ : OT_LANE_NVME_WRITE);
    struct ot_tag tag = ot_tag(OT_CONTENT_BOUNDARY, boundary, micro, 0);
    task->block = boundary;
    task->micro = micro;
    task->from = from;
    task->to = to;
    ot_program_read(p, task, from, tag);
    ot_program_write(p, task, to, tag);
}

void ot_program_boundary_write(struct ot_program *p, int boundary, int micro, int slot) {
    if (p->layout->boundary_nvme)
        move_boundary(p, OT_TASK_NVME_WRITE, boundary, micro, slot, boundary_extent(p, boundary, micro));
}

int ot_program_boundary_read(struct ot_program *p, int boundary, int micro) {
    int to = ot_program_boundary_home(p, boundary, micro);
    if (p->layout->boundary_nvme)
        move_boundary(p, OT_TASK_NVME_READ, boundary, micro, boundary_extent(p, boundary, micro), to);
    return to;
}
