#include "offload/predict/costs_state.h"

#include <math.h>
#include <stdlib.h>

#include "offload/plan/shadow_updates.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- blocks ---- */

/* The work of a block of a chain that has no work function: assumes that every parameter is part of a matrix
 * product, and that recomputation below OT_KEEP_PRODUCTS costs a share of forward: that of the bytes not
 * kept. The first backward of a sum clears all of it. */
static void work_from_params(const struct ot_chain *chain, int block, enum ot_work_kind kind,
                             enum ot_keep_level level, int64_t n_tokens, struct ot_block_work *out) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    double params = 0, n = (double)n_tokens;
    for (int u = 0; u < spec->n_uses; u++)
        params += (double)chain->slabs[spec->uses[u].slab].n_params;
    double whole = (double)chain->work_bytes(chain->context, block, OT_KEEP_NONE, n_tokens);
    *out = (struct ot_block_work){0};
    if (kind == OT_WORK_CLEAR)
        out->moved_bytes = params * sizeof(float);
    else if (kind == OT_WORK_RECOMPUTE && whole > 0)
        out->product_flops =
            2 * n * params * (double)chain->work_bytes(chain->context, block, level, n_tokens) / whole;
    else if (kind != OT_WORK_RECOMPUTE)
        out->product_flops = (kind == OT_WORK_BACKWARD ? 4 : 2) * n * params;
}

struct ot_block_work ot_costs_work_of(const struct ot_chain *chain, int block, enum ot_work_kind kind,
                                      enum ot_keep_level level, int64_t n_tokens, int64_t row_tokens) {
    struct ot_block_work work;
    if (chain->work)
        chain->work(chain->context, block, kind, level, n_tokens, row_tokens, &work);
    else
        work_from_params(chain, block, kind, level, n_tokens, &work);
    return work;
}

int64_t ot_costs_row_of(const struct ot_costs *costs, const struct ot_plan *plan) {
    return ot_min(costs->row_tokens, ot_plan_pass_tokens(plan));
}

static double time_of(double work, double rate) {
    return work > 0 ? work / rate : 0;
}

double ot_costs_attention_rate(const struct ot_rates *rates, const struct ot_chain *chain,
                               enum ot_work_kind kind) {
    struct ot_attention_rates attention = ot_rates_attention(rates, chain->head_dim);
    return kind == OT_WORK_BACKWARD ? attention.backward : attention.forward;
}

/* The estimate is proportional to the tokens, so the line goes through zero. */
static struct ot_line estimate(const struct ot_costs *costs, const struct ot_chain *chain, int block,
                               enum ot_work_kind kind, enum ot_keep_level level, int64_t n_tokens) {
    const struct ot_rates *r = &costs->rates;
    int64_t row = ot_min(costs->row_tokens, n_tokens);
    struct ot_block_work work = ot_costs_work_of(chain, block, kind, level, n_tokens, row);
    double seconds = time_of(work.product_flops - work.group_flops, r->product_flops) +
                     time_of(work.group_flops, r->group_flops > 0 ? r->group_flops : r->product_flops) +
                     time_of(work.attention_flops, ot_costs_attention_rate(r, chain, kind)) +
                     time_of(work.moved_bytes, r->device_bytes);
    return (struct ot_line){0, seconds / (double)n_tokens};
}

static int check_rates(const struct ot_rates *rates) {
    const struct {
        const char *name;
        double value;
    } needed[] = {{"products", rates->product_flops},
                  {"attention forward", rates->attention[OT_HEAD_128].forward},
                  {"attention backward", rates->attention[OT_HEAD_128].backward},
                  {"device memory", rates->device_bytes},
                  {"copies to the device", rates->h2d_bytes},
                  {"copies from the device", rates->d2h_bytes}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!(needed[i].value > 0))
            return ot_fail(OT_E_USAGE, "cannot predict: the machine's rate of %s is unknown", needed[i].name);
    return 0;
}

