#include "offload/predict/calibrate.h"

#include <math.h>
#include <stdlib.h>

#include "offload/predict/decode_rate.h"
#include "offload/predict/repeats.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"

/* PATTERN_BYTES: random numbers, repeated to fill a buffer. COPY_PIECE, COPY_PIECES: bytes of one copy, and
 * copies that are timed together. LEAST_ROUNDS, ROUNDS: rounds of a block, if time is short and otherwise.
 * LEAST_TOKENS: with fewer tokens a block's speed says nothing about its speed with many. */
enum {
    PATTERN_BYTES = 1 << 20,
    COPY_PIECE = 16 << 20,
    COPY_PIECES = 8,
    LEAST_ROUNDS = 3,
    ROUNDS = 7,
    LEAST_TOKENS = 64
};
static const double COPY_SECONDS = 0.05; /* for the repeats of one row of ways[] */
static const double DECODE_SECONDS = 0.05;

/* The device buffers of one block, cut from one allocation. */
struct memory {
    void *base;
    size_t bytes;
    void *weights[OT_MAX_USES];
    float *grads[OT_MAX_USES];
    void *x, *y, *dxy, *dxy_first; /* dxy_first: copied to dxy before each backward, which overwrites dxy */
    char *inside;                  /* `saved` of the level at hand, then its `work` */
    void *scratch, *constants;
    float *token_loss, *loss_scale;
    int32_t *batch; /* the token arrays (ot_chain_token_arrays): [n] each */
};

struct bench {
    const struct ot_calibration *config;
    struct ot_lane *lane, *back; /* back: the second lane, for copies from the device */
    struct ot_event *begin[2], *end[2];
    char *pinned; /* PATTERN_BYTES of random numbers, then room for the batch or the constants */
    size_t pinned_bytes;
    struct memory memory;
};

/* Seconds of one block's calls with one number of tokens. backward: by what forward kept. first: backward at
 * OT_KEEP_ALL that overwrites the gradients. */
struct times {
    double forward, backward[OT_KEEP_LEVELS], first;
};
struct rounds {
    int64_t tokens, row;
    struct ot_repeats forward, backward[OT_KEEP_LEVELS], first;
};
enum { SIZES = 2 }; /* micro-batch sizes that each block is measured with */

/* ---- memory ---- */

static size_t inside_bytes(const struct ot_chain *chain, int block, int64_t n_tokens) {
    size_t most = 0;
    for (int i = 0; i < OT_KEEP_LEVELS; i++) {
        enum ot_keep_level level = (enum ot_keep_level)i;
        size_t bytes = chain->saved_bytes(chain->context, block, level, n_tokens) +
                       chain->work_bytes(chain->context, block, level, n_tokens);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The next piece of the allocation. With base NULL it only adds up the bytes. */
static void *take(struct memory *m, size_t bytes) {
    size_t at = m->bytes;
    m->bytes += (bytes + 255) / 256 * 256; /* as the device's allocations are aligned */
    return m->base ? (char *)m->base + at : NULL;
}

static void cut(struct memory *m, const struct ot_chain *chain, int block, int64_t n_tokens) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    size_t n = (size_t)n_tokens, item = ot_dtype_bytes(chain->dtype);
    size_t boundary = n * (size_t)chain->boundary_elems * item;
    m->bytes = 0;
    for (int u = 0; u < spec->n_uses; u++) {
        size_t params = (size_t)chain->slabs[spec->uses[u].slab].n_params;
        m->weights[u] = take(m, params * item);
        m->grads[u] = chain->slabs[spec->uses[u].slab].frozen ? NULL : take(m, params * sizeof(float));
    }
    m->x = take(m, boundary);
    m->y = take(m, boundary);
    m->dxy = take(m, boundary);
    m->dxy_first = take(m, boundary);
    m->inside = take(m, inside_bytes(chain, block, n_tokens));
    m->scratch = take(m, chain->scratch_bytes(chain->context, block, n_tokens));
    m->constants = take(m, chain->constant_bytes);
    m->token_loss = take(m, n * sizeof(float));
    m->loss_scale = take(m, sizeof(float));
    m->batch = take(m, (size_t)ot_chain_token_arrays(chain) * n * sizeof(int32_t));
}

static size_t block_bytes(const struct ot_chain *chain, int block, int64_t n_tokens) {
    struct memory counted = {0};
    cut(&counted, chain, block, n_tokens);
    return counted.bytes;
}

/* Fills the pattern with numbers like initial weights: small and of both signs. */
static void fill_pattern(const struct bench *b) {
    enum ot_dtype dtype = b->config->chain->dtype;
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 2, 0);
    for (int64_t i = 0; i < PATTERN_BYTES / (int64_t)ot_dtype_bytes(dtype); i++)
        ot_dtype_write(dtype, b->pinned, i, 0.02f * ot_random_normal(3, stream, (uint64_t)i));
}

