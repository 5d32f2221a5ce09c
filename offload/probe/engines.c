/* The probe of the I/O engines alone, without the store: by engine, block size and depth. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offload/probe/probe_state.h"
#include "offload/store/files.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

enum {
    KIB = 1 << 10,
    MIB = 1 << 20,
    MOST_DEPTH = 128,
    LEAST_FILE = 8 * MIB, /* bytes in flight of the smallest shape */
    RANDOM_BYTES = 1 << 20,
    MOST_FIRST_SECONDS = 2
};

struct shape {
    int block_bytes, depth;
};
/* Varies the block size at the store's default depth, then the depth at the store's default block size. */
static const struct shape shapes[] = {{256 * KIB, 32}, {512 * KIB, 32}, {MIB, 32},
                                      {2 * MIB, 32},   {4 * MIB, 32},   {MIB, 8},
                                      {MIB, 16},       {MIB, 64},       {MIB, 128}};
enum { SHAPES = sizeof shapes / sizeof *shapes, SMALLEST = 0 };

struct engines {
    const struct ot_probe_nvme_config *config;
    const struct ot_io_calls *calls;
    struct ot_store_file files[OT_STORE_MAX_DIRS];
    int fds[OT_STORE_MAX_DIRS], n_files;
    bool is_direct; /* all files are open with O_DIRECT */
    char *memory;
    size_t memory_bytes;
    struct ot_io_engine *engine;
    struct shape shape;
    double rates[OT_PROBE_IOS]; /* rates of the last row of each kind of I/O */
    int64_t written_bytes;
};

int ot_probe_map_random(size_t bytes, char **out) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ot_fail(OT_E_BUDGET, "no memory for %zu bytes of I/O buffers", bytes);
    madvise(memory, bytes, MADV_HUGEPAGE);
    *out = memory;
    size_t pattern = ot_min(bytes, RANDOM_BYTES);
    for (size_t at = 0; at < pattern; at += 16) {
        uint32_t words[4];
        ot_random_block(3, ot_random_stream(OT_RANDOM_TEST, 0, 0), at / 16, words);
        memcpy(*out + at, words, sizeof words);
    }
    for (size_t at = pattern; at < bytes; at += pattern)
        memcpy(*out + at, *out, ot_min(bytes - at, pattern));
    return 0;
}

/* ---- files ---- */

/* Makes the temporary files and unlinks them at once, so that none stays, however the program ends. */
static int make_files(struct engines *e) {
    const struct ot_store_config *c = e->config->store;
    e->is_direct = true;
    for (int i = 0; i < c->n_dirs; i++) {
        size_t share = e->config->bytes / (size_t)c->n_dirs, room = ot_min(share, c->dirs[i].bytes);
        int64_t bytes = (int64_t)(room / MIB) * MIB;
        if (bytes < LEAST_FILE)
            return ot_fail(OT_E_BUDGET, "%s: a probe needs %d MiB there; give more", c->dirs[i].path,
                           LEAST_FILE / MIB);
        OT_TRY(ot_store_make_file(c->dirs[i].path, bytes, e->calls, &e->files[i]));
        e->n_files++;
        if (unlink(e->files[i].path) != 0)
            return ot_fail_errno(OT_E_IO, errno, "%s", e->files[i].path);
        e->fds[i] = e->files[i].fd;
        e->is_direct = e->is_direct && e->files[i].direct;
    }
    return 0;
}

/* Without O_DIRECT: writes the page cache to the disks and empties it. Else reads would have the speed of
 * memory, and writes would happen later. */
