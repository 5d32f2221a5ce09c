/* The verifier (see schedule.h). Takes the edges as given, and checks over two consecutive steps (over one if
 * the schedule runs alone) that they order every conflict. This code does not know how the edges were
 * made. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "offload/schedule/schedule.h"
#include "src/base/error.h"

struct touch {
    int node, tile;
    bool writes;
};

struct verifier {
    const struct ot_schedule *schedule;
    const struct ot_layout *layout;
    const struct ot_plan *plan;
    int steps;
    struct ot_reach reach;
    int *order;      /* nodes in a topological order */
    int *rank;       /* node -> its index in `order` */
    int *first_tile; /* [n_buffers] */
    int n_tiles;
    int n_touches;
    struct touch *touches;
    bool trains; /* each step raises the version of weights and state by one */
};

static const char *where(const struct verifier *vf, int node) {
    return ot_task_kind_name(vf->schedule->tasks[node % vf->schedule->n_tasks].kind);
}

static int fail_pair(const struct verifier *vf, int a, int b, int tile) {
    int buffer = vf->layout->n_buffers - 1;
    while (buffer > 0 && vf->first_tile[buffer] > tile)
        buffer--;
    int n = vf->schedule->n_tasks;
    return ot_fail(
        OT_E_INTERNAL,
        "schedule: '%s' (task %d, step %d) and '%s' (task %d, step %d) both touch a buffer of '%s' "
        "(number %d), and no edge orders them",
        where(vf, a), a % n, a / n, where(vf, b), b % n, b / n, vf->layout->buffers[buffer].name, buffer);
}

/* ---- order: Kahn's algorithm over deps and lanes ---- */

/* The preceding node in the same device lane, possibly in the previous step; -1: none. */
static int lane_before(const struct verifier *vf, const int *lane_place, int node) {
    const struct ot_schedule *s = vf->schedule;
    int i = node % s->n_tasks, step = node / s->n_tasks;
    enum ot_lane_id lane = s->tasks[i].lane;
    if (!ot_lane_is_device(lane))
        return -1;
    if (lane_place[i] > 0)
        return step * s->n_tasks + s->lane_tasks[lane][lane_place[i] - 1];
    return step == 0 ? -1 : s->lane_tasks[lane][s->lane_count[lane] - 1];
}

static int dep_node(const struct verifier *vf, int node, const struct ot_dep *dep) {
    int n = vf->schedule->n_tasks, step = node / n - dep->previous_step;
    return step < 0 ? -1 : step * n + dep->task;
}

static int sort_nodes(struct verifier *vf, const int *lane_place) {
    const struct ot_schedule *s = vf->schedule;
    int total = vf->reach.n, done = 0, progress = 1;
    for (int v = 0; v < total; v++)
        vf->rank[v] = -1;
    /* Program order is almost topological, so few sweeps suffice. A sweep without progress means a cycle. */
    while (done < total && progress) {
        progress = 0;
        for (int v = 0; v < total; v++) {
            const struct ot_task *task = &s->tasks[v % s->n_tasks];
            int before = lane_before(vf, lane_place, v);
            bool ready = vf->rank[v] < 0 && (before < 0 || vf->rank[before] >= 0);
            for (int d = 0; ready && d < task->n_deps; d++) {
                before = dep_node(vf, v, &task->deps[d]);
                ready = before < 0 || vf->rank[before] >= 0;
            }
            if (ready) {
                vf->rank[v] = done;
                vf->order[done++] = v;
                progress = 1;
            }
        }
    }
    if (done == total)
        return 0;
    int stuck = 0;
    while (vf->rank[stuck] >= 0)
        stuck++;
    return ot_fail(OT_E_INTERNAL, "schedule: '%s' (task %d) can never start: the edges form a cycle",
                   where(vf, stuck), stuck);
}

/* Finds the ancestors of all nodes. Node numbers of `reach` are ranks, because ancestors must have smaller
 * numbers. */
