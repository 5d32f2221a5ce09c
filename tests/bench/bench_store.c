/* The NVMe store against fio: GB/s of reading, of writing, and of both at once, for both I/O engines of the
 * store. fio uses its io_uring engine on a file in the same directory, with the same bytes, block size and
 * depth; both use O_DIRECT. The store's figures include the CRC-32 of every byte that it moves. fio runs in
 * the file's order and, in other columns, in random order. Where these two rates differ, the disk is faster
 * in sequential order, so the store must keep that order.
 *
 *     bench_store [FOLDER] [GB] [BLOCK_KIB] [DEPTH]        default: the current folder, 2 GB, 1024 KiB, 32
 *
 * All blocks have been written before, so that neither side waits for the file system to allocate. Both use
 * huge pages where the system has them, as the engine's arena does. Why: a disk driver that takes 254 pieces
 * of memory an I/O (virtio) splits 1 MiB of small pages in two, and on some hosts only one I/O is then in
 * flight. Each figure is the median of several rounds, in which the contenders take turns; the spread beside
 * it is (largest - smallest) / median. `both` is the sum of the rates of reading and writing at once, half of
 * the bytes each. FOLDER needs room for five times the bytes. The benchmark leaves nothing there. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offload/store/store.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "tests/bench/fio.h"

enum { EXTENT_BYTES = 16 << 20, WINDOW = 8, ROUNDS = 5 }; /* WINDOW: transfers in flight per direction */

enum what { READ, WRITE, BOTH, N_WHATS };
static const char *const what_names[N_WHATS] = {"read", "write", "both"};
enum { URING, POOL, N_ENGINES };
static const enum ot_io_choice engines[N_ENGINES] = {OT_IO_URING, OT_IO_POOL};

/* The contenders: our engines, fio in the file's order, and fio in random order. */
enum { FIO = N_ENGINES, FIO_RANDOM, N_CONTENDERS };

struct sample { /* GB/s of each round */
    double rates[ROUNDS];
    int n; /* 0: not measured */
};

struct bench {
    const char *folder, *fio_file;
    int n_extents, depth;
    size_t block_bytes;
    char *arena; /* [2][WINDOW] extents */
    bool no_uring;
    struct sample samples[N_WHATS][N_CONTENDERS];
};

/* ---- ours ---- */

/* The transfers of one direction. The end of each transfer starts the next one, with the same memory. */
struct stream {
    struct ot_store *store;
    bool write;
    char *memory;
    int n_extents;
    _Atomic int next, running;
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    struct ot_error error;
};

struct turn {
    struct stream *stream;
    int slot;
};

static void next_extent(void *arg, const struct ot_error *error);

static int start_extent(struct turn *turn) {
    struct stream *stream = turn->stream;
    struct ot_store_piece piece = {atomic_fetch_add(&stream->next, 1),
                                   stream->memory + (size_t)turn->slot * EXTENT_BYTES};
    struct ot_transfer transfer = {stream->write, 1, &piece, next_extent, turn};
    return piece.extent < stream->n_extents ? ot_store_start(stream->store, &transfer) : 1;
}

static void next_extent(void *arg, const struct ot_error *error) {
    struct turn *turn = arg;
    struct stream *stream = turn->stream;
    int rc = error ? ot_error_load(error) : start_extent(turn);
    if (rc == 0)
        return;
    pthread_mutex_lock(&stream->mutex);
    if (rc < 0)
        ot_error_save(&stream->error, rc);
    atomic_fetch_sub(&stream->running, 1);
    pthread_cond_signal(&stream->ended);
    pthread_mutex_unlock(&stream->mutex);
}

static int start_stream(struct stream *stream, struct turn *turns) {
    for (int slot = 0; slot < WINDOW && slot < stream->n_extents; slot++) {
        turns[slot] = (struct turn){stream, slot};
        atomic_fetch_add(&stream->running, 1);
        OT_TRY(start_extent(&turns[slot]));
    }
    return 0;
}

