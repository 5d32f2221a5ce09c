/* Checkpoints: the share of the disk's rate that saving and restoring reach, and how much a save slows the
 * steps beside it.
 *
 *     bench_checkpoint [FOLDER [MILLION_PARAMS [ROUNDS]]]     default: the current folder, 350, 3
 *
 * The model is a Llama in bf16 with random weights and state, 12 bytes a parameter, everything in host
 * memory.
 *
 *   save       The writer saves an idle engine's snapshot. The time ends when the checkpoint is flushed and
 *              renamed. Peer: fio writes as many bytes to a new, preallocated file and calls fsync.
 *   restore    The reader restores the checkpoint into an engine whose memory has been touched before, like
 *              pinned memory. Peer: fio reads the same file.
 *   slow-down  Steps with a save under way, paced as the program paces it, against steps without a save. The
 *              drain that must precede a save is measured separately.
 *   nvme       The optimizer state is on nvme. Restoring reads the checkpoint and writes the state to the
 *              same disk, so the rates count the bytes read and written, and the time ends when all is
 *              written.
 *              Peer: fio reads the same file and at the same time writes as many bytes to a new, preallocated
 *              file. Then saves that refer to the state's files (by hard link) instead of copying them.
 *
 * fio uses the same block size and depth, and O_DIRECT as we do. The contenders take turns, another contender
 * begins each round, and each figure is the best of the rounds. tests/bench/peer_checkpoint.py measures the
 * same in PyTorch. FOLDER needs room for 48 bytes a parameter, and memory for 24. The benchmark leaves
 * nothing in FOLDER. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/model.h"
#include "offload/plan/plan_search.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/thread.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/slot_writer.h"
#include "src/checkpoint/writer.h"
#include "tests/bench/fio.h"

enum {
    SEQUENCE = 32,
    VOCAB = 4096,
    SLOTS = 16,
    READ_DEPTH = 32
}; /* the values of src/train/saver.c and reader_stream.c */
enum { WINDOW_STEPS = 6, WINDOW_ROUNDS = 2 };
static const double paced_share = 0.6,
                    interval_seconds = 1800; /* the values of src/train/saver.c; --save-every 30min */

enum { COPIED = 1, REFERRED, OF_STEPS }; /* the checkpoints; each value is the step in the name */
enum what { SAVE, RESTORE, TO_NVME, N_WHATS };
static const char *const what_names[N_WHATS] = {"save", "restore", "to nvme"};
enum { URING, POOL, FIO, N_CONTENDERS };
static const enum ot_io_choice engines[FIO] = {OT_IO_URING, OT_IO_POOL};

struct bench {
    const char *folder;
    char parent[1024]; /* the folder of the checkpoints, inside `folder` */
    int threads, rounds;
    struct ot_model *model;
    struct ot_device *device;
    struct ot_engine *engine;
    int64_t state_bytes;
    bool no_uring;
    double best[N_WHATS][N_CONTENDERS]; /* GB/s; 0: not measured */
    struct save {
        struct ot_checkpoint_writer *writer;
        double since, seconds; /* from the beginning of the snapshot to its end */
        int64_t written, referred;
    } by_reference; /* the fastest save of state on nvme */
};

static void keep_best(double *best, double rate) {
    *best = rate > *best ? rate : *best;
}

/* ---- the engine ---- */

static const struct ot_model_config one_layer = {.family = OT_FAMILY_LLAMA,
                                                 .n_layers = 1,
                                                 .hidden = 1024,
                                                 .ffn = 2816,
                                                 .n_heads = 16,
                                                 .n_kv_heads = 8,
                                                 .head_dim = 64,
                                                 .vocab = VOCAB,
                                                 .max_position = SEQUENCE,
                                                 .norm = OT_NORM_RMS,
                                                 .norm_eps = 1e-5f,
                                                 .act = OT_ACT_SILU,
                                                 .rope.theta = 10000,
                                                 .rotary_dim = 64,
                                                 .init_std = 0.02};

static int open_model(struct bench *b, int64_t params) {
    struct ot_model_config config = one_layer;
    int64_t one = ot_model_param_count(&config);
    config.n_layers = 2;
    int64_t layer = ot_model_param_count(&config) - one;
    config.n_layers = params > one ? 1 + (params - one + layer / 2) / layer : 1;
    OT_TRY(ot_model_open(&config, OT_BF16, SEQUENCE, &b->model));
    b->state_bytes = ot_checkpoint_state_bytes(ot_model_chain(b->model));
    printf("%.0f M parameters in bf16, %.2f GB a checkpoint\n", (double)ot_model_param_count(&config) * 1e-6,
           (double)b->state_bytes * 1e-9);
    return 0;
}

