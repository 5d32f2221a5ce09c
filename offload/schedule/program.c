#include "offload/schedule/program.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

/* Room for the tasks of a small step, and for the accesses that one block holds. */
enum { LEAST_TASKS = 2048, BLOCK_ACCESSES = 2048 };

/* Makes sure that the schedule's first block has room for the accesses of one more task. False: no memory. */
static bool has_room(struct ot_schedule *schedule) {
    struct ot_access_block *block = schedule->accesses;
    if (block && block->used + OT_TASK_MAX_ACCESSES <= BLOCK_ACCESSES)
        return true;
    block = malloc(sizeof *block + BLOCK_ACCESSES * sizeof *block->accesses);
    if (!block)
        return false;
    block->next = schedule->accesses;
    block->used = 0;
    schedule->accesses = block;
    return true;
}

static struct ot_task *add_task(struct ot_schedule *schedule) {
    size_t needed = ot_max((size_t)schedule->n_tasks + 1, (size_t)LEAST_TASKS);
    if (!has_room(schedule) ||
        !ot_try_grow(&schedule->tasks, &schedule->capacity, needed, sizeof *schedule->tasks))
        return NULL;
    return &schedule->tasks[schedule->n_tasks++];
}

struct ot_task *ot_program_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane) {
    struct ot_task *task = p->rc < 0 ? NULL : add_task(p->schedule);
    if (!task) { /* callers need no check: they fill in the spare task, and p->rc ends the program */
        if (p->rc >= 0)
            p->rc = ot_fail(OT_E_BUDGET, "no memory for a schedule of %d tasks", p->schedule->n_tasks);
        task = &p->spare;
    }
    *task = (struct ot_task){.kind = kind, .lane = lane, .accesses = p->spare_accesses};
    if (task != &p->spare)
        task->accesses = p->schedule->accesses->accesses + p->schedule->accesses->used;
    task->block = task->slab = task->micro = task->tile = task->frame = -1;
    for (int u = 0; u < OT_MAX_USES; u++)
        task->weights[u] = task->grads[u] = OT_NO_BUFFER;
    task->x = task->y = task->dxy = task->saved = OT_NO_BUFFER;
    task->from = task->to = task->state = task->via = task->used = task->keys = task->cache = OT_NO_BUFFER;
    return task;
}

struct ot_access *ot_program_access(struct ot_program *p, struct ot_task *task, int buffer, bool reads,
                                    bool writes) {
    if (task->n_accesses == OT_TASK_MAX_ACCESSES || buffer == OT_NO_BUFFER) {
        if (p->rc >= 0)
            p->rc = ot_fail(OT_E_INTERNAL, "schedule: task '%s' needs a buffer that the plan does not have",
                            ot_task_kind_name(task->kind));
        task->n_accesses = 0;
        buffer = 0;
    }
    struct ot_access *a = &task->accesses[task->n_accesses++];
    if (p->rc >= 0)
        p->schedule->accesses->used++;
    *a = (struct ot_access){.buffer = buffer,
                            .reads = reads,
                            .writes = writes,
                            .n_tiles = p->rc < 0 ? 1 : p->layout->buffers[buffer].n_tiles};
    return a;
}

void ot_program_read(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag) {
    ot_program_access(p, task, buffer, true, false)->before = tag;
}

void ot_program_write(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag) {
    ot_program_access(p, task, buffer, false, true)->after = tag;
}

void ot_program_update(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag before,
                       struct ot_tag after) {
    struct ot_access *a = ot_program_access(p, task, buffer, true, true);
    a->before = before;
    a->after = after;
}

void ot_program_scratch(struct ot_program *p, struct ot_task *task, int buffer) {
    ot_program_access(p, task, buffer, false, true);
}

struct ot_access *ot_program_last(struct ot_task *task) {
    return &task->accesses[task->n_accesses - 1];
}

void ot_program_narrow(struct ot_task *task, int first_tile, int n_tiles) {
    struct ot_access *a = ot_program_last(task);
    a->first_tile = first_tile;
    a->n_tiles = n_tiles;
}

/* ---- slots ---- */

int ot_ring_open(struct ot_ring *ring, const int *buffers, int count) {
    *ring = (struct ot_ring){.count = count, .buffers = buffers};
    if (count == 0)
        return 0;
    ring->owner = malloc((size_t)count * sizeof *ring->owner);
    ring->last = calloc((size_t)count, sizeof *ring->last);
    if (!ring->owner || !ring->last) {
        ot_ring_close(ring);
        return ot_fail(OT_E_BUDGET, "no memory for a ring of %d slots", count);
    }
    for (int i = 0; i < count; i++)
        ring->owner[i] = -1;
    return 0;
}

void ot_ring_close(struct ot_ring *ring) {
    free(ring->owner);
    free(ring->last);
    *ring = (struct ot_ring){0};
}

int ot_ring_find(const struct ot_ring *ring, int owner) {
    for (int i = 0; i < ring->count; i++)
        if (ring->owner[i] == owner)
            return i;
    return -1;
}

int ot_ring_victim(const struct ot_ring *ring, const int *needed, int n_needed) {
    int best = -1;
    for (int i = 0; i < ring->count; i++) {
        bool keep = false;
        for (int j = 0; j < n_needed; j++)
            keep = keep || ring->owner[i] == needed[j];
        if (!keep && (best < 0 || ring->last[i] < ring->last[best]))
            best = i;
    }
    return best;
}

int ot_ring_take(struct ot_ring *ring, int owner, int now) {
    int free_owner = -1, best = -1;
    for (int i = 0; i < ring->count; i++)
        if (ring->owner[i] == free_owner && (best < 0 || ring->last[i] < ring->last[best]))
            best = i;
    if (best < 0)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_SLOTS_IN_USE,
                             "plan: all %d slots of a kind are in use at once", ring->count);
    ring->owner[best] = owner;
    ring->last[best] = now;
    return best;
}