int ot_costs_estimate(const struct ot_chain *chain, const struct ot_rates *rates, int64_t sequence_tokens,
                      int64_t micro_tokens, struct ot_costs *out) {
    *out = (struct ot_costs){.rates = *rates, .row_tokens = sequence_tokens, .n_blocks = chain->n_blocks};
    OT_TRY(check_rates(rates));
    out->blocks = calloc((size_t)chain->n_blocks, sizeof *out->blocks);
    if (!out->blocks)
        return ot_fail(OT_E_BUDGET, "no memory for the costs of %d blocks", chain->n_blocks);
    for (int b = 0; b < chain->n_blocks; b++) {
        struct ot_block_cost *block = &out->blocks[b];
        block->forward = estimate(out, chain, b, OT_WORK_FORWARD, OT_KEEP_ALL, micro_tokens);
        block->backward = estimate(out, chain, b, OT_WORK_BACKWARD, OT_KEEP_ALL, micro_tokens);
        for (int level = 0; level < OT_KEEP_LEVELS; level++)
            block->recompute[level] =
                estimate(out, chain, b, OT_WORK_RECOMPUTE, (enum ot_keep_level)level, micro_tokens);
        block->first = time_of(
            ot_costs_work_of(chain, b, OT_WORK_CLEAR, OT_KEEP_ALL, micro_tokens, sequence_tokens).moved_bytes,
            rates->device_bytes);
    }
    return 0;
}

void ot_costs_free(struct ot_costs *costs) {
    free(costs->blocks);
    *costs = (struct ot_costs){0};
}

struct ot_costs ot_costs_slowed(const struct ot_costs *costs, double factor) {
    struct ot_costs slowed = *costs;
    double before = costs->slower[OT_LANE_COMPUTE];
    slowed.slower[OT_LANE_COMPUTE] = factor == 1 ? before : factor * (before > 0 ? before : 1);
    return slowed;
}

double ot_costs_model_flops(const struct ot_costs *costs, const struct ot_chain *chain,
                            const struct ot_plan *plan) {
    double flops = 0;
    int first = ot_chain_first_trained(chain); /* backward ends there */
    for (int b = 0; b < chain->n_blocks; b++) {
        struct ot_block_work forward = ot_costs_work_of(chain, b, OT_WORK_FORWARD, OT_KEEP_ALL,
                                                        plan->micro_tokens, ot_costs_row_of(costs, plan));
        struct ot_block_work backward = ot_costs_work_of(chain, b, OT_WORK_BACKWARD, OT_KEEP_ALL,
                                                         plan->micro_tokens, ot_costs_row_of(costs, plan));
        if (b < chain->n_blocks - 1) /* the last block's backward contains its forward */
            flops += forward.product_flops + forward.attention_flops;
        if (b >= first)
            flops += backward.product_flops + 2 * forward.attention_flops;
    }
    return flops * plan->max_micro;
}

/* ---- bytes of a task ---- */

static double weight_bytes(const struct ot_cost_context *c, int64_t n) {
    return (double)n * (double)ot_dtype_bytes(c->chain->dtype);
}

static double state_bytes(const struct ot_cost_context *c, int64_t n) {
    return (double)ot_state_bytes(c->chain, n);
}

/* Bytes that AdamW reads and writes (adamw.h). State: read and written. Gradient: read. Weights: written;
 * also read in fp32 and bf16, because there they are the master or a half of it. */
static double update_bytes(const struct ot_cost_context *c, int64_t n) {
    bool only_written = c->chain->dtype == OT_F16;
    return 2 * state_bytes(c, n) + (only_written ? 2 : 3) * weight_bytes(c, n);
}

/* An update, and a copy of the tile to its frame: read and written. The update then finds the tile in the
 * cache; the cost ignores that. */
static double shadow_bytes(const struct ot_cost_context *c, int64_t n) {
    return update_bytes(c, n) + 2 * (state_bytes(c, n) + weight_bytes(c, n));
}

/* Bytes of `passes` fp32 passes over n gradient sums. */
static double sum_bytes(int64_t n, int passes) {
    return (double)n * (double)sizeof(float) * passes;
}

/* One pass takes the norm and rounds the gradients that do not stay in the accumulator. */
static double finish_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    int64_t n = ot_slab_holding(c->chain, c->plan, task->slab).n, rounded = 0;
    int64_t stays = ot_slab_waiting_on_gpu(c->chain, c->plan, task->slab).n;
    if (task->to != OT_NO_BUFFER && task->to != task->from)
        rounded += stays;
    if (task->via != OT_NO_BUFFER)
        rounded += n - stays;
    return sum_bytes(n, 1) + weight_bytes(c, rounded);
}

