#include "src/checkpoint/slot_writer.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "offload/store/store.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

enum { MOST_RESULTS = 16 };

struct ot_slot_writer {
    struct ot_slot_writer_config config;
    struct ot_slot *slots;
    pthread_t thread;
    bool started;

    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct ot_slot *free, *queue, **queue_end;
    int n_busy; /* slots started and not yet written */
    bool stopping, is_set_up;
    struct ot_error error; /* the first failure; only the thread sets it */

    /* used by the thread only */
    struct ot_io_engine *engine; /* NULL: the engine has failed */
    int in_flight;               /* number of chunks */
};

/* ---- the thread: finishing a slot ---- */

static void fail(struct ot_slot_writer *w, int rc) {
    pthread_mutex_lock(&w->mutex);
    if (w->error.code == 0)
        ot_error_save(&w->error, rc);
    pthread_mutex_unlock(&w->mutex);
}

static void finish_slot(struct ot_slot_writer *w, struct ot_slot *slot) {
    pthread_mutex_lock(&w->mutex);
    slot->next = w->free;
    w->free = slot;
    w->n_busy--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static void finish_chunk(struct ot_slot_writer *w, struct ot_slot_chunk *chunk) {
    w->in_flight--;
    if (--chunk->slot->in_flight == 0)
        finish_slot(w, chunk->slot);
}

/* The engine has failed and returns no more results: frees all slots that are in flight. */
static void abandon(struct ot_slot_writer *w, int rc) {
    fail(w, rc);
    ot_io_engine_close(w->engine); /* first: afterwards the engine no longer uses the slots' memory */
    w->engine = NULL;
    for (int i = 0; i < w->config.n_slots; i++)
        if (w->slots[i].in_flight > 0) {
            w->slots[i].in_flight = 0;
            finish_slot(w, &w->slots[i]);
        }
    w->in_flight = 0;
}

/* ---- the thread: chunks ---- */

/* False: the engine has failed, and all slots in flight were freed. */
static bool submit(struct ot_slot_writer *w, struct ot_slot_chunk *chunk) {
    int rc = ot_io_chunk_start(w->engine, &chunk->io);
    if (rc < 0)
        abandon(w, rc);
    return rc == 0;
}

static void start_slot(struct ot_slot_writer *w, struct ot_slot *slot) {
    slot->n_chunks = 0;
    if (!w->engine || w->error.code) {
        finish_slot(w, slot);
        return;
    }
    slot->in_flight = (int)((slot->bytes + OT_SLOT_CHUNK_BYTES - 1) / OT_SLOT_CHUNK_BYTES);
    w->in_flight += slot->in_flight;
    assert(slot->in_flight > 0 && slot->in_flight <= OT_SLOT_MAX_CHUNKS);
    for (size_t at = 0; at < slot->bytes; at += OT_SLOT_CHUNK_BYTES) {
        size_t left = slot->bytes - at;
        struct ot_slot_chunk *chunk = &slot->chunks[slot->n_chunks];
        struct ot_io_request request = {.write = true,
                                        .memory = (char *)slot->memory + at,
                                        .bytes = ot_min(left, OT_SLOT_CHUNK_BYTES),
                                        .offset = (off_t)(slot->offset + (int64_t)at),
                                        .owner = chunk};
        *chunk = (struct ot_slot_chunk){slot, {.request = request, .direct = &w->config.direct}};
        slot->crc[slot->n_chunks++] = ot_crc32(0, request.memory, request.bytes);
        if (!submit(w, chunk))
            return;
    }
}

static void take_result(struct ot_slot_writer *w, struct ot_slot_chunk *chunk, int64_t result) {
    enum ot_io_end end = ot_io_chunk_end(w->engine, &chunk->io, result);
    if (end == OT_IO_AGAIN && w->error.code == 0) {
        submit(w, chunk);
        return;
    }
    if (end == OT_IO_FAILED)
        fail(w, ot_io_chunk_fail(&chunk->io, result, w->config.path, ""));
    ot_io_chunk_drop_cache(w->engine, &chunk->io);
    finish_chunk(w, chunk);
}

/* Waits only if nothing is in flight. NULL: no slot is queued. */
static struct ot_slot *next_slot(struct ot_slot_writer *w) {
    pthread_mutex_lock(&w->mutex);
    while (!w->queue && !w->stopping && w->in_flight == 0)
        pthread_cond_wait(&w->changed, &w->mutex);
    struct ot_slot *slot = w->stopping ? NULL : w->queue;
    if (slot) {
        w->queue = slot->next;
        if (!w->queue)
            w->queue_end = &w->queue;
    }
    pthread_mutex_unlock(&w->mutex);
    return slot;
}

static void work(struct ot_slot_writer *w) {
    for (;;) {
        struct ot_io_result results[MOST_RESULTS];
        struct ot_slot *slot = next_slot(w);
        if (slot) {
            start_slot(w, slot);
            continue;
        }
        if (w->in_flight == 0)
            return;
        int n = ot_io_engine_reap(w->engine, results, MOST_RESULTS);
        if (n < 0)
            abandon(w, n);
        for (int i = 0; i < n && w->engine; i++)
            take_result(w, results[i].owner, results[i].result);
    }
}

static void *thread_main(void *arg) {
    struct ot_slot_writer *w = arg;
    const struct ot_slot_writer_config *c = &w->config;
    struct ot_io_engine_config engine = {.choice = c->io_engine,
                                         .n_files = 1,
                                         .files = &c->fd,
                                         .depth = c->n_slots * OT_SLOT_MAX_CHUNKS,
                                         .arena = c->memory,
                                         .arena_bytes = c->slot_bytes * (size_t)c->n_slots,
                                         .calls = c->calls};
    int rc = ot_io_engine_open(&engine, &w->engine);
    pthread_mutex_lock(&w->mutex);
    ot_error_save(&w->error, rc);
    w->is_set_up = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    if (rc == 0)
        work(w);
    ot_io_engine_close(w->engine);
    return NULL;
}

/* ---- the owner ---- */

int ot_slot_writer_open(const struct ot_slot_writer_config *config, struct ot_slot_writer **out) {
    struct ot_slot_writer *w = calloc(1, sizeof *w);
    struct ot_slot *slots = calloc((size_t)config->n_slots, sizeof *slots);
    int rc = 0;
    assert(config->slot_bytes <= (size_t)OT_SLOT_CHUNK_BYTES * OT_SLOT_MAX_CHUNKS);
    *out = NULL;
    if (!w || !slots) {
        free(w);
        free(slots);
        return ot_fail(OT_E_BUDGET, "%s: no memory for the thread that writes the file", config->path);
    }
    w->config = *config;
    w->slots = slots;
    w->queue_end = &w->queue;
    for (int i = config->n_slots - 1; i >= 0; i--) {
        slots[i] = (struct ot_slot){.memory = (char *)config->memory + (size_t)i * config->slot_bytes,
                                    .next = w->free};
        w->free = &slots[i];
    }
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    int error = ot_thread_start(&w->thread, "checkpoint", thread_main, w);
    w->started = error == 0;
    if (error) {
        rc = ot_fail_errno(OT_E_IO, error, "%s: cannot start a thread to write the file", config->path);
    } else {
        pthread_mutex_lock(&w->mutex);
        while (!w->is_set_up)
            pthread_cond_wait(&w->changed, &w->mutex);
        pthread_mutex_unlock(&w->mutex);
        rc = ot_error_load(&w->error);
    }
    if (rc < 0)
        ot_slot_writer_close(w);
    else
        *out = w;
    return rc;
}

void ot_slot_writer_close(struct ot_slot_writer *w) {
    if (!w)
        return;
    if (w->started) {
        pthread_mutex_lock(&w->mutex);
        w->stopping = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->mutex);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w->slots);
    free(w);
}

int ot_slot_writer_take(struct ot_slot_writer *w, struct ot_slot **out) {
    pthread_mutex_lock(&w->mutex);
    while (!w->free && w->error.code == 0)
        pthread_cond_wait(&w->changed, &w->mutex);
    int rc = ot_error_load(&w->error);
    if (rc == 0) {
        *out = w->free;
        w->free = w->free->next;
    }
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

void ot_slot_writer_start(struct ot_slot_writer *w, struct ot_slot *slot) {
    pthread_mutex_lock(&w->mutex);
    slot->next = NULL;
    *w->queue_end = slot;
    w->queue_end = &slot->next;
    w->n_busy++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

int ot_slot_writer_wait(struct ot_slot_writer *w) {
    pthread_mutex_lock(&w->mutex);
    while (w->n_busy > 0)
        pthread_cond_wait(&w->changed, &w->mutex);
    int rc = ot_error_load(&w->error);
    pthread_mutex_unlock(&w->mutex);
    return rc;
}

struct ot_slot *ot_slot_writer_at(struct ot_slot_writer *w, int index) {
    return &w->slots[index];
}
