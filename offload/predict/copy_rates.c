#include "offload/predict/copy_rates.h"

#include "kernels/device.h"
#include "offload/predict/repeats.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

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