static int settle_files(struct engines *e) {
    for (int i = 0; i < e->n_files && !e->is_direct; i++) {
        if (fdatasync(e->fds[i]) != 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot be written", e->config->store->dirs[i].path);
        ot_store_drop_cache(&e->files[i], 0, e->files[i].bytes);
    }
    return 0;
}

/* Blocks of the smallest file. Blocks alternate between the files, so the larger files use no more than this
 * either. */
static int64_t file_blocks(const struct engines *e) {
    int64_t least = INT64_MAX;
    for (int i = 0; i < e->n_files; i++)
        least = ot_min(e->files[i].bytes, least);
    return least / e->shape.block_bytes;
}

static int64_t all_blocks(const struct engines *e) {
    return e->n_files * file_blocks(e);
}

/* ---- I/O ---- */

struct run {
    enum ot_probe_io io;
    double limit;  /* seconds after which no I/O is begun */
    int64_t most;  /* blocks */
    int64_t begun; /* blocks */
    double seconds;
    int in_flight;
    struct ot_io_chunk chunks[MOST_DEPTH];
};

/* Blocks go to the directories in turn. If both are measured, reading and writing alternate in each
 * directory. */
static void begin_block(struct engines *e, struct run *run, struct ot_io_chunk *chunk) {
    int file = (int)(run->begun % e->n_files);
    int64_t number = run->begun / e->n_files;
    size_t bytes = (size_t)e->shape.block_bytes;
    *chunk = (struct ot_io_chunk){
        .request = {.write = run->io == OT_PROBE_WRITE || (run->io == OT_PROBE_MIXED && number % 2),
                    .file = file,
                    .memory = e->memory + (size_t)(chunk - run->chunks) * bytes,
                    .bytes = bytes,
                    .offset = (off_t)(number % file_blocks(e)) * (off_t)bytes,
                    .owner = chunk}};
    run->begun++;
    e->written_bytes += chunk->request.write ? e->shape.block_bytes : 0;
}

static int reap(struct engines *e, struct run *run, double since) {
    struct ot_io_result results[MOST_DEPTH];
    int n = ot_io_engine_reap(e->engine, results, MOST_DEPTH), n_next = 0;
    struct ot_io_request next[MOST_DEPTH];
    OT_TRY(n);
    run->in_flight -= n;
    bool ends = run->begun >= run->most || ot_clock_seconds() - since >= run->limit;
    for (int i = 0; i < n; i++) {
        struct ot_io_chunk *chunk = results[i].owner;
        enum ot_io_end end = ot_io_chunk_end(e->engine, chunk, results[i].result);
        if (end == OT_IO_FAILED)
            return ot_io_chunk_fail(chunk, results[i].result,
                                    e->config->store->dirs[chunk->request.file].path, "");
        if (end == OT_IO_WHOLE && (ends || run->begun >= run->most))
            continue;
        if (end == OT_IO_WHOLE)
            begin_block(e, run, chunk);
        next[n_next++] = ot_io_chunk_rest(chunk);
    }
    run->in_flight += n_next;
    return n_next ? ot_io_engine_submit(e->engine, next, n_next) : 0;
}

static int run_io(struct engines *e, struct run *run) {
    struct ot_io_request first[MOST_DEPTH];
    OT_TRY(settle_files(e));
    double since = ot_clock_seconds();
    for (; run->in_flight < e->shape.depth && run->begun < run->most; run->in_flight++) {
        begin_block(e, run, &run->chunks[run->in_flight]);
        first[run->in_flight] = run->chunks[run->in_flight].request;
    }
    OT_TRY(ot_io_engine_submit(e->engine, first, run->in_flight));
    while (run->in_flight > 0)
        OT_TRY(reap(e, run, since));
    if (run->io != OT_PROBE_READ)
        OT_TRY(settle_files(e));
    run->seconds = ot_clock_seconds() - since;
    return 0;
}

/* ---- rows ---- */

static int open_engine(struct engines *e, enum ot_io_choice choice, struct shape shape) {
    ot_io_engine_close(e->engine);
    e->engine = NULL;
    e->shape = shape;
    struct ot_io_engine_config config = {.choice = choice,
                                         .n_files = e->n_files,
                                         .files = e->fds,
                                         .depth = shape.depth,
                                         .arena = e->memory,
                                         .arena_bytes = e->memory_bytes,
                                         .calls = e->calls};
    return ot_io_engine_open(&config, &e->engine);
}

static int probe_shape(struct engines *e, enum ot_io_choice choice, double best[OT_PROBE_IOS]) {
    char name[64];
    double in_flight = (double)e->shape.block_bytes * e->shape.depth;
    for (int io = 0; io < OT_PROBE_IOS; io++) {
        if (all_blocks(e) < e->shape.depth || in_flight > (double)e->memory_bytes || in_flight > e->rates[io])
            continue;
        struct run run = {.io = (enum ot_probe_io)io,
                          .limit = e->config->seconds,
                          .most = io == OT_PROBE_READ ? INT64_MAX : all_blocks(e)};
        OT_TRY(run_io(e, &run));
        snprintf(name, sizeof name, "%s %s %d KiB x %d", ot_io_choice_name(choice), ot_probe_io_name(run.io),
                 e->shape.block_bytes / KIB, e->shape.depth);
        struct ot_probe_row row = {.group = OT_PROBE_NVME,
                                   .name = name,
                                   .seconds = run.seconds,
                                   .work = (double)run.begun * e->shape.block_bytes,
                                   .disk = {.engine = choice,
                                            .block_bytes = e->shape.block_bytes,
                                            .depth = e->shape.depth,
                                            .io = run.io}};
        e->rates[io] = row.work / row.seconds;
        best[io] = ot_max(e->rates[io], best[io]);
        OT_TRY(ot_probe_report(&e->config->reader, row));
    }
    return 0;
}

/* Writes the files once, within a time limit. Only the written part is used. The speed tells which rows would
 * take too long. */
static int write_first(struct engines *e) {
    OT_TRY(open_engine(e, OT_IO_POOL, shapes[SMALLEST]));
    struct run run = {.io = OT_PROBE_WRITE, .limit = MOST_FIRST_SECONDS, .most = all_blocks(e)};
    OT_TRY(run_io(e, &run));
    for (int i = 0; i < e->n_files && run.begun < run.most; i++) {
        int64_t written = run.begun / e->n_files * e->shape.block_bytes;
        e->files[i].bytes = ot_min(written, e->files[i].bytes);
    }
    for (int io = 0; io < OT_PROBE_IOS; io++)
        e->rates[io] = (double)run.begun * e->shape.block_bytes / run.seconds;
    return 0;
}

static int probe_engine(struct engines *e, enum ot_io_choice choice, double best[OT_PROBE_IOS]) {
    for (int i = 0; i < SHAPES; i++) {
        int rc = open_engine(e, choice, shapes[i]);
        if (rc == -OT_E_IO) { /* training would not use this engine either */
            ot_log(OT_LOG_INFO, "nvme    without %s: %s", ot_io_choice_name(choice), ot_error_text());
            return 0;
        }
        OT_TRY(rc);
        OT_TRY(probe_shape(e, choice, best));
    }
    return 0;
}

int ot_probe_engines(const struct ot_probe_nvme_config *config, int64_t *written_bytes,
                     double best[OT_PROBE_IOS]) {
    int rc = 0;
    struct engines e = {.config = config,
                        .calls = config->store->calls ? config->store->calls : &ot_io_system,
                        .memory_bytes = ot_probe_io_bytes(config)};
    if (e.memory_bytes < LEAST_FILE)
        return ot_fail(OT_E_BUDGET, "the probe of the disks needs %d MiB of memory", LEAST_FILE / MIB);
    OT_TRY_GOTO(ot_probe_map_random(e.memory_bytes, &e.memory), rc, out);
    OT_TRY_GOTO(make_files(&e), rc, out);
    OT_TRY_GOTO(write_first(&e), rc, out);
    OT_TRY_GOTO(probe_engine(&e, OT_IO_URING, best), rc, out);
    OT_TRY_GOTO(probe_engine(&e, OT_IO_POOL, best), rc, out);
out:
    ot_io_engine_close(e.engine);
    for (int i = 0; i < e.n_files; i++)
        ot_store_remove_file(&e.files[i]);
    if (e.memory)
        munmap(e.memory, e.memory_bytes);
    *written_bytes += e.written_bytes;
    return rc;
}
