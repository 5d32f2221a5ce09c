#include "offload/predict/decode_rate.h"

#include "offload/predict/repeats.h"
#include "src/base/error.h"

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
static int measure(struct decoding *d, struct ot_device *device, double seconds, double bytes, double *rate) {
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
    int rc = measure(&d, device, seconds, (double)bytes, rate);
    ot_device_free(device, d.weights);
    ot_device_free(device, d.encoded);
    ot_event_destroy(d.end);
    ot_event_destroy(d.begin);
    ot_lane_close(d.lane);
    return rc;
}