/* Every tile counts an equal share of its buffer. A shorter last tile counts as much as the others; the sum
 * over the buffer stays exact. */
static double nvme_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    double bytes = 0;
    for (int a = 0; a < task->n_accesses; a++) {
        const struct ot_access *access = &task->accesses[a];
        const struct ot_buffer *buffer = &c->layout->buffers[access->buffer];
        if (buffer->tier == OT_TIER_NVME)
            bytes += (double)buffer->bytes * access->n_tiles / buffer->n_tiles;
    }
    return bytes;
}

static double results_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    int norms = c->layout->norms, ranks = ot_shard_ranks(&c->plan->shard);
    int all = c->chain->n_slabs * norms;
    int rest = ot_plan_has_stages(c->plan)
                   ? ranks * (all + c->layout->own_results)
                   : (ot_plan_sends_norms(c->plan) ? 0 : all) + ranks * c->layout->own_results;
    return (double)(task->slab >= 0 ? norms : rest) * (double)sizeof(double);
}

/* Bytes that a TRANSFER sends, or that it receives: both directions of a link work at the same time. */
static double crossing_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    double in_out[2] = {0};
    for (int i = 0; i < task->n_accesses; i++)
        in_out[task->accesses[i].writes] += (double)c->layout->buffers[task->accesses[i].buffer].bytes;
    return fmax(in_out[0], in_out[1]);
}

/* Bytes that a rank receives in an operation with others: the holders of a slab, or all ranks. */
static double received_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_shard *shard = &c->plan->shard;
    double others = (task->slab < 0 ? ot_shard_ranks(shard) : ot_shard_holders(shard)) - 1;
    if (task->kind == OT_TASK_MEET)
        return others * OT_MEETING_BYTES;
    if (task->kind == OT_TASK_TRANSFER)
        return crossing_bytes(c, task);
    if (task->kind == OT_TASK_RESULT_GATHER && task->slab < 0 && ot_plan_has_stages(c->plan))
        return others * (double)sizeof(double) *
               (c->chain->n_slabs * c->layout->norms + c->layout->own_results);
    if (task->kind == OT_TASK_RESULT_GATHER)
        return others * (double)sizeof(double) *
               (task->slab >= 0 ? c->layout->own_norms : c->layout->own_results);
    int64_t share = ot_shard_share(shard, ot_slab_units(c->chain, task->slab));
    bool wide = task->kind == OT_TASK_GRAD_GATHER || (task->kind == OT_TASK_EXCHANGE && !shard->narrow);
    return others * (wide ? sum_bytes(share, 1) : (double)ot_slab_bytes(c->chain, task->slab, share));
}

/* Reads the sums of all ranks and writes one. */
static double join_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_shard *shard = &c->plan->shard;
    int64_t share = ot_shard_share(shard, c->chain->slabs[task->slab].n_params);
    double parts = ot_shard_holders(shard);
    return parts * (shard->narrow ? weight_bytes(c, share) : sum_bytes(share, 1)) + sum_bytes(share, 1);
}

/* The tokens of the micro-batches of one round that have chosen. */
static int64_t chosen_tokens(const struct ot_cost_context *c, const struct ot_task *task) {
    return c->plan->micro_tokens * (ot_plan_place(c->plan, task->n_chosen - 1) + 1);
}

/* The amount that a task copies of a slab of size `whole`, with parts of size `part`. Used parts are those
 * that the task's micro-batches are expected to choose. */
static double brought(const struct ot_cost_context *c, const struct ot_task *task, int64_t whole,
                      int64_t part) {
    double parts = c->chain->slabs[task->slab].n_parts, some = 0;
    if (task->fetched == OT_FETCH_ALL)
        return (double)whole;
    if (ot_fetched_has_dense(task->fetched))
        some += (double)whole - (double)part * parts;
    if (ot_fetched_has_used(task->fetched))
        some += (double)part *
                ot_block_used_parts(c->chain, ot_slab_block(c->chain, task->slab), chosen_tokens(c, task));
    return some;
}

/* whole: in units. */
static double brought_bytes(const struct ot_cost_context *c, const struct ot_task *task, int64_t whole) {
    return (double)ot_slab_bytes(c->chain, task->slab, 1) *
           brought(c, task, whole, ot_slab_part_units(&c->chain->slabs[task->slab]));
}

