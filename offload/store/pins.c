/* Pins keep the content of an extent in its place, and find its spans in files that may outlive the store. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/store/store_state.h"
#include "src/base/file_io.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

struct ot_store_pin ot_store_pin_extent(struct ot_store *store, int extent_index) {
    assert(extent_index >= 0 && extent_index < store->n_extents);
    struct ot_store_extent *extent = &store->extents[extent_index];
    struct ot_store_pin pin = {.extent = extent_index};
    pthread_mutex_lock(&store->sides_lock);
    pin.side = extent->side;
    if (pin.side != NO_SIDE)
        extent->sides[pin.side].pins++;
    pthread_mutex_unlock(&store->sides_lock);
    return pin;
}

void ot_store_unpin(struct ot_store *store, struct ot_store_pin pin) {
    if (pin.side == NO_SIDE)
        return;
    struct ot_store_side *side = &store->extents[pin.extent].sides[pin.side];
    pthread_mutex_lock(&store->sides_lock);
    assert(side->pins > 0);
    side->pins--;
    pthread_mutex_unlock(&store->sides_lock);
}

/* Needs no lock: nobody writes to a pinned side or to its checksums. */
int ot_store_find_spans(const struct ot_store *store, struct ot_store_pin pin, struct ot_store_span *spans,
                        int most) {
    const struct ot_store_extent *extent = &store->extents[pin.extent];
    int n = 0;
    assert(store->crcs);
    if (pin.side == NO_SIDE)
        return 0;
    for (int64_t offset = 0; offset < extent->bytes; n++) {
        struct ot_file_run run = ot_store_cut(store, extent, pin.side, offset);
        if (n < most)
            spans[n] =
                (struct ot_store_span){run.file, run.offset, run.bytes, extent->sides[pin.side].crc[n]};
        offset += run.bytes;
    }
    return n;
}

int ot_store_max_spans(const struct ot_store *store) {
    return store->max_spans;
}

int ot_store_file_count(const struct ot_store *store) {
    return store->n_files;
}

/* ---- files that outlive the store ---- */

/* A failed flush is not retried. The system reports lost data once; a second call that succeeds says nothing
 * about data that the first one lost (fsync(2), under EIO). */
int ot_store_sync(struct ot_store *store) {
    const struct ot_store_file *failed = atomic_load(&store->failed_sync);
    if (failed)
        return ot_fail(OT_E_IO, "%s: may have lost written data, because an earlier flush failed",
                       failed->path);
    for (int i = 0; i < store->n_files; i++) {
        int rc;
        do
            rc = store->calls.fdatasync(store->calls.context, store->files[i].fd);
        while (rc == -EINTR);
        if (rc == 0)
            continue;
        atomic_store(&store->failed_sync, &store->files[i]);
        return ot_fail_errno(OT_E_IO, -rc,
                             "%s: cannot be flushed to the disk, look for messages about it in `dmesg`",
                             store->files[i].path);
    }
    return 0;
}

bool ot_store_has_names(const struct ot_store *store) {
    struct stat held, named;
    for (int i = 0; i < store->n_files; i++)
        if (fstat(store->files[i].fd, &held) < 0 || lstat(store->files[i].path, &named) < 0 ||
            held.st_dev != named.st_dev || held.st_ino != named.st_ino)
            return false;
    return true;
}

int ot_store_link(struct ot_store *store, int file, int dir_fd, const char *name) {
    assert(file >= 0 && file < store->n_files);
    const char *path = store->files[file].path;
    if (linkat(AT_FDCWD, path, dir_fd, name, 0) == 0)
        return 0;
    if (errno == EXDEV)
        return ot_fail(OT_E_IO, "%s: cannot get the second name %s: that directory is on another file system",
                       path, name);
    return ot_fail_errno(OT_E_IO, errno, "%s: cannot get the second name %s", path, name);
}

struct hole { /* adjacent free ranges of a file, joined */
    int64_t offset, bytes;
};

/* Punches the joined hole into the file. If the file system refuses, the file only stays larger than
 * needed. */
static void punch(struct ot_store *store, int index, struct hole *hole, bool *wanted) {
    const struct ot_store_file *file = &store->files[index];
    int rc = 0;
    if (hole->bytes > 0 && *wanted)
        rc = ot_allocate(&store->calls, file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, hole->offset,
                         hole->bytes);
    hole->bytes = 0;
    if (rc == 0)
        return;
    *wanted = false;
    ot_log(OT_LOG_DEBUG, "%s: keeps its full size under its other names, because holes cannot be punched: %s",
           file->path, strerror(-rc));
}

void ot_store_punch_unpinned(struct ot_store *store, bool wanted[OT_STORE_MAX_DIRS]) {
    struct hole holes[OT_STORE_MAX_DIRS] = {0};
    /* in order of addresses, so that holes become large */
    for (int side = 0; side < OT_STORE_MAX_SIDES; side++)
        for (int i = 0; i < store->n_extents; i++) {
            const struct ot_store_extent *extent = &store->extents[store->order[i]];
            if (side >= extent->n_sides || extent->sides[side].pins > 0)
                continue;
            struct ot_file_run run;
            for (int64_t offset = 0; offset < extent->bytes; offset += run.bytes) {
                run = ot_store_cut(store, extent, side, offset);
                struct hole *hole = &holes[run.file];
                if (run.offset != hole->offset + hole->bytes) {
                    punch(store, run.file, hole, &wanted[run.file]);
                    hole->offset = run.offset;
                }
                hole->bytes += run.bytes;
            }
        }
    for (int i = 0; i < store->n_files; i++)
        punch(store, i, &holes[i], &wanted[i]);
}

/* ---- stripes ---- */

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
