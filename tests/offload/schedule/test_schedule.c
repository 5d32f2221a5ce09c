/* The verifier must report every edge that is removed from a schedule, and every other damage to it. Then
 * the shape of schedules: how far they read ahead, and how they reuse slots. */
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/offload/tiny_schedule.h"
#include "tests/support/check.h"

static void make(struct tiny_schedule *m, bool tied, enum ot_dtype dtype, enum ot_home weights,
                 enum ot_home state, enum ot_home activations, int slots, float clip) {
    tiny_defaults(&m->run, 3, tied, dtype);
    m->run.clip = clip;
    tiny_plan(&m->run, weights, state, activations, slots);
    tiny_schedule_make(m);
}

/* Small tiles, so that all engines of the set share every slab. */
static void make_engines(struct tiny_schedule *m, unsigned engines, unsigned mix) {
    bool clip = !(mix & 4);
    enum ot_dtype half = clip && mix % 3 == 2 ? OT_F16 : OT_BF16; /* fp16 always clips */
    tiny_defaults(&m->run, 2, mix & 1, mix & 2 ? half : OT_F32);
    m->run.clip = clip ? 1.0f : 0;
    tiny_plan(&m->run, mix & 8 ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1 + (int)(mix % 3));
    m->run.plan.state_slots = 1 + (int)(mix % 4);
    tiny_deal(&m->run, OT_SLAB_ALIGN_PARAMS, engines, mix % 3);
    tiny_schedule_make(m);
}

static void dropped_edges_are_seen(void **state) {
    (void)state;
    static const enum ot_home homes[2] = {OT_HOME_GPU, OT_HOME_HOST};
    for (int mix = 0; mix < 16; mix++) {
        struct tiny_schedule m;
        make(&m, mix & 1, mix & 2 ? OT_BF16 : OT_F32, homes[mix >> 1 & 1], homes[mix >> 2 & 1],
             homes[mix >> 3], 1 + mix % 3, mix % 3 ? 1.0f : 0);
        /* Everything on the device: batch in, results out, the decision and its input. */
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) >= 5);
        bool uploads = homes[mix >> 1 & 1] == OT_HOME_GPU && homes[mix >> 2 & 1] == OT_HOME_HOST;
        assert_int_equal(m.flush.n_tasks, uploads ? m.run.plan.n_slabs : 0);
        tiny_schedule_free(&m);
    }
    for (int mix = 0; mix < 4; mix++) { /* sections: keys and their sums go from task to task */
        struct tiny_schedule m;
        tiny_defaults(&m.run, 2, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
        m.run.micro_sequences = 1;
        m.run.sections = 2 + mix % 2;
        tiny_plan(&m.run, homes[mix & 1], homes[mix >> 1], homes[mix >> 1], 2);
        ot_plan_set_rounds(&m.run.plan, 3);
        m.run.plan.boundaries_pass = mix >> 1;
        tiny_finish(&m.run);
        tiny_schedule_make(&m);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) >= 5);
        tiny_schedule_free(&m);
    }
    for (int mix = 0; mix < 4; mix++) { /* fp16: the loss scale goes from one decision to the next */
        struct tiny_schedule m;
        make(&m, mix & 1, OT_F16, homes[mix >> 1], homes[mix & 1], homes[mix >> 1], 1 + mix % 2, 1.0f);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) >= 6);
        tiny_schedule_free(&m);
    }
}

enum { ALL_ENGINES = (1 << OT_TILE_ENGINES) - 1 };

static void dropped_edges_between_engines_are_seen(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < 32; mix++) {
        unsigned engines = mix < 16 ? 1 << OT_TILE_STREAM : 1 + mix % ALL_ENGINES;
        struct tiny_schedule m;
        make_engines(&m, engines, mix);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) > 10);
        if (mix < 16) /* load, update and store of each tile, and the slots between them */
            assert_true(tiny_schedule_drop_edges(&m, &m.flush) >=
                        2 * ot_plan_count_tiles(&m.run.plan, OT_TILE_STREAM));
        tiny_schedule_free(&m);
    }
}

static const enum ot_home all_tiers[3] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};

