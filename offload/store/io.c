/* One direction of the store: a thread with an I/O engine, which cuts transfers into chunks, keeps as many of
 * them in flight as the depth allows, and looks at every result.
 *
 * Chunks start in the order of the transfers and end in any; `done` is called in the order of the transfers.
 * A disk that reads ahead, or a virtual one whose host does, so sees one stream as long as extents that are
 * used one after the other lie one after the other.
 * A chunk is checksummed by this thread just before it is written, or just after it was read, while the
 * others are in flight.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/store_state.h"
#include "src/base/crc32.h"
#include "src/base/thread.h"

/* Extents that a write looks ahead when it chooses a side: many megabytes, and moments under the lock. */
enum { LOOK_AHEAD = 256 };

struct ot_store_job {
    struct ot_store_job *next;
    void (*done)(void *arg, const struct ot_error *error);
    void *arg;
    struct ot_error error; /* code 0: none so far */
    int in_flight;         /* chunks */
    bool cut;              /* all chunks have been started, or no more will be */
    int piece;             /* the next chunk's */
    int64_t offset;
    int chunk;
    int n_pieces;
    struct piece {
        int extent, side; /* side that is read or written, chosen with the first chunk */
        char *memory;
    } pieces[];
};

struct ot_store_slot { /* a chunk in flight */
    struct ot_store_job *job;
    struct ot_io_chunk chunk;
    uint32_t *crc; /* NULL: not kept */
};

struct ot_place ot_store_cut(const struct ot_store *store, const struct ot_store_extent *extent, int side,
                             int64_t offset) {
    struct ot_place place = ot_stripes_locate(&store->stripes, extent->sides[side].address + offset);
    int64_t left = extent->bytes - offset, most = (int64_t)store->chunk_bytes;
    place.run = place.run < most ? place.run : most;
    place.run = place.run < left ? place.run : left;
    return place;
}

/* ---- the end of a chunk, of a job ---- */

static void fail_job(struct ot_store_job *job, int rc) {
    if (job->error.code == 0)
        ot_error_save(&job->error, rc);
    job->cut = true;
}

static int check_crc(const struct ot_store_lane *lane, const struct ot_store_slot *slot) {
    const struct ot_io_request *request = &slot->chunk.request;
    if (lane->store->no_verify)
        return 0;
    uint32_t crc = ot_crc32(0, request->memory, request->bytes);
    if (crc == *slot->crc)
        return 0;
    return ot_fail(OT_E_IO,
                   "%s: the %zu bytes at offset %lld are not those that were written (CRC-32 %08x, was "
                   "%08x): something wrote to the file, or the disk or memory is faulty; go on from the "
                   "last checkpoint",
                   lane->store->files[request->file].path, request->bytes, (long long)request->offset, crc,
                   *slot->crc);
}

/* After success the sides that were written hold the content from here on. */
static void end_write(struct ot_store *store, const struct ot_store_job *job) {
    pthread_mutex_lock(&store->sides_lock);
    for (int i = 0; i < job->n_pieces; i++) {
        struct ot_store_extent *extent = &store->extents[job->pieces[i].extent];
        if (job->error.code == 0)
            extent->side = job->pieces[i].side;
        atomic_store(&extent->is_being_written, false);
    }
    pthread_mutex_unlock(&store->sides_lock);
}

static void end_jobs(struct ot_store_lane *lane) {
    struct ot_store_job *job;
    while ((job = lane->active) && job->cut && job->in_flight == 0) {
        lane->active = job->next;
        if (!lane->active)
            lane->active_end = &lane->active;
        if (lane->cutting == job)
            lane->cutting = job->next;
        if (lane->write)
            end_write(lane->store, job);
        job->done(job->arg, job->error.code ? &job->error : NULL);
        free(job);
    }
}

/* ---- starting chunks ---- */