static void close_order(struct verifier *vf, const int *lane_place) {
    for (int r = 0; r < vf->reach.n; r++) {
        int v = vf->order[r], before = lane_before(vf, lane_place, v);
        const struct ot_task *task = &vf->schedule->tasks[v % vf->schedule->n_tasks];
        ot_reach_begin(&vf->reach, r);
        if (before >= 0)
            ot_reach_add(&vf->reach, r, vf->rank[before]);
        for (int d = 0; d < task->n_deps; d++) {
            before = dep_node(vf, v, &task->deps[d]);
            if (before >= 0)
                ot_reach_add(&vf->reach, r, vf->rank[before]);
        }
    }
}

static int check_order(struct verifier *vf) {
    const struct ot_schedule *s = vf->schedule;
    int rc = 0, *lane_place = malloc(((size_t)s->n_tasks + 1) * sizeof *lane_place);
    if (!lane_place)
        return ot_fail(OT_E_BUDGET, "no memory for the verifier");
    for (int l = 0; l < OT_LANE_COUNT; l++)
        for (int i = 0; i < s->lane_count[l]; i++)
            lane_place[s->lane_tasks[l][i]] = i;
    OT_TRY_GOTO(sort_nodes(vf, lane_place), rc, out);
    close_order(vf, lane_place);
out:
    free(lane_place);
    return rc;
}

/* ---- conflicts: every two tasks that touch a tile, one of them writing, are ordered ---- */

static int by_tile_then_rank(const void *a, const void *b) {
    const struct touch *x = a, *y = b;
    return x->tile != y->tile ? (x->tile > y->tile) - (x->tile < y->tile)
                              : (x->node > y->node) - (x->node < y->node);
}

static int collect_touches(struct verifier *vf) {
    const struct ot_schedule *s = vf->schedule;
    size_t n = 0;
    for (int i = 0; i < s->n_tasks; i++)
        for (int a = 0; a < s->tasks[i].n_accesses; a++)
            n += (size_t)vf->steps * (size_t)s->tasks[i].accesses[a].n_tiles;
    vf->touches = malloc((n + 1) * sizeof *vf->touches);
    if (!vf->touches)
        return ot_fail(OT_E_BUDGET, "no memory for the verifier");
    for (int v = 0; v < vf->reach.n; v++) {
        const struct ot_task *task = &s->tasks[v % s->n_tasks];
        for (int i = 0; i < task->n_accesses; i++) {
            const struct ot_access *a = &task->accesses[i];
            int buffer = ot_access_buffer(a, v / s->n_tasks);
            if (a->first_tile < 0 || a->first_tile + a->n_tiles > vf->layout->buffers[buffer].n_tiles)
                return ot_fail(OT_E_INTERNAL,
                               "schedule: '%s' (task %d) touches tiles that '%s' does not have", where(vf, v),
                               v % s->n_tasks, vf->layout->buffers[buffer].name);
            for (int t = 0; t < a->n_tiles; t++)
                vf->touches[vf->n_touches++] =
                    (struct touch){vf->rank[v], vf->first_tile[buffer] + a->first_tile + t, a->writes};
        }
    }
    qsort(vf->touches, (size_t)vf->n_touches, sizeof *vf->touches, by_tile_then_rank);
    return 0;
}

/* Walks one tile's touches in rank order. Each touch must come after the last write, and each write after
 * every read since. By transitivity this orders all conflicting pairs. */
static int check_conflicts(struct verifier *vf) {
    int writer = -1, since = 0;
    for (int i = 0; i < vf->n_touches; i++) {
        const struct touch *t = &vf->touches[i];
        if (i == 0 || vf->touches[i - 1].tile != t->tile)
            writer = -1, since = i;
        if (writer >= 0 && writer != t->node && !ot_reach_has(&vf->reach, t->node, writer))
            return fail_pair(vf, vf->order[writer], vf->order[t->node], t->tile);
        if (!t->writes)
            continue;
        for (int j = since; j < i; j++)
            if (vf->touches[j].node != t->node && !ot_reach_has(&vf->reach, t->node, vf->touches[j].node))
                return fail_pair(vf, vf->order[vf->touches[j].node], vf->order[t->node], t->tile);
        writer = t->node;
        since = i + 1;
    }
    return 0;
}

/* ---- host-side edges: inputs of enqueuing are complete ---- */

