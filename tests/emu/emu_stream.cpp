/* Streams and events: each stream is a thread with a queue.
 *
 * A stream's writes must become visible to another stream, or to the caller, through events and
 * synchronisation only. Then a missing dependency is a data race that ThreadSanitizer reports and random
 * delays trigger. So nothing in this file orders a stream's work before the thread that enqueues on it: the
 * caller publishes a command by a release store and wakes the stream by a futex, and takes no lock that the
 * stream's thread takes. (One hidden order remains: kernels of different streams take turns.) */
#include <atomic>
#include <deque>
#include <functional>
#include <limits.h>
#include <linux/futex.h>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <set>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_runtime.h"
#include "tests/emu/emu_symbols.h"

static constexpr uint32_t LONGEST_DELAY_NS = 200000;

struct Command {
    std::atomic<Command *> next{nullptr};
    std::function<void()> run;
    bool always = false; /* also runs after the GPU has failed, because others wait for it */
};

/* One cudaEventRecord. Records live as long as their event, because counting references would order
 * threads. */
struct Record {
    std::atomic<uint32_t> done{0};
    struct timespec when;
};

struct CUevent_st {
    bool timed, blocking;
    std::mutex mutex; /* taken by threads that enqueue, never by streams' threads */
    std::deque<Record> records;
};

struct CUstream_st {
    std::thread thread;
    uint64_t delay_state;

    std::mutex mutex; /* taken by threads that enqueue */
    Command *last;
    Command *first; /* used by the stream's thread: it has run */
    std::atomic<uint32_t> pushed{0}, finished{0};
    bool stopping = false; /* used by the stream's thread */
};

namespace ot_emu {

static std::atomic<uint64_t> delay_seed{setting("OT_EMU_DELAY_SEED")}, stream_numbers{0};
static std::mutex open_streams_mutex;
static std::set<CUstream_st *> open_streams;

/* ---- words that threads wait for ---- */

static void wake_all(std::atomic<uint32_t> *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

static void wait_for_change(std::atomic<uint32_t> *word, uint32_t seen) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

static void wait_until_done(Record *record) {
    while (record->done.load(std::memory_order_acquire) == 0)
        wait_for_change(&record->done, 0);
}

/* ---- the stream's thread ---- */

static void delay(CUstream_st *stream) {
    stream->delay_state =
        /* constants of Knuth's MMIX generator */
        stream->delay_state * 6364136223846793005u + 1442695040888963407u;
    uint32_t random = (uint32_t)(stream->delay_state >> 33);
    if (random % 2 == 0)
        return;
    struct timespec time = {0, (long)(random / 2 % LONGEST_DELAY_NS)};
    nanosleep(&time, nullptr);
}

static Command *take(CUstream_st *stream) {
    for (;;) {
        uint32_t seen = stream->pushed.load(std::memory_order_acquire);
        Command *next = stream->first->next.load(std::memory_order_acquire);
        if (next) {
            delete stream->first;
            stream->first = next;
            return next;
        }
        wait_for_change(&stream->pushed, seen);
    }
}

static void serve(CUstream_st *stream) {
    while (!stream->stopping) {
        Command *command = take(stream);
        if (stream->delay_state)
            delay(stream);
        if (command->always || command_may_run())
            command->run();
        command->run = nullptr; /* destroys the kernel's arguments on this thread */
        stream->finished.fetch_add(1, std::memory_order_release);
    }
}

/* Returns the number of the command: how many the stream has got so far. */
static uint32_t push(CUstream_st *stream, bool always, std::function<void()> run) {
    Command *command = new Command;
    command->run = std::move(run);
    command->always = always;
    std::lock_guard<std::mutex> lock(stream->mutex);
    stream->last->next.store(command, std::memory_order_release);
    stream->last = command;
    uint32_t pushed = stream->pushed.fetch_add(1, std::memory_order_release) + 1;
    count_queued((int64_t)(uint32_t)(pushed - stream->finished.load(std::memory_order_relaxed)));
    wake_all(&stream->pushed);
    return pushed;
}

static CUstream_st *open_stream() {
    CUstream_st *stream = new CUstream_st;
    uint64_t seed = delay_seed, number = stream_numbers++;
    stream->delay_state = seed ? seed * 0x9e3779b97f4a7c15u + number : 0;
    stream->first = stream->last = new Command;
    stream->thread = std::thread(serve, stream);
    std::lock_guard<std::mutex> lock(open_streams_mutex);
    open_streams.insert(stream);
    return stream;
}

static CUstream_st *default_stream() {
    static CUstream_st *stream = open_stream();
    return stream;
}

static CUstream_st *stream_of(cudaStream_t stream) {
    return stream ? stream : default_stream();
}

/* ---- events ---- */

static uint32_t record_on(CUstream_st *stream, Record *record) {
    return push(stream, true, [record] {
        clock_gettime(CLOCK_MONOTONIC, &record->when);
        record->done.store(1, std::memory_order_release);
        wake_all(&record->done);
    });
}

static Record *last_record(CUevent_st *event) {
    std::lock_guard<std::mutex> lock(event->mutex);
    return event->records.empty() ? nullptr : &event->records.back();
}

/* Returns once the stream is empty for cudaStreamQuery too: its thread counts a command a moment after the
 * command has run. */
static void drain(CUstream_st *stream) {
    Record record;
    uint32_t number = record_on(stream, &record);
    wait_until_done(&record);
    while ((int32_t)(stream->finished.load(std::memory_order_acquire) - number) < 0)
        sched_yield();
}

/* ---- copies ---- */

static cudaError_t check_end(const char *end, const void *p, size_t bytes) {
    if (is_device_memory(p, bytes))
        return cudaSuccess;
    return refuse(cudaErrorInvalidValue, "a copy of %zu bytes: its %s at %p is not device memory: %s", bytes,
                  end, p, describe_address(p).c_str());
}

static void run_launch(const ot_emu_call *call, dim3 grid, dim3 block_size, size_t shared_bytes) {
    std::string report;
    cudaError_t error = run_grid(call, grid, block_size, shared_bytes, &report);
    if (error != cudaSuccess)
        set_sticky(error, report);
}

static cudaError_t check_shape(const ot_emu_call *call, dim3 grid, dim3 size, size_t shared_bytes) {
    auto kernel = [&] { return symbol_name(call->kernel); }; /* slow, so it is called for refusals only */
    uint64_t threads = (uint64_t)size.x * size.y * size.z;
    if (threads == 0 || threads > MAX_THREADS || size.z > 64)
        return refuse(cudaErrorInvalidConfiguration, "kernel %s: a block of %u x %u x %u threads",
                      kernel().c_str(), size.x, size.y, size.z);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > INT_MAX || grid.y > 65535 || grid.z > 65535)
        return refuse(cudaErrorInvalidConfiguration, "kernel %s: a grid of %u x %u x %u blocks",
                      kernel().c_str(), grid.x, grid.y, grid.z);
    if (shared_bytes > (size_t)card().shared_bytes)
        return refuse(cudaErrorInvalidValue, "kernel %s: %zu bytes of shared memory, but a block may have %d",
                      kernel().c_str(), shared_bytes, card().shared_bytes);
    return cudaSuccess;
}

/* ---- kernels that tests choose by name ---- */

struct Chosen {
    std::mutex mutex;
    std::string part;                  /* "": no kernel */
    std::map<const void *, bool> seen; /* kernels whose names were checked */

