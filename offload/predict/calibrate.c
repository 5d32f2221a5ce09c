#include "offload/predict/calibrate_state.h"

#include <math.h>
#include <stdlib.h>

#include "offload/predict/rates.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* LEAST_ROUNDS, ROUNDS: rounds of a block, if time is short and otherwise. LEAST_TOKENS: with fewer tokens a
 * block's speed says nothing about its speed with many. */
enum { LEAST_ROUNDS = 3, ROUNDS = 7, LEAST_TOKENS = 64 };
static const double DECODE_SECONDS = 0.05;
static const double LEAST_SECONDS = 0.1, SHARE_OF_RUN = 0.1;
/* The load lasts LOAD_SECONDS, and the cycles that begin after SETTLED of it count. At its limit of 700 W an
 * H200 fell from 1980 MHz to 1485 within a second, and in the next second to 1410, where it stayed (measured
 * 2026-11-27). MOST_SLOWER: cards of 70 W lose about half of their clock, and none is known to lose two
 * thirds. A larger factor says that another program computed meanwhile, so it is not used. */
static const double LOAD_SECONDS = 2, SETTLED = 2.0 / 3, MOST_SLOWER = 3;

/* Seconds of one block's calls with one number of tokens. backward: by the level that forward kept. first:
 * backward at OT_KEEP_ALL that overwrites the gradients. */
struct times {
    double forward, backward[OT_KEEP_LEVELS], first;
};
struct rounds {
    int64_t tokens, row;
    struct ot_repeats forward, backward[OT_KEEP_LEVELS], first;
};
enum { SIZES = 2 }; /* micro-batch sizes that each block is measured with */

/* ---- calls ---- */

/* Clearing scratch before the call, which may hold anything, has two effects. The lane is busy while the call
 * is being enqueued, as it is in training. And the caches lose data that training would not find there
 * either. */
static int time_call(const struct bench *b, void (*call)(const void *, int, const struct ot_block_run *),
                     int block, const struct ot_block_run *run, double *seconds) {
    const struct ot_chain *chain = b->config->chain;
    double begin, end;
    ot_lane_fill(b->lane, run->scratch, 0, chain->scratch_bytes(chain->context, block, run->batch.n_tokens));
    ot_lane_record(b->lane, b->begin[0]);
    call(chain->context, block, run);
    ot_lane_record(b->lane, b->end[0]);
    OT_TRY(ot_lane_sync(b->lane));
    OT_TRY(ot_event_seconds(b->begin[0], &begin));
    OT_TRY(ot_event_seconds(b->end[0], &end));
    *seconds = end - begin;
    return 0;
}

/* Blocks that keep nothing at any level have one kind of backward, at OT_KEEP_ALL. */
static enum ot_keep_level lowest_level(const struct ot_chain *chain, int block) {
    return chain->saved_bytes(chain->context, block, OT_KEEP_ALL, 1) > 0 ? OT_KEEP_NONE : OT_KEEP_ALL;
}

static bool has_forward(const struct ot_chain *chain, int block) {
    return block < chain->n_blocks - 1; /* the last block's backward contains its forward */
}

static bool has_backward(const struct ot_chain *chain, int block) {
    return block >= ot_chain_first_trained(chain);
}

static void prepare_backward(const struct bench *b, int block, struct ot_block_run *run) {
    const struct ot_chain *chain = b->config->chain;
    int64_t n = run->batch.n_tokens;
    size_t boundary = ot_chain_boundary_bytes(chain, n);
    run->work = b->memory.inside + chain->saved_bytes(chain->context, block, run->saved_level, n);
    ot_lane_copy(b->lane, OT_COPY_D2D, b->memory.dxy, b->memory.dxy_first, boundary);
}

static int time_backward(const struct bench *b, int block, struct ot_block_run *run, double *seconds) {
    prepare_backward(b, block, run);
    return time_call(b, b->config->chain->backward, block, run, seconds);
}

/* Times forward, and backward at each level and as the first of a sum. Later calls reuse the content of
 * `saved`. They take the same time as with new content. */
