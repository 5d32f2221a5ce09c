/* Lanes and events of the cpu device.
 *
 * A lane's writes must become visible to another lane, or to the caller, through record and wait only. Then
 * ThreadSanitizer reports a missing dependency as the data race that it would be on a GPU. So nothing in
 * this file may order a lane's work before the thread that enqueues on it: no mutex that both take, no
 * sequentially consistent flag that both touch. The caller publishes a command by a release store of
 * `filled`. It wakes the lane with a futex call if the lane sleeps: ThreadSanitizer takes neither the call
 * nor the fences around it for an order. Reading `finished` gives such an order, so the caller reads it
 * only when the ring seems full.
 *
 * One hidden order remains: two lanes that run ops take turns in the device's pool. */
#include "kernels/cpu/cpu_device.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

#include "kernels/cpu/cpu_blas.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/thread.h"

struct ot_cpu_device {
    struct ot_device base;
    char name[96], arithmetic[192];
    struct ot_pool *pool;

    uint64_t delay_seed;
    _Atomic int n_lanes, n_events; /* number of open ones */
    /* Threads that sleep until an event is recorded. An event has no such number: the thread that waited may
     * destroy the event before the lane that recorded it has looked for sleepers. */
    _Atomic uint32_t event_sleepers;
    /* number of lanes ever opened; each lane's number selects a random stream of delays */
    _Atomic uint64_t lane_numbers;
};

static int event_create(struct ot_device *device, struct ot_event **out);
static void event_destroy(struct ot_event *event);

/* Commands that may wait in a lane. A step of a 7B model enqueues fewer. It is a power of two, because
 * counters wrap. */
enum { RING_COMMANDS = OT_LANE_MOST_COMMANDS };

/* Records of one event that may be outstanding. One more record waits for the oldest. */
enum { EVENT_RECORDS = 16 };

enum { SPIN_NS = 5000, LONGEST_DELAY_NS = 200000, CACHE_LINE = 64 };
/* The lane delays one of so many commands. So it sometimes runs ahead of a lane that it should wait for. */
enum { DELAY_ONE_OF = 4 };

struct command {
    ot_cpu_command_fn fn;
    bool control; /* also runs on a failed lane, because others wait for it */
    _Alignas(16) unsigned char args[OT_CPU_COMMAND_BYTES];
};

struct cpu_lane {
    struct ot_lane base;
    pthread_t thread;
    struct ot_event *idle; /* for ot_lane_sync */
    uint64_t delay_stream;

    /* used by the enqueuing thread */
    uint32_t next_fill, known_finished;
    /* used by the lane's thread */
    uint32_t next_run;
    bool stopping;
    _Atomic(const struct ot_error *) error; /* NULL: no failure yet; other threads only read it */
    void *scratch;
    size_t scratch_bytes;

    _Alignas(CACHE_LINE) _Atomic uint32_t filled;
    _Atomic uint32_t filled_sleepers;
    _Alignas(CACHE_LINE) _Atomic uint32_t finished;
    _Atomic uint32_t finished_sleepers;
    struct command ring[RING_COMMANDS];
};

/* done[g % EVENT_RECORDS] becomes g when record number g has run. error[] at the same index is the failure of
 * the recording lane. Numbers count from 1; comparisons allow for wrapping. */
struct cpu_event {
    struct ot_event base;
    _Atomic uint32_t enqueued;
    _Atomic uint32_t done[EVENT_RECORDS];
    _Atomic(const struct ot_error *) error[EVENT_RECORDS];
    _Atomic double seconds; /* the time of the last record */
};

static struct ot_cpu_device *device_of(const struct ot_lane *lane) {
    return (struct ot_cpu_device *)lane->device;
}

/* ---- waiting for a word to change ---- */

/* The fences order the change of the word before the look at its sleepers, and on the other side the number
 * of sleepers before the look at the word. So one of the two threads sees the other. */