    void choose(const char *part_of_name) {
        std::lock_guard<std::mutex> lock(mutex);
        part = part_of_name ? part_of_name : "";
        seen.clear();
    }
    bool has(const void *kernel) {
        std::lock_guard<std::mutex> lock(mutex);
        if (part.empty())
            return false;
        auto found = seen.find(kernel);
        if (found == seen.end())
            found = seen.insert({kernel, symbol_name(kernel).find(part) != std::string::npos}).first;
        return found->second;
    }
};

static Chosen broken, changed;
static std::atomic<void (*)(void *)> change_first;

} // namespace ot_emu

using namespace ot_emu;

void ot_emu_break_kernels(const char *part_of_name) {
    broken.choose(part_of_name);
}

void ot_emu_change_arguments(const char *part_of_name, void (*change)(void *)) {
    change_first = change;
    changed.choose(part_of_name);
}

void ot_emu_set_delays(uint64_t seed) {
    delay_seed = seed;
}

cudaError_t ot_emu_launch(ot_emu_call *new_call, dim3 grid, dim3 block_size, size_t shared_bytes,
                          cudaStream_t stream) {
    std::shared_ptr<ot_emu_call> call(new_call);
    cudaError_t error = enter("cudaLaunchKernel");
    if (error == cudaSuccess)
        error = check_shape(call.get(), grid, block_size, shared_bytes);
    if (error != cudaSuccess)
        return leave(error);
    count_launch();
    if (broken.has(call->kernel))
        return cudaSuccess;
    void (*change)(void *) = changed.has(call->kernel) ? change_first.load() : nullptr;
    push(stream_of(stream), false, [=] {
        if (change)
            change(call->first());
        run_launch(call.get(), grid, block_size, shared_bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    OT_EMU_ENTER();
    if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice)
        return leave(cudaErrorInvalidMemcpyDirection);
    if (bytes == 0)
        return cudaSuccess;
    bool from_host = kind == cudaMemcpyHostToDevice, to_host = kind == cudaMemcpyDeviceToHost;
    cudaError_t error = to_host ? cudaSuccess : check_end("destination", dst, bytes);
    if (error == cudaSuccess && !from_host)
        error = check_end("source", src, bytes);
    if (error != cudaSuccess)
        return leave(error);
    if ((from_host && leaves_registration(src, bytes)) || (to_host && leaves_registration(dst, bytes)))
        return leave(refuse(cudaErrorInvalidValue,
                            "cudaMemcpyAsync: the %zu bytes of host memory are not in one "
                            "registration",
                            bytes));
    bool pageable = (from_host && !is_registered(src, bytes)) || (to_host && !is_registered(dst, bytes));
    count_copy(pageable);
    if (pageable) { /* like the real runtime, the call waits for the stream, and copies */
        push(stream_of(stream), false, [=] { memcpy(dst, src, bytes); });
        drain(stream_of(stream));
        return cudaSuccess;
    }
    push(stream_of(stream), false, [=] { memcpy(dst, src, bytes); });
    return cudaSuccess;
}

/* All devices' memory is in one range of addresses. */
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t bytes,
                                cudaStream_t stream) {
    return dst_device == src_device ? leave(cudaErrorInvalidDevice)
                                    : cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    OT_EMU_ENTER();
    if (kind != cudaMemcpyDeviceToDevice)
        return leave(cudaErrorInvalidMemcpyDirection);
    if (width == 0 || height == 0)
        return cudaSuccess;
    if (dst_pitch < width || src_pitch < width)
        return leave(cudaErrorInvalidPitchValue);
    cudaError_t error = check_end("destination", dst, (height - 1) * dst_pitch + width);
    if (error == cudaSuccess)
        error = check_end("source", src, (height - 1) * src_pitch + width);
    if (error != cudaSuccess)
        return leave(error);
    push(stream_of(stream), false, [=] {
        for (size_t i = 0; i < height; i++)
            memcpy((char *)dst + i * dst_pitch, (const char *)src + i * src_pitch, width);
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int byte, size_t bytes, cudaStream_t stream) {
    OT_EMU_ENTER();
    if (bytes == 0)
        return cudaSuccess;
    cudaError_t error = check_end("destination", memory, bytes);
    if (error != cudaSuccess)
        return leave(error);
    push(stream_of(stream), false, [=] { memset(memory, byte, bytes); });
    return cudaSuccess;
}

/* Like the real runtime, it calls nothing on a device that has failed. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data) {
    OT_EMU_ENTER();
    push(stream_of(stream), true, [=] {
        if (sticky_error() != cudaSuccess)
            return;
        in_host_function = true;
        fn(user_data);
        in_host_function = false;
    });
    return cudaSuccess;
}

/* ---- streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    OT_EMU_ENTER();
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int) {
    OT_EMU_ENTER();
    *out = open_stream();
    count_stream(1);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (!stream)
        return leave(cudaErrorInvalidResourceHandle);
    {
        std::lock_guard<std::mutex> lock(open_streams_mutex);
        open_streams.erase(stream);
    }
    push(stream, true, [stream] { stream->stopping = true; });
    stream->thread.join();
    delete stream->first;
    delete stream;
    count_stream(-1);
    return leave(enter("cudaStreamDestroy"));
}

cudaError_t cudaDeviceSynchronize(void) {
    OT_EMU_ENTER();
    std::lock_guard<std::mutex> lock(open_streams_mutex);
    for (CUstream_st *stream : open_streams)
        drain(stream);
    return leave(sticky_error());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    OT_EMU_ENTER();
    drain(stream_of(stream));
    return leave(sticky_error());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    OT_EMU_ENTER();
    CUstream_st *s = stream_of(stream);
    uint32_t finished = s->finished.load(std::memory_order_acquire);
    return finished == s->pushed.load(std::memory_order_relaxed) ? leave(sticky_error()) : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    OT_EMU_ENTER();
    Record *record = last_record(event);
    if (record)
        push(stream_of(stream), true, [record] { wait_until_done(record); });
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    OT_EMU_ENTER();
    *out = new CUevent_st;
    (*out)->timed = !(flags & cudaEventDisableTiming);
    (*out)->blocking = flags & cudaEventBlockingSync;
    count_event(1, (*out)->blocking);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

/* Streams may not have reached the event yet, so it is only moved to a list. */
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    static std::mutex mutex;
    /* stays reachable until the process ends, for leak checkers */
    static auto *destroyed = new std::deque<CUevent_st *>;
    if (!event)
        return leave(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::mutex> lock(mutex);
    destroyed->push_back(event);
    count_event(-1, event->blocking);
    return leave(enter("cudaEventDestroy"));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    OT_EMU_ENTER();
    Record *record;
    {
        std::lock_guard<std::mutex> lock(event->mutex);
        event->records.emplace_back();
        record = &event->records.back();
    }
    record_on(stream_of(stream), record);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    OT_EMU_ENTER();
    Record *record = last_record(event);
    if (!record || record->done.load(std::memory_order_acquire))
        return leave(sticky_error());
    if (!event->blocking)
        count_spinning_wait();
    wait_until_done(record);
    return leave(sticky_error());
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    OT_EMU_ENTER();
    Record *record = last_record(event);
    if (record && record->done.load(std::memory_order_acquire) == 0)
        return cudaErrorNotReady;
    return leave(sticky_error());
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    OT_EMU_ENTER();
    Record *from = last_record(start), *to = last_record(end);
    if (!start->timed || !end->timed || !from || !to)
        return leave(cudaErrorInvalidResourceHandle);
    if (from->done.load(std::memory_order_acquire) == 0 || to->done.load(std::memory_order_acquire) == 0)
        return cudaErrorNotReady;
    *milliseconds = (float)((double)(to->when.tv_sec - from->when.tv_sec) * 1e3 +
                            (double)(to->when.tv_nsec - from->when.tv_nsec) * 1e-6);
    return cudaSuccess;
}