static int time_once(const struct bench *b, int block, int64_t n, struct times *out) {
    const struct ot_chain *chain = b->config->chain;
    struct ot_block_run run = ot_calibrate_run(b, block, n);
    *out = (struct times){0};
    if (has_forward(chain, block))
        OT_TRY(time_call(b, chain->forward, block, &run, &out->forward));
    if (!has_backward(chain, block))
        return 0;
    for (int level = OT_KEEP_ALL; level >= (int)lowest_level(chain, block); level--) {
        run.saved_level = (enum ot_keep_level)level;
        OT_TRY(time_backward(b, block, &run, &out->backward[level]));
    }
    run.saved_level = OT_KEEP_ALL;
    run.first = true;
    return time_backward(b, block, &run, &out->first);
}

static int add_round(struct bench *b, int block, struct rounds *rounds) {
    struct times once;
    OT_TRY(ot_calibrate_fill_inputs(b, block, rounds->tokens, rounds->row));
    OT_TRY(time_once(b, block, rounds->tokens, &once));
    ot_repeats_add(&rounds->forward, once.forward);
    ot_repeats_add(&rounds->first, once.first);
    for (int level = 0; level < OT_KEEP_LEVELS; level++)
        ot_repeats_add(&rounds->backward[level], once.backward[level]);
    return 0;
}

static bool is_noisy(const struct rounds *rounds) {
    return ot_repeats_spread(&rounds->forward) > OT_REPEATS_NOISY ||
           ot_repeats_spread(&rounds->backward[OT_KEEP_ALL]) > OT_REPEATS_NOISY;
}

/* True if another round is wanted. The number of rounds is odd, so that the median is a measured one. Noisy
 * rounds may take up to twice the time. */
static bool wants_round(const struct rounds rounds[SIZES], double spent, double seconds) {
    int n = rounds[0].forward.n;
    if (n < LEAST_ROUNDS || n % 2 == 0)
        return true;
    if (n < ROUNDS && spent < seconds)
        return true;
    return n < OT_REPEATS_MOST && spent < 2 * seconds && (is_noisy(&rounds[0]) || is_noisy(&rounds[1]));
}

/* Makes the calls once before they are timed: the first call may choose algorithms and load code. Then the
 * device tunes the kernels that it has seen. */
static int warm_up(struct bench *b, int block, double seconds, struct rounds rounds[SIZES]) {
    struct ot_device_tuning tuning;
    struct times once;
    for (int i = 0; i < SIZES; i++) {
        OT_TRY(ot_calibrate_fill_inputs(b, block, rounds[i].tokens, rounds[i].row));
        OT_TRY(time_once(b, block, rounds[i].tokens, &once));
        OT_TRY(
            ot_device_tune(b->config->device, b->memory.base, b->memory.bytes, seconds / 2 / SIZES, &tuning));
        if (tuning.timed > 0) /* tuning has overwritten the weights */
            ot_calibrate_fill_weights(b, block);
    }
    return 0;
}

/* The two sizes alternate, so that a short disturbance of the machine meets both and does not tilt the
 * line. */
static int time_block(struct bench *b, int block, double seconds, struct rounds rounds[SIZES]) {
    double began = ot_clock_seconds();
    OT_TRY(warm_up(b, block, seconds, rounds));
    while (wants_round(rounds, ot_clock_seconds() - began, seconds))
        for (int i = 0; i < SIZES; i++)
            OT_TRY(add_round(b, block, &rounds[i]));
    return 0;
}

/* ---- lines ---- */

/* Seconds of attention, by the estimate, that are missing because the measured rows are shorter than a
 * sequence. */
static double saved_attention(const struct bench *b, int block, enum ot_work_kind kind,
                              enum ot_keep_level level, int64_t n) {
    const struct ot_calibration *c = b->config;
    struct ot_block_work full, brief;
    if (!c->chain->work || n >= c->sequence_tokens)
        return 0;
    c->chain->work(c->chain->context, block, kind, level, n, c->sequence_tokens, &full);
    c->chain->work(c->chain->context, block, kind, level, n, n, &brief);
    return (full.attention_flops - brief.attention_flops) / ot_costs_attention_rate(c->rates, c->chain, kind);
}

