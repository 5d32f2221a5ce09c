#include "offload/engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "offload/engine/engine_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- opening ---- */

static int copy_plan(struct ot_engine *en, const struct ot_plan *plan) {
    en->plan = *plan;
    en->plan.slabs = malloc((size_t)plan->n_slabs * sizeof *en->plan.slabs);
    if (!en->plan.slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the plan");
    memcpy(en->plan.slabs, plan->slabs, (size_t)plan->n_slabs * sizeof *en->plan.slabs);
    return 0;
}

static int make_schedules(struct ot_engine *en) {
    const struct ot_chain *chain = &en->chain;
    if (en->plan.train) {
        OT_TRY(ot_schedule_make_train(chain, &en->plan, &en->layout, &en->train));
        OT_TRY(ot_schedule_verify(&en->train, &en->layout, &en->plan));
        OT_TRY(ot_schedule_make_flush(chain, &en->plan, &en->layout, &en->flush));
        OT_TRY(ot_schedule_verify(&en->flush, &en->layout, &en->plan));
        for (int i = 0; i < en->train.n_tasks; i++)
            if (en->train.tasks[i].kind == OT_TASK_DECIDE && en->train.tasks[i].slab < 0)
                en->decide_task = i;
    }
    OT_TRY(ot_schedule_make_gather(chain, &en->plan, &en->layout, &en->gather));
    OT_TRY(ot_schedule_verify(&en->gather, &en->layout, &en->plan));
    OT_TRY(ot_schedule_make_forward(chain, &en->plan, &en->layout, OT_PASS_EVAL, &en->eval));
    OT_TRY(ot_schedule_verify(&en->eval, &en->layout, &en->plan));
    OT_TRY(ot_schedule_make_forward(chain, &en->plan, &en->layout, OT_PASS_DECODE, &en->decode));
    OT_TRY(ot_schedule_verify(&en->decode, &en->layout, &en->plan));
    if (ot_schedule_prompts(&en->plan) == 1)
        return 0;
    OT_TRY(ot_schedule_make_prompts(chain, &en->plan, &en->layout, &en->prompts));
    return ot_schedule_verify(&en->prompts, &en->layout, &en->plan);
}

/* Stages: checks that every transfer has its other half, in the order of the other side's program. The table
 * of all links is [ranks][2][ranks]: fingerprints of what each rank sends to each other, then of what it
 * receives. Errors: OT_E_USAGE (no transfers), OT_E_INTERNAL, OT_E_COMM, OT_E_BUDGET. */
static int agree_on_links(const struct ot_engine *en) {
    const struct ot_schedule *all[] = {&en->train, &en->eval, &en->decode};
    int ranks = en->plan.shard.ranks, rc = 0;
    size_t row = 2 * (size_t)ranks;
    uint32_t *own = calloc(row * (size_t)(ranks + 1), sizeof *own), *table = own + row;
    OT_TRY(own ? 0 : ot_fail(OT_E_BUDGET, "no memory for the links of %d ranks", ranks));
    OT_TRY_GOTO(ot_comm_need_transfers(en->comm), rc, out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        OT_TRY_GOTO(ot_engine_check_transfers(en, all[i]), rc, out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        OT_TRY_GOTO(ot_schedule_check_ticks(all[i]), rc, out);
    for (size_t i = 0; i < row; i++)
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            own[i] = own[i] * 31 + ot_schedule_link_crc(all[k], (int)i % ranks, (int)i < ranks);
    OT_TRY_GOTO(ot_comm_all_gather_host(en->comm, own, row * sizeof *own, table), rc, out);
    for (int from = 0; from < ranks && rc == 0; from++)
        for (int to = 0; to < ranks && rc == 0; to++)
            if (from != to &&
                table[(size_t)from * row + (size_t)to] != table[(size_t)to * row + (size_t)(ranks + from)])
                rc = ot_fail(OT_E_INTERNAL, "schedule: rank %d sends other activations than rank %d receives",
                             from, to);
out:
    free(own);
    return rc;
}

/* Stages: checks that the holders of a stage list the same operations in the same places. Errors: OT_E_USAGE,
 * OT_E_COMM. */
static int agree_among_holders(const struct ot_engine *en) {
    const struct ot_schedule *own[] = {&en->train, &en->flush, &en->gather, &en->eval, &en->decode};
    const struct ot_shard *shard = &en->plan.shard;
    uint32_t crc = 0, all[OT_MAX_RANKS];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        crc = crc * 31 + ot_schedule_holder_crc(own[i]);
    OT_TRY(ot_comm_all_gather_host(en->comm, &crc, sizeof crc, all));
    for (int r = 0; r < shard->ranks; r++) {
        int first = r - r % ot_shard_holders(shard);
        if (all[r] != all[first])
            return ot_fail(OT_E_USAGE,
                           "ranks %d and %d share stage %d, but their plans have other operations: they need "
                           "equal numbers of slots and rounds",
                           first, r, first / ot_shard_holders(shard));
    }
    return 0;
}

/* Checks that all ranks list the same operations with the same sizes: an operation waits for all ranks.
 * Errors: OT_E_USAGE, OT_E_COMM. */
static int agree(const struct ot_engine *en) {
    const struct ot_shard *shard = &en->plan.shard;
    const struct ot_schedule *all[] = {&en->train, &en->flush,  &en->gather,
                                       &en->eval,  &en->decode, &en->prompts};
    char text[256];
    uint32_t operations = 0;
    int64_t params = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        operations = ot_schedule_operations(all[i], operations);
    for (int s = 0; s < en->chain.n_slabs; s++)
        params += en->chain.slabs[s].n_params;
    snprintf(text, sizeof text,
             "%d ranks, shard %s%s%s%s, %s, %lld parameters in %d slabs, %d places for micro-batches of %lld "
             "tokens, %d of a sequence, operations %08x",
             shard->ranks, ot_shard_mode_name(shard->mode), shard->world ? " world" : "",
             shard->narrow ? " narrow" : "", en->plan.crosses ? " in shared memory" : "",
             ot_dtype_name(en->chain.dtype), (long long)params, en->chain.n_slabs, en->plan.max_micro,
             (long long)en->plan.micro_tokens, ot_plan_sections(&en->plan), operations);
    OT_TRY(ot_comm_agree(en->comm, "the plan", text));
    if (!ot_plan_has_stages(&en->plan))
        return 0;
    OT_TRY(agree_on_links(en));
    return agree_among_holders(en);
}

static int bind_schedules(struct ot_engine *en) {
    if (en->plan.train)
        OT_TRY(ot_executor_bind(en->executor, &en->train, &en->train_bound));
    if (en->flush.n_tasks > 0)
        OT_TRY(ot_executor_bind(en->executor, &en->flush, &en->flush_bound));
    if (en->gather.n_tasks > 0)
        OT_TRY(ot_executor_bind(en->executor, &en->gather, &en->gather_bound));
    en->stale = en->gather.n_tasks > 0;
    for (int s = 0; s < en->chain.n_slabs; s++)
        en->frozen_stale = en->frozen_stale || (en->stale && en->chain.slabs[s].frozen);
    OT_TRY(ot_executor_bind(en->executor, &en->eval, &en->eval_bound));
    OT_TRY(ot_executor_bind(en->executor, &en->decode, &en->decode_bound));
    return en->prompts.n_tasks > 0 ? ot_executor_bind(en->executor, &en->prompts, &en->prompts_bound) : 0;
}

static int allocate(struct ot_engine *en) {
    void *memory;
    OT_TRY(ot_device_alloc(en->device, en->layout.tier_bytes[OT_TIER_GPU], "the plan", &memory));
    en->tier_memory[OT_TIER_GPU] = memory;
    OT_TRY(ot_device_alloc_pinned(en->device, en->layout.tier_bytes[OT_TIER_HOST], "the plan", &memory));
    en->tier_memory[OT_TIER_HOST] = memory;
    for (int i = 0; i < 2; i++) {
        en->steps[i].micro_tokens = calloc((size_t)en->plan.max_micro, sizeof *en->steps[i].micro_tokens);
        en->steps[i].micro_inputs = calloc((size_t)en->plan.max_micro, sizeof *en->steps[i].micro_inputs);
        en->steps[i].micro_number = calloc((size_t)en->plan.max_micro, sizeof *en->steps[i].micro_number);
        en->steps[i].comparisons = calloc((size_t)en->plan.max_micro, sizeof *en->steps[i].comparisons);
        if (!en->steps[i].micro_tokens || !en->steps[i].micro_inputs || !en->steps[i].micro_number ||
            !en->steps[i].comparisons)
            return ot_fail(OT_E_BUDGET, "no memory for a step of %d micro-batches", en->plan.max_micro);
    }
    return 0;
}

/* A step begins with the late updates of the step before (stream engine). Before the first step and after a
 * flush there are none. Update numbers with all bits set mean "skip". */
static int forget_updates(struct ot_engine *en) {
    int params = en->layout.params_gpu;
    en->behind = false;
    ot_lane_fill(en->lane, ot_engine_at(en, params), 0xff, en->layout.buffers[params].bytes);
    return ot_lane_sync(en->lane);
}

/* Frozen slabs have no norm. Their results stay zero. */
static void clear_results(struct ot_engine *en) {
    const struct ot_layout *layout = &en->layout;
    const int on_gpu[] = {layout->results_gpu, layout->all_results};
    for (int i = 0; i < 2; i++)
        ot_lane_fill(en->lane, ot_engine_at(en, on_gpu[i]), 0, layout->buffers[on_gpu[i]].bytes);
    for (int p = 0; p < 2; p++)
        memset(ot_engine_at(en, layout->results_host[p]), 0, layout->buffers[layout->results_host[p]].bytes);
}

#define DEFAULT_LOSS_SCALE 0x1p16f

/* Copies the constant tables to the device, and sets the moments to zero. */
static int initialise(struct ot_engine *en, float loss_scale) {
    size_t bytes = en->chain.constant_bytes;
    void *constants = bytes ? malloc(bytes) : NULL;
    if (bytes && !constants)
        return ot_fail(OT_E_BUDGET, "no memory for %zu bytes of tables", bytes);
    if (constants) {
        en->chain.fill_constants(en->chain.context, constants);
        ot_lane_copy(en->lane, OT_COPY_H2D, ot_engine_at(en, en->layout.constants), constants, bytes);
    }
    for (int s = 0; s < en->chain.n_slabs; s++) {
        int state = en->layout.slabs[s].state_gpu;
        if (state != OT_NO_BUFFER)
            ot_lane_fill(en->lane, ot_engine_at(en, state), 0, en->layout.buffers[state].bytes);
    }
    clear_results(en);
    *(float *)ot_engine_at(en, en->layout.control) = loss_scale > 0 ? loss_scale : DEFAULT_LOSS_SCALE;
    int rc = forget_updates(en);
    free(constants);
    return rc;
}

static int open_pool(struct ot_engine *en, const struct ot_engine_config *config) {
    en->optimizer_binding = (struct ot_topology_binding){config->topology, OT_ROLE_OPTIMIZER};
    struct ot_pool_config pool = {.threads = config->optimizer_threads,
                                  .name = "optimizer",
                                  .on_start = ot_topology_place_thread,
                                  .arg = &en->optimizer_binding};
    return ot_pool_open_with(&pool, &en->pool);
}

int ot_engine_open(const struct ot_engine_config *config, struct ot_engine **out) {
    int rc = 0;
    struct ot_engine *en = calloc(1, sizeof *en);
    *out = NULL;
    if (!en)
        return ot_fail(OT_E_BUDGET, "no memory for the engine");
    pthread_mutex_init(&en->shadows.mutex, NULL);
    pthread_mutex_init(&en->putting, NULL);
    en->chain = *config->chain;
    en->optimizer = config->optimizer;
    en->objective = config->objective;
    en->skip_spikes = config->skip_spikes;
    en->give_up = config->give_up;
    en->requests = config->requests;
    en->requests_context = config->requests_context;
    en->comm = config->comm;
    en->stall_limit_seconds =
        config->stall_limit_seconds > 0 ? config->stall_limit_seconds : OT_STALL_LIMIT_SECONDS;
    en->poisons_parts = config->poisons_parts;
    en->device = config->device;
    en->ops = ot_device_ops(config->device);
    OT_TRY_GOTO(copy_plan(en, config->plan), rc, out);
    OT_TRY_GOTO(ot_layout_make(&en->chain, &en->plan, &en->layout), rc, out);
    OT_TRY_GOTO(make_schedules(en), rc, out);
    if (en->comm)
        OT_TRY_GOTO(agree(en), rc, out);
    OT_TRY_GOTO(allocate(en), rc, out);
    OT_TRY_GOTO(ot_engine_open_shared(en, config->shared_memory), rc, out);
    if (en->layout.staging != OT_NO_BUFFER)
        ot_comm_reserve(en->comm, ot_engine_at(en, en->layout.staging), en->plan.staging_bytes);
    OT_TRY_GOTO(ot_lane_open(en->device, "setup", &en->lane), rc, out);
    OT_TRY_GOTO(initialise(en, config->loss_scale), rc, out);
    OT_TRY_GOTO(ot_engine_open_shadows(en), rc, out);
    OT_TRY_GOTO(ot_engine_open_store(en, config->store), rc, out);
    OT_TRY_GOTO(open_pool(en, config), rc, out);
    if (en->plan.train)
        OT_TRY_GOTO(ot_engine_open_snapshot(en), rc, out);
    struct ot_executor_config executor = {.device = en->device,
                                          .chain = &en->chain,
                                          .run = ot_engine_run_task,
                                          .start = en->store ? ot_engine_start_task : NULL,
                                          .context = en,
                                          .trace = config->trace,
                                          .topology = config->topology,
                                          .optimizer_threads = config->optimizer_threads,
                                          .delay_seed = config->delay_seed,
                                          .stall_seconds = config->stall_seconds,
                                          .stall_limit_seconds = en->stall_limit_seconds};
    OT_TRY_GOTO(ot_executor_open(&executor, &en->executor), rc, out);
    OT_TRY_GOTO(bind_schedules(en), rc, out);
    *out = en;
    return 0;
out:
    ot_engine_close(en);
    return rc;
}

void ot_engine_close(struct ot_engine *en) {
    if (!en || ot_engine_is_stuck(en))
        return;
    ot_snapshot_cancel(en->snapshot); /* first, because steps may be waiting for it */
    if (en->executor)
        ot_executor_drain(en->executor);
    if (ot_engine_is_stuck(en)) /* the drain has found it stuck */
        return;
    ot_executor_unbind(en->executor, en->train_bound);
    ot_executor_unbind(en->executor, en->flush_bound);
    ot_executor_unbind(en->executor, en->gather_bound);
    ot_executor_unbind(en->executor, en->eval_bound);
    ot_executor_unbind(en->executor, en->decode_bound);
    ot_executor_unbind(en->executor, en->prompts_bound);
    ot_executor_close(en->executor);
    ot_snapshot_close(en->snapshot);
    ot_engine_close_shadows(en);
    ot_engine_close_store(en); /* before the memory that the store has registered is freed */
    ot_pool_close(en->pool);
    ot_lane_close(en->lane);
    ot_engine_decode_end(en);
    if (en->comm && en->layout.staging != OT_NO_BUFFER)
        ot_comm_reserve(en->comm, NULL, 0);
    ot_device_free(en->device, en->tier_memory[OT_TIER_GPU]);
    if (en->tier_memory[OT_TIER_HOST])
        ot_device_free_pinned(en->device, en->tier_memory[OT_TIER_HOST], en->layout.tier_bytes[OT_TIER_HOST]);
    ot_engine_close_shared(en);
    ot_schedule_free(&en->train);
    ot_schedule_free(&en->flush);
    ot_schedule_free(&en->gather);
    ot_schedule_free(&en->eval);
    ot_schedule_free(&en->decode);
    ot_schedule_free(&en->prompts);
    for (int i = 0; i < 2; i++) {
        free(en->steps[i].micro_tokens);
        free(en->steps[i].micro_inputs);
        free(en->steps[i].micro_number);
        free(en->steps[i].comparisons);
    }
    free(en->slab_pieces);
    free(en->cache_pieces[0]);
    free(en->cache_pieces[1]);
    ot_layout_free(&en->layout);
    free(en->plan.slabs);
    pthread_mutex_destroy(&en->putting);
    free(en);
}

/* ---- a step ---- */

/* The number of tokens of a padded micro-batch: PADDING in engine.h. */
static int64_t padded_tokens(const struct ot_engine *en, int64_t n_tokens) {
    int64_t multiple = ot_device_token_multiple(en->device);
    int64_t padded = (n_tokens + multiple - 1) / multiple * multiple;
    return ot_min(padded, en->plan.micro_tokens);
}

/* Copies a micro-batch to its place in the step, and pads it to n_tokens tokens. */
static void copy_micro(struct ot_engine *en, int64_t step, int micro, const struct ot_micro_batch *mb,
                       int64_t past, int64_t n_tokens) {
    int32_t *batch = ot_engine_at(en, en->layout.batch_host[step & 1]);
    ot_rows_copy(ot_token_arrays(en->chain.has_pairs), mb, past, n_tokens,
                 batch + ot_engine_batch_offset(en, micro, 0), en->plan.micro_tokens);
    if (mb->n_comparisons > 0)
        memcpy(batch + ot_engine_batch_offset(en, micro, ot_token_arrays(en->chain.has_pairs)),
               mb->comparisons, (size_t)mb->n_comparisons * sizeof *mb->comparisons);
    en->steps[step & 1].comparisons[micro] = mb->n_comparisons;
    en->steps[step & 1].micro_tokens[micro] = n_tokens;
    en->steps[step & 1].micro_inputs[micro] = mb->n_inputs;
}

/* Puts a micro-batch, or the sections of one sequence, into consecutive places. Sections behind the last
 * token have no tokens. */
static void put_micro(struct ot_engine *en, int64_t step, int place, const struct ot_micro_batch *mb) {
    const int64_t most = en->plan.micro_tokens;
    for (int64_t first = 0; first < mb->n_tokens; first += most, place++) {
        struct ot_micro_batch section = *mb;
        section.n_tokens = ot_min(mb->n_tokens - first, most);
        section.tokens += first;
        section.targets += first;
        section.position += first;
        section.row_start += first;
        copy_micro(en, step, place, &section, first, padded_tokens(en, section.n_tokens));
    }
}

/* Puts this rank's micro-batches in the places of their groups. */
static void place_micros(struct ot_engine *en, int64_t step, const struct ot_step_input *input) {
    const struct ot_shard *shard = &en->plan.shard;
    struct ot_engine_step *st = &en->steps[step & 1];
    int groups = ot_shard_own_groups(shard), places = en->plan.max_micro / groups;
    int first = ot_shard_holder(shard) * groups, sections = ot_plan_sections(&en->plan);
    const struct ot_micro_batch *next = input->micro;
    memset(st->micro_tokens, 0, (size_t)en->plan.max_micro * sizeof *st->micro_tokens);
    st->n_micro = input->n_micro;
    st->n_places = 0;
    for (int g = 0; g < groups; g++) {
        struct ot_shard_range own = ot_shard_group(shard, input->n_micro, first + g);
        for (int64_t i = 0; i < own.n; i++) {
            int place = g * places + (int)i * sections;
            for (int k = 0; k < sections; k++)
                st->micro_number[place + k] = (own.first + i) * sections + k;
            put_micro(en, step, place, next++);
            st->n_places = place + sections;
        }
    }
}

static int check_input(const struct ot_engine *en, const struct ot_step_input *input) {
    const struct ot_shard *shard = &en->plan.shard;
    int most = en->plan.max_micro / ot_plan_sections(&en->plan) / ot_shard_own_groups(shard) *
               ot_shard_groups(shard);
    if (input->n_micro < 1 || input->n_micro > most || input->n_losses < 1)
        return ot_fail(OT_E_INPUT,
                       "a step of %d micro-batches with %lld losses; the plan allows 1 to %d, with 1 loss or "
                       "more",
                       input->n_micro, (long long)input->n_losses, most);
    for (int m = 0; m < ot_shard_micro(shard, input->n_micro, shard->rank).n; m++)
        OT_TRY(ot_rows_check(&en->chain, ot_plan_pass_tokens(&en->plan), &input->micro[m], m));
    return 0;
}

/* Makes whole weights whole again, on the device or in one copy. */
static int gather_weights(struct ot_engine *en) {
    if (!en->stale)
        return 0;
    OT_TRY(ot_executor_submit(en->executor, en->gather_bound, 0)); /* any number: it runs alone */
    OT_TRY(ot_executor_drain(en->executor));
    en->stale = en->frozen_stale = false;
    return en->comm ? ot_comm_error(en->comm) : 0;
}

int ot_engine_submit(struct ot_engine *en, const struct ot_step_input *input) {
    if (!en->plan.train)
        return ot_fail(OT_E_INTERNAL, "this plan cannot train");
    if (en->submitted - en->collected >= 2)
        return ot_fail(OT_E_INTERNAL, "two steps are waiting for their results to be collected");
    OT_TRY(check_input(en, input));
    OT_TRY(ot_engine_leave_one_copy(en));
    int64_t step = en->submitted + 1;
    struct ot_engine_step *st = &en->steps[step & 1];
    OT_TRY(ot_executor_wait_parity(en->executor));
    OT_TRY(ot_engine_unstage(en));
    if (en->frozen_stale) /* nothing is in flight yet */
        OT_TRY(gather_weights(en));
    place_micros(en, step, input);
    st->grad_scale = (float)(1.0 / (double)input->n_losses);
    st->inverse_losses = 1.0 / (double)input->n_losses;
    st->lr = input->lr;
    en->step_start[step & 1] = ot_clock_seconds();
    OT_TRY(ot_executor_submit(en->executor, en->train_bound, step));
    en->submitted = step;
    en->behind = en->flush.n_tasks > 0;
    en->stale = en->gather.n_tasks > 0;
    return 0;
}

int ot_engine_result(struct ot_engine *en, struct ot_step_result *out) {
    if (en->collected == en->submitted)
        return ot_fail(OT_E_INTERNAL, "no step is waiting for its result to be collected");
    int64_t step = en->collected + 1;
    OT_TRY(ot_executor_wait_task(en->executor, en->train_bound, step, en->decide_task));
    double now = ot_clock_seconds(), since = en->step_start[step & 1];
    *out = en->steps[step & 1].result;
    out->seconds = now - ot_max(en->last_result_time, since);
    en->last_result_time = now;
    en->collected = step;
    return 0;
}

int ot_engine_drain(struct ot_engine *en) {
    OT_TRY(ot_executor_drain(en->executor));
    if (!en->behind)
        return 0;
    OT_TRY(ot_engine_unstage(en));
    OT_TRY(ot_executor_submit(en->executor, en->flush_bound, 0)); /* any number: the flush runs alone */
    OT_TRY(ot_executor_drain(en->executor));
    return forget_updates(en);
}

bool ot_engine_is_stuck(const struct ot_engine *en) {
    return en->staging.stuck || (en->executor && ot_executor_is_stuck(en->executor));
}

bool ot_engine_is_consistent(struct ot_engine *en) {
    if (en->pass != OT_PASS_TRAIN) /* only a forward pass hangs; the engine was drained before it */
        return true;
    return en->flush.n_tasks == 0 &&
           ot_executor_stands_before(en->executor, en->train_bound, en->collected + 1, OT_TASK_DECIDE);
}

/* Between steps the driver may use the engine only when every result is collected. */
static int check_collected(const struct ot_engine *en) {
    return en->collected == en->submitted
               ? 0
               : ot_fail(OT_E_INTERNAL, "collect and drain the steps in flight first");
}

int ot_engine_tune(struct ot_engine *en, double seconds, struct ot_device_tuning *out) {
    OT_TRY(check_collected(en));
    OT_TRY(ot_engine_drain(en));
    return ot_device_tune(en->device, en->tier_memory[OT_TIER_GPU] + en->layout.idle_offset,
                          en->layout.idle_bytes, seconds, out);
}

void ot_engine_get_progress(const struct ot_engine *en, struct ot_engine_progress *out) {
    *out = (struct ot_engine_progress){.step = en->collected,
                                       .adam_step = en->control.adam_step,
                                       .loss_scale = ot_engine_loss_scale(en),
                                       .scaled_steps = en->control.scaled_steps,
                                       .losses = en->control.losses};
}

void ot_engine_set_progress(struct ot_engine *en, const struct ot_engine_progress *progress) {
    en->submitted = en->collected = progress->step;
    en->control = (struct ot_engine_control){
        .adam_step = progress->adam_step, .scaled_steps = progress->scaled_steps, .losses = progress->losses};
    if (en->chain.dtype == OT_F16)
        *(float *)ot_engine_at(en, en->layout.control) = progress->loss_scale;
}

/* ---- forward alone ---- */

int ot_engine_prepare_passes(struct ot_engine *en) {
    OT_TRY(check_collected(en));
    OT_TRY(ot_engine_drain(en));
    OT_TRY(ot_engine_unstage(en));
    OT_TRY(gather_weights(en));
    en->one_copy_is_read = ot_plan_has_one_copy(&en->plan);
    return 0;
}

int ot_engine_begin_pass(struct ot_engine *en) {
    OT_TRY(ot_engine_prepare_passes(en));
    memset(en->steps[0].micro_tokens, 0, (size_t)en->plan.max_micro * sizeof *en->steps[0].micro_tokens);
    en->steps[0].n_micro = en->steps[0].n_places = 0;
    return 0;
}

void ot_engine_add_micro(struct ot_engine *en, const struct ot_micro_batch *micro, int64_t past,
                         int64_t n_tokens) {
    struct ot_engine_step *step = &en->steps[0]; /* any number: nothing else is in flight */
    copy_micro(en, 0, step->n_places, micro, past, n_tokens);
    step->n_micro = ++step->n_places;
}

int ot_engine_run_pass(struct ot_engine *en, enum ot_pass pass, struct ot_bound *bound, int64_t n,
                       float **results) {
    *results = ot_engine_at(en, en->layout.results_host[0]);
    en->pass = pass; /* safe: nothing is in flight before and after */
    OT_TRY(ot_executor_submit(en->executor, bound, 0));
    OT_TRY(ot_executor_drain(en->executor));
    en->pass = OT_PASS_TRAIN;
    OT_TRY(en->comm ? ot_comm_error(en->comm) : 0);
    if (!ot_plan_has_stages(&en->plan))
        return 0;
    int stage = ot_block_owner(&en->chain, &en->plan, en->chain.n_blocks - 1);
    int owner = ot_shard_rank_of(&en->plan.shard, 0, stage); /* all replicas have the same */
    return ot_comm_broadcast_host(en->comm, *results, (size_t)n * sizeof **results, owner);
}

void ot_engine_clear_results(struct ot_engine *en) {
    int host = en->layout.results_host[0];
    memset(ot_engine_at(en, host), 0, en->layout.buffers[host].bytes);
}

bool ot_engine_runs_together(const struct ot_engine *en) {
    return ot_plan_has_stages(&en->plan);
}

static bool has_operations(const struct ot_schedule *schedule) {
    for (int i = 0; i < schedule->n_tasks; i++)
        if (schedule->tasks[i].lane == OT_LANE_COMM)
            return true;
    return false;
}

bool ot_engine_runs_alone(const struct ot_engine *en) {
    return !has_operations(&en->eval) && !has_operations(&en->decode) && !has_operations(&en->prompts);
}

int ot_engine_eval_hits(struct ot_engine *en, const struct ot_micro_batch *micro, float *token_loss,
                        bool *token_hit) {
    float *results;
    OT_TRY(ot_rows_check(&en->chain, ot_plan_pass_tokens(&en->plan), micro, 0));
    OT_TRY(ot_engine_begin_pass(en));
    put_micro(en, 0, 0, micro);
    en->steps[0].n_micro = en->steps[0].n_places = ot_plan_sections(&en->plan);
    OT_TRY(ot_engine_run_pass(en, OT_PASS_EVAL, en->eval_bound, micro->n_tokens, &results));
    memcpy(token_loss, results, (size_t)micro->n_tokens * sizeof *token_loss);
    ot_engine_clear_results(en);
    for (int64_t i = 0; i < micro->n_tokens; i++) { /* the sign is a mark (block.h) */
        if (token_hit)
            token_hit[i] = signbit(token_loss[i]);
        token_loss[i] = fabsf(token_loss[i]);
    }
    return 0;
}

int ot_engine_eval(struct ot_engine *en, const struct ot_micro_batch *micro, float *token_loss) {
    return ot_engine_eval_hits(en, micro, token_loss, NULL);
}
