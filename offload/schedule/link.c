/* Derives the edges from the accesses (see schedule.h). Walks two consecutive copies of the program in order.
 * The schedule gets the edges of the second copy, to tasks of the same copy and of the first. A schedule that
 * runs alone has only one copy.
 *
 * A node's ancestors are kept as a bit set, in n^2 / 16 bytes for n nodes, because only bit sets find every
 * implied edge. A draft (schedule.h) has clocks instead: for each lane of the device, how many of its nodes
 * come before the node. The lanes run in order, so a clock identifies these nodes. Edges from tasks of the
 * host's lanes are then all kept. */
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/schedule.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

/* The last writer of some bytes and their readers since then, as node numbers over both copies. -1: none. A
 * lane of the device runs in order, so its newest reader stands for all of its readers. */
struct history {
    int writer;
    int newest[OT_LANE_CPU]; /* the newest reader in each lane of the device */
    int n_readers;
    size_t capacity;
    int *readers; /* those in other lanes */
};

/* Most accesses are to whole buffers. They go into one history of the buffer; accesses of some tiles go into
 * the histories of these tiles. A write of the whole buffer makes older histories of its tiles invalid. */
struct buffer {
    struct history whole;
    struct tile {
        struct history history;
        int since; /* the history begins with the writer of the whole buffer: its node + 2; 0: none yet */
    } * tiles;
    int n_tiles;
    int n_writes;          /* the writes of tiles since the last write of the whole buffer */
    bool has_tiles;        /* there was an access of tiles since then */
    int seen[OT_LANE_CPU]; /* n_writes at the lane's last read of the whole buffer */
};

struct linker {
    struct ot_schedule *schedule;
    const struct ot_layout *layout;
    struct ot_reach reach;      /* not of a draft */
    int *places;                /* draft: [nodes]: the node's number in its lane, from 1 */
    int (*clocks)[OT_LANE_CPU]; /* draft: [nodes] */
    int steps;                  /* copies of the program: 1 or 2 */
    struct buffer *buffers;     /* [n_buffers] */
    struct tile *tiles;         /* of all buffers */
    int n_tiles;
    uint8_t *lanes; /* [nodes]: the lane of the node's task */
    /* Nodes that must come before the present task: the newest of each lane of the device, or -1; and those
     * of the other lanes. A lane of the device runs in order, so its newest node implies its others. */
    int newest[OT_LANE_CPU];
    int *candidates;
    int n_candidates;
    size_t capacity;
    int *seen; /* [nodes]: the last node that has this one among its candidates; -1: none */
    int n_deps;
    size_t deps_capacity;
};

static int push(int **list, int *n, size_t *capacity, int value) {
    OT_TRY(ot_grow(list, capacity, (size_t)*n + 1, sizeof **list, "tasks to order"));
    (*list)[(*n)++] = value;
    return 0;
}

/* True if `before` is known to come before node. */
static bool is_ancestor(const struct linker *lk, int node, int before) {
    if (!lk->schedule->is_draft)
        return ot_reach_has(&lk->reach, node, before);
    enum ot_lane_id lane = lk->lanes[before];
    return ot_lane_is_device(lane) && lk->clocks[node][lane] >= lk->places[before];
}

static void add_ancestor(struct linker *lk, int node, int before) {
    if (!lk->schedule->is_draft) {
        ot_reach_add(&lk->reach, node, before);
        return;
    }
    enum ot_lane_id lane = lk->lanes[before];
    for (int l = 0; l < OT_LANE_CPU; l++) /* a vector */
        lk->clocks[node][l] = ot_max(lk->clocks[before][l], lk->clocks[node][l]);
    if (ot_lane_is_device(lane) && lk->places[before] > lk->clocks[node][lane])
        lk->clocks[node][lane] = lk->places[before];
}

/* Notes that node `before` (-1: no node) must come before `node`, unless that is known already. */
static int after(struct linker *lk, int node, int before) {
    if (before < 0)
        return 0;
    enum ot_lane_id lane = lk->lanes[before];
    if (ot_lane_is_device(lane)) {
        lk->newest[lane] = ot_max(lk->newest[lane], before);
        return 0;
    }
    if (lk->seen[before] == node)
        return 0;
    lk->seen[before] = node;
    if (is_ancestor(lk, node, before))
        return 0;
    return push(&lk->candidates, &lk->n_candidates, &lk->capacity, before);
}

