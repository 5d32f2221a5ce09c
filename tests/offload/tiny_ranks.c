#include "tests/offload/tiny_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "tests/support/check.h"
#include "tests/support/thread_world.h"

struct member {
    struct tiny_run run;
    struct tiny_result result;
    int steps, rc; /* of a run that fails: steps that were completed, and the error */
    struct ot_error error;
    pthread_t thread;
};

static int join(void *context, int rank, struct ot_device *device, struct ot_comm **out) {
    return thread_world_join(context, rank, device, out);
}

static void *train(void *context) {
    struct member *member = context;
    tiny_train(&member->run, &member->result);
    return NULL;
}

/* Takes over what the member holds. */
static void merge_values(const struct ot_chain *chain, const struct member *member, bool first,
                         struct tiny_result *result) {
    int64_t at = 0;
    for (int s = 0; s < chain->n_slabs; s++) {
        struct ot_shard_range held = ot_slab_holding(chain, &member->run.plan, s);
        for (int kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++, at += chain->slabs[s].n_params) {
            size_t bytes = (size_t)held.n * sizeof(float);
            if (ot_slab_is_encoded(chain, s))
                continue; /* tiny_read has compared its bytes */
            float *to = result->values + at + held.first;
            const float *from = member->result.values + at + held.first;
            bool copies = !ot_plan_has_stages(&member->run.plan) && held.n == chain->slabs[s].n_params;
            if (!first && copies && memcmp(to, from, bytes) != 0)
                fail_msg("rank %d holds other values of %s than rank 0", member->run.shard.rank,
                         chain->slabs[s].name);
            memcpy(to, from, bytes);
        }
    }
}

static void check_equal(const struct tiny_result *a, const struct tiny_result *b) {
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_memory_equal(a->skipped, b->skipped, sizeof a->skipped);
    assert_memory_equal(a->token_loss, b->token_loss, sizeof a->token_loss);
}

/* Gives the members the memory that they share. That of one copy has NaNs in it: a read before the first
 * write shows. */
static void share_memory(struct member *members, int ranks) {
    struct ot_model *model;
    struct ot_layout layout;
    tiny_open_model(&members[0].run, &model);
    check_ok(ot_layout_make(ot_model_chain(model), &members[0].run.plan, &layout));
    void *memory = malloc(layout.shared_bytes + 1);
    assert_non_null(memory);
    memset(memory, members[0].run.plan.crosses ? 0 : 0xff, layout.shared_bytes + 1);
    for (int r = 0; r < ranks; r++)
        members[r].run.shared_memory = memory;
    ot_layout_free(&layout);
    ot_model_close(model);
}

/* Opens the members with their plans. */
static struct member *make_members(const struct tiny_run *run, const struct tiny_world *about,
                                   struct thread_world *world) {
    struct member *members = calloc((size_t)about->ranks, sizeof *members);
    assert_non_null(members);
    for (int r = 0; r < about->ranks; r++) {
        struct tiny_run *own = &members[r].run;
        *own = *run;
        own->shard = (struct ot_shard){.rank = r,
                                       .ranks = about->ranks,
                                       .mode = about->mode,
                                       .world = about->world,
                                       .narrow = about->narrow,
                                       .one_copy = about->one_copy,
                                       .turn_blocks = about->turn_blocks,
                                       .in_flight = about->in_flight,
                                       .stages = about->stages};
        own->join = join;
        own->join_context = world;
        tiny_plan(own, about->weights, about->state, about->activations, about->slots);
        own->plan.crosses = about->crosses;
        own->plan.staging_bytes = about->crosses ? (size_t)about->ranks << 15 : 0; /* pieces of 16 KiB */
        tiny_finish(own);
        if (about->change)
            about->change(own, r, about->context);
    }
    share_memory(members, about->ranks);
    return members;
}

static void free_members(struct member *members) {
    free(members[0].run.shared_memory);
    free(members);
}