/* Random homes, engines and slots. Small tiles, so that engines share slabs. */
static void make_nvme(struct tiny_schedule *m, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound) ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 1, 1), i++, (bound)))
    enum ot_dtype dtype = (enum ot_dtype)PICK(3);
    tiny_defaults(&m->run, 2, PICK(2), dtype);
    m->run.clip = dtype == OT_F16 || PICK(2) ? 1.0f : 0;
    int weights = PICK(3), state = 1 + PICK(2), activations = PICK(3);
    tiny_plan(&m->run, all_tiers[weights], all_tiers[state], all_tiers[activations], 1 + PICK(3));
    m->run.plan.state_slots = 1 + PICK(4);
    int64_t tile = OT_SLAB_ALIGN_PARAMS * (1 + PICK(2));
    tiny_deal(&m->run, tile, 1 + (unsigned)PICK(7), seed);
    /* With slots for more than half of the tiles, a tile could still be in its slot from the step before,
     * and a missing read would not show. */
    ot_plan_set_rounds(&m->run.plan, 1 + PICK(2));
    tiny_random_grads(&m->run, seed);
    int64_t half = ot_plan_passing_tiles(&m->run.plan) / 2;
    if (half > 0)
        m->run.plan.tile_slots = 1 + PICK((uint64_t)(half < 4 ? half : 4));
    tiny_finish(&m->run);
    tiny_schedule_make(m);
#undef PICK
}

/* A read task copies from nvme to the host on the lane of reads. A write task does the opposite. Tasks of
 * tiles name their buffers elsewhere (schedule.h). */
static void check_directions(const struct tiny_schedule *m, const struct ot_schedule *schedule) {
    for (int t = 0; t < schedule->n_tasks; t++) {
        const struct ot_task *task = &schedule->tasks[t];
        bool reads = task->kind == OT_TASK_NVME_READ;
        if (!reads && task->kind != OT_TASK_NVME_WRITE)
            continue;
        int nvme = reads ? task->from : task->to, host = reads ? task->to : task->from;
        assert_int_equal(task->lane, reads ? OT_LANE_NVME_READ : OT_LANE_NVME_WRITE);
        if (nvme != OT_NO_BUFFER)
            assert_int_equal(m->layout.buffers[nvme].tier, OT_TIER_NVME);
        if (host != OT_NO_BUFFER)
            assert_int_equal(m->layout.buffers[host].tier, OT_TIER_HOST);
    }
}

static void dropped_edges_to_nvme_are_seen(void **state) {
    (void)state;
    int nvme_tasks = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct tiny_schedule m;
        make_nvme(&m, seed);
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) > 5);
        tiny_schedule_drop_edges(&m, &m.flush);
        check_directions(&m, &m.schedule);
        check_directions(&m, &m.flush);
        nvme_tasks += m.schedule.lane_count[OT_LANE_NVME_READ] + m.schedule.lane_count[OT_LANE_NVME_WRITE];
        bool nvme = ot_ledger_total(&m.run.plan.ledger, OT_TIER_NVME) > 0;
        assert_int_equal(m.schedule.lane_count[OT_LANE_NVME_READ] > 0, nvme);
        tiny_schedule_free(&m);
    }
    assert_true(nvme_tasks > 500);
}

/* With n slots the first n tiles are read during forward and backward of their step: these reads wait for
 * nothing in that step. */
static void tiles_are_read_ahead(void **state) {
    (void)state;
    for (int slots = 2; slots <= 8; slots++) {
        struct tiny_schedule m;
        int ahead = 0;
        tiny_defaults(&m.run, 3, false, OT_BF16);
        tiny_plan(&m.run, OT_HOME_HOST, OT_HOME_NVME, OT_HOME_GPU, 2);
        m.run.plan.tile_slots = slots;
        tiny_deal(&m.run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
        tiny_schedule_make(&m);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            const struct ot_task *task = &m.schedule.tasks[t];
            bool of_this_step = false;
            for (int d = 0; d < task->n_deps; d++)
                of_this_step = of_this_step || !task->deps[d].previous_step;
            ahead += task->kind == OT_TASK_NVME_READ && !of_this_step;
        }
        assert_int_equal(ahead, slots);
        tiny_schedule_free(&m);
    }
}