/* The line through two points. If noise gives it a negative slope or a negative time at zero, the line goes
 * through zero and the larger point. */
static struct ot_line line_through(int64_t n0, double t0, int64_t n1, double t1) {
    double per_token = n1 > n0 ? (t1 - t0) / (double)(n1 - n0) : 0;
    double at_zero = t1 - per_token * (double)n1;
    if (n1 <= n0 || per_token <= 0 || at_zero < 0)
        return (struct ot_line){0, t1 / (double)n1};
    return (struct ot_line){at_zero, per_token};
}

static double whole_time(const struct ot_block_cost *cost, int64_t n) {
    double seconds = ot_line_at(cost->forward, n) + ot_line_at(cost->backward, n) + cost->first;
    for (int level = 0; level < OT_KEEP_LEVELS; level++)
        seconds += ot_line_at(cost->backward, n) + ot_line_at(cost->recompute[level], n);
    return seconds;
}

static int64_t whole_rows(int64_t n, int64_t row) {
    return n > row ? n / row * row : n;
}

/* The larger micro-batch: the most tokens that fit the memory and that, by the estimate, run three times in
 * half of the time. 0: the block does not fit. */
static int64_t choose_tokens(const struct bench *b, int block, const struct ot_block_cost *estimate,
                             double seconds) {
    const struct ot_calibration *c = b->config;
    int64_t n = c->micro_tokens;
    while (n > LEAST_TOKENS && 3 * whole_time(estimate, n) > seconds / 2)
        n = whole_rows(n / 2, c->sequence_tokens);
    while (n > LEAST_TOKENS && ot_calibrate_bytes(c->chain, block, n) > c->device_bytes)
        n = whole_rows(n / 2, c->sequence_tokens);
    return ot_calibrate_bytes(c->chain, block, n) <= c->device_bytes ? n : 0;
}

/* The median times of the rounds. Level by level, recomputation takes the time by which the median of
 * backward exceeds that of OT_KEEP_ALL. Noise must not make a level cheaper than one that keeps more. */
static void take_times(const struct bench *b, int block, const struct rounds *rounds, double *forward,
                       double *backward, double recompute[OT_KEEP_LEVELS]) {
    int64_t n = rounds->tokens;
    double kept = ot_repeats_median(&rounds->backward[OT_KEEP_ALL]), most = 0;
    *forward =
        ot_repeats_median(&rounds->forward) + saved_attention(b, block, OT_WORK_FORWARD, OT_KEEP_ALL, n);
    *backward = kept + saved_attention(b, block, OT_WORK_BACKWARD, OT_KEEP_ALL, n);
    for (int i = OT_KEEP_ALL; i >= 0; i--) {
        enum ot_keep_level level = (enum ot_keep_level)i;
        double more = ot_repeats_median(&rounds->backward[level]) - kept;
        more += saved_attention(b, block, OT_WORK_RECOMPUTE, level, n);
        if (level >= lowest_level(b->config->chain, block) && more > most)
            most = more;
        recompute[level] = most;
    }
}

/* Clearing and overwriting do not depend on the tokens, so both sizes measure the same difference. */
static double first_time(const struct rounds rounds[SIZES]) {
    double sum = 0;
    for (int i = 0; i < SIZES; i++)
        sum += ot_repeats_median(&rounds[i].first) - ot_repeats_median(&rounds[i].backward[OT_KEEP_ALL]);
    return sum / SIZES;
}

/* The block that stands for the layers; in a chain with pairs, for the encoder's layers. */
static int middle_of(const struct ot_chain *chain) {
    return chain->n_blocks > 2 ? 1 : 0;
}

