#include "offload/predict/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

struct ot_attention_rates ot_rates_attention(const struct ot_rates *rates, int64_t head_dim) {
    enum ot_head_size size = head_dim > 128               ? OT_HEAD_256
                             : head_dim > 64 || !head_dim ? OT_HEAD_128
                                                          : OT_HEAD_64;
    const struct ot_attention_rates *found = &rates->attention[size];
    return found->forward > 0 && found->backward > 0 ? *found : rates->attention[OT_HEAD_128];
}

void ot_rates_scale_memory(struct ot_rates *rates, double factor) {
    rates->triad_bytes *= factor;
    for (int format = 0; format < OT_STATE_FORMATS; format++)
        rates->adamw_bytes[format] *= factor;
}

void ot_rates_divide(struct ot_rates *rates, int local_ranks) {
    double *shared[] = {&rates->nvme_read_bytes, &rates->nvme_write_bytes, &rates->nvme_mixed_bytes};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        *shared[i] /= local_ranks;
    ot_rates_scale_memory(rates, 1.0 / local_ranks);
    rates->cores = rates->cores > local_ranks ? rates->cores / local_ranks : 1;
}

/* ---- repeats ---- */

/* LEAST_REPEATS: repeats of a long call. MOST_CALLS: limit for the calls in one repeat. NOISY_TIMES: a noisy
 * call may take this many times the usual limit. */
enum { LEAST_REPEATS = 3, MOST_CALLS = 1000, NOISY_TIMES = 3 };