static void wake_all(_Atomic uint32_t *word, _Atomic uint32_t *sleepers) {
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(sleepers, memory_order_relaxed) > 0)
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Returns when the word is no longer `seen`, or spuriously; the caller checks again. */
static void wait_for_change(_Atomic uint32_t *word, _Atomic uint32_t *sleepers, uint32_t seen) {
    for (int64_t until = ot_clock_ns() + SPIN_NS; ot_clock_ns() < until;)
        if (atomic_load_explicit(word, memory_order_relaxed) != seen)
            return;
    atomic_fetch_add_explicit(sleepers, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(word, memory_order_relaxed) == seen)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
}

/* ---- the ring ---- */

static void wait_for_room(struct cpu_lane *lane) {
    uint32_t finished = atomic_load(&lane->finished);
    while (lane->next_fill - finished == RING_COMMANDS) {
        wait_for_change(&lane->finished, &lane->finished_sleepers, finished);
        finished = atomic_load(&lane->finished);
    }
    lane->known_finished = finished;
}

static void push(struct ot_lane *base, ot_cpu_command_fn fn, bool control, const void *args, size_t bytes) {
    struct cpu_lane *lane = (struct cpu_lane *)base;
    assert(bytes <= OT_CPU_COMMAND_BYTES);
    if (lane->next_fill - lane->known_finished == RING_COMMANDS)
        wait_for_room(lane);
    struct command *command = &lane->ring[lane->next_fill % RING_COMMANDS];
    command->fn = fn;
    command->control = control;
    if (bytes > 0)
        memcpy(command->args, args, bytes);
    lane->next_fill++;
    atomic_store_explicit(&lane->filled, lane->next_fill, memory_order_release);
    wake_all(&lane->filled, &lane->filled_sleepers);
}

void ot_cpu_lane_push(struct ot_lane *lane, ot_cpu_command_fn fn, const void *args, size_t bytes) {
    push(lane, fn, false, args, bytes);
}

/* ---- the lane's thread ---- */

static void delay(const struct cpu_lane *lane) {
    uint64_t seed = device_of(&lane->base)->delay_seed;
    if (!seed)
        return;
    uint64_t ns = ot_random_below(seed, lane->delay_stream, lane->next_run, DELAY_ONE_OF * LONGEST_DELAY_NS);
    if (ns < LONGEST_DELAY_NS)
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void *lane_main(void *arg) {
    struct cpu_lane *lane = arg;
    while (!lane->stopping) {
        uint32_t filled = atomic_load_explicit(&lane->filled, memory_order_acquire);
        if (filled == lane->next_run) {
            wait_for_change(&lane->filled, &lane->filled_sleepers, filled);
            continue;
        }
        const struct command *command = &lane->ring[lane->next_run % RING_COMMANDS];
        delay(lane);
        if (command->control || !lane->error)
            command->fn(&lane->base, command->args);
        int rc = lane->error ? 0 : ot_cpu_blas_error();
        if (rc < 0)
            ot_cpu_lane_fail(&lane->base, rc);
        lane->next_run++;
        atomic_store(&lane->finished, lane->next_run);
        wake_all(&lane->finished, &lane->finished_sleepers);
    }
    return NULL;
}

static void run_stop(struct ot_lane *lane, const void *args) {
    (void)args;
    ((struct cpu_lane *)lane)->stopping = true;
}

static int lane_open(struct ot_device *device, const char *name, struct ot_lane **out) {
    struct ot_cpu_device *owner = (struct ot_cpu_device *)device;
    int rc;
    *out = NULL;
    struct cpu_lane *lane = aligned_alloc(CACHE_LINE, sizeof *lane);
    if (!lane)
        return ot_fail(OT_E_DEVICE, "no memory for the lane '%s'", name);
    memset(lane, 0, sizeof *lane);
    lane->base.device = device;
    lane->delay_stream = ot_random_stream(OT_RANDOM_TEST, 0, atomic_fetch_add(&owner->lane_numbers, 1));
    OT_TRY_GOTO(event_create(device, &lane->idle), rc, out);
    int error = ot_thread_start(&lane->thread, name, lane_main, lane);
    if (error) {
        rc = ot_fail_errno(OT_E_DEVICE, error, "cannot start a thread for the lane '%s'", name);
        goto out;
    }
    atomic_fetch_add(&owner->n_lanes, 1);
    *out = &lane->base;
    return 0;
out:
    ot_event_destroy(lane->idle);
    free(lane);
    return rc;
}

static void lane_close(struct ot_lane *base) {
    struct cpu_lane *lane = (struct cpu_lane *)base;
    push(base, run_stop, true, NULL, 0);
    pthread_join(lane->thread, NULL);
    event_destroy(lane->idle);
    atomic_fetch_sub(&device_of(base)->n_lanes, 1);
    free(lane->scratch);
    free(lane);
}

/* ---- for use inside commands ---- */

struct ot_pool *ot_cpu_lane_pool(struct ot_lane *lane) {
    return device_of(lane)->pool;
}

void ot_cpu_lane_fail(struct ot_lane *base, int rc) {
    struct cpu_lane *lane = (struct cpu_lane *)base;
    struct ot_error error;
    assert(rc < 0);
    if (lane->error)
        return;
    ot_error_save(&error, rc);
    lane->error = ot_device_keep_error(base->device, &error);
}

void *ot_cpu_lane_scratch(struct ot_lane *base, size_t bytes) {
    struct cpu_lane *lane = (struct cpu_lane *)base;
    if (bytes > lane->scratch_bytes) {
        free(lane->scratch);
        size_t rounded = (bytes + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
        lane->scratch = aligned_alloc(CACHE_LINE, rounded);
        lane->scratch_bytes = lane->scratch ? rounded : 0;
        if (!lane->scratch)
            ot_cpu_lane_fail(base, ot_fail(OT_E_BUDGET, "no memory for %zu bytes of an op's scratch", bytes));
    }
    return lane->scratch;
}

/* ---- copy, fill, notify, call ---- */

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
};

static void run_copy(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct copy *copy = args;
    memcpy(copy->dst, copy->src, copy->bytes);
}

static void lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src,
                      size_t bytes) {
    (void)kind; /* host and device memory are the same here */
    if (bytes > 0)
        push(lane, run_copy, false, &(struct copy){dst, src, bytes}, sizeof(struct copy));
}