/* If the block does not fit, *cost keeps the estimate and *measured is false. */
static int measure_block(struct bench *b, int block, double seconds, struct ot_block_cost *cost,
                         bool *measured) {
    const struct ot_calibration *c = b->config;
    int64_t n[SIZES];
    double forward[SIZES], backward[SIZES], recompute[SIZES][OT_KEEP_LEVELS];
    struct rounds rounds[SIZES];
    int rc = 0;
    n[1] = choose_tokens(b, block, cost, seconds);
    n[0] = whole_rows(n[1] / 2, c->sequence_tokens);
    *measured = n[0] > 0;
    if (!*measured)
        return 0;
    OT_TRY(ot_calibrate_alloc(b, block, n[1]));
    for (int i = 0; i < SIZES; i++)
        rounds[i] = (struct rounds){.tokens = n[i],
                                    .row = ot_min(n[i], ot_min(c->sequence_tokens, c->chain->max_position))};
    OT_TRY_GOTO(time_block(b, block, seconds, rounds), rc, out);
    for (int i = 0; i < SIZES; i++)
        take_times(b, block, &rounds[i], &forward[i], &backward[i], recompute[i]);
    cost->forward = line_through(n[0], forward[0], n[1], forward[1]);
    cost->backward = line_through(n[0], backward[0], n[1], backward[1]);
    cost->first = first_time(rounds);
    for (int level = 0; level < OT_KEEP_LEVELS; level++)
        cost->recompute[level] = line_through(n[0], recompute[0][level], n[1], recompute[1][level]);
    if (block == middle_of(c->chain))
        b->cycle = (struct cycle){.block = block,
                                  .tokens = n[1],
                                  .row = rounds[1].row,
                                  .seconds = ot_repeats_median(&rounds[1].forward) +
                                             ot_repeats_median(&rounds[1].backward[OT_KEEP_ALL])};
out:
    ot_calibrate_free(b);
    return rc;
}

/* ---- load ---- */

static void enqueue_cycle(const struct bench *b, struct ot_block_run *run, int slot) {
    const struct ot_chain *chain = b->config->chain;
    int block = b->cycle.block;
    prepare_backward(b, block, run);
    ot_lane_record(b->lane, b->begin[slot]);
    if (has_forward(chain, block))
        chain->forward(chain->context, block, run);
    if (has_backward(chain, block))
        chain->backward(chain->context, block, run);
    ot_lane_record(b->lane, b->end[slot]);
}

/* Runs cycles without a pause for `seconds` of the device's time. *mean: the mean time of those in the last
 * third. The mean, not the median: at the power limit the clock swings, and a long run sees all of it. */
static int run_cycles(const struct bench *b, double seconds, double *mean) {
    struct ot_block_run run = ot_calibrate_run(b, b->cycle.block, b->cycle.tokens);
    double first = 0, begin, end = 0, sum = 0;
    int64_t counted = 0;
    for (int64_t i = 0; counted == 0 || end - first < seconds; i++) {
        int slot = (int)(i % AHEAD);
        if (i >= AHEAD) {
            OT_TRY(ot_event_sync(b->end[slot]));
            OT_TRY(ot_event_seconds(b->begin[slot], &begin));
            OT_TRY(ot_event_seconds(b->end[slot], &end));
            first = i == AHEAD ? begin : first;
            if (begin - first >= SETTLED * seconds) {
                sum += end - begin;
                counted++;
            }
        }
        enqueue_cycle(b, &run, slot);
    }
    *mean = sum / (double)counted;
    return 0;
}

/* Measures a block's slowdown under a long load: its time, divided by its time after a pause. */
static int measure_load(struct bench *b, double *slower) {
    const struct ot_calibration *c = b->config;
    const struct cycle *cycle = &b->cycle;
    double mean = 0;
    *slower = 1;
    if (cycle->seconds <= 0 || !ot_device_slows_under_load(c->device))
        return 0;
    OT_TRY(ot_calibrate_alloc(b, cycle->block, cycle->tokens));
    int rc = ot_calibrate_fill_inputs(b, cycle->block, cycle->tokens, cycle->row);
    if (rc == 0)
        rc = run_cycles(b, fmin(c->seconds, LOAD_SECONDS), &mean);
    int drained = ot_lane_sync(b->lane); /* the memory is in use until then */
    ot_calibrate_free(b);
    rc = rc < 0 ? rc : drained;
    if (rc == 0 && mean > cycle->seconds && mean < MOST_SLOWER * cycle->seconds)
        *slower = mean / cycle->seconds;
    return rc;
}