static bool has_host_edge(const struct verifier *vf, int node, int writer) {
    const struct ot_task *task = &vf->schedule->tasks[node % vf->schedule->n_tasks];
    for (int d = 0; d < task->n_deps; d++)
        if (task->deps[d].on_host && dep_node(vf, node, &task->deps[d]) == writer)
            return true;
    return false;
}

static int check_task_on_host(const struct verifier *vf, int node, int *writers) {
    int n = vf->schedule->n_tasks, step = node / n;
    const struct ot_task *task = &vf->schedule->tasks[node % n];
    for (int i = 0; i < task->n_accesses; i++) {
        const struct ot_access *a = &task->accesses[i];
        int first = vf->first_tile[ot_access_buffer(a, step)] + a->first_tile;
        for (int t = first; t < first + a->n_tiles; t++) {
            if (a->on_host && writers[t] >= 0 && !has_host_edge(vf, node, writers[t]))
                return ot_fail(OT_E_INTERNAL,
                               "schedule: '%s' (task %d) is enqueued by what '%s' (task %d) writes, and its "
                               "thread does not wait for that",
                               where(vf, node), node % n, where(vf, writers[t]), writers[t] % n);
            if (a->writes)
                writers[t] = node;
        }
    }
    return 0;
}

static int check_on_host(const struct verifier *vf) {
    int rc = 0, *writers = malloc(((size_t)vf->n_tiles + 1) * sizeof *writers);
    if (!writers)
        return ot_fail(OT_E_BUDGET, "no memory for the verifier");
    for (int t = 0; t < vf->n_tiles; t++)
        writers[t] = -1;
    for (int r = 0; r < vf->reach.n && rc >= 0; r++)
        rc = check_task_on_host(vf, vf->order[r], writers);
    free(writers);
    return rc;
}

/* ---- contents: every read finds the expected content ---- */

/* The tag with its version counted from step 0. Constants and frozen weights never change. Weights do not
 * change if no task updates them. */
static struct ot_tag absolute(const struct verifier *vf, struct ot_tag tag, int step) {
    bool constant = tag.content == OT_CONTENT_CONSTANTS || tag.content == OT_CONTENT_FROZEN ||
                    tag.content == OT_CONTENT_DECODED ||
                    (!vf->trains && (tag.content == OT_CONTENT_WEIGHTS || tag.content == OT_CONTENT_STATE));
    tag.version = (int8_t)(constant ? 0 : tag.version + step);
    return tag;
}

static bool updates_weights(const struct ot_schedule *s) {
    for (int i = 0; i < s->n_tasks; i++)
        if (s->tasks[i].kind == OT_TASK_UPDATE_CPU || s->tasks[i].kind == OT_TASK_UPDATE_GPU ||
            s->tasks[i].kind == OT_TASK_UPDATE_STREAM)
            return true;
    return false;
}

static void hold(const struct verifier *vf, struct ot_tag *held, int buffer, int tile, struct ot_tag tag) {
    if (buffer != OT_NO_BUFFER)
        held[vf->first_tile[buffer] + tile] = absolute(vf, tag, 0);
}

/* Sets the content of a buffer's tiles from `first` on: the other ranks' shares, without their last update.
 */
static void hold_rest(const struct verifier *vf, int slab, int buffer, int first, struct ot_tag *held) {
    int n = buffer != OT_NO_BUFFER ? vf->layout->buffers[buffer].n_tiles : 0;
    for (int t = first; t < n; t++)
        hold(vf, held, buffer, t,
             (struct ot_tag){.content = OT_CONTENT_WEIGHTS, .index = slab, .version = -1});
}

/* A frozen slab is whole everywhere before step 0. */
static void hold_frozen(const struct verifier *vf, int slab, struct ot_tag *held) {
    const struct ot_slab_buffers *b = &vf->layout->slabs[slab];
    const int homes[] = {b->weights_gpu, b->weights_host, b->weights_nvme};
    for (int i = 0; i < 3; i++)
        for (int t = 0; homes[i] != OT_NO_BUFFER && t < vf->layout->buffers[homes[i]].n_tiles; t++)
            hold(vf, held, homes[i], t, (struct ot_tag){.content = OT_CONTENT_FROZEN, .index = slab});
}

