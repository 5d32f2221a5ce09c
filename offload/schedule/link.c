/* Edges from accesses: the scoreboard of schedule.h. Two consecutive copies of the program are walked in
 * order; the edges of the second copy, within it and into the first, are the schedule's. Of a schedule that
 * runs alone there is only one copy. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/reach.h"
#include "offload/schedule/schedule.h"
#include "src/base/error.h"

/* Who touched a tile since when; node numbers of the two copies. */
struct tile {
    int writer; /* -1: nobody yet */
    int n_readers, capacity;
    int *readers;
};

struct linker {
    struct ot_schedule *schedule;
    const struct ot_layout *layout;
    struct ot_reach reach;
    int steps;       /* copies */
    int *first_tile; /* [n_buffers]: where a buffer's tiles begin */
    struct tile *tiles;
    int n_tiles;
    int *candidates; /* of one task: nodes that must come before it */
    int n_candidates, capacity;
};

static int push(int **list, int *n, int *capacity, int value) {
    if (*n == *capacity) {
        int more = *capacity ? 2 * *capacity : 8;
        int *grown = realloc(*list, (size_t)more * sizeof *grown);
        if (!grown)
            return ot_fail(OT_E_BUDGET, "no memory to order the schedule");
        *list = grown;
        *capacity = more;
    }
    (*list)[(*n)++] = value;
    return 0;
}

static int after(struct linker *lk, int node) {
    return node < 0 ? 0 : push(&lk->candidates, &lk->n_candidates, &lk->capacity, node);
}

static int collect(struct linker *lk, const struct ot_access *a, int step) {
    int first = lk->first_tile[ot_access_buffer(a, step)] + a->first_tile;
    for (int t = first; t < first + a->n_tiles; t++) {
        struct tile *tile = &lk->tiles[t];
        OT_TRY(after(lk, tile->writer));
        for (int r = 0; a->writes && r < tile->n_readers; r++)
            OT_TRY(after(lk, tile->readers[r]));
    }
    return 0;
}

static int record(struct linker *lk, const struct ot_access *a, int step, int node) {
    int first = lk->first_tile[ot_access_buffer(a, step)] + a->first_tile;
    for (int t = first; t < first + a->n_tiles; t++) {
        struct tile *tile = &lk->tiles[t];
        if (a->writes) {
            tile->writer = node;
            tile->n_readers = 0;
        } else {
            OT_TRY(push(&tile->readers, &tile->n_readers, &tile->capacity, node));
        }
    }
    return 0;
}

static int descending(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x < y) - (x > y);
}

static int add_dep(struct ot_task *task, struct ot_dep dep) {
    struct ot_dep *grown = realloc(task->deps, ((size_t)task->n_deps + 1) * sizeof *grown);
    if (!grown)
        return ot_fail(OT_E_BUDGET, "no memory to order the schedule");
    task->deps = grown;
    task->deps[task->n_deps++] = dep;
    return 0;
}

/* Keeps those candidates that no other one implies: the newest first, since it may reach the older. */
static int reduce(struct linker *lk, int node, int step) {
    int n = lk->schedule->n_tasks;
    if (lk->n_candidates > 1)
        qsort(lk->candidates, (size_t)lk->n_candidates, sizeof *lk->candidates, descending);
    for (int i = 0; i < lk->n_candidates; i++) {
        int before = lk->candidates[i];
        if (before == node || ot_reach_has(&lk->reach, node, before))
            continue;
        ot_reach_add(&lk->reach, node, before);
        if (step == lk->steps - 1)
            OT_TRY(add_dep(&lk->schedule->tasks[node % n], (struct ot_dep){before % n, before / n < step}));
    }
    return 0;
}

static int link_step(struct linker *lk, int step, int lane_last[OT_LANE_COUNT]) {
    int n = lk->schedule->n_tasks;
    for (int i = 0; i < n; i++) {
        struct ot_task *task = &lk->schedule->tasks[i];
        int node = step * n + i;
        lk->n_candidates = 0;
        if (ot_lane_is_device(task->lane)) { /* in order by itself: needs no edge */
            if (lane_last[task->lane] >= 0)
                ot_reach_add(&lk->reach, node, lane_last[task->lane]);
            lane_last[task->lane] = node;
        }
        for (int a = 0; a < task->n_accesses; a++)
            OT_TRY(collect(lk, &task->accesses[a], step));
        OT_TRY(reduce(lk, node, step));
        for (int a = 0; a < task->n_accesses; a++)
            OT_TRY(record(lk, &task->accesses[a], step, node));
    }
    return 0;
}

static int build_lanes(struct ot_schedule *schedule) {
    for (int i = 0; i < schedule->n_tasks; i++)
        schedule->lane_count[schedule->tasks[i].lane]++;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        schedule->lane_tasks[l] = malloc(((size_t)schedule->lane_count[l] + 1) * sizeof(int));
        if (!schedule->lane_tasks[l])
            return ot_fail(OT_E_BUDGET, "no memory for the lanes of the schedule");
        schedule->lane_count[l] = 0;
    }
    for (int i = 0; i < schedule->n_tasks; i++) {
        enum ot_lane_id l = schedule->tasks[i].lane;
        schedule->lane_tasks[l][schedule->lane_count[l]++] = i;
    }
    return 0;
}

static void mark_signals(struct ot_schedule *schedule) {
    for (int i = 0; i < schedule->n_tasks; i++) {
        const struct ot_task *task = &schedule->tasks[i];
        for (int d = 0; d < task->n_deps; d++) {
            struct ot_task *before = &schedule->tasks[task->deps[d].task];
            if (!ot_lane_is_device(before->lane))
                continue;
            if (!ot_lane_is_device(task->lane))
                before->needs_notify = true;
            else if (before->lane != task->lane)
                before->needs_event = true;
        }
    }
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (ot_lane_is_device((enum ot_lane_id)l) && schedule->lane_count[l] > 0)
            schedule->tasks[schedule->lane_tasks[l][schedule->lane_count[l] - 1]].needs_notify = true;
}

int ot_schedule_link(struct ot_schedule *schedule, const struct ot_layout *layout) {
    struct linker lk = {.schedule = schedule, .layout = layout, .steps = schedule->alone ? 1 : 2};
    int rc = 0, lane_last[OT_LANE_COUNT] = {-1, -1, -1, -1, -1, -1};
    OT_TRY_GOTO(build_lanes(schedule), rc, out);
    OT_TRY_GOTO(ot_reach_open(&lk.reach, lk.steps * schedule->n_tasks), rc, out);
    lk.first_tile = malloc(((size_t)layout->n_buffers + 1) * sizeof *lk.first_tile);
    for (int b = 0; lk.first_tile && b < layout->n_buffers; b++) {
        lk.first_tile[b] = lk.n_tiles;
        lk.n_tiles += layout->buffers[b].n_tiles;
    }
    lk.tiles = calloc((size_t)lk.n_tiles + 1, sizeof *lk.tiles);
    if (!lk.first_tile || !lk.tiles) {
        rc = ot_fail(OT_E_BUDGET, "no memory to order the schedule");
        goto out;
    }
    for (int t = 0; t < lk.n_tiles; t++)
        lk.tiles[t].writer = -1;
    for (int step = 0; step < lk.steps; step++)
        OT_TRY_GOTO(link_step(&lk, step, lane_last), rc, out);
    mark_signals(schedule);
out:
    for (int t = 0; lk.tiles && t < lk.n_tiles; t++)
        free(lk.tiles[t].readers);
    free(lk.tiles);
    free(lk.first_tile);
    free(lk.candidates);
    ot_reach_close(&lk.reach);
    return rc;
}