/* A task is removed. Another task then misses its content. */
static void lost_work_is_seen(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < 32; mix++) {
        struct tiny_schedule m;
        int lost = 0;
        if (mix < 16)
            make_engines(&m, ALL_ENGINES, mix);
        else
            make_nvme(&m, mix);
        for (int t = 0; t < m.schedule.n_tasks; t++) {
            struct ot_task *task = &m.schedule.tasks[t];
            int accesses = task->n_accesses;
            bool to_next_step = task->kind == OT_TASK_RESULT_OUT || task->kind == OT_TASK_DECIDE;
            /* A decision's content has no tag of its own in the next step. A boundary or a piece of a sum
             * that comes back may find itself in the slot that it left through. So removing these tasks may
             * not show. */
            int content = task->n_accesses > 0 ? task->accesses[0].before.content : OT_CONTENT_ANY;
            bool returns = content == OT_CONTENT_BOUNDARY || content == OT_CONTENT_SUM_PIECE;
            if (to_next_step || (task->kind == OT_TASK_NVME_READ && returns))
                continue;
            task->n_accesses = 0;
            if (ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan) >= 0)
                fail_msg("task %d (%s) lost all its accesses, and the verifier did not see it", t,
                         ot_task_kind_name(task->kind));
            task->n_accesses = accesses;
            lost++;
        }
        assert_true(lost > 20);
        tiny_schedule_free(&m);
    }
}

/* The state of a tile is copied to the device while the block before its own computes. */
static void state_streams_ahead(void **state) {
    (void)state;
    struct tiny_schedule m;
    int before_use = 0;
    tiny_defaults(&m.run, 3, false, OT_BF16);
    tiny_plan(&m.run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 3);
    m.run.plan.state_slots = 8;
    tiny_deal(&m.run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_STREAM, 0);
    tiny_schedule_make(&m);
    for (int t = 0, block = -1; t < m.schedule.n_tasks; t++) {
        const struct ot_task *task = &m.schedule.tasks[t];
        if (task->kind == OT_TASK_FORWARD)
            block = task->block;
        if (task->kind == OT_TASK_UPDATE_STREAM && task->slab > 0) {
            assert_int_equal(block, task->slab - 1); /* in this chain slab s belongs to block s */
            before_use++;
        }
    }
    assert_true(before_use > 3);
    tiny_schedule_free(&m);
}

/* Swaps two slots in one access at a time. Returns how many accesses use these slots. */
static int swap_slots(struct tiny_schedule *m, const int *slots) {
    int swapped = 0;
    for (int t = 0; t < m->schedule.n_tasks; t++)
        for (int a = 0; a < m->schedule.tasks[t].n_accesses; a++) {
            struct ot_access *access = &m->schedule.tasks[t].accesses[a];
            if (access->buffer != slots[0] && access->buffer != slots[1])
                continue;
            access->buffer = slots[0] + slots[1] - access->buffer;
            if (ot_schedule_verify(&m->schedule, &m->layout, &m->run.plan) >= 0)
                fail_msg("task %d (%s) used a wrong slot in access %d, and the verifier did not see it", t,
                         ot_task_kind_name(m->schedule.tasks[t].kind), a);
            access->buffer = slots[0] + slots[1] - access->buffer;
            swapped++;
        }
    check_ok(ot_schedule_verify(&m->schedule, &m->layout, &m->run.plan));
    return swapped;
}

/* A task reads another slot than the one that was filled. */
static void wrong_slots_are_seen(void **state) {
    (void)state;
    struct tiny_schedule m;
    make(&m, false, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2, 1.0f);
    assert_true(swap_slots(&m, m.layout.weight_slots[OT_SLOT_LAYER]) > 10);
    tiny_schedule_free(&m);
    for (int streams = 0; streams < 2; streams++) {
        tiny_defaults(&m.run, 3, false, OT_BF16);
        tiny_plan(&m.run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
        m.run.plan.tile_slots = 2;
        tiny_deal(&m.run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU | streams << OT_TILE_STREAM, 0);
        for (int s = 0; s < m.run.plan.n_slabs; s++)
            m.run.plan.slabs[s].grads = m.run.plan.slabs[s].sums = OT_HOME_NVME;
        ot_plan_set_rounds(&m.run.plan, 2);
        m.run.plan.host_grad_slots = 2;
        tiny_finish(&m.run);
        tiny_schedule_make(&m);
        assert_true(swap_slots(&m, m.layout.tile_slots) > 10);
        assert_true(swap_slots(&m, m.layout.host_grad_slots) > 10);
        assert_true(swap_slots(&m, m.layout.host_activation_slots) > 4);
        /* Not checked with streams: a streamed slab is read again, into the slot that holds the pool's part
         * of it. */
        assert_true(streams || swap_slots(&m, m.layout.host_weight_slots[OT_SLOT_LAYER]) > 4);
        tiny_schedule_free(&m);
    }
}

static void cycles_and_bytes_are_seen(void **state) {
    (void)state;
    struct tiny_schedule m;
    make(&m, true, OT_BF16, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2, 1.0f);
    struct ot_task *first = NULL;
    for (int t = 0; t < m.schedule.n_tasks && !first; t++)
        if (m.schedule.tasks[t].n_deps > 0)
            first = &m.schedule.tasks[t];
    assert_non_null(first);
    struct ot_dep kept = first->deps[0];
    first->deps[0] = (struct ot_dep){.task = m.schedule.n_tasks - 1};
    check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "cycle");
    first->deps[0] = kept;
    m.run.plan.ledger.entries[0].bytes += 256;
    check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL, "ledger");
    tiny_schedule_free(&m);
}