static double fetched_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    return brought_bytes(c, task, task->span.n);
}

/* Reads encoded bytes, writes weights. */
static double decoded_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_slab_spec *slab = &c->chain->slabs[task->slab];
    return brought_bytes(c, task, ot_spec_units(slab)) +
           weight_bytes(c, 1) * brought(c, task, slab->n_params, ot_slab_part_params(slab));
}

/* Weights on their way, and decoded. */
static double weight_task_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    if (task->kind == OT_TASK_FETCH)
        return fetched_bytes(c, task);
    return task->kind == OT_TASK_DECODE ? decoded_bytes(c, task) : weight_bytes(c, task->span.n);
}

/* Activations of one micro-batch, between blocks or within one. */
static double activation_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    if (task->kind == OT_TASK_BOUNDARY_OUT || task->kind == OT_TASK_BOUNDARY_IN)
        return (double)ot_chain_boundary_bytes(c->chain, c->plan->micro_tokens);
    return (double)ot_plan_saved_bytes(c->chain, c->plan, task->block, task->saved_level);
}

/* A group's keys and values on their way, or the sums of their gradients. */
static double key_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    bool sums = task->from == c->layout->row_sums || task->to == c->layout->row_sums;
    return 2.0 *
           (double)(ot_task_key_rows(c->plan, c->layout, task).n * ot_plan_group_elems(c->chain, c->plan)) *
           (double)(sums ? sizeof(float) : ot_dtype_bytes(c->chain->dtype));
}

/* Gradient sums, and finished gradients. */
static double gradient_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    int64_t n_params = c->chain->slabs[task->slab].n_params;
    switch (task->kind) {
    case OT_TASK_SUM_OUT:
    case OT_TASK_SUM_IN:
        return sum_bytes(task->span.n, 1);
    case OT_TASK_GRAD_MERGE:
        return sum_bytes(n_params, 3);
    case OT_TASK_GRAD_NARROW:
        return sum_bytes(n_params, 1) + weight_bytes(c, n_params);
    case OT_TASK_GRAD_JOIN:
        return join_bytes(c, task);
    case OT_TASK_GRAD_KEEP:
        return sum_bytes(ot_slab_holding(c->chain, c->plan, task->slab).n, 1);
    case OT_TASK_GRAD_FINISH:
        return finish_bytes(c, task);
    default: /* OT_TASK_GRAD_OUT */
        return weight_bytes(c, task->span.n);
    }
}

/* A streamed tile's state on its way; its gradients and weights come along where they are off the device. */
static double state_task_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    int copies = task->kind == OT_TASK_STATE_OUT
                     ? task->to != OT_NO_BUFFER
                     : (task->from != OT_NO_BUFFER) + (task->weights[0] != OT_NO_BUFFER);
    return state_bytes(c, task->span.n) + copies * weight_bytes(c, task->span.n);
}

/* The small arrays of a step: its batch, its results, and what follows from them. */
static double step_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    double micro_tokens = (double)c->plan->micro_tokens;
    switch (task->kind) {
    case OT_TASK_BATCH_IN:
        return (double)c->plan->max_micro * micro_tokens * 4 * sizeof(int32_t);
    case OT_TASK_USED_OUT:
        return (double)ot_block_parts(c->chain, task->block) * (double)sizeof(int32_t);
    case OT_TASK_SCALE_IN:
        return sizeof(float);
    case OT_TASK_RESULT_OUT:
        return results_bytes(c, task);
    case OT_TASK_PARAMS_IN:
        return sizeof(struct ot_adamw_step);
    default: /* OT_TASK_LOSS_OUT: token losses */
        return micro_tokens * (double)sizeof(float);
    }
}

/* Generation, with texts as long as the cache allows. A pass adds one row. */
static double cache_task_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    double row = 2 * weight_bytes(c, c->chain->kv_elems);
    bool adds = task->kind == OT_TASK_CACHE_OUT || task->kind == OT_TASK_NVME_WRITE;
    double added = task->kind == OT_TASK_NVME_WRITE ? 2 * (double)c->layout->cache_extent_bytes : row;
    return adds ? added : row * (double)c->plan->cache_rows;
}

