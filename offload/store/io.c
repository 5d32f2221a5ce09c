/* One direction of the store: a thread with an I/O engine. It cuts transfers into chunks, keeps as many
 * chunks in flight as the depth allows, and checks every result.
 *
 * Chunks start in the order of the transfers, and may end in any order. `done` is called in the order of the
 * transfers. If extents that are used one after the other are also consecutive on the disk, the disk gets one
 * sequential stream. Disks that read ahead need that, also virtual disks whose host reads ahead.
 *
 * The thread computes the CRC-32 of a chunk just before it is written or just after it was read, while other
 * chunks are in flight.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/store_state.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* Extents that a write looks ahead when it chooses a side: enough for many megabytes, few enough to hold the
 * lock only briefly. */
enum { LOOK_AHEAD = 256 };

struct ot_store_job {
    struct ot_store_job *next;
    void (*done)(void *arg, const struct ot_error *error);
    void *arg;
    struct ot_error error; /* code 0: no error so far */
    int in_flight;         /* chunks */
    bool cut;              /* all chunks have been started, or an error stops further chunks */
    int piece;             /* the next chunk's, like offset and chunk */
    int64_t offset;
    int chunk;
    int n_pieces;
    struct piece {
        int extent, side; /* side: the side to read or write, chosen with the first chunk */
        char *memory;
    } pieces[];
};

struct ot_store_flight { /* a chunk in flight */
    struct ot_store_job *job;
    struct ot_io_chunk chunk;
    uint32_t *crc; /* NULL: no CRC-32 is kept */
};

struct ot_file_run ot_store_cut(const struct ot_store *store, const struct ot_store_extent *extent, int side,
                                int64_t offset) {
    struct ot_file_run run = ot_stripes_locate(&store->stripes, extent->sides[side].address + offset);
    int64_t left = extent->bytes - offset, most = (int64_t)store->chunk_bytes;
    run.bytes = ot_min(run.bytes, most);
    run.bytes = ot_min(run.bytes, left);
    return run;
}

/* ---- the end of a chunk and of a job ---- */

static void fail_job(struct ot_store_job *job, int rc) {
    if (job->error.code == 0)
        ot_error_save(&job->error, rc);
    job->cut = true;
}

static int check_crc(const struct ot_store_lane *lane, const struct ot_store_flight *flight) {
    const struct ot_io_request *request = &flight->chunk.request;
    if (lane->store->no_verify)
        return 0;
    uint32_t crc = ot_crc32(0, request->memory, request->bytes);
    if (crc == *flight->crc)
        return 0;
    return ot_fail(OT_E_IO,
                   "%s: the %zu bytes at offset %lld are not those that were written (CRC-32 is %08x, "
                   "should be %08x): another program wrote to the file, or the disk or memory is "
                   "faulty; resume from the last checkpoint",
                   lane->store->files[request->file].path, request->bytes, (long long)request->offset, crc,
                   *flight->crc);
}

/* Ends a write job. If it succeeded, the written sides hold the content from now on. */
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

static void submit(struct ot_store_lane *lane, struct ot_store_flight *flight) {
    int rc = ot_io_chunk_start(lane->engine, &flight->chunk);
    if (rc < 0) /* the engine is broken; the next wait for a result fails too */
        fail_job(flight->job, rc);
}

/* True if the side can be written: it holds neither the present content, unless it is the only side, nor a
 * pinned one. The store's lock is held. */
static bool is_free(const struct ot_store_extent *extent, int side) {
    bool is_spare = side != extent->side || extent->n_sides == 1;
    return side < extent->n_sides && is_spare && extent->sides[side].pins == 0;
}

/* The number of extents in a row, from this rank on, that can be written to that side; at most LOOK_AHEAD. */
static int count_free(const struct ot_store *store, int rank, int side) {
    int n = 0;
    while (n < LOOK_AHEAD && rank + n < store->n_extents &&
           is_free(&store->extents[store->order[rank + n]], side))
        n++;
    return n;
}