static int open_engine(struct bench *b, enum ot_home state, int pinned_contents) {
    const size_t plenty = (size_t)1 << 40;
    const struct ot_plan_request request = {.chain = ot_model_chain(b->model),
                                            .budget_bytes = {plenty, plenty, plenty},
                                            .sequence_tokens = SEQUENCE,
                                            .step_sequences = 1,
                                            .micro_sequences = 1,
                                            .train = true,
                                            .clip = true,
                                            .weights = OT_HOME_HOST,
                                            .state = state,
                                            .activations = OT_HOME_GPU,
                                            .snapshot_slots = SLOTS,
                                            .pinned_contents = pinned_contents};
    const struct ot_store_dir dir = {.path = b->folder};
    const struct ot_store_config store = {.n_dirs = 1, .dirs = &dir};
    struct ot_plan plan;
    OT_TRY(ot_plan_make(&request, &plan));
    const struct ot_engine_config config = {.chain = request.chain,
                                            .device = b->device,
                                            .plan = &plan,
                                            .optimizer = {0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0},
                                            .optimizer_threads = b->threads,
                                            .store = &store};
    int rc = ot_engine_open(&config, &b->engine);
    ot_plan_free(&plan);
    return rc;
}

/* Random state that no disk can compress: every segment begins at another place of a table of random values.
 */
static int set_random(struct bench *b) {
    enum { TABLE = 2 * OT_SEGMENT_PARAMS };
    static float m[TABLE], v[TABLE];
    static uint16_t rest[TABLE], weights[TABLE];
    const struct ot_chain *chain = ot_model_chain(b->model);
    int n_slots;
    char *memory = ot_engine_snapshot_slots(b->engine, &n_slots);
    for (uint64_t i = 0; i < TABLE; i++) {
        v[i] = 1e-6f * (float)ot_random_unit(1, 1, i);
        m[i] = 1e-3f * ((float)ot_random_unit(1, 2, i) - 0.5f);
        rest[i] = (uint16_t)ot_random_u32(1, 3, i);
        weights[i] = ot_bf16_from_f32(0.04f * ((float)ot_random_unit(1, 4, i) - 0.5f));
    }
    uint64_t number = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        for (int64_t first = 0; first < chain->slabs[s].n_params; first += OT_SEGMENT_PARAMS, number++) {
            int64_t left = chain->slabs[s].n_params - first;
            struct ot_segment segment = {s,
                                         first,
                                         left < OT_SEGMENT_PARAMS ? left : OT_SEGMENT_PARAMS,
                                         true,
                                         true,
                                         OT_STATE_F32,
                                         OT_MASTERS_F32,
                                         false};
            size_t n = (size_t)segment.n, at = ot_random_below(1, 5, number, TABLE - OT_SEGMENT_PARAMS);
            memcpy(memory, m + at, 4 * n);
            memcpy(memory + 4 * n, v + at, 4 * n);
            memcpy(memory + 8 * n, rest + at, 2 * n);
            memcpy(memory + 10 * n, weights + at, 2 * n);
            OT_TRY(ot_engine_put(b->engine, &segment, memory));
        }
    return 0;
}

/* ---- saving ---- */

/* Does nothing if the checkpoint does not exist. */
static int remove_checkpoint(const struct bench *b, int64_t step) {
    struct ot_checkpoint_list list;
    int rc = 0;
    OT_TRY(ot_checkpoint_list_make(b->parent, &list));
    for (int i = 0; i < list.n && rc == 0; i++)
        if (list.entries[i].step == step)
            rc = ot_checkpoint_remove(list.entries[i].dir);
    ot_checkpoint_list_free(&list);
    return rc;
}

/* pace: bytes per second; 0: no limit. */
static int begin_save(struct bench *b, int64_t step, enum ot_io_choice io, double pace, struct save *save) {
    const struct ot_checkpoint_record record = {.progress = {.step = step, .loss_scale = 1}};
    struct ot_checkpoint_writer_config config = {.parent = b->parent,
                                                 .chain = ot_model_chain(b->model),
                                                 .record = &record,
                                                 .io_engine = io,
                                                 .store = ot_engine_store(b->engine)};
    config.state_bytes = config.store ? 0 : b->state_bytes;
    config.memory = ot_engine_snapshot_slots(b->engine, &config.n_slots);
    OT_TRY(remove_checkpoint(b, step));
    OT_TRY(ot_checkpoint_writer_open(&config, &save->writer));
    const struct ot_snapshot_config snapshot = {ot_checkpoint_writer_sink(save->writer), pace, false};
    save->since = ot_clock_seconds();
    int rc = ot_engine_snapshot(b->engine, &snapshot);
    if (rc < 0)
        ot_checkpoint_writer_close(save->writer);
    return rc;
}