static void fill_random(const struct bench *b, void *to, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PATTERN_BYTES)
        ot_lane_copy(b->lane, OT_COPY_H2D, (char *)to + at, b->pinned,
                     bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES);
}

/* Half of the tokens are inputs, if the chain has pairs. */
static int64_t inputs_of(const struct ot_chain *chain, int64_t n) {
    return chain->has_pairs ? n / 2 : 0;
}

/* Makes a token part of a row whose inputs and targets are as long as each other, `half` tokens. */
static void pair_token(int32_t *ids, int64_t n, int64_t n_inputs, int64_t half, int64_t i) {
    int64_t part = i < n_inputs ? 0 : n_inputs, at = (i - part) % half, first = i - part - at;
    first = first < n_inputs ? first : 0; /* of the last row there are targets alone */
    int64_t end = first + half < n_inputs ? first + half : n_inputs;
    ids[2 * n + i] = (int32_t)at;
    ids[3 * n + i] = (int32_t)(i - at);
    ids[4 * n + i] = (int32_t)first;
    ids[5 * n + i] = (int32_t)end;
    ids[6 * n + i] = i < n_inputs ? (int32_t)end : (int32_t)(i + 1);
}

/* A batch of rows of `row` tokens. Every token is a trained one. */
static int fill_batch(const struct bench *b, int64_t n, int64_t row) {
    int32_t *ids = (int32_t *)(void *)(b->pinned + PATTERN_BYTES);
    const struct ot_chain *chain = b->config->chain;
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 3, 0), vocab = (uint64_t)chain->vocab;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)ot_random_below(4, stream, (uint64_t)i, vocab);
        ids[n + i] = (int32_t)ot_random_below(5, stream, (uint64_t)i, vocab);
        ids[2 * n + i] = (int32_t)(i % row);
        ids[3 * n + i] = (int32_t)(i - i % row);
        if (chain->has_pairs)
            pair_token(ids, n, inputs_of(chain, n), row > 1 ? row / 2 : 1, i);
    }
    ot_lane_copy(b->lane, OT_COPY_H2D, b->memory.batch, ids,
                 (size_t)ot_chain_token_arrays(chain) * (size_t)n * sizeof *ids);
    return ot_lane_sync(b->lane); /* after this the pinned room may be written again */
}

/* Weights and gradients have the same addresses for every number of tokens. */
static void fill_weights(const struct bench *b, int block) {
    const struct ot_chain *chain = b->config->chain;
    const struct ot_block_spec *spec = &chain->blocks[block];
    const struct memory *m = &b->memory;
    size_t item = ot_dtype_bytes(chain->dtype);
    for (int u = 0; u < spec->n_uses; u++) {
        size_t params = (size_t)chain->slabs[spec->uses[u].slab].n_params;
        fill_random(b, m->weights[u], params * item);
        if (m->grads[u])
            ot_lane_fill(b->lane, m->grads[u], 0, params * sizeof(float));
    }
}