static void run_copy_rows(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct ot_copy_rows *copy = args;
    for (size_t i = 0; i < copy->rows; i++)
        memcpy((char *)copy->dst + i * copy->dst_stride, (const char *)copy->src + i * copy->src_stride,
               copy->row_bytes);
}

static void lane_copy_rows(struct ot_lane *lane, const struct ot_copy_rows *copy) {
    if (copy->rows > 0 && copy->row_bytes > 0)
        push(lane, run_copy_rows, false, copy, sizeof *copy);
}

struct fill {
    void *dst;
    int byte;
    size_t bytes;
};

static void run_fill(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct fill *fill = args;
    memset(fill->dst, fill->byte, fill->bytes);
}

static void lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes) {
    if (bytes > 0)
        push(lane, run_fill, false, &(struct fill){device_dst, byte, bytes}, sizeof(struct fill));
}

struct call {
    void (*fn)(void *arg);
    void *arg;
};

static void run_call(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct call *call = args;
    call->fn(call->arg);
}

static void lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg) {
    push(lane, run_call, true, &(struct call){fn, arg}, sizeof(struct call));
}

static void lane_call(struct ot_lane *lane, void (*fn)(void *arg), void *arg) {
    push(lane, run_call, false, &(struct call){fn, arg}, sizeof(struct call));
}

/* ---- events ---- */

static int event_create(struct ot_device *device, struct ot_event **out) {
    struct cpu_event *event = calloc(1, sizeof *event);
    *out = NULL;
    if (!event)
        return ot_fail(OT_E_DEVICE, "no memory for an event");
    event->base.device = device;
    atomic_fetch_add(&((struct ot_cpu_device *)device)->n_events, 1);
    *out = &event->base;
    return 0;
}

static void event_destroy(struct ot_event *event) {
    atomic_fetch_sub(&((struct ot_cpu_device *)event->device)->n_events, 1);
    free(event);
}

struct record {
    struct cpu_event *event;
    uint32_t number;
};

/* Blocks until record `number` has run. With memory_order_acquire, all work before the record is visible
 * afterwards. */