static void submit(struct ot_store_lane *lane, struct ot_store_slot *slot) {
    int rc = ot_io_chunk_start(lane->engine, &slot->chunk);
    if (rc < 0) /* of a broken engine, which will say so when results are waited for */
        fail_job(slot->job, rc);
}

/* Holds neither the present content nor one that is pinned. The store's lock is held. */
static bool is_free(const struct ot_store_extent *extent, int side) {
    return side < extent->n_sides && side != extent->side && extent->sides[side].pins == 0;
}

/* How many extents from this one on can be written to that side, as far as anyone looks ahead. */
static int count_free(const struct ot_store *store, int rank, int side) {
    int n = 0;
    while (n < LOOK_AHEAD && rank + n < store->n_extents &&
           is_free(&store->extents[store->order[rank + n]], side))
        n++;
    return n;
}

/* The side that the last write went to, if this one can follow it there. Otherwise the side on which the most
 * writes can follow: extents that a pin has driven onto different sides so come together again, and a step
 * goes on to write one stream. Returns n_sides if there is none. The store's lock is held. */
static int choose_free_side(const struct ot_store_lane *lane, const struct ot_store_extent *extent) {
    if (lane->next_rank == extent->rank && is_free(extent, lane->last_side))
        return lane->last_side;
    int best = extent->n_sides, most = 0;
    for (int side = 0; side < extent->n_sides; side++) {
        int n = count_free(lane->store, extent->rank, side);
        if (n > most && (most == 0 || extent->side != NO_SIDE)) {
            most = n;
            best = side;
        }
    }
    return best;
}

/* Where the piece is read from, or is to be written. Errors: OT_E_INTERNAL: there is no free side. */
static int choose_side(struct ot_store_lane *lane, struct piece *piece) {
    struct ot_store *store = lane->store;
    const struct ot_store_extent *extent = &store->extents[piece->extent];
    pthread_mutex_lock(&store->sides_lock);
    piece->side = lane->write ? choose_free_side(lane, extent) : extent->side;
    pthread_mutex_unlock(&store->sides_lock);
    if (lane->write) {
        lane->next_rank = extent->rank + 1;
        lane->last_side = piece->side;
    }
    if (piece->side == extent->n_sides)
        return ot_fail(OT_E_INTERNAL, "extent %d of the NVMe store: all of its %d sides are pinned or in use",
                       piece->extent, extent->n_sides);
    return 0;
}

/* The next chunk of the job, or false: there is none, or no more will be. */
static bool cut_chunk(struct ot_store_lane *lane, struct ot_store_job *job, struct ot_store_slot *slot) {
    struct ot_store *store = lane->store;
    for (; job->piece < job->n_pieces; job->piece++, job->offset = 0, job->chunk = 0) {
        struct piece *piece = &job->pieces[job->piece];
        struct ot_store_extent *extent = &store->extents[piece->extent];
        int rc = job->offset == 0 ? choose_side(lane, piece) : 0;
        if (rc < 0) {
            fail_job(job, rc);
            return false;
        }
        if (piece->side == NO_SIDE) {
            memset(piece->memory, 0, (size_t)extent->bytes);
            continue;
        }
        if (job->offset == extent->bytes)
            continue;
        struct ot_place place = ot_store_cut(store, extent, piece->side, job->offset);
        *slot =
            (struct ot_store_slot){.job = job,
                                   .chunk = {.request = {lane->write, place.file, piece->memory + job->offset,
                                                         (size_t)place.run, (off_t)place.offset, slot},
                                             .direct = &lane->direct[place.file]},
                                   .crc = store->crcs ? &extent->sides[piece->side].crc[job->chunk] : NULL};
        job->offset += place.run;
        job->chunk++;
        return true;
    }
    job->cut = true;
    return false;
}