/* Chooses the side of a write: the side of the last write, if this write can follow it there. Otherwise the
 * side on which the most writes can follow. So extents that a pin has driven to different sides come together
 * again, and the writes of a step become one stream again. Returns n_sides if no side is free. The store's
 * lock is held. */
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

/* Chooses the side from which the piece is read, or to which it is written. Errors: OT_E_INTERNAL: no side is
 * free. */
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

/* Cuts the next chunk of the job. Returns false if there is no chunk left, or if the job has failed. */
static bool cut_chunk(struct ot_store_lane *lane, struct ot_store_job *job, struct ot_store_flight *flight) {
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
        struct ot_file_run run = ot_store_cut(store, extent, piece->side, job->offset);
        *flight =
            (struct ot_store_flight){.job = job,
                                     .chunk = {.request = {lane->write, run.file, piece->memory + job->offset,
                                                           (size_t)run.bytes, (off_t)run.offset, flight},
                                               .direct = &lane->direct[run.file]},
                                     .crc = store->crcs ? &extent->sides[piece->side].crc[job->chunk] : NULL};
        job->offset += run.bytes;
        job->chunk++;
        return true;
    }
    job->cut = true;
    return false;
}

static void start_chunks(struct ot_store_lane *lane) {
    while (lane->n_free > 0 && lane->cutting) {
        struct ot_store_job *job = lane->cutting;
        struct ot_store_flight *flight = lane->free_flights[lane->n_free - 1];
        if (job->cut || !cut_chunk(lane, job, flight)) {
            lane->cutting = job->next;
            continue;
        }
        lane->n_free--;
        job->in_flight++;
        if (lane->write && flight->crc)
            *flight->crc = ot_crc32(0, flight->chunk.request.memory, flight->chunk.request.bytes);
        submit(lane, flight);
    }
}

/* ---- results ---- */

static int fail_chunk(const struct ot_store_lane *lane, const struct ot_io_chunk *chunk, int64_t result) {
    return ot_io_chunk_fail(chunk, result, lane->store->files[chunk->request.file].path,
                            ", or use another directory for the NVMe store");
}

static void take_result(struct ot_store_lane *lane, struct ot_store_flight *flight, int64_t result) {
    enum ot_io_end end = ot_io_chunk_end(lane->engine, &flight->chunk, result);
    if (end == OT_IO_AGAIN && flight->job->error.code == 0) {
        atomic_fetch_add(&lane->resumed, 1);
        submit(lane, flight);
        return;
    }
    /* Start the next chunk first: the disk works on it while this one is checked. */
    struct ot_store_flight was = *flight;
    lane->free_flights[lane->n_free++] = flight;
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

/* Fails all jobs in flight after the engine broke, because it will return no more results. */
static void abandon(struct ot_store_lane *lane, int rc) {
    ot_error_save(&lane->error, rc);
    ot_io_engine_close(lane->engine); /* before `done`, which gives the memory back to the callers */
    lane->engine = NULL;
    for (struct ot_store_job *job = lane->active; job; job = job->next) {
        job->in_flight = 0;
        fail_job(job, ot_error_load(&lane->error));
    }
    end_jobs(lane);
}

/* Takes the jobs that callers have started, and waits for one if there is nothing else to do. Returns false
 * at the end. */
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
    ot_topology_place_thread(&binding, lane->write, 2); /* the engine's own threads inherit this binding */
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
    lane->flights = calloc((size_t)store->depth, sizeof *lane->flights);
    lane->free_flights = calloc((size_t)store->depth, sizeof(struct ot_store_flight *));
    if (!lane->flights || !lane->free_flights)
        return ot_fail(OT_E_BUDGET, "no memory for the NVMe store");
    for (; lane->n_free < store->depth; lane->n_free++)
        lane->free_flights[lane->n_free] = &lane->flights[lane->n_free];
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
    free(lane->free_flights);
    free(lane->flights);
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
            assert(!is_second); /* two writes would choose the same side */
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