static void wait_for_record(struct cpu_event *event, uint32_t number, memory_order order) {
    _Atomic uint32_t *word = &event->done[number % EVENT_RECORDS];
    _Atomic uint32_t *sleepers = &((struct ot_cpu_device *)event->base.device)->event_sleepers;
    for (uint32_t done = atomic_load_explicit(word, order); (int32_t)(done - number) < 0;
         done = atomic_load_explicit(word, order))
        wait_for_change(word, sleepers, done);
}

static void run_record(struct ot_lane *lane, const void *args) {
    const struct record *record = args;
    struct cpu_event *event = record->event;
    /* The record EVENT_RECORDS earlier uses the same word. If it was enqueued on a slow lane, it may not have
     * run yet. */
    wait_for_record(event, record->number - EVENT_RECORDS, memory_order_relaxed);
    uint32_t slot = record->number % EVENT_RECORDS;
    atomic_store_explicit(&event->error[slot], ((struct cpu_lane *)lane)->error, memory_order_relaxed);
    atomic_store_explicit(&event->seconds, ot_clock_seconds(), memory_order_relaxed);
    atomic_store_explicit(&event->done[slot], record->number, memory_order_release);
    wake_all(&event->done[slot], &device_of(lane)->event_sleepers);
}

static void lane_record(struct ot_lane *lane, struct ot_event *base) {
    struct cpu_event *event = (struct cpu_event *)base;
    uint32_t number = atomic_fetch_add_explicit(&event->enqueued, 1, memory_order_relaxed) + 1;
    push(lane, run_record, true, &(struct record){event, number}, sizeof(struct record));
}

static void run_wait(struct ot_lane *lane, const void *args) {
    (void)lane;
    const struct record *record = args;
    wait_for_record(record->event, record->number, memory_order_acquire);
}

static void lane_wait(struct ot_lane *lane, struct ot_event *base) {
    struct cpu_event *event = (struct cpu_event *)base;
    uint32_t number = atomic_load_explicit(&event->enqueued, memory_order_relaxed);
    if (number > 0)
        push(lane, run_wait, true, &(struct record){event, number}, sizeof(struct record));
}

static int event_sync(struct ot_event *base) {
    struct cpu_event *event = (struct cpu_event *)base;
    uint32_t number = atomic_load_explicit(&event->enqueued, memory_order_relaxed);
    if (number == 0)
        return 0;
    wait_for_record(event, number, memory_order_acquire);
    const struct ot_error *error =
        atomic_load_explicit(&event->error[number % EVENT_RECORDS], memory_order_relaxed);
    return error ? ot_error_load(error) : 0;
}

static int event_seconds(struct ot_event *base, double *out) {
    struct cpu_event *event = (struct cpu_event *)base;
    OT_TRY(event_sync(base));
    *out = atomic_load_explicit(&event->seconds, memory_order_relaxed);
    return 0;
}

static int lane_error(const struct ot_lane *base) {
    const struct ot_error *error =
        atomic_load_explicit(&((const struct cpu_lane *)base)->error, memory_order_acquire);
    return error ? ot_error_load(error) : 0;
}

static int lane_sync(struct ot_lane *base) {
    struct cpu_lane *lane = (struct cpu_lane *)base;
    lane_record(base, lane->idle);
    return event_sync(lane->idle);
}

/* Bytes of fresh device memory: a NaN in fp32, fp16 and bf16, and -1 as a token. */
enum { POISON = 0xff };

enum { ALIGN = 256, HUGE_PAGE = 2 << 20 };

static struct ot_cpu_device *cpu(const struct ot_device *device) {
    return (struct ot_cpu_device *)(uintptr_t)device;
}

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* ---- device memory ----
 *
 * Each allocation is a separate mapping. Behind its end is a page without access, so an op that runs over the
 * end faults at once. Freed memory is unmapped, so a later access faults too. */

/* The bytes of a mapping that can be accessed; the page behind them cannot. */
static size_t body_bytes(size_t bytes) {
    return round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
}

static size_t mapping_bytes(size_t bytes) {
    return body_bytes(bytes) + (size_t)sysconf(_SC_PAGESIZE);
}