static void rings_too_small_are_refused(void **state) {
    (void)state;
    struct tiny_schedule m;
    struct ot_schedule schedule;
    make(&m, true, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2, 1.0f);
    ot_layout_free(&m.layout);
    /* Sums the gradients of a tied slab's two uses at the same time, and has one slot. */
    m.run.plan.grad_slots[OT_SLOT_EDGE] = 1;
    check_ok(ot_plan_finish(ot_model_chain(m.model), &m.run.plan));
    check_ok(ot_layout_make(ot_model_chain(m.model), &m.run.plan, &m.layout));
    check_fails(ot_schedule_make_train(ot_model_chain(m.model), &m.run.plan, &m.layout, &schedule),
                OT_E_USAGE, "slots");
    tiny_schedule_free(&m);
}

/* With free slots a fetch must not wait for the block before it: running ahead hides the fetch. */
static void fetches_run_ahead(void **state) {
    (void)state;
    struct tiny_schedule m;
    make(&m, false, OT_F32, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 3, 1.0f);
    int checked = 0;
    for (int t = 0; t < m.schedule.n_tasks; t++) {
        const struct ot_task *task = &m.schedule.tasks[t];
        if (task->kind != OT_TASK_FETCH)
            continue;
        for (int d = 0; d < task->n_deps; d++) {
            const struct ot_task *before = &m.schedule.tasks[task->deps[d].task];
            bool block_before = before->kind == OT_TASK_FORWARD && before->block == task->slab - 1 &&
                                !task->deps[d].previous_step;
            assert_false(block_before);
            checked++;
        }
    }
    assert_true(checked > 0);
    tiny_schedule_free(&m);
}

/* The pool's updates of a resident slab are copied to the device right before their use. h2d runs in order,
 * so earlier copies would let the first blocks of the next step wait for the whole optimizer. */
static void uploads_wait_for_their_use(void **state) {
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        struct tiny_schedule m;
        make(&m, false, OT_F32, OT_HOME_GPU, OT_HOME_HOST, OT_HOME_GPU, 1, (float)clip);
        int uploads = 0;
        for (int t = 0, block = -1; t < m.schedule.n_tasks; t++) {
            const struct ot_task *task = &m.schedule.tasks[t];
            if (task->kind == OT_TASK_FORWARD)
                block = task->block;
            if (task->kind != OT_TASK_UPLOAD)
                continue;
            assert_int_equal(block, task->slab - 1); /* in this chain slab s belongs to block s */
            uploads++;
        }
        assert_int_equal(uploads, m.run.plan.n_slabs);
        tiny_schedule_free(&m);
    }
}

/* Forward leaves the weights of the last blocks in their slots, and backward begins with them. */
static void weights_stay_for_the_turn_around(void **state) {
    (void)state;
    struct tiny_schedule m;
    int fetches[8] = {0};
    make(&m, false, OT_BF16, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2, 1.0f);
    for (int t = 0; t < m.schedule.n_tasks; t++)
        if (m.schedule.tasks[t].kind == OT_TASK_FETCH)
            fetches[m.schedule.tasks[t].slab]++;
    assert_int_equal(fetches[1], 2); /* of three layers, two slots keep the last two */
    assert_int_equal(fetches[2], 1);
    assert_int_equal(fetches[3], 1);
    assert_int_equal(fetches[0], 1); /* backward does not read the embedding */
    assert_int_equal(fetches[4], 1); /* the head's forward and backward are one visit */
    tiny_schedule_free(&m);
}