static void begin_history(struct history *history, int writer) {
    history->writer = writer;
    for (int l = 0; l < OT_LANE_CPU; l++)
        history->newest[l] = -1;
    history->n_readers = 0;
}

/* The history of a tile since the last write of its whole buffer. */
static struct history *tile_history(struct buffer *buffer, int t) {
    struct tile *tile = &buffer->tiles[t];
    if (tile->since != buffer->whole.writer + 2)
        begin_history(&tile->history, -1);
    tile->since = buffer->whole.writer + 2;
    return &tile->history;
}

static int collect_from(struct linker *lk, const struct history *history, bool writes, int node) {
    OT_TRY(after(lk, node, history->writer));
    for (int l = 0; writes && l < OT_LANE_CPU; l++)
        lk->newest[l] = ot_max(lk->newest[l], history->newest[l]);
    for (int r = 0; writes && r < history->n_readers; r++)
        OT_TRY(after(lk, node, history->readers[r]));
    return 0;
}

/* Collects the nodes before an access. The readers of the whole buffer may be older than the last write of a
 * tile: then this write implies them. A lane of the device that has read the whole buffer since the last
 * write comes after all writers by its own order. */
static int collect(struct linker *lk, const struct ot_access *a, int step, int node) {
    struct buffer *buffer = &lk->buffers[ot_access_buffer(a, step)];
    enum ot_lane_id lane = lk->lanes[node];
    bool is_whole = a->n_tiles == buffer->n_tiles;
    OT_TRY(collect_from(lk, &buffer->whole, a->writes, node));
    if (is_whole && (!buffer->has_tiles ||
                     (!a->writes && ot_lane_is_device(lane) && buffer->seen[lane] == buffer->n_writes)))
        return 0;
    for (int t = a->first_tile; t < a->first_tile + a->n_tiles; t++)
        OT_TRY(collect_from(lk, tile_history(buffer, t), a->writes, node));
    return 0;
}

static int record_in(struct linker *lk, struct history *history, bool writes, int node) {
    enum ot_lane_id lane = lk->lanes[node];
    if (writes)
        begin_history(history, node);
    else if (ot_lane_is_device(lane))
        history->newest[lane] = node;
    else
        OT_TRY(push(&history->readers, &history->n_readers, &history->capacity, node));
    return 0;
}

static int record(struct linker *lk, const struct ot_access *a, int step, int node) {
    struct buffer *buffer = &lk->buffers[ot_access_buffer(a, step)];
    enum ot_lane_id lane = lk->lanes[node];
    if (a->n_tiles < buffer->n_tiles) {
        buffer->has_tiles = true;
        buffer->n_writes += a->writes;
        for (int t = a->first_tile; t < a->first_tile + a->n_tiles; t++)
            OT_TRY(record_in(lk, tile_history(buffer, t), a->writes, node));
        return 0;
    }
    if (a->writes) {
        buffer->has_tiles = false;
        buffer->n_writes = 0;
        memset(buffer->seen, 0, sizeof buffer->seen);
    } else if (ot_lane_is_device(lane)) {
        buffer->seen[lane] = buffer->n_writes;
    }
    return record_in(lk, &buffer->whole, a->writes, node);
}

static int descending(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x < y) - (x > y);
}

/* Most tasks have a few candidates, for which qsort's calls cost more than the order. Many candidates begin
 * with the writers of tiles, in rising order. */
static void sort_descending(int *values, int n) {
    enum { FEW = 16 };
    int sorted = 1;
    while (sorted < n && values[sorted - 1] < values[sorted])
        sorted++;
    for (int i = 0; i < sorted / 2; i++) {
        int value = values[i];
        values[i] = values[sorted - 1 - i];
        values[sorted - 1 - i] = value;
    }
    if (n - sorted > FEW) {
        qsort(values, (size_t)n, sizeof *values, descending);
        return;
    }
    for (int i = sorted; i < n; i++) {
        int value = values[i], at = i;
        for (; at > 0 && values[at - 1] < value; at--)
            values[at] = values[at - 1];
        values[at] = value;
    }
}

