/* The programs of stages: any chain, any owners, any rounds. test_stage_times.c has their ticks. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/schedule/stage_times.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

/* ---- programs ---- */

enum { MOST_RANKS = 6, STEPS = 2, PASSES = 4 };

/* The programs of all ranks: a step, a flush, an evaluation, a token. */
struct rank {
    struct tiny_schedule tiny;
    struct ot_schedule forwards[2];
};
struct world {
    int ranks, stages;
    struct rank rank[MOST_RANKS];
};

static const struct ot_schedule *program(const struct world *w, int rank, int pass) {
    const struct rank *r = &w->rank[rank];
    return pass == 0 ? &r->tiny.schedule : pass == 1 ? &r->tiny.flush : &r->forwards[pass - 2];
}

/* Trains the layers from number *context on, and the head. A negative number: everything. */
static bool trains_from(const void *context, const struct ot_tensor *tensor) {
    int first = *(const int *)context;
    const char *layer = strstr(tensor->name, "layers.");
    return first < 0 ||
           (layer ? atoi(layer + strlen("layers.")) >= first : strstr(tensor->name, "embed_tokens") == NULL);
}

/* Holders list the same operations if they have the same of these. */
static void share_slots(struct tiny_run *run) {
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = ot_slot_kind_is_edge((enum ot_slot_kind)k);
        run->plan.weight_slots[k] = run->plan.encoded_slots[k] = 2;
        run->plan.grad_slots[k] = k == OT_SLOT_SHARED ? run->plan.grad_slots[k] : edge ? 3 : 2;
    }
}