enum { LAYERS = 8 };

/* True for a task of that kind that moves or makes the whole slab of a layer. */
static bool is_layers(const struct ot_task *task, enum ot_task_kind kind) {
    return task->kind == kind && task->block < 0 && task->slab > 0 && task->slab <= LAYERS && task->tile < 0;
}

/* Counts the tasks of a kind that fill the same buffer as one of the `slots - 1` such tasks before them. The
 * buffer of a gradient is the buffer that it is rounded to, or, with `sums`, the buffer that it was summed
 * in. */
static int count_early_reuse(const struct ot_schedule *schedule, enum ot_task_kind kind, int slots,
                             bool sums) {
    int early = 0, seen = 0, last[LAYERS] = {0};
    for (int t = 0; t < schedule->n_tasks; t++) {
        const struct ot_task *task = &schedule->tasks[t];
        if (task->kind == OT_TASK_BACKWARD && kind == OT_TASK_NVME_READ)
            break; /* weights that forward left are used first */
        if (!is_layers(task, kind))
            continue;
        int buffer = sums ? task->from : kind == OT_TASK_GRAD_FINISH ? task->via : task->to;
        for (int i = seen - slots + 1; i < seen; i++)
            early += i >= 0 && last[i] == buffer;
        last[seen++] = buffer;
    }
    assert_int_equal(seen, LAYERS);
    return early;
}

/* The slot whose last use is oldest is filled next. So with n slots a read does not wait for the use of any
 * of the last n - 1 slots. */
static void slots_take_turns(void **state) {
    (void)state;
    for (int slots = 2; slots <= 4; slots++) {
        struct tiny_schedule m;
        tiny_defaults(&m.run, LAYERS, false, OT_BF16);
        tiny_plan(&m.run, OT_HOME_NVME, OT_HOME_HOST, OT_HOME_GPU, 2);
        m.run.plan.host_weight_slots[OT_SLOT_LAYER] = slots;
        m.run.plan.grad_out_slots[OT_SLOT_LAYER] = slots;
        m.run.plan.grad_slots[OT_SLOT_LAYER] = slots;
        tiny_finish(&m.run);
        tiny_schedule_make(&m);
        assert_int_equal(count_early_reuse(&m.schedule, OT_TASK_NVME_READ, slots, false), 0);
        assert_int_equal(count_early_reuse(&m.schedule, OT_TASK_GRAD_FINISH, slots, false), 0);
        assert_int_equal(count_early_reuse(&m.schedule, OT_TASK_GRAD_FINISH, slots, true), 0);
        int reads = 0;
        for (int t = 0; t < m.schedule.n_tasks; t++)
            reads += is_layers(&m.schedule.tasks[t], OT_TASK_NVME_READ);
        assert_true(reads <= 2 * LAYERS - slots); /* the last layers stay in their slots for backward */
        tiny_schedule_free(&m);
    }
}

/* Forward alone, with the homes of the plan. Every edge of it is needed too, and it reads the content that
 * the batch and the weights brought. */
static void dropped_edges_of_forward_are_seen(void **state) {
    (void)state;
    static const enum ot_pass passes[2] = {OT_PASS_EVAL, OT_PASS_DECODE};
    for (int mix = 0; mix < 12; mix++) {
        struct tiny_schedule m;
        make(&m, mix & 1, OT_BF16, all_tiers[mix / 4], OT_HOME_HOST, OT_HOME_GPU, 1 + mix % 3, 1.0f);
        ot_schedule_free(&m.schedule);
        check_ok(ot_schedule_make_forward(ot_model_chain(m.model), &m.run.plan, &m.layout,
                                          passes[mix >> 1 & 1], &m.schedule));
        assert_true(tiny_schedule_drop_edges(&m, &m.schedule) >= (mix < 4 ? 3 : 8));
        int seen = 0; /* a block whose input would come from another block, or a batch of another step */
        for (int t = 0; t < m.schedule.n_tasks; t++)
            for (int a = 0; a < m.schedule.tasks[t].n_accesses; a++) {
                struct ot_tag *tag = &m.schedule.tasks[t].accesses[a].before;
                bool boundary = tag->content == OT_CONTENT_BOUNDARY, batch = tag->content == OT_CONTENT_BATCH;
                tag->index += boundary;
                tag->version = (int8_t)(tag->version - batch);
                if (boundary || batch) {
                    check_fails(ot_schedule_verify(&m.schedule, &m.layout, &m.run.plan), OT_E_INTERNAL,
                                "wrong content");
                    seen++;
                }
                tag->index -= boundary;
                tag->version = (int8_t)(tag->version + batch);
            }
        assert_true(seen > 8);
        tiny_schedule_free(&m);
    }
}