/* Tasks get their edges one after another, so these lie side by side. */
static int add_dep(struct linker *lk, struct ot_task *task, struct ot_dep dep) {
    struct ot_schedule *s = lk->schedule;
    OT_TRY(ot_grow(&s->deps, &lk->deps_capacity, (size_t)lk->n_deps + 1, sizeof *s->deps, "tasks to order"));
    s->deps[lk->n_deps++] = dep;
    task->n_deps++;
    return 0;
}

/* Call it when the edges will not move any more. */
static void find_deps(struct ot_schedule *schedule) {
    int first = 0;
    for (int i = 0; i < schedule->n_tasks; first += schedule->tasks[i++].n_deps)
        schedule->tasks[i].deps = schedule->deps + first;
}

/* Keeps the candidates that no other candidate implies. Looks at the newest first, since a newer node may
 * have an older one as ancestor. */
static int reduce(struct linker *lk, int node, int step) {
    int n = lk->schedule->n_tasks, first = step * n;
    for (int l = 0; l < OT_LANE_CPU; l++)
        if (lk->newest[l] >= 0)
            OT_TRY(push(&lk->candidates, &lk->n_candidates, &lk->capacity, lk->newest[l]));
    sort_descending(lk->candidates, lk->n_candidates);
    for (int i = 0; i < lk->n_candidates; i++) {
        int before = lk->candidates[i];
        if (is_ancestor(lk, node, before)) /* since one of these candidates was added */
            continue;
        add_ancestor(lk, node, before);
        if (step == lk->steps - 1)
            OT_TRY(add_dep(lk, &lk->schedule->tasks[node - first],
                           (struct ot_dep){before % n, before < first, false}));
    }
    return 0;
}

/* Adds a host-side edge from the last writer of the data that the lane's thread reads while it enqueues the
 * task. Lane order and events do not replace this edge: the lane's thread waits for neither of them. */
static int link_on_host(struct linker *lk, const struct ot_access *a, int step, int node) {
    struct buffer *buffer = &lk->buffers[ot_access_buffer(a, step)];
    int n = lk->schedule->n_tasks;
    if (!a->on_host)
        return 0;
    int before = ot_max(buffer->whole.writer, tile_history(buffer, a->first_tile)->writer);
    if (before < 0)
        return 0;
    lk->seen[before] = node;
    add_ancestor(lk, node, before);
    if (step < lk->steps - 1)
        return 0;
    return add_dep(lk, &lk->schedule->tasks[node % n], (struct ot_dep){before % n, before / n < step, true});
}

static int link_step(struct linker *lk, int step, int lane_last[OT_LANE_COUNT]) {
    int n = lk->schedule->n_tasks;
    bool collects = !lk->schedule->is_draft || step == lk->steps - 1;
    for (int i = 0; i < n; i++) {
        struct ot_task *task = &lk->schedule->tasks[i];
        int node = step * n + i;
        lk->n_candidates = 0;
        for (int l = 0; l < OT_LANE_CPU; l++)
            lk->newest[l] = -1;
        if (lk->schedule->is_draft)
            lk->places[node] = lane_last[task->lane] < 0 ? 1 : lk->places[lane_last[task->lane]] + 1;
        else
            ot_reach_begin(&lk->reach, node);
        if (ot_lane_is_device(task->lane) && lane_last[task->lane] >= 0)
            add_ancestor(lk, node, lane_last[task->lane]); /* the lane itself keeps this order: no edge */
        lane_last[task->lane] = node;
        for (int a = 0; a < task->n_accesses && collects; a++)
            OT_TRY(link_on_host(lk, &task->accesses[a], step, node));
        for (int a = 0; a < task->n_accesses && collects; a++)
            OT_TRY(collect(lk, &task->accesses[a], step, node));
        if (collects)
            OT_TRY(reduce(lk, node, step));
        for (int a = 0; a < task->n_accesses; a++)
            OT_TRY(record(lk, &task->accesses[a], step, node));
    }
    return 0;
}

/* lanes: [n_tasks]. */
static int build_lanes(struct ot_schedule *schedule, const uint8_t *lanes) {
    for (int i = 0; i < schedule->n_tasks; i++)
        schedule->lane_count[lanes[i]]++;
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        schedule->lane_tasks[l] = malloc(((size_t)schedule->lane_count[l] + 1) * sizeof(int));
        if (!schedule->lane_tasks[l])
            return ot_fail(OT_E_BUDGET, "no memory for the lanes of the schedule");
        schedule->lane_count[l] = 0;
    }
    for (int i = 0; i < schedule->n_tasks; i++)
        schedule->lane_tasks[lanes[i]][schedule->lane_count[lanes[i]]++] = i;
    return 0;
}