/* Each rank has a plan of its own, but for owners and rounds. */
static void open_rank(struct world *w, int rank, uint64_t seed, const int *first_trained) {
    uint64_t own = seed * 64 + (uint64_t)rank + 1;
    struct rank *r = &w->rank[rank];
    struct tiny_run *run = &r->tiny.run;
    tiny_defaults(run, w->stages < 4 ? 4 : w->stages, seed % 3 == 0, (enum ot_dtype)(seed % 2));
    if (seed % 3 == 1) /* a slab that all layers share */
        run->config = tiny_pair_config(seed % 2);
    run->micro_sequences = 1;
    run->clip = seed % 4 < 2 ? 1 : 0;
    run->trains = trains_from;
    run->trains_context = first_trained;
    run->shard = (struct ot_shard){.rank = rank,
                                   .ranks = w->ranks,
                                   .mode = OT_SHARD_STAGES,
                                   .stages = w->stages,
                                   .head_layers = (int)(seed / 7 % 3),
                                   .in_flight = (int)(seed / 4 % 4)};
    tiny_plan(run, w->stages < w->ranks ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_random_owners(run, seed);
    tiny_randomise(run, own);
    run->plan.max_micro = 1 + (int)(seed / 3 % 8);
    tiny_random_rounds(run, seed);
    tiny_random_grads(run, own);
    if (w->stages < w->ranks)
        share_slots(run);
    tiny_finish(run);
    tiny_schedule_make(&r->tiny);
    for (int i = 0; i < 2; i++)
        check_ok(ot_schedule_make_forward(ot_model_chain(r->tiny.model), &run->plan, &r->tiny.layout,
                                          i ? OT_PASS_DECODE : OT_PASS_EVAL, &r->forwards[i]));
}

static void open_replicas(struct world *w, uint64_t seed, int replicas, int stages) {
    static int first_trained;
    *w = (struct world){.ranks = replicas * stages, .stages = stages};
    int ranks = w->ranks;
    first_trained = seed % 2 ? -1 : (int)(seed / 2 % 4);
    for (int r = 0; r < ranks; r++)
        open_rank(w, r, seed, &first_trained);
}

static void open_world(struct world *w, uint64_t seed, int ranks) {
    open_replicas(w, seed, 1, ranks);
}

static void close_world(struct world *w) {
    for (int r = 0; r < w->ranks; r++) {
        ot_schedule_free(&w->rank[r].forwards[0]);
        ot_schedule_free(&w->rank[r].forwards[1]);
        tiny_schedule_free(&w->rank[r].tiny);
    }
}

/* What the ranks check before the first step. */
static bool fits(const struct world *w, int pass) {
    int holders = w->ranks / w->stages;
    for (int from = 0; from < w->ranks; from++) {
        if (ot_schedule_check_ticks(program(w, from, pass)) < 0 ||
            ot_schedule_operations(program(w, from, pass), 0) !=
                ot_schedule_operations(program(w, 0, pass), 0) ||
            ot_schedule_holder_crc(program(w, from, pass)) !=
                ot_schedule_holder_crc(program(w, from - from % holders, pass)))
            return false;
        for (int to = 0; to < w->ranks; to++)
            if (ot_schedule_link_crc(program(w, from, pass), to, true) !=
                ot_schedule_link_crc(program(w, to, pass), from, false))
                return false;
    }
    return true;
}

static bool verifies(const struct world *w, int rank, int pass) {
    const struct tiny_schedule *tiny = &w->rank[rank].tiny;
    return ot_schedule_verify(program(w, rank, pass), &tiny->layout, &tiny->run.plan) >= 0;
}

/* ---- a run of all ranks ---- */

/* A task is complete if its edges and, on a lane of the device, the tasks before it are, and if the other
 * ranks are at the other half of its transfers. Nothing else makes a rank wait. */
struct simulation {
    const struct world *world;
    int pass, steps;
    bool *done[MOST_RANKS];              /* [steps][n_tasks] */
    int next[MOST_RANKS][OT_LANE_COUNT]; /* lanes of the device: tasks that are complete */
};

static bool edges_are_done(const struct simulation *s, int rank, int step, const struct ot_task *task) {
    int n = program(s->world, rank, s->pass)->n_tasks;
    for (int d = 0; d < task->n_deps; d++) {
        int at = step - task->deps[d].previous_step;
        if (at >= 0 && !s->done[rank][at * n + task->deps[d].task])
            return false;
    }
    return true;
}

/* The task at the head of a lane of the device, if its edges are complete. */
static const struct ot_task *head(const struct simulation *s, int rank, int lane) {
    const struct ot_schedule *all = program(s->world, rank, s->pass);
    int next = s->next[rank][lane], count = all->lane_count[lane];
    if (next == count * s->steps)
        return NULL;
    const struct ot_task *task = &all->tasks[all->lane_tasks[lane][next % count]];
    return edges_are_done(s, rank, next / count, task) ? task : NULL;
}

static void complete(struct simulation *s, int rank, int lane) {
    const struct ot_schedule *all = program(s->world, rank, s->pass);
    int next = s->next[rank][lane]++, count = all->lane_count[lane];
    s->done[rank][next / count * all->n_tasks + all->lane_tasks[lane][next % count]] = true;
}

/* True if the task of the other rank has the other half. */
static bool has_half(const struct simulation *s, const struct ot_task *task, int rank, int peer,
                     const struct ot_task_transfer *want) {
    const struct ot_schedule *all = program(s->world, peer, s->pass);
    for (int i = 0; task && i < task->n_transfers; i++) {
        const struct ot_task_transfer *t = &all->transfers[task->first_transfer + i];
        if (t->peer == rank && t->sends != want->sends && t->index == want->index &&
            t->micro == want->micro && t->kind == want->kind)
            return true;
    }
    return false;
}

/* True if all ranks that the rank's transfer names are in `meeting`, and at the other halves. */
static bool meets(const struct simulation *s, int rank, unsigned meeting) {
    const struct ot_schedule *all = program(s->world, rank, s->pass);
    const struct ot_task *task = head(s, rank, OT_LANE_COMM);
    for (int i = 0; i < task->n_transfers; i++) {
        const struct ot_task_transfer *t = &all->transfers[task->first_transfer + i];
        if (!(meeting >> t->peer & 1) || !has_half(s, head(s, t->peer, OT_LANE_COMM), rank, t->peer, t))
            return false;
    }
    return true;
}

/* True if all holders of a stage are at the same operation of theirs. rank: the first of them. */
static bool holders_are_there(const struct simulation *s, int rank) {
    const struct ot_task *own = head(s, rank, OT_LANE_COMM);
    if (!own || own->kind == OT_TASK_TRANSFER || own->tick == INT_MAX)
        return false;
    int holders = s->world->ranks / s->world->stages;
    for (int r = rank; r < rank + holders; r++) {
        const struct ot_task *task = head(s, r, OT_LANE_COMM);
        if (!task || task->kind != own->kind || task->slab != own->slab)
            return false;
    }
    return true;
}

/* Completes an operation of holders. Returns the number of its tasks. */
static int cross_replicas(struct simulation *s) {
    int n = 0, holders = s->world->ranks / s->world->stages;
    for (int first = 0; first < s->world->ranks; first += holders)
        if (holders_are_there(s, first))
            for (int i = 0; i < holders; i++, n++)
                complete(s, first + i, OT_LANE_COMM);
    return n;
}

/* Completes the operations between ranks that can complete: of the ranks that are at one, those that wait for
 * none but each other. Returns their number. */
static int cross(struct simulation *s) {
    int ranks = s->world->ranks, gathering = 0, n = 0;
    unsigned meeting = 0;
    for (int r = 0; r < ranks; r++) {
        const struct ot_task *task = head(s, r, OT_LANE_COMM);
        meeting |= (task && task->kind == OT_TASK_TRANSFER ? 1u : 0) << r;
        gathering += task && task->kind == OT_TASK_RESULT_GATHER && task->slab < 0;
    }
    for (int r = 0; r < ranks && gathering == ranks; r++)
        complete(s, r, OT_LANE_COMM);
    for (bool less = true; less;) {
        less = false;
        for (int r = 0; r < ranks; r++)
            if (meeting >> r & 1 && !meets(s, r, meeting)) {
                meeting &= ~(1u << r);
                less = true;
            }
    }
    for (int r = 0; r < ranks; r++)
        if (meeting >> r & 1) {
            complete(s, r, OT_LANE_COMM);
            n++;
        }
    return n + (gathering == ranks ? ranks : 0);
}

/* Completes what needs no other rank. Returns the number of tasks. */
static int work(struct simulation *s, int rank) {
    const struct ot_schedule *all = program(s->world, rank, s->pass);
    int n = 0;
    for (int lane = 0; lane < OT_LANE_COUNT; lane++)
        for (; ot_lane_is_device(lane) && lane != OT_LANE_COMM && head(s, rank, lane); n++)
            complete(s, rank, lane);
    for (int i = 0; i < all->n_tasks * s->steps; i++) {
        const struct ot_task *task = &all->tasks[i % all->n_tasks];
        if (ot_lane_is_device(task->lane) || s->done[rank][i] ||
            !edges_are_done(s, rank, i / all->n_tasks, task))
            continue;
        s->done[rank][i] = true;
        n++;
    }
    return n;
}

/* Runs the program on all ranks. Returns true if all tasks complete. */
static bool runs(const struct world *w, int pass) {
    struct simulation s = {.world = w, .pass = pass, .steps = program(w, 0, pass)->alone ? 1 : STEPS};
    int left = 0;
    for (int r = 0; r < w->ranks; r++) {
        s.done[r] = calloc((size_t)(program(w, r, pass)->n_tasks * s.steps + 1), sizeof *s.done[r]);
        assert_non_null(s.done[r]);
        left += program(w, r, pass)->n_tasks * s.steps;
    }
    for (int n = 1; n > 0; left -= n) {
        n = cross(&s) + cross_replicas(&s);
        for (int r = 0; r < w->ranks; r++)
            n += work(&s, r);
    }
    for (int r = 0; r < w->ranks; r++)
        free(s.done[r]);
    return left == 0;
}

/* Returns the number of transfers of rank 0. */
static int check_programs(const struct world *w, int seed) {
    int crossings = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        for (int r = 0; r < w->ranks; r++)
            if (!verifies(w, r, pass))
                fail_msg("seed %d, rank %d of %d, program %d: %s", seed, r, w->ranks, pass, ot_error_text());
        if (!fits(w, pass) || !runs(w, pass))
            fail_msg("seed %d, %d ranks: the programs %d do not fit together", seed, w->ranks, pass);
        crossings += program(w, 0, pass)->n_transfers;
    }
    return crossings;
}