/* Sets the contents of a slab's homes before step 0, as if a step came before. Streamed tiles lack one
 * update, whose gradients and parameters wait. Tiles on the device that the pool updates on the host lack one
 * update too. */
static void hold_slab(const struct verifier *vf, int slab, struct ot_tag *held) {
    const struct ot_slab_buffers *b = &vf->layout->slabs[slab];
    if (b->frozen) {
        hold_frozen(vf, slab, held);
        return;
    }
    const struct ot_slab_plan *sp = &vf->plan->slabs[slab];
    int buffer = b->weights_host != OT_NO_BUFFER   ? b->weights_host
                 : b->weights_nvme != OT_NO_BUFFER ? b->weights_nvme
                                                   : b->weights_gpu;
    int on_gpu = sp->tiles[OT_TILE_GPU], streamed = on_gpu + sp->tiles[OT_TILE_STREAM];
    int all = streamed + sp->tiles[OT_TILE_CPU], tiles = all > 0 ? all : vf->layout->buffers[buffer].n_tiles;
    hold_rest(vf, slab, b->weights_gpu, tiles, held);
    hold_rest(vf, slab, b->weights_host, tiles, held);
    for (int t = 0; t < tiles; t++) {
        int8_t resident = t >= on_gpu ? -1 : 0, home = t >= on_gpu && t < streamed ? -1 : 0;
        struct ot_tag weights = {.content = OT_CONTENT_WEIGHTS, .index = slab, .version = home};
        hold(vf, held, b->weights_host, t, weights);
        hold(vf, held, b->weights_nvme, t, weights);
        weights.version = resident;
        hold(vf, held, b->weights_gpu, t, weights);
        struct ot_tag state = {.content = OT_CONTENT_STATE, .index = slab, .version = home, .micro = t};
        if (t >= on_gpu) {
            hold(vf, held, b->state_host, t - on_gpu, state);
            hold(vf, held, b->state_nvme, t - on_gpu, state);
            hold(vf, held, b->grad_nvme, t - on_gpu,
                 (struct ot_tag){.content = OT_CONTENT_GRAD, .index = slab, .version = -1, .micro = t + 1});
        }
    }
    hold(vf, held, b->state_gpu, 0, (struct ot_tag){.content = OT_CONTENT_STATE, .index = slab});
    struct ot_tag waiting = {.content = OT_CONTENT_GRAD, .index = slab, .version = -1};
    hold(vf, held, sp->grads == OT_HOME_GPU ? b->grad_gpu : b->grad_host, 0, waiting);
    hold(vf, held, vf->layout->params_gpu, slab,
         (struct ot_tag){.content = OT_CONTENT_PARAMS, .version = -1});
}

/* Sets all contents before the first step. The driver writes each step's batch before the step starts. */
static void set_first_contents(const struct verifier *vf, struct ot_tag *held) {
    const struct ot_layout *l = vf->layout;
    for (int s = 0; s < vf->plan->n_slabs; s++)
        if (ot_slab_is_own(vf->plan, s))
            hold_slab(vf, s, held);
    for (int b = 0; l->cache && b < l->n_blocks; b++)
        for (int t = 0; l->cache[b] != OT_NO_BUFFER && t < l->buffers[l->cache[b]].n_tiles; t++)
            hold(vf, held, l->cache[b], t, (struct ot_tag){.content = OT_CONTENT_CACHE, .index = b});
    hold(vf, held, l->constants, 0, (struct ot_tag){.content = OT_CONTENT_CONSTANTS});
    for (int p = 0; p < 2; p++)
        hold(vf, held, l->batch_host[p], 0,
             (struct ot_tag){.content = OT_CONTENT_BATCH, .version = (int8_t)p});
}

