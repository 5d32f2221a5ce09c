#include <assert.h>

#include "offload/store/store_state.h"

#include "src/base/minmax.h"

static int64_t round_down(int64_t bytes) {
    return bytes - bytes % OT_STORE_ALIGN;
}

int64_t ot_stripes_capacity(const int64_t *limits, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += round_down(limits[i]);
    return sum;
}

/* The bytes of the zone's file number `column`, if the zone has `bytes` addresses. */
static int64_t column_bytes(const struct ot_store_zone *zone, int64_t stripe, int column, int64_t bytes) {
    int64_t row_bytes = stripe * zone->n_files, rows = bytes / row_bytes;
    int64_t height = ot_min(stripe, zone->height - rows * stripe); /* height of the row after the full rows */
    int64_t rest = bytes - rows * row_bytes - column * height;
    return rows * stripe + (rest < 0 ? 0 : ot_min(rest, height));
}

void ot_stripes_init(struct ot_stripes *stripes, const int64_t *limits, int n, int64_t stripe_bytes,
                     int64_t bytes, int64_t *file_bytes) {
    assert(n >= 1 && n <= OT_STORE_MAX_DIRS && bytes <= ot_stripes_capacity(limits, n));
    *stripes = (struct ot_stripes){.stripe_bytes = stripe_bytes};
    for (int i = 0; i < n; i++)
        file_bytes[i] = 0;
    int64_t begin = 0, base = 0;
    while (begin < bytes) {
        struct ot_store_zone *zone = &stripes->zones[stripes->n_zones++];
        *zone = (struct ot_store_zone){.begin = begin, .base = base, .height = INT64_MAX};
        for (int i = 0; i < n; i++)
            if (round_down(limits[i]) > base) {
                zone->files[zone->n_files++] = i;
                zone->height = ot_min(zone->height, round_down(limits[i]) - base);
            }
        int64_t here = ot_min(bytes - begin, zone->height * zone->n_files);
        for (int column = 0; column < zone->n_files; column++)
            file_bytes[zone->files[column]] += column_bytes(zone, stripe_bytes, column, here);
        begin += here;
        base += zone->height;
    }
}

struct ot_file_run ot_stripes_locate(const struct ot_stripes *stripes, int64_t address) {
    const struct ot_store_zone *zone = &stripes->zones[stripes->n_zones - 1];
    while (address < zone->begin)
        zone--;
    int64_t in_zone = address - zone->begin;
    int64_t row_bytes = stripes->stripe_bytes * zone->n_files, row = in_zone / row_bytes;
    int64_t height = ot_min(stripes->stripe_bytes, zone->height - row * stripes->stripe_bytes);
    int64_t in_row = in_zone - row * row_bytes, in_stripe = in_row % height;
    struct ot_file_run run = {.file = zone->files[in_row / height],
                              .offset = zone->base + row * stripes->stripe_bytes + in_stripe,
                              .bytes = height - in_stripe};
    if (zone->n_files == 1) /* the stripes of a single file are consecutive */
        run.bytes = zone->height - in_zone;
    return run;
}