/* Used parts: the cost ignores that whole tiles are read. */
static double nvme_task_bytes(const struct ot_cost_context *c, const struct ot_task *task) {
    if (task->cache != OT_NO_BUFFER)
        return cache_task_bytes(c, task);
    return task->fetched == OT_FETCH_ALL ? nvme_bytes(c, task) : fetched_bytes(c, task);
}

/* The bytes that a task moves, or for work on memory the bytes that it reads and writes. */
static double bytes_of(const struct ot_cost_context *c, const struct ot_task *task) {
    switch (task->kind) {
    case OT_TASK_FETCH:
    case OT_TASK_DECODE:
    case OT_TASK_UPLOAD:
    case OT_TASK_STORE:
        return weight_task_bytes(c, task);
    case OT_TASK_BOUNDARY_OUT:
    case OT_TASK_BOUNDARY_IN:
    case OT_TASK_KEPT_OUT:
    case OT_TASK_KEPT_IN:
        return activation_bytes(c, task);
    case OT_TASK_KEYS_IN:
    case OT_TASK_KEYS_OUT:
        return key_bytes(c, task);
    case OT_TASK_SUM_OUT:
    case OT_TASK_SUM_IN:
    case OT_TASK_GRAD_OUT:
    case OT_TASK_GRAD_MERGE:
    case OT_TASK_GRAD_NARROW:
    case OT_TASK_GRAD_JOIN:
    case OT_TASK_GRAD_KEEP:
    case OT_TASK_GRAD_FINISH:
        return gradient_bytes(c, task);
    case OT_TASK_GATHER:
    case OT_TASK_MEET:
    case OT_TASK_EXCHANGE:
    case OT_TASK_TRANSFER:
    case OT_TASK_GRAD_GATHER:
    case OT_TASK_RESULT_GATHER:
        return received_bytes(c, task);
    case OT_TASK_SHADOW:
        return shadow_bytes(c, task->span.n);
    case OT_TASK_UPDATE_CPU:
    case OT_TASK_UPDATE_GPU:
    case OT_TASK_UPDATE_STREAM:
        return update_bytes(c, task->span.n);
    case OT_TASK_STATE_IN:
    case OT_TASK_STATE_OUT:
        return state_task_bytes(c, task);
    case OT_TASK_NVME_READ:
    case OT_TASK_NVME_WRITE:
        return nvme_task_bytes(c, task);
    case OT_TASK_CACHE_IN:
    case OT_TASK_CACHE_OUT:
        return cache_task_bytes(c, task);
    case OT_TASK_BATCH_IN:
    case OT_TASK_USED_OUT:
    case OT_TASK_SCALE_IN:
    case OT_TASK_RESULT_OUT:
    case OT_TASK_PARAMS_IN:
    case OT_TASK_LOSS_OUT:
        return step_bytes(c, task);
    case OT_TASK_FORWARD:
    case OT_TASK_KEYS:
    case OT_TASK_BACKWARD:
    case OT_TASK_DECIDE:
    case OT_TASK_KINDS:
        break;
    }
    return 0;
}

/* ---- rates and times of a task ---- */

/* The cpu device updates with the optimizer's kernels, so a compact state slows it down as much as them. */
static double update_rate(const struct ot_rates *rates, enum ot_state_format state) {
    double full = rates->adamw_bytes[OT_STATE_F32];
    bool slower = rates->device_is_host && full > 0 && rates->adamw_bytes[state] < full;
    return rates->device_bytes * (slower ? rates->adamw_bytes[state] / full : 1);
}

/* True of an operation between ranks that are on one host: holders of a stage are consecutive ranks. */
static bool is_inside(const struct ot_cost_context *c, const struct ot_task *task) {
    int host_ranks = c->costs->rates.host_ranks;
    return task->lane == OT_LANE_COMM && task->slab >= 0 && ot_plan_has_stages(c->plan) && host_ranks > 0 &&
           host_ranks % ot_shard_holders(&c->plan->shard) == 0;
}

static struct ot_transfer_rate transfer_rate(const struct ot_rates *rates, bool between, int sharers) {
    struct ot_transfer_rate rate = between ? rates->between : rates->inside;
    return rate.bytes > 0 ? (struct ot_transfer_rate){rate.bytes / (between ? sharers : 1), rate.seconds}
                          : (struct ot_transfer_rate){rates->comm_bytes, rates->comm_seconds};
}