static int end_save(struct bench *b, struct save *save) {
    struct ot_pins *pins;
    int rc = ot_engine_snapshot_finish(b->engine, &pins);
    save->seconds = ot_clock_seconds() - save->since;
    ot_checkpoint_writer_count(save->writer, &save->written, &save->referred);
    ot_checkpoint_writer_close(save->writer);
    ot_engine_release(b->engine, pins);
    return rc;
}

static int save(struct bench *b, int64_t step, enum ot_io_choice io, struct save *save) {
    OT_TRY(begin_save(b, step, io, 0, save));
    return end_save(b, save);
}

static int measure_save(struct bench *b, int contender) {
    struct save one;
    OT_TRY(save(b, COPIED, engines[contender], &one));
    keep_best(&b->best[SAVE][contender], (double)one.written / one.seconds * 1e-9);
    return 0;
}

/* ---- restoring ---- */

static int put_segment(void *context, const struct ot_segment *segment, const void *memory) {
    return ot_engine_put(context, segment, memory);
}

/* *bytes: read from the checkpoint, and written to the store. */
static int restore(struct bench *b, enum ot_io_choice io, double *seconds, int64_t *bytes) {
    struct ot_checkpoint_read read = {.io_engine = io,
                                      .threads = b->threads > 1 ? b->threads : 0,
                                      .sink = put_segment,
                                      .context = b->engine};
    struct ot_checkpoint *checkpoint;
    char *dir;
    OT_TRY(ot_checkpoint_name(b->parent, COPIED, &dir));
    double start = ot_clock_seconds();
    int rc = ot_checkpoint_open(dir, &checkpoint);
    free(dir);
    OT_TRY(rc);
    read.memory = ot_engine_snapshot_slots(b->engine, &read.n_slots);
    rc = ot_checkpoint_read(checkpoint, &read);
    if (rc == 0)
        rc = ot_engine_unstage(b->engine);
    *seconds = ot_clock_seconds() - start;
    struct ot_store_usage usage;
    ot_engine_store_usage(b->engine, &usage);
    *bytes = ot_checkpoint_bytes(checkpoint) + usage.written_bytes;
    ot_checkpoint_close(checkpoint);
    return rc;
}

static int measure_restore(struct bench *b, int contender) {
    double seconds;
    int64_t bytes;
    OT_TRY(restore(b, engines[contender], &seconds, &bytes));
    keep_best(&b->best[RESTORE][contender], (double)bytes / seconds * 1e-9);
    return 0;
}

/* Every round opens a new store. A resumed run restores into a new store too, and a save that refers to a new
 * store has to flush all of it. */
static int measure_nvme(struct bench *b, int contender) {
    struct save one;
    double seconds;
    int64_t bytes;
    ot_engine_close(b->engine);
    b->engine = NULL;
    OT_TRY(open_engine(b, OT_HOME_NVME, 1));
    OT_TRY(restore(b, engines[contender], &seconds, &bytes));
    keep_best(&b->best[TO_NVME][contender], (double)bytes / seconds * 1e-9);
    OT_TRY(save(b, REFERRED, OT_IO_AUTO, &one));
    if (b->by_reference.seconds == 0 || one.seconds < b->by_reference.seconds)
        b->by_reference = one;
    return remove_checkpoint(b, REFERRED);
}

/* ---- fio ---- */

/* To write, fio has as many chunks in flight as the writer's slots hold; to read, as many as the reader
 * has. fio writes a new file, and the checkpoint is removed before to make room. fio reads the checkpoint
 * itself. */