/* All blocks: estimated ones use the probe's rates, which are also rates after a pause. */
static void slow_down(struct ot_costs *costs) {
    for (int i = 0; i < costs->n_blocks; i++) {
        struct ot_block_cost *block = &costs->blocks[i];
        ot_line_scale(&block->forward, costs->under_load);
        ot_line_scale(&block->backward, costs->under_load);
        for (int level = 0; level < OT_KEEP_LEVELS; level++)
            ot_line_scale(&block->recompute[level], costs->under_load);
        block->first *= costs->under_load;
    }
}

/* ---- the calibration ---- */

/* The time for measurements of blocks. costs: the estimate. */
static double choose_seconds(const struct ot_calibration *c, const struct ot_costs *costs) {
    double micro_batch = 0;
    for (int i = 0; i < costs->n_blocks; i++)
        micro_batch += ot_line_at(costs->blocks[i].forward, c->micro_tokens) +
                       ot_line_at(costs->blocks[i].backward, c->micro_tokens);
    double run = micro_batch * (double)c->run_tokens / (double)c->micro_tokens;
    return run > 0 ? fmin(c->seconds, fmax(SHARE_OF_RUN * run, LEAST_SECONDS)) : c->seconds;
}

/* Measures the first block, a middle one that stands for all of its kind, and the last. Chains with pairs
 * have two kinds: the first and the last middle block are measured. Each gets a share of the time in
 * proportion to its estimate. Other blocks count as the kind whose estimate is nearer. */
static int measure_blocks(struct bench *b, struct ot_costs *costs) {
    enum { N = 4 };
    const struct ot_calibration *c = b->config;
    int last = costs->n_blocks - 1, middle = middle_of(c->chain);
    int blocks[N] = {0, middle, c->chain->has_pairs ? last - 1 : middle, last};
    double estimates[N], total = 0;
    for (int i = 0; i < N; i++) {
        estimates[i] = whole_time(&costs->blocks[blocks[i]], c->micro_tokens);
        total += i > 0 && blocks[i] == blocks[i - 1] ? 0 : estimates[i];
    }
    costs->is_measured = true;
    for (int i = 0; i < N; i++) {
        bool measured;
        if (i > 0 && blocks[i] == blocks[i - 1])
            continue;
        double seconds = c->seconds * estimates[i] / total;
        OT_TRY(measure_block(b, blocks[i], seconds, &costs->blocks[blocks[i]], &measured));
        if (blocks[i] == middle || i == 2)
            costs->is_measured = costs->is_measured && measured;
    }
    for (int other = 2; other < last; other++) {
        double estimate = whole_time(&costs->blocks[other], c->micro_tokens);
        int kind = fabs(estimate - estimates[2]) < fabs(estimate - estimates[1]) ? 2 : 1;
        if (other != blocks[2])
            costs->blocks[other] = costs->blocks[blocks[kind]];
    }
    return 0;
}

int ot_calibrate(const struct ot_calibration *calibration, struct ot_costs *out) {
    struct ot_calibration limited = *calibration;
    struct bench b = {.config = &limited};
    struct ot_rates rates = *calibration->rates;
    int rc = 0;
    *out = (struct ot_costs){0};
    OT_TRY_GOTO(ot_calibrate_open(&b), rc, out);
    OT_TRY_GOTO(ot_copy_rates_measure(calibration->device, calibration->device_bytes, &rates), rc, out);
    OT_TRY_GOTO(ot_costs_estimate(calibration->chain, &rates, calibration->sequence_tokens,
                                  calibration->micro_tokens, out),
                rc, out);
    limited.seconds = choose_seconds(calibration, out);
    OT_TRY_GOTO(measure_blocks(&b, out), rc, out);
    OT_TRY_GOTO(measure_load(&b, &out->under_load), rc, out);
    slow_down(out);
    rc = ot_decode_rate_measure(calibration->chain, calibration->device, calibration->device_bytes,
                                DECODE_SECONDS, &out->decode_bytes);
out:
    ot_calibrate_close(&b);
    if (rc < 0)
        ot_costs_free(out);
    return rc;
}