static int alloc_device(struct ot_device *device, size_t bytes, const char *name, void **out) {
    size_t body = body_bytes(bytes), mapped = mapping_bytes(bytes);
    unsigned char *mapping =
        mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes left for '%s'", bytes, name);
    if (mprotect(mapping, body, PROT_READ | PROT_WRITE) != 0) {
        int error = errno;
        munmap(mapping, mapped);
        return ot_fail_errno(OT_E_BUDGET, error, "the machine has no %zu bytes left for '%s'", bytes, name);
    }
    if (body >= HUGE_PAGE)
        madvise(mapping, body, MADV_HUGEPAGE); /* a failure costs speed only */
    /* before the first touch, which decides where the pages come from */
    int rc = ot_device_place(device, mapping, body, name);
    if (rc < 0) {
        munmap(mapping, mapped);
        return rc;
    }
    memset(mapping, POISON, body);
    *out = mapping + body - round_up(bytes, ALIGN);
    return 0;
}

static void free_device(struct ot_device *device, void *memory, size_t bytes) {
    (void)device;
    munmap((char *)memory + round_up(bytes, ALIGN) - body_bytes(bytes), mapping_bytes(bytes));
}

/* ---- the device ---- */

static int open_device(const struct ot_device_config *config, struct ot_device **out) {
    OT_TRY(ot_cpu_blas_open());
    struct ot_cpu_device *self = calloc(1, sizeof *self);
    if (!self)
        return ot_fail(OT_E_DEVICE, "no memory to open the cpu device");
    struct ot_pool_config pool = {.threads = config->threads,
                                  .name = "compute",
                                  .on_start = config->placement.thread,
                                  .arg = config->placement.context};
    size_t machine_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    struct ot_device_usage usage = {.budget_bytes =
                                        config->memory_bytes ? config->memory_bytes : machine_bytes};
    struct ot_cpu_ops_build build = ot_cpu_ops_choose();
    int rc = ot_device_begin(&self->base, &ot_cpu_device_api, build.ops, &config->placement, &usage);
    if (rc == 0 && (rc = ot_pool_open_with(&pool, &self->pool)) < 0)
        ot_device_end(&self->base);
    if (rc < 0) {
        free(self);
        return rc;
    }
    self->delay_seed = config->lane_delay_seed;
    snprintf(self->name, sizeof self->name, "cpu (%d %s, %s, %s)", config->threads,
             config->threads == 1 ? "thread" : "threads", build.name, ot_cpu_blas_name());
    snprintf(self->arithmetic, sizeof self->arithmetic, "%s kernels, %s", build.name,
             ot_cpu_blas_arithmetic());

    *out = &self->base;
    return 0;
}

static void close_device(struct ot_device *device) {
    struct ot_cpu_device *self = cpu(device);
    assert(atomic_load(&self->n_lanes) == 0 && atomic_load(&self->n_events) == 0);
    ot_pool_close(self->pool);
    ot_device_end(device);
    free(self);
}

static const char *get_name(const struct ot_device *device) {
    return cpu(device)->name;
}

static const char *get_arithmetic(const struct ot_device *device) {
    return cpu(device)->arithmetic;
}

static bool is_present(void) {
    return true;
}

static bool has_dtype(const struct ot_device *device, enum ot_dtype dtype) {
    (void)device, (void)dtype;
    return true;
}

const struct ot_device_api ot_cpu_device_api = {
    .is_present = is_present,
    .open = open_device,
    .close = close_device,
    .name = get_name,
    .arithmetic = get_arithmetic,
    .has_dtype = has_dtype,
    .alloc = alloc_device,
    .free = free_device,
    .lane_open = lane_open,
    .lane_close = lane_close,
    .copy = lane_copy,
    .copy_rows = lane_copy_rows,
    .fill = lane_fill,
    .notify = lane_notify,
    .call = lane_call,
    .lane_error = lane_error,
    .lane_sync = lane_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .record = lane_record,
    .wait = lane_wait,
    .event_sync = event_sync,
    .event_create_timed = event_create, /* every event of this device stores its time */
    .event_seconds = event_seconds,
};