static void programs_fit_and_end(void **state) {
    (void)state;
    int seeds = getenv("OT_TEST_SLOW") ? 1000 : 200, crossings = 0;
    for (int i = 0; i <= seeds; i++) {
        struct world w;
        int seed = i < seeds ? i : 814; /* a forward visit between backward visits, and few slots */
        open_world(&w, (uint64_t)seed, 2 + seed % 4);
        crossings += check_programs(&w, seed);
        close_world(&w);
    }
    assert_true(crossings > seeds);
}

static void programs_of_replicas_fit_and_end(void **state) {
    (void)state;
    int seeds = getenv("OT_TEST_SLOW") ? 500 : 60, crossings = 0;
    for (int seed = 0; seed < seeds; seed++) {
        struct world w;
        open_replicas(&w, 3000 + (uint64_t)seed, seed % 3 == 2 ? 3 : 2, seed % 3 == 1 ? 3 : 2);
        crossings += check_programs(&w, seed);
        /* Another order on one rank is seen. */
        struct ot_schedule *schedule = &w.rank[w.ranks - 1].tiny.schedule;
        for (int i = 0; i < schedule->n_tasks; i++)
            if (schedule->tasks[i].kind == OT_TASK_EXCHANGE) {
                schedule->tasks[i].tick++;
                assert_false(fits(&w, 0));
                schedule->tasks[i].tick--;
                schedule->tasks[i].slab++;
                assert_false(fits(&w, 0));
                schedule->tasks[i].slab--;
                break;
            }
        close_world(&w);
    }
    assert_true(crossings > seeds);
}