static int measure_fio(struct bench *b, enum what what) {
    struct fio fio = {.uring = !b->no_uring, .block_bytes = OT_SLOT_CHUNK_BYTES, .depth = READ_DEPTH};
    char file[PATH_MAX], job[200];
    char *dir = NULL;
    double rate;
    if (what == SAVE) {
        int chunks = (int)((ot_segment_slot_bytes(OT_BF16) + OT_SLOT_CHUNK_BYTES - 1) / OT_SLOT_CHUNK_BYTES);
        fio.depth = SLOTS * chunks;
        snprintf(file, sizeof file, "%s/fio", b->parent);
        snprintf(job, sizeof job, "--name=save --rw=write --end_fsync=1 --unlink=1 --size=%lld",
                 (long long)b->state_bytes);
        OT_TRY(remove_checkpoint(b, COPIED));
    } else {
        OT_TRY(ot_checkpoint_name(b->parent, COPIED, &dir));
        snprintf(file, sizeof file, "%s/" OT_STATE_NAME, dir);
        fio.own_names = what == TO_NVME;
        if (what == RESTORE)
            snprintf(job, sizeof job, "--name=restore --rw=read --readonly");
        else
            snprintf(job, sizeof job,
                     "--name=read --rw=read --filename=\"$BENCH_FIO_FILE\" --name=write --rw=write "
                     "--filename=\"$BENCH_FIO_FILE.copy\" --unlink=1 --size=%lld",
                     (long long)b->by_reference.referred);
        free(dir);
    }
    fio.file = file;
    OT_TRY(fio_run(&fio, job, &rate));
    keep_best(&b->best[what][FIO], rate);
    return 0;
}

/* ---- saving and restoring, all in turns ---- */

static int measure(struct bench *b, enum what what, int contender) {
    if (contender == FIO)
        return measure_fio(b, what);
    if (contender == URING && b->no_uring)
        return 0;
    if (what == TO_NVME)
        return measure_nvme(b, contender);
    return what == SAVE ? measure_save(b, contender) : measure_restore(b, contender);
}

static void print_rates(const struct bench *b, enum what what) {
    double fio = b->best[what][FIO];
    for (int engine = 0; engine < FIO; engine++) {
        double ours = b->best[what][engine];
        if (ours > 0 && fio > 0)
            printf("%-8s %-6s %7.3f GB/s, fio %7.3f GB/s, share %.3f\n", what_names[what],
                   ot_io_choice_name(engines[engine]), ours, fio, ours / fio);
        else if (ours > 0)
            printf("%-8s %-6s %7.3f GB/s\n", what_names[what], ot_io_choice_name(engines[engine]), ours);
    }
    if (fio == 0)
        printf("fio is NOT INSTALLED, so its columns are left out (Debian and Ubuntu: apt install fio)\n");
    fflush(stdout);
}

static int compare(struct bench *b, enum what what) {
    for (int turn = 0; turn < b->rounds * N_CONTENDERS; turn++)
        OT_TRY(measure(b, what, (turn + turn / N_CONTENDERS) % N_CONTENDERS));
    print_rates(b, what);
    return 0;
}

static void ask_for_uring(struct bench *b) {
    struct ot_io_engine *engine;
    const struct ot_io_engine_config config = {.choice = OT_IO_URING, .depth = 1};
    b->no_uring = ot_io_engine_open(&config, &engine) < 0;
    if (b->no_uring)
        printf("io_uring is not measured: %s\n", ot_error_text());
    else
        ot_io_engine_close(engine);
}

/* ---- steps ---- */

static int32_t tokens[SEQUENCE], targets[SEQUENCE], positions[SEQUENCE], row_start[SEQUENCE];

static void fill_batch(void) {
    for (int i = 0; i < SEQUENCE; i++) {
        tokens[i] = (int32_t)ot_random_below(2, 1, (uint64_t)i, VOCAB);
        targets[i] = i == SEQUENCE - 1 ? -1 : (int32_t)ot_random_below(2, 1, (uint64_t)i + 1, VOCAB);
        positions[i] = i;
    }
}

/* Keeps two steps in flight, as the program does. Drains the engine at the end. */
static int run_steps(struct bench *b, int steps) {
    const struct ot_micro_batch micro = {.n_tokens = SEQUENCE,
                                         .tokens = tokens,
                                         .targets = targets,
                                         .position = positions,
                                         .row_start = row_start};
    const struct ot_step_input input = {1, &micro, SEQUENCE - 1, 1e-5f};
    struct ot_step_result result;
    for (int step = 0; step < steps; step++) {
        OT_TRY(ot_engine_submit(b->engine, &input));
        if (step > 0)
            OT_TRY(ot_engine_result(b->engine, &result));
    }
    OT_TRY(ot_engine_result(b->engine, &result));
    return ot_engine_drain(b->engine);
}

enum window { PLAIN, DRAINED, SAVED, N_WINDOWS };

/* Runs the same steps in one of three ways: in a row; drained after the first step; or with a save that
 * begins after the first step. The window also waits for the save to end. */