/* Users read these descriptions in the report of a stall and in a trace. */
static void tasks_are_described(void **state) {
    (void)state;
    static const struct {
        int block, slab, micro, tile;
        const char *text;
    } cases[] = {
        {1, -1, 0, -1, "fetch layer.0 #0"}, {0, -1, 2, 5, "fetch embed #2"},
        {-1, 1, -1, 0, "fetch layer.0 #0"}, {-1, 0, -1, 7, "fetch embed #7"},
        {-1, 1, -1, -1, "fetch layer.0"},   {-1, -1, -1, -1, "fetch"},
    };
    struct tiny_schedule m;
    char text[32];
    make(&m, false, OT_F32, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 1, 1.0f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_task task = {.kind = OT_TASK_FETCH,
                               .block = cases[i].block,
                               .slab = cases[i].slab,
                               .micro = cases[i].micro,
                               .tile = cases[i].tile};
        const struct ot_chain *chain = ot_model_chain(m.model);
        assert_string_equal(ot_task_describe(&task, chain, text, sizeof text), cases[i].text);
        /* Cut short, and no byte written after the end. */
        for (size_t bytes = 1; bytes < sizeof text; bytes++) {
            memset(text, '~', sizeof text);
            ot_task_describe(&task, chain, text, bytes);
            assert_int_equal(strncmp(text, cases[i].text, bytes - 1), 0);
            assert_true(strlen(text) < bytes && text[bytes] == '~');
        }
    }
    tiny_schedule_free(&m);
}

/* The task of a kind that comes first, of a block and a micro-batch. -1: there is none. */
static int first_task(const struct ot_schedule *schedule, enum ot_task_kind kind, int block, int micro) {
    for (int i = 0; i < schedule->n_tasks; i++)
        if (schedule->tasks[i].kind == kind && schedule->tasks[i].block == block &&
            schedule->tasks[i].micro == micro)
            return i;
    return -1;
}

/* With boundaries that pass, the input of the next section is on its way while a block runs this one. */
static void boundaries_pass_ahead(void **state) {
    (void)state;
    struct tiny_schedule m;
    tiny_defaults(&m.run, 3, false, OT_BF16);
    m.run.micro_sequences = 1;
    m.run.sections = 3;
    tiny_plan(&m.run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    m.run.plan.boundaries_pass = true;
    tiny_finish(&m.run);
    tiny_schedule_make(&m);
    for (int block = 1; block < 4; block++)
        for (int micro = 0; micro + 1 < m.run.plan.max_micro; micro++) {
            int next = first_task(&m.schedule, OT_TASK_BOUNDARY_IN, block - 1, micro + 1);
            assert_true(next >= 0);
            assert_true(next < first_task(&m.schedule, OT_TASK_FORWARD, block, micro));
        }
    tiny_schedule_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_edges_are_seen),
        cmocka_unit_test(dropped_edges_between_engines_are_seen),
        cmocka_unit_test(dropped_edges_to_nvme_are_seen),
        cmocka_unit_test(dropped_edges_of_forward_are_seen),
        cmocka_unit_test(tasks_are_described),
        cmocka_unit_test(tiles_are_read_ahead),
        cmocka_unit_test(lost_work_is_seen),
        cmocka_unit_test(state_streams_ahead),
        cmocka_unit_test(uploads_wait_for_their_use),
        cmocka_unit_test(weights_stay_for_the_turn_around),
        cmocka_unit_test(wrong_slots_are_seen),
        cmocka_unit_test(cycles_and_bytes_are_seen),
        cmocka_unit_test(rings_too_small_are_refused),
        cmocka_unit_test(fetches_run_ahead),
        cmocka_unit_test(slots_take_turns),
        cmocka_unit_test(boundaries_pass_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