/* ---- damage ---- */

/* The n-th TRANSFER of a program; NULL: it has fewer. */
static struct ot_task *nth_transfer(const struct ot_schedule *schedule, int n) {
    for (int i = 0; i < schedule->n_tasks; i++)
        if (schedule->tasks[i].kind == OT_TASK_TRANSFER && n-- == 0)
            return &schedule->tasks[i];
    return NULL;
}

/* One rank has damage in one half of a transfer: it is another one, lost, or listed with its neighbour. */
static void damage_half(const struct world *w, const struct ot_schedule *schedule, struct ot_task *task) {
    struct ot_task_transfer *t = &schedule->transfers[task->first_transfer + task->n_transfers - 1];
    struct ot_task_transfer kept = *t;
    struct ot_task whole = *task;
    for (int i = 0; i < 7; i++) {
        t->micro += i == 0;
        t->index += i == 1;
        t->kind ^= i == 2;
        t->sends ^= i == 3;
        task->tick += i == 4;
        task->n_transfers += i == 5 ? -1 : i == 6;
        bool there = task->first_transfer + task->n_transfers <= schedule->n_transfers;
        if (there && fits(w, 0))
            fail_msg("damage %d is not seen", i);
        *t = kept;
        *task = whole;
    }
}

/* One rank has two operations in the opposite order. */
static void swap_transfers(const struct world *w, const struct ot_schedule *schedule, struct ot_task *a,
                           struct ot_task *b) {
    struct ot_task kept_a = *a, kept_b = *b;
    a->first_transfer = kept_b.first_transfer, a->n_transfers = kept_b.n_transfers;
    b->first_transfer = kept_a.first_transfer, b->n_transfers = kept_a.n_transfers;
    assert_false(fits(w, 0)); /* other halves in the ticks */
    a->tick = kept_b.tick, b->tick = kept_a.tick;
    assert_false(fits(w, 0)); /* ticks that go back */
    a->tick = b->tick;        /* one tick in two operations: the link's fingerprint is another too */
    check_fails(ot_schedule_check_ticks(schedule), OT_E_INTERNAL, "come after those of tick");
    *a = kept_a;
    *b = kept_b;
}

/* An operation that moves nothing leaves its reader the bytes before it. */
static void lose_transfer(const struct world *w, int rank, struct ot_task *task) {
    int accesses = task->n_accesses, receives = 0;
    for (int i = 0; i < accesses; i++)
        receives += task->accesses[i].writes;
    task->n_accesses = 0;
    if (receives > 0)
        assert_false(verifies(w, rank, 0));
    task->n_accesses = accesses;
}