static int check_task_contents(const struct verifier *vf, int node, struct ot_tag *held) {
    int n = vf->schedule->n_tasks, step = node / n;
    const struct ot_task *task = &vf->schedule->tasks[node % n];
    for (int i = 0; i < task->n_accesses; i++) {
        const struct ot_access *a = &task->accesses[i];
        int buffer = ot_access_buffer(a, step), first = vf->first_tile[buffer] + a->first_tile;
        struct ot_tag want = absolute(vf, a->before, step);
        for (int t = first; t < first + a->n_tiles; t++) {
            if (a->reads && a->before.content != OT_CONTENT_ANY && !ot_tags_match(held[t], want))
                return ot_fail(
                    OT_E_INTERNAL,
                    "schedule: '%s' (task %d, step %d) would read the wrong content in a buffer of '%s' "
                    "(number %d): content %d.%d.%d version %d, expected %d.%d.%d version %d",
                    where(vf, node), node % n, step, vf->layout->buffers[buffer].name, buffer,
                    held[t].content, held[t].index, held[t].micro, held[t].version, want.content, want.index,
                    want.micro, want.version);
            if (a->writes)
                held[t] = absolute(vf, a->after, step);
        }
    }
    return 0;
}

static int check_contents(const struct verifier *vf) {
    int rc = 0;
    struct ot_tag *held = calloc((size_t)vf->n_tiles + 1, sizeof *held);
    if (!held)
        return ot_fail(OT_E_BUDGET, "no memory for the verifier");
    set_first_contents(vf, held);
    for (int r = 0; r < vf->reach.n && rc >= 0; r++)
        rc = check_task_contents(vf, vf->order[r], held);
    free(held);
    return rc;
}

/* ---- bytes ---- */

static int check_bytes(const struct ot_layout *layout, const struct ot_plan *plan) {
    size_t end[OT_MEMORIES] = {0}, ranks = (size_t)ot_shard_ranks(&plan->shard);
    for (int i = 0; i < layout->n_buffers; i++) {
        const struct ot_buffer *b = &layout->buffers[i];
        int memory = b->is_shared ? OT_MEMORY_SHARED : (int)b->tier;
        if (b->offset < end[memory] || b->bytes > b->reserved)
            return ot_fail(OT_E_INTERNAL, "schedule: buffer %d ('%s') overlaps another buffer", i, b->name);
        end[memory] = b->offset + (b->is_shared ? ranks : 1) * b->reserved;
    }
    end[OT_TIER_HOST] += end[OT_MEMORY_SHARED] / ranks; /* a rank's share of it */
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (end[t] != ot_ledger_total(&plan->ledger, (enum ot_tier)t))
            return ot_fail(OT_E_INTERNAL, "schedule: %zu bytes on the %s, the ledger says %zu", end[t],
                           ot_tier_name((enum ot_tier)t), ot_ledger_total(&plan->ledger, (enum ot_tier)t));
    return 0;
}

int ot_schedule_verify(const struct ot_schedule *schedule, const struct ot_layout *layout,
                       const struct ot_plan *plan) {
    struct verifier vf = {.schedule = schedule,
                          .layout = layout,
                          .plan = plan,
                          .steps = schedule->alone ? 1 : 2,
                          .trains = updates_weights(schedule)};
    int rc = 0, total = vf.steps * schedule->n_tasks;
    OT_TRY(check_bytes(layout, plan));
    OT_TRY_GOTO(ot_reach_open(&vf.reach, total), rc, out);
    vf.order = malloc(((size_t)total + 1) * sizeof *vf.order);
    vf.rank = malloc(((size_t)total + 1) * sizeof *vf.rank);
    vf.first_tile = malloc(((size_t)layout->n_buffers + 1) * sizeof *vf.first_tile);
    if (!vf.order || !vf.rank || !vf.first_tile) {
        rc = ot_fail(OT_E_BUDGET, "no memory for the verifier");
        goto out;
    }
    for (int b = 0; b < layout->n_buffers; b++) {
        vf.first_tile[b] = vf.n_tiles;
        vf.n_tiles += layout->buffers[b].n_tiles;
    }
    OT_TRY_GOTO(check_order(&vf), rc, out);
    OT_TRY_GOTO(collect_touches(&vf), rc, out);
    OT_TRY_GOTO(check_conflicts(&vf), rc, out);
    OT_TRY_GOTO(check_on_host(&vf), rc, out);
    OT_TRY_GOTO(check_contents(&vf), rc, out);
out:
    free(vf.order);
    free(vf.rank);
    free(vf.first_tile);
    free(vf.touches);
    ot_reach_close(&vf.reach);
    return rc;
}