static int run_window(struct bench *b, enum window window, double pace, double *seconds, struct save *save) {
    double start = ot_clock_seconds();
    if (window == PLAIN) {
        OT_TRY(run_steps(b, WINDOW_STEPS));
    } else {
        OT_TRY(run_steps(b, 1));
        if (window == SAVED)
            OT_TRY(begin_save(b, OF_STEPS, OT_IO_AUTO, pace, save));
        int rc = run_steps(b, WINDOW_STEPS - 1);
        if (window == SAVED)
            OT_TRY(end_save(b, save));
        OT_TRY(rc);
    }
    *seconds = ot_clock_seconds() - start;
    return 0;
}

static int measure_slow_down(struct bench *b) {
    double best[N_WINDOWS] = {1e30, 1e30, 1e30};
    struct save save = {0};
    fill_batch();
    OT_TRY(run_steps(b, 2)); /* warm-up */
    for (int round = 0; round < WINDOW_ROUNDS; round++)
        for (enum window window = PLAIN; window < N_WINDOWS; window++) {
            double seconds, step = best[PLAIN] / WINDOW_STEPS;
            OT_TRY(remove_checkpoint(b, OF_STEPS));
            OT_TRY(run_window(b, window, (double)b->state_bytes / (paced_share * step), &seconds, &save));
            best[window] = seconds < best[window] ? seconds : best[window];
        }
    double drain = best[DRAINED] - best[PLAIN], all = best[SAVED] - best[PLAIN];
    printf("slow-down: a step takes %.3f s alone; %d steps take %.2f s, with a drain %.2f s, with a save "
           "%.2f s (the save took %.2f s)\n",
           best[PLAIN] / WINDOW_STEPS, WINDOW_STEPS, best[PLAIN], best[DRAINED], best[SAVED], save.seconds);
    printf("a save costs %.2f s, of which the drain takes %.2f s: %.3f %% of an interval of %.0f s\n", all,
           drain, 100 * all / interval_seconds, interval_seconds);
    fflush(stdout);
    return remove_checkpoint(b, OF_STEPS);
}

/* ---- state on nvme ---- */

static int compare_nvme(struct bench *b) {
    OT_TRY(measure_nvme(b, POOL)); /* fio needs to know how many bytes are written */
    OT_TRY(compare(b, TO_NVME));
    printf("store: %s\n", ot_engine_describe_store(b->engine));
    printf("by reference: a save took %.2f s, wrote %.2f GB and refers to %.2f GB on nvme\n",
           b->by_reference.seconds, (double)b->by_reference.written * 1e-9,
           (double)b->by_reference.referred * 1e-9);
    return 0;
}

/* ---- the whole ---- */

/* Makes memory resident before anything is measured, as the program does (src/session/device.c). */
static int place_memory(void *context, void *memory, size_t bytes) {
    const struct bench *b = context;
    return ot_touch_memory(memory, bytes, &(struct ot_touch_config){.threads = b->threads});
}

static int run(struct bench *b, int64_t params) {
    struct save last;
    const struct ot_device_config device = {
        .kind = "cpu", .threads = b->threads, .placement = {.context = b, .memory = place_memory}};
    OT_TRY(ot_device_open(&device, &b->device));
    OT_TRY(open_model(b, params));
    ask_for_uring(b);
    OT_TRY(open_engine(b, OT_HOME_HOST, 0));
    OT_TRY(set_random(b));
    OT_TRY(compare(b, SAVE));
    OT_TRY(save(b, COPIED, OT_IO_AUTO, &last)); /* needed by the restore; fio's file may have replaced the
                                                 * checkpoint */
    OT_TRY(compare(b, RESTORE));
    OT_TRY(measure_slow_down(b));
    return compare_nvme(b);
}

int main(int argc, char **argv) {
    struct bench b = {.folder = argc > 1 ? argv[1] : ".",
                      .rounds = argc > 3 ? atoi(argv[3]) : 3,
                      .threads = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    int64_t params = (argc > 2 ? atoll(argv[2]) : 350) * 1000000;
    if (params < 1 || b.rounds < 1) {
        fprintf(stderr, "usage: bench_checkpoint [FOLDER [MILLION_PARAMS [ROUNDS]]]\n");
        return 2;
    }
    snprintf(b.parent, sizeof b.parent, "%s/bench-checkpoint-%ld", b.folder, (long)getpid());
    int rc = mkdir(b.parent, 0777) < 0 ? ot_fail_errno(OT_E_IO, errno, "%s: cannot be made", b.parent)
                                       : run(&b, params);
    if (rc < 0)
        fprintf(stderr, "bench_checkpoint: %s\n", ot_error_text());
    ot_engine_close(b.engine);
    ot_model_close(b.model);
    ot_device_close(b.device);
    for (int step = COPIED; step <= OF_STEPS; step++)
        remove_checkpoint(&b, step);
    rmdir(b.parent);
    return -rc;
}