/* Cuts the buffers for n tokens, and fills those whose size depends on n. */
static int fill_inputs(struct bench *b, int block, int64_t n, int64_t row) {
    const struct ot_chain *chain = b->config->chain;
    const struct memory *m = &b->memory;
    size_t boundary = (size_t)(n * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    cut(&b->memory, chain, block, n);
    fill_random(b, m->x, boundary);
    fill_random(b, m->dxy_first, boundary);
    char *room = b->pinned + PATTERN_BYTES;
    if (chain->constant_bytes > 0) {
        chain->fill_constants(chain->context, room);
        ot_lane_copy(b->lane, OT_COPY_H2D, m->constants, room, chain->constant_bytes);
        OT_TRY(ot_lane_sync(b->lane));
    }
    *(float *)(void *)room = 1;
    ot_lane_copy(b->lane, OT_COPY_H2D, m->loss_scale, room, sizeof(float));
    OT_TRY(ot_lane_sync(b->lane));
    return fill_batch(b, n, row);
}

/* ---- calls ---- */

static struct ot_block_run make_run(const struct bench *b, int block, int64_t n) {
    const struct ot_chain *chain = b->config->chain;
    const struct memory *m = &b->memory;
    bool first = block == 0, last = block == chain->n_blocks - 1;
    struct ot_block_run run = {
        .lane = b->lane,
        .dtype = chain->dtype,
        .pass = OT_PASS_TRAIN,
        .batch = {.n_tokens = n,
                  .tokens = m->batch,
                  .targets = m->batch + n,
                  .position = m->batch + 2 * n,
                  .row_start = m->batch + 3 * n,
                  .grad_scale = 1 / (float)n,
                  .loss_scale = chain->dtype == OT_F16 ? m->loss_scale : NULL,
                  .n_inputs = inputs_of(chain, n),
                  .input_first = chain->has_pairs ? m->batch + 4 * n : NULL,
                  .input_end = chain->has_pairs ? m->batch + 5 * n : NULL,
                  .key_end = chain->has_pairs ? m->batch + 6 * n : NULL},
        .constants = m->constants,
        .x = first ? NULL : m->x,
        .y = last ? NULL : m->y,
        .dxy = m->dxy,
        .saved = m->inside,
        .saved_level = OT_KEEP_ALL,
        .scratch = m->scratch,
        .token_loss = m->token_loss,
    };
    for (int u = 0; u < OT_MAX_USES; u++) {
        run.weights[u] = m->weights[u];
        run.grads[u] = m->grads[u];
    }
    return run;
}

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

/* Blocks that keep nothing at any level have one kind of backward: that of OT_KEEP_ALL. */
static enum ot_keep_level lowest_level(const struct ot_chain *chain, int block) {
    return chain->saved_bytes(chain->context, block, OT_KEEP_ALL, 1) > 0 ? OT_KEEP_NONE : OT_KEEP_ALL;
}

static int time_backward(const struct bench *b, int block, struct ot_block_run *run, double *seconds) {
    const struct ot_chain *chain = b->config->chain;
    int64_t n = run->batch.n_tokens;
    size_t boundary = (size_t)(n * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    run->work = b->memory.inside + chain->saved_bytes(chain->context, block, run->saved_level, n);
    ot_lane_copy(b->lane, OT_COPY_D2D, b->memory.dxy, b->memory.dxy_first, boundary);
    return time_call(b, chain->backward, block, run, seconds);
}

/* Times forward, and backward at each level and as the first of a sum. Later calls find in `saved` what the
 * earlier ones left, which takes the same time as what forward would write. */
static int time_once(const struct bench *b, int block, int64_t n, struct times *out) {
    const struct ot_chain *chain = b->config->chain;
    struct ot_block_run run = make_run(b, block, n);
    *out = (struct times){0};
    if (block < chain->n_blocks - 1)
        OT_TRY(time_call(b, chain->forward, block, &run, &out->forward));
    if (block < ot_chain_first_trained(chain))
        return 0; /* it has no backward */
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
    OT_TRY(fill_inputs(b, block, rounds->tokens, rounds->row));
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
    fill_weights(b, block);
    for (int i = 0; i < SIZES; i++) {
        OT_TRY(fill_inputs(b, block, rounds[i].tokens, rounds[i].row));
        OT_TRY(time_once(b, block, rounds[i].tokens, &once));
        OT_TRY(
            ot_device_tune(b->config->device, b->memory.base, b->memory.bytes, seconds / 2 / SIZES, &tuning));
        if (tuning.timed > 0) /* tuning has overwritten the weights */
            fill_weights(b, block);
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
static double saved_attention(const struct bench *b, int block, enum ot_work_part part,
                              enum ot_keep_level level, int64_t n) {
    const struct ot_calibration *c = b->config;
    struct ot_block_work full, brief;
    if (!c->chain->work || n >= c->sequence_tokens)
        return 0;
    c->chain->work(c->chain->context, block, part, level, n, c->sequence_tokens, &full);
    c->chain->work(c->chain->context, block, part, level, n, n, &brief);
    return (full.attention_flops - brief.attention_flops) / ot_costs_attention_rate(c->rates, c->chain, part);
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
    while (n > LEAST_TOKENS && block_bytes(c->chain, block, n) > c->device_bytes)
        n = whole_rows(n / 2, c->sequence_tokens);
    return block_bytes(c->chain, block, n) <= c->device_bytes ? n : 0;
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
    OT_TRY(ot_device_alloc(c->device, block_bytes(c->chain, block, n[1]), "calibration", &b->memory.base));
    for (int i = 0; i < SIZES; i++)
        rounds[i] =
            (struct rounds){.tokens = n[i], .row = n[i] < c->sequence_tokens ? n[i] : c->sequence_tokens};
    cut(&b->memory, c->chain, block, n[1]); /* weights and gradients come first in the allocation */
    OT_TRY_GOTO(time_block(b, block, seconds, rounds), rc, out);
    for (int i = 0; i < SIZES; i++)
        take_times(b, block, &rounds[i], &forward[i], &backward[i], recompute[i]);
    cost->forward = line_through(n[0], forward[0], n[1], forward[1]);
    cost->backward = line_through(n[0], backward[0], n[1], backward[1]);
    cost->first = first_time(rounds);
    for (int level = 0; level < OT_KEEP_LEVELS; level++)
        cost->recompute[level] = line_through(n[0], recompute[0][level], n[1], recompute[1][level]);
out:
    ot_device_free(c->device, b->memory.base);
    b->memory = (struct memory){0};
    return rc;
}

/* ---- copies ---- */

/* Host and device buffers of the copies. */
struct ends {
    char *host, *device;
    size_t piece; /* bytes; each buffer holds two pieces, one a direction */
};

static void copy_pieces(const struct bench *b, const struct ends *ends, bool in) {
    struct ot_lane *lane = in ? b->lane : b->back;
    size_t at = in ? 0 : ends->piece;
    ot_lane_record(lane, b->begin[!in]);
    for (int i = 0; i < COPY_PIECES; i++)
        if (in)
            ot_lane_copy(lane, OT_COPY_H2D, ends->device + at, ends->host + at, ends->piece);
        else
            ot_lane_copy(lane, OT_COPY_D2H, ends->host + at, ends->device + at, ends->piece);
    ot_lane_record(lane, b->end[!in]);
}

struct copies {
    const struct bench *bench;
    struct ends ends;
};

static const struct way { bool in, out; } ways[] = {{true, false}, {false, true}, {true, true}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Seconds of COPY_PIECES copies in each direction of ways[number]; of two directions, the slower one's. */
static int time_copies(void *context, int number, int count, double *seconds) {
    const struct copies *copies = context;
    const struct bench *b = copies->bench;
    *seconds = 0;
    for (int run = 0; run < count; run++) {
        double longest = 0;
        if (ways[number].in)
            copy_pieces(b, &copies->ends, true);
        if (ways[number].out)
            copy_pieces(b, &copies->ends, false);
        OT_TRY(ot_lane_sync(b->lane));
        OT_TRY(ot_lane_sync(b->back));
        for (int way = 0; way < 2; way++) {
            double begin, end;
            if (!(way ? ways[number].out : ways[number].in))
                continue;
            OT_TRY(ot_event_seconds(b->begin[way], &begin));
            OT_TRY(ot_event_seconds(b->end[way], &end));
            longest = end - begin > longest ? end - begin : longest;
        }
        *seconds += longest / count;
    }
    return 0;
}

/* Sets the copy rates that are missing, in bytes a second. both_bytes is the sum of both directions. */
static int measure_copies(const struct bench *b, struct ot_rates *rates) {
    const struct ot_calibration *c = b->config;
    struct copies copies = {.bench = b};
    struct ot_repeats times[WAYS];
    double *const out_rates[WAYS] = {&rates->h2d_bytes, &rates->d2h_bytes, &rates->both_bytes};
    void *host = NULL, *device = NULL;
    size_t piece = c->device_bytes / 2 < COPY_PIECE ? c->device_bytes / 2 : COPY_PIECE;
    int rc = 0;
    if (rates->h2d_bytes > 0 && rates->d2h_bytes > 0 && rates->both_bytes > 0)
        return 0;
    OT_TRY_GOTO(ot_device_alloc_pinned(c->device, 2 * piece, "calibration", &host), rc, out);
    OT_TRY_GOTO(ot_device_alloc(c->device, 2 * piece, "calibration", &device), rc, out);
    copies.ends = (struct ends){host, device, piece};
    OT_TRY_GOTO(ot_repeats_take(&(struct ot_timed_calls){WAYS, time_copies, &copies, COPY_SECONDS}, times),
                rc, out);
    for (int i = 0; i < WAYS; i++)
        *out_rates[i] =
            (double)piece * COPY_PIECES * (ways[i].in && ways[i].out ? 2 : 1) / ot_repeats_median(&times[i]);
out:
    ot_device_free(c->device, device);
    ot_device_free_pinned(c->device, host, 2 * piece);
    return rc;
}

/* ---- all of it ---- */

static int open_bench(struct bench *b) {
    const struct ot_calibration *c = b->config;
    size_t batch = (size_t)ot_chain_token_arrays(c->chain) * (size_t)c->micro_tokens * sizeof(int32_t);
    size_t room = c->chain->constant_bytes > batch ? c->chain->constant_bytes : batch;
    void *pinned;
    OT_TRY(ot_lane_open(c->device, "calibrate", &b->lane));
    OT_TRY(ot_lane_open(c->device, "calibrate back", &b->back));
    for (int i = 0; i < 2; i++) {
        OT_TRY(ot_event_create_timed(c->device, &b->begin[i]));
        OT_TRY(ot_event_create_timed(c->device, &b->end[i]));
    }
    OT_TRY(ot_device_alloc_pinned(c->device, PATTERN_BYTES + room, "calibration", &pinned));
    b->pinned = pinned;
    b->pinned_bytes = PATTERN_BYTES + room;
    fill_pattern(b);
    return 0;
}

static void close_bench(struct bench *b) {
    ot_lane_close(b->lane);
    ot_lane_close(b->back);
    for (int i = 0; i < 2; i++) {
        ot_event_destroy(b->begin[i]);
        ot_event_destroy(b->end[i]);
    }
    ot_device_free_pinned(b->config->device, b->pinned, b->pinned_bytes);
}

/* Measures the first block, a middle one that stands for all of its kind, and the last. Chains with pairs
 * have two kinds, which the first and the last middle block are of. Each gets a share of the time in
 * proportion to its estimate; by the estimates, others are of the kind that they are nearer to. */
static int measure_blocks(struct bench *b, struct ot_costs *costs) {
    enum { N = 4 };
    const struct ot_calibration *c = b->config;
    int last = costs->n_blocks - 1, middle = last > 1 ? 1 : 0;
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
    struct bench b = {.config = calibration};
    struct ot_rates rates = *calibration->rates;
    int rc = 0;
    *out = (struct ot_costs){0};
    OT_TRY_GOTO(open_bench(&b), rc, out);
    OT_TRY_GOTO(measure_copies(&b, &rates), rc, out);
    OT_TRY_GOTO(ot_costs_estimate(calibration->chain, &rates, calibration->sequence_tokens,
                                  calibration->micro_tokens, out),
                rc, out);
    OT_TRY_GOTO(measure_blocks(&b, out), rc, out);
    rc = ot_decode_rate_measure(calibration->chain, calibration->device, calibration->device_bytes,
                                DECODE_SECONDS, &out->decode_bytes);
out:
    close_bench(&b);
    if (rc < 0)
        ot_costs_free(out);
    return rc;
}