static void run_members(struct member *members, int ranks, void *(*work)(void *)) {
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&members[r].thread, NULL, work, &members[r]), 0);
    for (int r = 0; r < ranks; r++)
        pthread_join(members[r].thread, NULL);
}

void tiny_train_ranks(const struct tiny_run *run, const struct tiny_world *about,
                      struct tiny_result *result) {
    struct thread_world *world = thread_world_open(about->ranks, about->delay_seed);
    struct member *members = make_members(run, about, world);
    struct ot_model *model;
    run_members(members, about->ranks, train);
    tiny_open_model(run, &model);
    *result = members[0].result;
    for (int r = 0; r < about->ranks; r++) {
        if (r > 0)
            check_equal(&members[0].result, &members[r].result);
        merge_values(ot_model_chain(model), &members[r], r == 0, result);
        if (r > 0)
            tiny_result_free(&members[r].result);
        ot_plan_free(&members[r].run.plan);
    }
    assert_memory_equal(result->collected, result->values, (size_t)result->n_values * sizeof *result->values);
    ot_model_close(model);
    thread_world_close(world);
    free_members(members);
}

/* ---- a communicator that fails ---- */

static int try_step(struct member *member, struct ot_engine *engine, int step) {
    struct ot_step_result result;
    struct tiny_batch *batch = malloc(sizeof *batch);
    const struct ot_shard *shard = &member->run.plan.shard;
    assert_non_null(batch);
    tiny_fill_batch(batch, member->run.config.vocab, step, TINY_STEP_SEQUENCES, member->run.micro_sequences);
    batch->input.micro += ot_shard_micro(shard, batch->input.n_micro, shard->rank).first;
    int rc = ot_engine_submit(engine, &batch->input);
    if (rc == 0)
        rc = ot_engine_result(engine, &result);
    free(batch);
    return rc;
}

static void *train_until_failure(void *context) {
    struct member *member = context;
    struct tiny_engine tiny;
    tiny_open(&member->run, &tiny);
    int rc = 0;
    for (member->steps = 0; member->steps < TINY_STEPS && rc == 0; member->steps += rc == 0)
        rc = try_step(member, tiny.engine, member->steps);
    member->rc = rc;
    tiny_close(&tiny);
    return NULL;
}

int tiny_fail_ranks(const struct tiny_run *run, const struct tiny_world *about, int failing, int fail_at) {
    struct thread_world *world = thread_world_open(about->ranks, about->delay_seed);
    thread_world_fail_at(world, failing, fail_at);
    struct member *members = make_members(run, about, world);
    run_members(members, about->ranks, train_until_failure);
    int fewest = TINY_STEPS;
    for (int r = 0; r < about->ranks; r++) {
        if (members[r].rc != -OT_E_COMM)
            fail_msg("rank %d ends with %d after %d steps", r, members[r].rc, members[r].steps);
        fewest = members[r].steps < fewest ? members[r].steps : fewest;
        ot_plan_free(&members[r].run.plan);
    }
    thread_world_close(world);
    free_members(members);
    return fewest;
}

/* ---- ranks whose plans differ ---- */

static void *open_and_close(void *context) {
    struct member *member = context;
    struct tiny_engine tiny;
    ot_error_save(&member->error, tiny_try_open(&member->run, &tiny));
    tiny_close(&tiny);
    return NULL;
}

void tiny_refuse_ranks(const struct tiny_run *run, const struct tiny_world *about, const char *words) {
    struct thread_world *world = thread_world_open(about->ranks, about->delay_seed);
    struct member *members = make_members(run, about, world);
    run_members(members, about->ranks, open_and_close);
    for (int r = 0; r < about->ranks; r++) {
        if (members[r].error.code != OT_E_USAGE || !strstr(members[r].error.text, words))
            fail_msg("rank %d ends with %d: %s", r, members[r].error.code, members[r].error.text);
        ot_plan_free(&members[r].run.plan);
    }
    thread_world_close(world);
    free_members(members);
}