void ot_repeats_add(struct ot_repeats *repeats, double seconds) {
    if (repeats->n < OT_REPEATS_MOST)
        repeats->seconds[repeats->n++] = seconds;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value that `share` of the repeats lie below, interpolated between two repeats. */
static double quantile(const struct ot_repeats *repeats, double share) {
    double sorted[OT_REPEATS_MOST];
    if (repeats->n == 0)
        return 0;
    memcpy(sorted, repeats->seconds, (size_t)repeats->n * sizeof *sorted);
    qsort(sorted, (size_t)repeats->n, sizeof *sorted, ascending);
    double at = share * (repeats->n - 1);
    int below = (int)at, above = below + 1 < repeats->n ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

double ot_repeats_median(const struct ot_repeats *repeats) {
    return quantile(repeats, 0.5);
}

double ot_repeats_spread(const struct ot_repeats *repeats) {
    double median = ot_repeats_median(repeats);
    return median > 0 ? (quantile(repeats, 0.75) - quantile(repeats, 0.25)) / 2 / median : 0;
}

struct turn { /* the state of one call */
    int count;
    double spent; /* seconds of all its repeats */
};

static int repeat(const struct ot_timed_calls *calls, int call, struct turn *turn, struct ot_repeats *out) {
    double seconds;
    OT_TRY(calls->time(calls->context, call, turn->count, &seconds));
    turn->spent += seconds * turn->count;
    ot_repeats_add(out, seconds);
    return 0;
}

/* True if another repeat is wanted. The number of repeats is odd, so that the median is a measured one. */
static bool wants_more(const struct ot_timed_calls *calls, const struct turn *turn,
                       const struct ot_repeats *repeats) {
    if (repeats->n < LEAST_REPEATS || repeats->n % 2 == 0)
        return true;
    if (repeats->n < OT_REPEATS && turn->spent < calls->seconds)
        return true;
    return repeats->n < OT_REPEATS_MOST && turn->spent < NOISY_TIMES * calls->seconds &&
           ot_repeats_spread(repeats) > OT_REPEATS_NOISY;
}

/* The first call is not used: it may choose algorithms and load code. The second sets the calls of a
 * repeat. */
static int warm_up(const struct ot_timed_calls *calls, int call, struct turn *turn) {
    double once;
    OT_TRY(calls->time(calls->context, call, 1, &once));
    OT_TRY(calls->time(calls->context, call, 1, &once));
    double count = calls->seconds / OT_REPEATS / ot_max(once, 1e-7);
    turn->count = count < 1 ? 1 : count > MOST_CALLS ? MOST_CALLS : (int)count;
    return 0;
}

int ot_repeats_take(const struct ot_timed_calls *calls, struct ot_repeats *out) {
    struct turn *turns = calloc((size_t)calls->n, sizeof *turns);
    bool more = true;
    int rc = 0;
    if (!turns)
        return ot_fail(OT_E_BUDGET, "no memory to time %d calls", calls->n);
    for (int i = 0; i < calls->n; i++) {
        out[i].n = 0;
        OT_TRY_GOTO(warm_up(calls, i, &turns[i]), rc, out);
    }
    while (more) {
        more = false;
        for (int i = 0; i < calls->n; i++) {
            if (!wants_more(calls, &turns[i], &out[i]))
                continue;
            OT_TRY_GOTO(repeat(calls, i, &turns[i], &out[i]), rc, out);
            more = true;
        }
    }
out:
    free(turns);
    return rc;
}

/* ---- copy rates ---- */

/* PIECE, PIECES: bytes of one copy, and copies that are timed together. */
enum { PIECE = 16 << 20, PIECES = 8 };
static const double SECONDS = 0.05; /* for the repeats of one row of ways[] */

static const struct way { bool in, out; } ways[] = {{true, false}, {false, true}, {true, true}};
enum { WAYS = sizeof ways / sizeof *ways };

/* One direction: 0 to the device, 1 from it. */
struct direction {
    struct ot_lane *lane;
    struct ot_event *begin, *end;
};

struct copies {
    struct direction directions[2];
    char *host, *device; /* each holds two pieces, one a direction */
    size_t piece;        /* bytes */
};

static void copy_pieces(const struct copies *c, int way) {
    const struct direction *d = &c->directions[way];
    size_t at = way == 0 ? 0 : c->piece;
    ot_lane_record(d->lane, d->begin);
    for (int i = 0; i < PIECES; i++)
        if (way == 0)
            ot_lane_copy(d->lane, OT_COPY_H2D, c->device + at, c->host + at, c->piece);
        else
            ot_lane_copy(d->lane, OT_COPY_D2H, c->host + at, c->device + at, c->piece);
    ot_lane_record(d->lane, d->end);
}

/* Seconds of PIECES copies in each direction of ways[number]; of two directions, the slower one's. */
static int time_copies(void *context, int number, int count, double *seconds) {
    const struct copies *c = context;
    const bool wanted[2] = {ways[number].in, ways[number].out};
    *seconds = 0;
    for (int run = 0; run < count; run++) {
        double longest = 0;
        for (int way = 0; way < 2; way++)
            if (wanted[way])
                copy_pieces(c, way);
        for (int way = 0; way < 2; way++)
            OT_TRY(ot_lane_sync(c->directions[way].lane));
        for (int way = 0; way < 2; way++) {
            double begin, end;
            if (!wanted[way])
                continue;
            OT_TRY(ot_event_seconds(c->directions[way].begin, &begin));
            OT_TRY(ot_event_seconds(c->directions[way].end, &end));
            longest = ot_max(end - begin, longest);
        }
        *seconds += longest / count;
    }
    return 0;
}

/* both_bytes is the sum of both directions. */
static int measure(struct copies *c, struct ot_device *device, struct ot_rates *rates) {
    double *const out_rates[WAYS] = {&rates->h2d_bytes, &rates->d2h_bytes, &rates->both_bytes};
    struct ot_repeats times[WAYS];
    void *host, *memory;
    for (int way = 0; way < 2; way++) {
        struct direction *d = &c->directions[way];
        OT_TRY(ot_lane_open(device, way == 0 ? "calibrate h2d" : "calibrate d2h", &d->lane));
        OT_TRY(ot_event_create_timed(device, &d->begin));
        OT_TRY(ot_event_create_timed(device, &d->end));
    }
    OT_TRY(ot_device_alloc_pinned(device, 2 * c->piece, "calibration", &host));
    c->host = host;
    OT_TRY(ot_device_alloc(device, 2 * c->piece, "calibration", &memory));
    c->device = memory;
    OT_TRY(ot_repeats_take(&(struct ot_timed_calls){WAYS, time_copies, c, SECONDS}, times));
    for (int i = 0; i < WAYS; i++)
        *out_rates[i] =
            (double)c->piece * PIECES * (ways[i].in && ways[i].out ? 2 : 1) / ot_repeats_median(&times[i]);
    return 0;
}

int ot_copy_rates_measure(struct ot_device *device, size_t device_bytes, struct ot_rates *rates) {
    struct copies c = {.piece = ot_min(device_bytes / 2, PIECE)};
    if (rates->h2d_bytes > 0 && rates->d2h_bytes > 0 && rates->both_bytes > 0)
        return 0;
    int rc = measure(&c, device, rates);
    for (int way = 0; way < 2; way++) {
        ot_lane_close(c.directions[way].lane);
        ot_event_destroy(c.directions[way].begin);
        ot_event_destroy(c.directions[way].end);
    }
    ot_device_free(device, c.device);
    if (c.host)
        ot_device_free_pinned(device, c.host, 2 * c.piece);
    return rc;
}

/* ---- decode rate ---- */

struct decoding {
    const struct ot_chain *chain;
    int slab;
    struct ot_lane *lane;
    struct ot_event *begin, *end;
    void *encoded, *weights;
};

static int largest_slab(const struct ot_chain *chain) {
    int largest = -1;
    for (int s = 0; s < chain->n_slabs; s++)
        if (chain->slabs[s].encoded_bytes > 0 &&
            (largest < 0 || chain->slabs[s].encoded_bytes > chain->slabs[largest].encoded_bytes))
            largest = s;
    return largest;
}

static int time_decoding(void *context, int call, int count, double *seconds) {
    const struct decoding *d = context;
    const struct ot_slab_decoding all = {d->encoded, d->weights, true, true, NULL};
    double begin, end;
    (void)call;
    ot_lane_record(d->lane, d->begin);
    for (int i = 0; i < count; i++)
        d->chain->decode(d->chain->context, d->slab, d->lane, &all);
    ot_lane_record(d->lane, d->end);
    OT_TRY(ot_lane_sync(d->lane));
    OT_TRY(ot_event_seconds(d->begin, &begin));
    OT_TRY(ot_event_seconds(d->end, &end));
    *seconds = (end - begin) / count;
    return 0;
}

/* The bytes are zeros: no format's time depends on them. */
static int measure_decoding(struct decoding *d, struct ot_device *device, double seconds, double bytes,
                            double *rate) {
    const struct ot_slab_spec *slab = &d->chain->slabs[d->slab];
    struct ot_repeats repeats;
    size_t encoded = (size_t)slab->encoded_bytes;
    OT_TRY(ot_lane_open(device, "calibrate decoding", &d->lane));
    OT_TRY(ot_event_create_timed(device, &d->begin));
    OT_TRY(ot_event_create_timed(device, &d->end));
    OT_TRY(ot_device_alloc(device, encoded, "calibration", &d->encoded));
    OT_TRY(ot_device_alloc(device, (size_t)(bytes - (double)encoded), "calibration", &d->weights));
    ot_lane_fill(d->lane, d->encoded, 0, encoded);
    OT_TRY(ot_repeats_take(&(struct ot_timed_calls){1, time_decoding, d, seconds}, &repeats));
    *rate = bytes / ot_repeats_median(&repeats);
    return 0;
}

int ot_decode_rate_measure(const struct ot_chain *chain, struct ot_device *device, size_t device_bytes,
                           double seconds, double *rate) {
    struct decoding d = {.chain = chain, .slab = largest_slab(chain)};
    *rate = 0;
    if (d.slab < 0)
        return 0;
    const struct ot_slab_spec *slab = &chain->slabs[d.slab];
    size_t bytes = (size_t)slab->encoded_bytes + (size_t)slab->n_params * ot_dtype_bytes(chain->dtype);
    if (bytes > device_bytes)
        return 0;
    int rc = measure_decoding(&d, device, seconds, (double)bytes, rate);
    ot_device_free(device, d.weights);
    ot_device_free(device, d.encoded);
    ot_event_destroy(d.end);
    ot_event_destroy(d.begin);
    ot_lane_close(d.lane);
    return rc;
}