static bool is_between(const struct ot_rates *rates, const struct ot_shard *shard, int peer) {
    int of_host = rates->host_ranks;
    return of_host > 0 && peer / of_host != shard->rank / of_host;
}

struct ot_transfer_rate ot_costs_transfer_rate(const struct ot_costs *costs, const struct ot_shard *shard,
                                               int peer) {
    const struct ot_rates *rates = &costs->rates;
    int sharers = ot_min(rates->host_ranks, ot_shard_holders(shard));
    return transfer_rate(rates, is_between(rates, shard, peer), sharers);
}

static struct ot_transfer_rate comm_rate(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_rates *rates = &c->costs->rates;
    if (task->kind == OT_TASK_TRANSFER)
        return transfer_rate(rates, false, 1);
    return is_inside(c, task) ? (struct ot_transfer_rate){rates->host_comm_bytes, rates->host_comm_seconds}
                              : (struct ot_transfer_rate){rates->comm_bytes, rates->comm_seconds};
}

static double rate_of(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_rates *rates = &c->costs->rates;
    if (task->kind == OT_TASK_DECODE && c->costs->decode_bytes > 0)
        return c->costs->decode_bytes;
    bool updates = task->kind == OT_TASK_UPDATE_GPU || task->kind == OT_TASK_UPDATE_STREAM;
    const double by_lane[OT_LANE_COUNT] = {
        [OT_LANE_H2D] = rates->h2d_bytes,
        [OT_LANE_COMPUTE] = updates ? update_rate(rates, c->chain->state) : rates->device_bytes,
        [OT_LANE_D2H] = rates->d2h_bytes,
        [OT_LANE_COMM] = comm_rate(c, task).bytes,
        [OT_LANE_CPU] = rates->adamw_bytes[c->chain->state],
        [OT_LANE_NVME_READ] = rates->nvme_read_bytes,
        [OT_LANE_NVME_WRITE] = rates->nvme_write_bytes,
    };
    return by_lane[task->lane];
}

/* The cost beyond the start of a task. */
static double start_seconds(const struct ot_cost_context *c, const struct ot_task *task) {
    const struct ot_rates *rates = &c->costs->rates;
    enum ot_lane_id lane = task->lane;
    return lane == OT_LANE_COMM         ? comm_rate(c, task).seconds
           : lane == OT_LANE_NVME_READ  ? rates->nvme_read_seconds
           : lane == OT_LANE_NVME_WRITE ? rates->nvme_write_seconds
                                        : 0;
}

struct ot_task_cost ot_costs_of_task(const struct ot_costs *costs, const struct ot_chain *chain,
                                     const struct ot_plan *plan, const struct ot_layout *layout,
                                     const struct ot_task *task) {
    const struct ot_cost_context c = {costs, chain, plan, layout};
    struct ot_task_cost cost = {.seconds = costs->rates.task_seconds, .bytes = bytes_of(&c, task)};
    cost.seconds += time_of(cost.bytes, rate_of(&c, task));
    cost.seconds += start_seconds(&c, task);
    ot_costs_add_block(&c, task, &cost);
    if (costs->slower[task->lane] > 0)
        cost.seconds *= costs->slower[task->lane];
    return cost;
}

struct ot_task_cost ot_costs_of_transfer(const struct ot_costs *costs, const struct ot_chain *chain,
                                         const struct ot_plan *plan, const struct ot_layout *layout,
                                         const struct ot_schedule *schedule, const struct ot_task *task) {
    struct ot_task_cost cost = ot_costs_of_task(costs, chain, plan, layout, task);
    const struct ot_task_transfer *halves = schedule->transfers + task->first_transfer;
    double seconds[2][2] = {{0}}, longest = 0; /* by host and direction */
    for (int i = 0; i < task->n_transfers; i++) {
        double rate = ot_costs_transfer_rate(costs, &plan->shard, halves[i].peer).bytes;
        bool between = is_between(&costs->rates, &plan->shard, halves[i].peer);
        seconds[between][halves[i].sends] += time_of((double)layout->buffers[halves[i].buffer].bytes, rate);
    }
    for (int between = 0; between < 2; between++)
        longest = fmax(longest, fmax(seconds[between][0], seconds[between][1]));
    cost.seconds = costs->rates.task_seconds + longest;
    if (costs->slower[task->lane] > 0)
        cost.seconds *= costs->slower[task->lane];
    return cost;
}