static void damage_is_seen(void **state) {
    (void)state;
    int damaged = 0;
    for (int seed = 0; seed < (getenv("OT_TEST_SLOW") ? 200 : 30); seed++) {
        struct world w;
        open_world(&w, 1000 + (uint64_t)seed, 2 + seed % 3);
        for (int r = 0; r < w.ranks; r++) {
            struct ot_schedule *schedule = &w.rank[r].tiny.schedule;
            struct ot_task *task;
            for (int n = seed % 5; (task = nth_transfer(schedule, n)); n += 5, damaged++) {
                damage_half(&w, schedule, task);
                lose_transfer(&w, r, task);
                if (n > 0)
                    swap_transfers(&w, schedule, nth_transfer(schedule, n - 1), task);
            }
        }
        assert_true(fits(&w, 0));
        close_world(&w);
    }
    assert_true(damaged > 50);
}

/* Each edge of a program, those of its transfers too. */
static void lost_edges_are_seen(void **state) {
    (void)state;
    int edges = 0;
    for (int seed = 0; seed < (getenv("OT_TEST_SLOW") ? 60 : 12); seed++) {
        struct world w;
        open_world(&w, 2000 + (uint64_t)seed, 2 + seed % 3);
        struct rank *r = &w.rank[seed % w.ranks];
        edges += tiny_schedule_drop_edges(&r->tiny, &r->tiny.schedule);
        edges += tiny_schedule_drop_edges(&r->tiny, &r->forwards[seed % 2]);
        close_world(&w);
    }
    assert_true(edges > 100);
}

/* ---- memory ---- */

static size_t bytes_of(const struct ot_layout *layout, int buffer) {
    return buffer == OT_NO_BUFFER ? 0 : layout->buffers[buffer].bytes;
}

/* Weights, state and waiting gradients of a slab, on all tiers. */
static size_t slab_bytes(const struct tiny_schedule *m, int slab) {
    const struct ot_slab_buffers *b = &m->layout.slabs[slab];
    int all[] = {b->weights_gpu, b->weights_host, b->state_gpu, b->state_host, b->grad_gpu, b->grad_host};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bytes += bytes_of(&m->layout, all[i]);
    return bytes;
}

static void make_mix(struct tiny_schedule *m, int mix, struct ot_shard shard) {
    tiny_defaults(&m->run, 5, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
    if (mix & 16)
        m->run.config = tiny_pair_config(mix & 1);
    m->run.micro_sequences = 1;
    m->run.shard = shard;
    tiny_plan(&m->run, mix & 4 ? OT_HOME_HOST : OT_HOME_GPU, mix & 8 ? OT_HOME_HOST : OT_HOME_GPU,
              OT_HOME_GPU, 2);
    tiny_schedule_make(m);
}

/* The owner of a slab has for it what one rank has. Of the other ranks, those that borrow the slab have its
 * weights once. */
static size_t wanted_bytes(const struct tiny_schedule *m, const struct tiny_schedule *one, int slab) {
    const struct ot_chain *chain = ot_model_chain(m->model);
    if (ot_slab_is_own(&m->run.plan, slab))
        return slab_bytes(one, slab);
    return ot_slab_is_borrowed(chain, &m->run.plan, slab)
               ? ot_slab_bytes(chain, slab, chain->slabs[slab].n_params)
               : 0;
}

static void each_slab_is_held_once(void **state) {
    (void)state;
    for (int mix = 0; mix < 32; mix++) {
        int ranks = 2 + mix % 4;
        struct tiny_schedule one, some[5];
        make_mix(&one, mix, (struct ot_shard){.ranks = 1});
        for (int r = 0; r < ranks; r++)
            make_mix(&some[r], mix, (struct ot_shard){r, ranks, OT_SHARD_STAGES, .turn_blocks = mix / 4 % 2});
        for (int s = 0; s < one.run.plan.n_slabs; s++)
            for (int r = 0; r < ranks; r++)
                assert_int_equal(slab_bytes(&some[r], s), wanted_bytes(&some[r], &one, s));
        for (int r = 0; r < ranks; r++)
            tiny_schedule_free(&some[r]);
        tiny_schedule_free(&one);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {

        cmocka_unit_test(programs_fit_and_end),   cmocka_unit_test(programs_of_replicas_fit_and_end),
        cmocka_unit_test(damage_is_seen),         cmocka_unit_test(lost_edges_are_seen),
        cmocka_unit_test(each_slab_is_held_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