static void mark_signals(struct ot_schedule *schedule) {
    for (int i = 0; i < schedule->n_tasks; i++) {
        const struct ot_task *task = &schedule->tasks[i];
        for (int d = 0; d < task->n_deps; d++) {
            struct ot_task *before = &schedule->tasks[task->deps[d].task];
            if (!ot_lane_is_device(before->lane))
                continue;
            if (!ot_lane_is_device(task->lane) || task->deps[d].on_host)
                before->needs_notify = true;
            else if (before->lane != task->lane)
                before->needs_event = true;
        }
    }
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (ot_lane_is_device((enum ot_lane_id)l) && schedule->lane_count[l] > 0)
            schedule->tasks[schedule->lane_tasks[l][schedule->lane_count[l] - 1]].needs_notify = true;
}

static int open_ancestors(struct linker *lk) {
    size_t n = (size_t)lk->schedule->n_tasks, nodes = (size_t)lk->steps * n;
    lk->seen = malloc((nodes + 1) * sizeof *lk->seen);
    lk->lanes = malloc(nodes + 1);
    if (!lk->seen || !lk->lanes)
        return ot_fail(OT_E_BUDGET, "no memory to order the schedule");
    memset(lk->seen, 0xff, nodes * sizeof *lk->seen);
    for (size_t i = 0; i < nodes; i++)
        lk->lanes[i] = i < n ? (uint8_t)lk->schedule->tasks[i].lane : lk->lanes[i - n];
    if (!lk->schedule->is_draft)
        return ot_reach_open(&lk->reach, (int)nodes);
    lk->places = calloc(nodes + 1, sizeof *lk->places);
    lk->clocks = calloc(nodes + 1, sizeof *lk->clocks);
    return lk->places && lk->clocks ? 0 : ot_fail(OT_E_BUDGET, "no memory to order the schedule");
}

static int open_buffers(struct linker *lk) {
    const struct ot_layout *layout = lk->layout;
    for (int b = 0; b < layout->n_buffers; b++)
        lk->n_tiles += layout->buffers[b].n_tiles;
    lk->buffers = calloc((size_t)layout->n_buffers + 1, sizeof *lk->buffers);
    lk->tiles = calloc((size_t)lk->n_tiles + 1, sizeof *lk->tiles);
    if (!lk->buffers || !lk->tiles)
        return ot_fail(OT_E_BUDGET, "no memory to order the schedule");
    struct tile *next = lk->tiles;
    for (int b = 0; b < layout->n_buffers; b++) {
        lk->buffers[b].tiles = next;
        lk->buffers[b].n_tiles = layout->buffers[b].n_tiles;
        begin_history(&lk->buffers[b].whole, -1);
        next += lk->buffers[b].n_tiles;
    }
    return 0;
}

static void close_buffers(struct linker *lk) {
    for (int t = 0; lk->tiles && t < lk->n_tiles; t++)
        free(lk->tiles[t].history.readers);
    for (int b = 0; lk->buffers && b < lk->layout->n_buffers; b++)
        free(lk->buffers[b].whole.readers);
    free(lk->tiles);
    free(lk->buffers);
}

int ot_schedule_link(struct ot_schedule *schedule, const struct ot_layout *layout) {
    struct linker lk = {.schedule = schedule, .layout = layout, .steps = schedule->alone ? 1 : 2};
    int rc = 0, lane_last[OT_LANE_COUNT];
    for (int l = 0; l < OT_LANE_COUNT; l++)
        lane_last[l] = -1;
    OT_TRY_GOTO(open_ancestors(&lk), rc, out);
    OT_TRY_GOTO(build_lanes(schedule, lk.lanes), rc, out);
    OT_TRY_GOTO(open_buffers(&lk), rc, out);
    for (int step = 0; step < lk.steps; step++)
        OT_TRY_GOTO(link_step(&lk, step, lane_last), rc, out);
    find_deps(schedule);
    if (!schedule->is_draft)
        mark_signals(schedule);
out:
    close_buffers(&lk);
    free(lk.candidates);
    free(lk.seen);
    free(lk.lanes);
    free(lk.places);
    free(lk.clocks);
    ot_reach_close(&lk.reach);
    return rc;
}