static void start_chunks(struct ot_store_lane *lane) {
    while (lane->n_free > 0 && lane->cutting) {
        struct ot_store_job *job = lane->cutting;
        struct ot_store_slot *slot = lane->free_slots[lane->n_free - 1];
        if (job->cut || !cut_chunk(lane, job, slot)) {
            lane->cutting = job->next;
            continue;
        }
        lane->n_free--;
        job->in_flight++;
        if (lane->write && slot->crc)
            *slot->crc = ot_crc32(0, slot->chunk.request.memory, slot->chunk.request.bytes);
        submit(lane, slot);
    }
}

/* ---- results ---- */

static int fail_chunk(const struct ot_store_lane *lane, const struct ot_io_chunk *chunk, int64_t result) {
    return ot_io_chunk_fail(chunk, result, lane->store->files[chunk->request.file].path,
                            ", or use another directory for the NVMe store");
}

static void take_result(struct ot_store_lane *lane, struct ot_store_slot *slot, int64_t result) {
    enum ot_io_end end = ot_io_chunk_end(lane->engine, &slot->chunk, result);
    if (end == OT_IO_AGAIN && slot->job->error.code == 0) {
        atomic_fetch_add(&lane->resumed, 1);
        submit(lane, slot);
        return;
    }
    /* The next chunk goes first: the disk works on it while this one is looked at. */
    struct ot_store_slot was = *slot;
    lane->free_slots[lane->n_free++] = slot;
    start_chunks(lane);
    int rc = 0;
    if (end == OT_IO_FAILED)
        rc = fail_chunk(lane, &was.chunk, result);
    else if (end == OT_IO_WHOLE && !lane->write && was.job->error.code == 0)
        rc = check_crc(lane, &was);
    if (rc < 0)
        fail_job(was.job, rc);
    if (end == OT_IO_WHOLE)
        atomic_fetch_add(&lane->bytes, (int64_t)was.chunk.request.bytes);
    ot_io_chunk_drop_cache(lane->engine, &was.chunk);
    was.job->in_flight--;
}

/* ---- the thread ---- */

/* Nothing will come back from the engine any more: what is in flight fails with it. */
static void abandon(struct ot_store_lane *lane, int rc) {
    ot_error_save(&lane->error, rc);
    ot_io_engine_close(lane->engine); /* before `done`: the memory is the callers' again then */
    lane->engine = NULL;
    for (struct ot_store_job *job = lane->active; job; job = job->next) {
        job->in_flight = 0;
        fail_job(job, ot_error_load(&lane->error));
    }
    end_jobs(lane);
}

/* Takes over what callers have started; waits for it where nothing else is to do. False: the end. */
static bool take_jobs(struct ot_store_lane *lane) {
    pthread_mutex_lock(&lane->mutex);
    while (!lane->active && !lane->queue && !lane->stopping)
        pthread_cond_wait(&lane->changed, &lane->mutex);
    struct ot_store_job *jobs = lane->queue, **end = lane->queue_end;
    lane->queue = NULL;
    lane->queue_end = &lane->queue;
    pthread_mutex_unlock(&lane->mutex);
    if (jobs) {
        *lane->active_end = jobs;
        lane->active_end = end;
        if (!lane->cutting)
            lane->cutting = jobs;
    }
    return lane->active;
}

static void work(struct ot_store_lane *lane) {
    while (take_jobs(lane)) {
        if (!lane->engine) {
            fail_job(lane->active, ot_error_load(&lane->error));
            end_jobs(lane);
            continue;
        }
        start_chunks(lane);
        if (lane->n_free < lane->store->depth) {
            struct ot_io_result result;
            int rc = ot_io_engine_reap(lane->engine, &result, 1);
            if (rc < 0)
                abandon(lane, rc);
            else
                take_result(lane, result.owner, result.result);
        }
        end_jobs(lane);
    }
}