static int end_stream(struct stream *stream) {
    pthread_mutex_lock(&stream->mutex);
    while (atomic_load(&stream->running) > 0)
        pthread_cond_wait(&stream->ended, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
    return stream->error.code ? ot_error_load(&stream->error) : 0;
}

/* Moves the first n extents in each direction that is asked for. */
static int move(const struct bench *bench, struct ot_store *store, bool read, bool write, int n,
                double *seconds) {
    struct turn turns[2][WINDOW];
    struct stream streams[2];
    const bool wanted[2] = {read, write};
    int64_t start = ot_clock_ns();
    for (int i = 0; i < 2; i++) {
        streams[i] = (struct stream){.store = store,
                                     .write = i == 1,
                                     .n_extents = wanted[i] ? n : 0,
                                     .memory = bench->arena + (size_t)i * WINDOW * EXTENT_BYTES,
                                     .mutex = PTHREAD_MUTEX_INITIALIZER,
                                     .ended = PTHREAD_COND_INITIALIZER};
        OT_TRY(start_stream(&streams[i], turns[i]));
    }
    OT_TRY(end_stream(&streams[0]));
    OT_TRY(end_stream(&streams[1]));
    *seconds = (double)(ot_clock_ns() - start) * 1e-9;
    return 0;
}

static void keep(struct sample *sample, double rate) {
    if (rate > 0 && sample->n < ROUNDS)
        sample->rates[sample->n++] = rate;
}

static int measure_ours(struct bench *bench, int engine, struct ot_store *store) {
    int half = bench->n_extents / 2;
    double seconds, bytes = (double)bench->n_extents * EXTENT_BYTES;
    OT_TRY(move(bench, store, true, false, bench->n_extents, &seconds));
    keep(&bench->samples[READ][engine], bytes / seconds * 1e-9);
    OT_TRY(move(bench, store, false, true, bench->n_extents, &seconds));
    keep(&bench->samples[WRITE][engine], bytes / seconds * 1e-9);
    OT_TRY(move(bench, store, true, true, half, &seconds));
    keep(&bench->samples[BOTH][engine], 2.0 * half * EXTENT_BYTES / seconds * 1e-9);
    return 0;
}

static int open_ours(struct bench *bench, int engine, struct ot_store **store) {
    size_t *extent_bytes = malloc((size_t)bench->n_extents * sizeof *extent_bytes);
    if (!extent_bytes)
        return ot_fail(OT_E_BUDGET, "no memory");
    for (int i = 0; i < bench->n_extents; i++)
        extent_bytes[i] = EXTENT_BYTES;
    struct ot_store_dir dir = {bench->folder, 0};
    struct ot_store_config config = {.n_dirs = 1,
                                     .dirs = &dir,
                                     .engine = engines[engine],
                                     .n_extents = bench->n_extents,
                                     .extent_bytes = extent_bytes,
                                     .chunk_bytes = bench->block_bytes,
                                     .depth = bench->depth,
                                     .arena = bench->arena,
                                     .arena_bytes = (size_t)2 * WINDOW * EXTENT_BYTES};
    int rc = ot_store_open(&config, store);
    free(extent_bytes);
    if (rc < 0 && engines[engine] == OT_IO_URING) {
        printf("io_uring is not measured: %s\n", ot_error_text());
        bench->no_uring = true;
        return 0;
    }
    OT_TRY(rc);
    printf("%s\n", ot_store_describe(*store));
    double seconds; /* fill both sides, so that the file system allocates all blocks */
    OT_TRY(move(bench, *store, false, true, bench->n_extents, &seconds));
    return move(bench, *store, false, true, bench->n_extents, &seconds);
}

/* ---- fio ---- */

static struct fio fio_of(const struct bench *bench) {
    return (struct fio){.file = bench->fio_file,
                        .uring = !bench->no_uring,
                        .block_bytes = bench->block_bytes,
                        .depth = bench->depth};
}

static int measure_fio(struct bench *bench, bool random) {
    const struct fio fio = fio_of(bench);
    const char *order = random ? "rand" : "";
    char jobs[N_WHATS][256];
    long long bytes = (long long)bench->n_extents * EXTENT_BYTES,
              half = bytes / EXTENT_BYTES / 2 * EXTENT_BYTES;
    snprintf(jobs[READ], sizeof jobs[READ], "--name=read --rw=%sread --size=%lld", order, bytes);
    snprintf(jobs[WRITE], sizeof jobs[WRITE], "--name=write --rw=%swrite --size=%lld", order, bytes);
    snprintf(jobs[BOTH], sizeof jobs[BOTH],
             "--name=read --rw=%sread --size=%lld --name=write --rw=%swrite --offset=%lld --size=%lld", order,
             half, order, half, half);
    for (int what = 0; what < N_WHATS; what++) {
        double rate;
        OT_TRY(fio_run(&fio, jobs[what], &rate));
        keep(&bench->samples[what][random ? FIO_RANDOM : FIO], rate);
    }
    return 0;
}

/* Makes fio's file and writes all of its blocks. */
static int open_fio(struct bench *bench) {
    const struct fio fio = fio_of(bench);
    char job[256];
    double rate;
    snprintf(job, sizeof job, "--name=write --rw=write --size=%lld",
             (long long)bench->n_extents * EXTENT_BYTES);
    return fio_run(&fio, job, &rate);
}

/* ---- the table ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints the median and, in brackets, the spread. Returns the median. */
static double print_sample(struct sample *sample) {
    qsort(sample->rates, (size_t)sample->n, sizeof *sample->rates, ascending);
    double median = (sample->rates[(sample->n - 1) / 2] + sample->rates[sample->n / 2]) / 2;
    printf(" %7.3f GB/s (%3.0f %%)", median,
           100 * (sample->rates[sample->n - 1] - sample->rates[0]) / median);
    return median;
}

static void print_table(struct bench *bench) {
    bool have_fio = bench->samples[READ][FIO].n > 0;
    printf("%-6s %-6s %20s", "what", "engine", "ours (spread)");
    if (have_fio)
        printf(" %20s %8s %20s %8s", "fio, in order", "share", "fio, random", "share");
    printf("\n");
    for (int what = 0; what < N_WHATS; what++)
        for (int engine = 0; engine < N_ENGINES; engine++) {
            if (bench->samples[what][engine].n == 0)
                continue;
            printf("%-6s %-6s", what_names[what], ot_io_choice_name(engines[engine]));
            double ours = print_sample(&bench->samples[what][engine]);
            for (int fio = FIO; have_fio && fio < N_CONTENDERS; fio++)
                printf(" %6.1f %%", 100 * ours / print_sample(&bench->samples[what][fio]));
            printf("\n");
        }
    if (!have_fio)
        printf("fio is NOT INSTALLED, so its columns are left out (Debian and Ubuntu: apt install fio)\n");
}

static int run(struct bench *bench, struct ot_store **stores) {
    for (int engine = 0; engine < N_ENGINES; engine++)
        OT_TRY(open_ours(bench, engine, &stores[engine]));
    OT_TRY(open_fio(bench));
    for (int turn = 0; turn < ROUNDS * N_CONTENDERS; turn++) {
        int contender = (turn + turn / N_CONTENDERS) % N_CONTENDERS; /* another contender begins each round */
        if (contender >= N_ENGINES)
            OT_TRY(measure_fio(bench, contender == FIO_RANDOM));
        else if (stores[contender])
            OT_TRY(measure_ours(bench, contender, stores[contender]));
    }
    print_table(bench);
    return 0;
}

int main(int argc, char **argv) {
    struct bench bench = {.folder = argc > 1 ? argv[1] : ".",
                          .n_extents = (int)((argc > 2 ? atof(argv[2]) : 2) * 1e9 / EXTENT_BYTES),
                          .block_bytes = (size_t)(argc > 3 ? atoi(argv[3]) : 1024) << 10,
                          .depth = argc > 4 ? atoi(argv[4]) : 32};
    struct ot_store *stores[N_ENGINES] = {0};
    size_t arena_bytes = (size_t)2 * WINDOW * EXTENT_BYTES;
    char file[1024];
    if (bench.n_extents < 2 || bench.block_bytes % OT_STORE_ALIGN || !bench.block_bytes || bench.depth < 1) {
        fprintf(stderr, "usage: bench_store [FOLDER] [GB] [BLOCK_KIB] [DEPTH]\n");
        return 2;
    }
    snprintf(file, sizeof file, "%s/bench-store-%ld", bench.folder, (long)getpid());
    bench.arena = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bench.fio_file = file;
    int rc = bench.arena == MAP_FAILED ? ot_fail_errno(OT_E_BUDGET, errno, "no memory for the buffers") : 0;
    if (rc == 0) {
        madvise(bench.arena, arena_bytes, MADV_HUGEPAGE);           /* as the engine's arena does; the system
                                                                     * may refuse */
        for (size_t i = 0; i < arena_bytes / sizeof(uint64_t); i++) /* data that no disk can compress */
            ((uint64_t *)bench.arena)[i] = (i + 1) * 0x9e3779b97f4a7c15u ^ (i * 0xbf58476d1ce4e5b9u >> 7);
        rc = run(&bench, stores);
    }
    if (rc < 0)
        fprintf(stderr, "bench_store: %s\n", ot_error_text());
    for (int engine = 0; engine < N_ENGINES; engine++)
        ot_store_close(stores[engine]);
    unlink(file);
    return -rc;
}