static void *lane_main(void *arg) {
    struct ot_store_lane *lane = arg;
    const struct ot_store *store = lane->store;
    struct ot_io_engine_config config = {.choice = store->engine,
                                         .n_files = store->n_files,
                                         .files = store->fds,
                                         .depth = store->depth,
                                         .arena = store->arena,
                                         .arena_bytes = store->arena_bytes,
                                         .calls = &store->calls};
    for (int i = 0; i < store->n_files; i++)
        lane->direct[i] = store->files[i].direct;
    struct ot_topology_binding binding = {store->topology, OT_ROLE_IO};
    ot_topology_place_thread(&binding, lane->write, 2); /* the engine's own threads take after this one */
    int rc = ot_io_engine_open(&config, &lane->engine);
    pthread_mutex_lock(&lane->mutex);
    ot_error_save(&lane->error, rc);
    lane->is_set_up = true;
    pthread_cond_broadcast(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
    if (rc == 0)
        work(lane);
    ot_io_engine_close(lane->engine);
    return NULL;
}

int ot_store_start_lane(struct ot_store *store, bool write, struct ot_store_lane *lane) {
    lane->store = store;
    lane->write = write;
    lane->queue_end = &lane->queue;
    lane->active_end = &lane->active;
    lane->slots = calloc((size_t)store->depth, sizeof *lane->slots);
    lane->free_slots = calloc((size_t)store->depth, sizeof(struct ot_store_slot *));
    if (!lane->slots || !lane->free_slots)
        return ot_fail(OT_E_BUDGET, "no memory for the NVMe store");
    for (; lane->n_free < store->depth; lane->n_free++)
        lane->free_slots[lane->n_free] = &lane->slots[lane->n_free];
    pthread_mutex_init(&lane->mutex, NULL);
    pthread_cond_init(&lane->changed, NULL);
    int error = ot_thread_start(&lane->thread, write ? "nvme-write" : "nvme-read", lane_main, lane);
    if (error)
        return ot_fail_errno(OT_E_IO, error, "cannot start a thread for the NVMe store");
    lane->started = true;
    pthread_mutex_lock(&lane->mutex);
    while (!lane->is_set_up)
        pthread_cond_wait(&lane->changed, &lane->mutex);
    pthread_mutex_unlock(&lane->mutex);
    return ot_error_load(&lane->error);
}

void ot_store_stop_lane(struct ot_store_lane *lane) {
    if (lane->started) {
        pthread_mutex_lock(&lane->mutex);
        lane->stopping = true;
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->mutex);
        pthread_join(lane->thread, NULL);
        pthread_cond_destroy(&lane->changed);
        pthread_mutex_destroy(&lane->mutex);
    }
    free(lane->free_slots);
    free(lane->slots);
}

/* ---- callers ---- */

int ot_store_start(struct ot_store *store, const struct ot_transfer *transfer) {
    struct ot_store_lane *lane = transfer->write ? &store->write : &store->read;
    size_t n = (size_t)transfer->n_pieces;
    struct ot_store_job *job = calloc(1, sizeof *job + n * sizeof *job->pieces);
    if (!job)
        return ot_fail(OT_E_BUDGET, "no memory to queue a transfer of %zu pieces", n);
    job->done = transfer->done;
    job->arg = transfer->arg;
    job->n_pieces = transfer->n_pieces;
    for (size_t i = 0; i < n; i++) {
        const struct ot_store_piece *piece = &transfer->pieces[i];
        assert(piece->extent >= 0 && piece->extent < store->n_extents);
        assert((uintptr_t)piece->memory % OT_STORE_ALIGN == 0);
        job->pieces[i] = (struct piece){.extent = piece->extent, .memory = piece->memory};
        if (transfer->write) {
            bool is_second = atomic_exchange(&store->extents[piece->extent].is_being_written, true);
            assert(!is_second); /* both would go to the same side */
            (void)is_second;
        }
    }
    pthread_mutex_lock(&lane->mutex);
    *lane->queue_end = job;
    lane->queue_end = &job->next;
    pthread_cond_signal(&lane->changed);
    pthread_mutex_unlock(&lane->mutex);
    return 0;
}
