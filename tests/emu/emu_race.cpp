/* The race check: a shadow of shared and device memory records who touched which byte when.
 *
 * Time is divided into intervals, numbered through all launches. A new interval begins with each block and
 * after each __syncthreads. Blocks run one after another, so an interval belongs to one block, and "another
 * block of this launch" is a comparison of numbers. Two lanes of a warp are ordered if a __syncwarp lies
 * between their accesses (the warp's epoch differs). Within an interval, two warps are ordered by mbarriers
 * and named barriers alone: a warp knows up to which epoch of each other warp it has seen everything
 * (emu_mbarrier.cpp, emu_named_barrier.cpp).
 * Shuffles, votes and mma give no order: CUDA promises order for barriers only.
 *
 * Each two bytes of memory have a cell with their last write and two readers. For these bytes that is enough
 * to find every race that the order of this run shows. A writer that has passed the check is ordered after
 * the accesses that it replaces. Of the readers it matters only whether they belong to one thread, one warp
 * or several warps. So the second reader is of another warp than the first, and MANY means that other lanes
 * of the same warp have read in the same epoch.
 *
 * Between blocks there is one way to be ordered: work before a __threadfence and an atomic in one block comes
 * before work after a later atomic on the same number in another block. */
#include <algorithm>
#include <link.h>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/emu_runtime.h"

namespace ot_emu {

/* From the lowest bit: the interval, 32 bits; the warp's epoch within the interval, 16; the number of the
 * thread and flags, 16. It is one word because a CPU stalls where a load follows stores of smaller parts. */
struct Mark {
    uint64_t bits;

    enum : uint64_t { THREAD = 0x3ff };
    enum : uint64_t {
        MANY = 0x400ull << 48,
        ATOMIC = 0x800ull << 48,
        LOW = 0x1000ull << 48,
        HIGH = 0x2000ull << 48,
        COPY = 0x4000ull << 48
    };
    uint32_t interval() const { return (uint32_t)bits; }
    uint32_t epoch() const { return (uint16_t)(bits >> 32); }
    int thread() const { return (int)(bits >> 48 & THREAD); }
    int warp() const { return thread() / WARP; }
    uint64_t bytes() const { return bits & (LOW | HIGH); }
    bool is(uint64_t flag) const { return (bits & flag) != 0; }
};
static_assert(MAX_THREADS == Mark::THREAD + 1, "a thread's number fits");

struct Cell {
    Mark write, reader, other_reader; /* reader and other_reader are of different warps */
};

static constexpr size_t SHARED_ROOM = 256 << 10;
static Cell *arena_cells, *shared_cells;
static uint32_t write_times[SHARED_ROOM / 2]; /* fence_time at the last write to each cell of shared memory */

/* numbers of intervals: the current one, the first one of the block, the first one of the launch */
static uint32_t now, block_first, launch_first;
/* first intervals of the launch's blocks, in the order in which they ran */
static std::vector<uint32_t> block_starts;
static std::vector<uint3> block_indices;

/* ---- order between blocks ---- */

struct Handshake {
    /* blocks that fenced and then did an atomic here: their indices in block_starts */
    std::set<size_t> blocks;
};
static std::map<const void *, Handshake> handshakes;
static std::set<size_t> seen_blocks; /* blocks that the running block is ordered after */
static bool fenced;                  /* the running block has fenced */

static size_t block_of(uint32_t interval) {
    return (size_t)(std::upper_bound(block_starts.begin(), block_starts.end(), interval) -
                    block_starts.begin()) -
           1;
}

static bool has_seen_block_of(uint32_t interval) {
    return !seen_blocks.empty() && seen_blocks.count(block_of(interval)) > 0;
}

static void shake_hands(const void *at) {
    auto found = handshakes.find(at);
    if (found != handshakes.end())
        seen_blocks.insert(found->second.blocks.begin(), found->second.blocks.end());
    if (!fenced)
        return;
    Handshake *mine = &handshakes[at];
    mine->blocks.insert(seen_blocks.begin(), seen_blocks.end());
    mine->blocks.insert(block_starts.size() - 1);
}

/* ---- one cell ---- */

struct Toucher {
    Thread *thread;
    Mark mark;
    uint32_t first; /* first interval that matters: the launch's; for shared memory the block's */
    Access access;
};

/* True if the mark is of an earlier block of this launch that the running block is not ordered after. */
static inline bool is_other_block(Mark m, const Toucher &t) {
    return m.interval() >= t.first && m.interval() < block_first && !has_seen_block_of(m.interval());
}

/* True if the marked access is certainly ordered before this one. */
static inline bool is_past(Mark m, const Toucher &t) {
    return m.interval() < t.first || (m.interval() >= block_first && m.interval() < now && !m.is(Mark::COPY));
}

/* True if the marked access and this one are not ordered. */
static bool is_concurrent(Mark m, const Toucher &t) {
    if (m.interval() != now)
        return is_other_block(m, t);
    if (m.is(Mark::ATOMIC) && m.is(Mark::MANY))
        return true;
    if (m.warp() != t.mark.warp())
        return m.epoch() >= t.thread->warp->seen.epochs[m.warp()];
    return m.epoch() == t.mark.epoch() && (m.thread() != t.mark.thread() || m.is(Mark::MANY));
}

static bool overlaps(Mark m, const Toucher &t) {
    return (m.bytes() & t.mark.bytes()) != 0;
}

static void merge_reader(Mark *reader, const Toucher &t) {
    if (reader->epoch() != t.mark.epoch() || reader->bytes() != t.mark.bytes())
        *reader = t.mark;
    else if (reader->thread() != t.mark.thread())
        reader->bits |= Mark::MANY;
}

/* A reader of another block is enough to know: no later write is ordered after it. */
static void note_read(Cell *cell, const Toucher &t) {
    if (is_other_block(cell->reader, t))
        return;
    if (cell->reader.interval() != now)
        cell->reader = t.mark;
    else if (cell->reader.warp() == t.mark.warp())
        merge_reader(&cell->reader, t);
    else if (cell->other_reader.interval() != now)
        cell->other_reader = t.mark;
    else if (cell->other_reader.warp() == t.mark.warp())
        merge_reader(&cell->other_reader, t);
}

static void note_write(Cell *cell, const Toucher &t) {
    Mark mark = t.mark;
    if (t.access == Access::ATOMIC) {
        mark.bits |= Mark::ATOMIC;
        bool joins = cell->write.interval() == now && cell->write.is(Mark::ATOMIC);
        if (joins && (cell->write.thread() != mark.thread() || cell->write.is(Mark::MANY)))
            mark.bits |= Mark::MANY;
    }
    cell->write = mark;
}

/* ---- reports ---- */

static std::string describe_other(Mark m) {
    Thread *thread = &block.threads[m.thread()];
    std::string text = m.is(Mark::MANY) ? "several threads of its warp, one of them " : "";
    if (m.interval() < block_first) {
        uint3 index = block_indices[block_of(m.interval())];
        text += "block (" + std::to_string(index.x) + "," + std::to_string(index.y) + "," +
                std::to_string(index.z) + "), ";
    }
    return text + name_of(thread);
}

struct Place {
    const void *pc; /* NULL, or the instruction; then */
    ot_emu_site site;
};

static std::string name_of(const Place &place) {
    return place.pc ? ", in " + describe_code(place.pc) : "";
}

[[noreturn]] static void report_race(Mark m, const char *did, const Toucher &t, const void *at,
                                     const Place &place) {
    static const char *const verbs[] = {"read", "written", "changed by an atomic"};
    const char *since = m.interval() < block_first  ? "in this launch"
                        : m.warp() == t.mark.warp() ? "without a __syncwarp between"
                                                    : "without a __syncthreads between";
    OT_EMU_FAIL(cudaErrorLaunchFailure, place.site, "race: %s is %s here%s, and was %s by %s, %s",
                describe_place(at, t.thread).c_str(), verbs[(int)t.access], name_of(place).c_str(), did,
                describe_other(m).c_str(), since);
}

[[noreturn]] static void report_copy(Mark m, const Toucher &t, const void *at, const Place &place) {
    OT_EMU_FAIL(cudaErrorLaunchFailure, place.site,
                "%s is %s here%s, but the cp.async to it by %s has not been waited for",
                describe_place(at, t.thread).c_str(), t.access == Access::READ ? "read" : "written",
                name_of(place).c_str(), describe_other(m).c_str());
}

static void touch(Cell *cell, const Toucher &t, const void *at, const Place &place) {
    Mark write = cell->write;
    bool is_read = t.access == Access::READ;
    if (write.is(Mark::COPY) && write.interval() >= block_first)
        report_copy(write, t, at, place);
    bool both_atomic = t.access == Access::ATOMIC && write.is(Mark::ATOMIC);
    if (!both_atomic && overlaps(write, t) && is_concurrent(write, t))
        report_race(write, write.is(Mark::ATOMIC) ? "changed by an atomic" : "written", t, at, place);
    if (is_read) {
        note_read(cell, t);
        return;
    }
    for (Mark reader : {cell->reader, cell->other_reader})
        if (overlaps(reader, t) && is_concurrent(reader, t))
            report_race(reader, "read", t, at, place);
    note_write(cell, t);
}

/* True if this reader of the running interval already represents reads of the mark's thread. */
static inline bool includes(Mark reader, Mark mark) {
    return reader.epoch() == mark.epoch() && reader.is(Mark::MANY) && reader.bytes() == mark.bytes();
}

/* True for bytes that many threads read: every read after the first few adds nothing to the cell. */
static inline bool adds_nothing(const Cell *cell, Mark mark) {
    if (cell->reader.interval() != now)
        return false;
    if (cell->reader.warp() == mark.warp())
        return includes(cell->reader, mark);
    if (cell->other_reader.interval() != now)
        return false;
    return cell->other_reader.warp() != mark.warp() || includes(cell->other_reader, mark);
}

/* Handles the common cases: a repeated access, or no other thread since the last barrier. False: another
 * case. */
static inline bool touch_quickly(Cell *cell, const Toucher &t) {
    Mark *mine = t.access == Access::READ ? &cell->reader : &cell->write;
    if (mine->bits == t.mark.bits)
        return true;
    if (t.access == Access::ATOMIC || !is_past(cell->write, t))
        return false;
    if (t.access == Access::READ && adds_nothing(cell, t.mark))
        return true;
    if (!is_past(cell->reader, t))
        return false;
    if (t.access == Access::WRITE && !is_past(cell->other_reader, t))
        return false;
    *mine = t.mark;
    return true;
}

/* ---- memory that a thread may touch ---- */

static uintptr_t image_first, image_last; /* the program's own data: constants */

static int find_program(struct dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        image_first = image_first ? std::min(image_first, first) : first;
        image_last = std::max(image_last, first + info->dlpi_phdr[i].p_memsz);
    }
    return 1; /* the first image is the program; stop */
}

static bool is_within(const void *at, size_t bytes, const void *first, size_t room) {
    return (uintptr_t)at - (uintptr_t)first < room && (uintptr_t)at - (uintptr_t)first + bytes <= room;
}

/* The thread's stack, the kernel's arguments, constants, mapped host memory. */
static bool is_private(const Toucher &t, const void *at, size_t bytes) {
    if (is_within(at, bytes, t.thread->fiber->low, t.thread->fiber->bytes))
        return true;
    if (t.access == Access::READ && (is_within(at, bytes, block.call, block.call->bytes) ||
                                     is_within(at, bytes, (void *)image_first, image_last - image_first)))
        return true;
    return is_mapped(at, bytes);
}

[[noreturn]] static void report_outside(const Toucher &t, const void *at, size_t bytes, const Place &place) {
    OT_EMU_FAIL(cudaErrorIllegalAddress, place.site, "%zu bytes at %p are %s%s: %s", bytes, at,
                t.access == Access::READ ? "read" : "written", name_of(place).c_str(),
                describe_place(at, t.thread).c_str());
}

static bool is_alive(const void *at, size_t bytes) {
    size_t offset = (size_t)((const char *)at - arena_base), within = offset % PAGE;
    PageBounds bounds = page_bounds[offset >> PAGE_SHIFT];
    if (within + bytes <= PAGE)
        return within >= bounds.first && within + bytes <= bounds.last;
    return is_device_memory(at, bytes); /* the access crosses into the next page */
}

/* The cells of the memory if it may be touched; NULL for memory without cells. */
static Cell *find_cells(Toucher *t, const void *at, size_t bytes, const Place &place) {
    uintptr_t in_shared = (uintptr_t)at - (uintptr_t)block.shared;
    if (in_shared < block.shared_bytes) {
        if (in_shared + bytes > block.shared_bytes)
            report_outside(*t, at, bytes, place);
        t->first = block_first;
        return shared_cells + in_shared / 2;
    }
    uintptr_t in_arena = (uintptr_t)at - (uintptr_t)arena_base;
    if (arena_base && in_arena < ARENA_BYTES) {
        if (!is_alive(at, bytes))
            report_outside(*t, at, bytes, place);
        return arena_cells + in_arena / 2;
    }
    if (!is_private(*t, at, bytes))
        report_outside(*t, at, bytes, place);
    const char *what = t->thread->wgmma_fence ? wgmma_touch(t->thread, t->access, at, bytes) : nullptr;
    if (what)
        OT_EMU_FAIL(cudaErrorLaunchFailure, place.site, "%s that has not been waited for are %s%s", what,
                    t->access == Access::READ ? "read" : "written", name_of(place).c_str());
    return nullptr;
}

static inline Toucher toucher_of(Thread *thread, Access access) {
    uint64_t who = (uint64_t)thread->number << 48 | Mark::LOW | Mark::HIGH;
    return {thread, {now | (uint64_t)(uint16_t)thread->warp->epoch << 32 | who}, launch_first, access};
}

/* For cells of shared memory: they are written now. Writes before the first fence of the block need no time:
 * the times of earlier blocks are before all fences of this one. */
static void note_time(const Cell *cell, size_t n) {
    size_t first = (size_t)(cell - shared_cells);
    for (size_t i = first; i < first + n && first < SHARED_ROOM / 2; i++)
        write_times[i] = fence_time;
}

/* Does nothing where OT_EMU_CHECKS turns the checks off: ordinary loads and stores are then unknown, so the
 * cells of the accesses that are calls of their own would say little. */
static void touch_all(Thread *thread, Access access, const void *at, size_t bytes, const Place &place) {
    if (!checks_are_on)
        return;
    Toucher t = toucher_of(thread, access);
    Cell *cell = find_cells(&t, at, bytes, place);
    if (!cell)
        return;
    if (block.has_proxy_fence && access != Access::READ)
        note_time(cell, (bytes + 1) / 2);
    if (bytes == 1) {
        t.mark.bits ^= (uintptr_t)at % 2 ? Mark::LOW : Mark::HIGH;
        touch(cell, t, at, place);
        return;
    }
    for (size_t i = 0; i < (bytes + 1) / 2; i++)
        if (!touch_quickly(cell + i, t))
            touch(cell + i, t, (const char *)at + 2 * i, place);
}

/* ---- calls during a launch ---- */

static Cell *map_cells(size_t memory_bytes) {
    void *p = mmap(nullptr, memory_bytes / 2 * sizeof(Cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("tests/emu: no addresses for the shadow of memory");
        abort();
    }
    return (Cell *)p;
}

void check_begin_grid() {
    if (!shared_cells) {
        shared_cells = map_cells(SHARED_ROOM);
        dl_iterate_phdr(find_program, nullptr);
    }
    if (!arena_cells && arena_base)
        arena_cells = map_cells(ARENA_BYTES);
    launch_first = now + 1;
    block_starts.clear();
    block_indices.clear();
    handshakes.clear();
}

/* Orders of warps within the interval before say nothing about the new one. */
static void begin_interval() {
    now++;
    for (int i = 0; i < block.n_warps; i++) {
        block.warps[i].epoch = 0;
        block.warps[i].seen = {};
    }
}

void check_begin_block() {
    begin_interval();
    block_first = now;
    block_starts.push_back(now);
    block_indices.push_back(block.index);
    seen_blocks.clear();
    fenced = false;
}

void check_next_interval() {
    begin_interval();
}

void check_access(Access access, const void *at, size_t bytes, ot_emu_site site) {
    touch_all(current, access, at, bytes, {nullptr, site});
    if (access == Access::ATOMIC)
        shake_hands(at);
}

void check_instruction(Access access, const void *at, size_t bytes, const void *pc) {
    touch_all(current, access, at, bytes, {pc, {}});
}

uint32_t check_interval() {
    return now;
}

/* The writer of each byte must have executed a fence of the proxies since. */
void check_async_read(Thread *thread, const void *at, size_t bytes, ot_emu_site site) {
    touch_all(thread, Access::READ, at, bytes, {nullptr, site});
    size_t first = (size_t)((const char *)at - block.shared) / 2;
    for (size_t i = first; i < first + bytes / 2; i++) {
        Mark write = shared_cells[i].write;
        Thread *writer = &block.threads[write.thread()];
        if (write.interval() >= block_first && write_times[i] >= writer->proxy_fence)
            OT_EMU_FAIL(cudaErrorLaunchFailure, site,
                        "wgmma reads %s, but %s, which wrote it, has executed no fence.proxy.async since",
                        describe_place(at, thread).c_str(), name_of(writer).c_str());
    }
}

void check_fence() {
    fenced = true;
}

void check_copy_begin(void *to, size_t bytes, ot_emu_site site) {
    if (!checks_are_on)
        return;
    touch_all(current, Access::WRITE, to, bytes, {nullptr, site});
    Cell *cell = shared_cells + ((char *)to - block.shared) / 2;
    for (size_t i = 0; i < bytes / 2; i++) {
        cell[i].write.bits |= Mark::COPY;
        cell[i].reader = {}; /* so that the thread's own reads are checked again */
    }
}

/* The thread that has waited writes the bytes of the copy now. */
void check_copy_end(void *to, size_t bytes) {
    if (!checks_are_on)
        return;
    Mark mark = toucher_of(current, Access::WRITE).mark;
    Cell *cell = shared_cells + ((char *)to - block.shared) / 2;
    for (size_t i = 0; i < bytes / 2; i++)
        cell[i].write = mark;
    note_time(cell, bytes / 2);
}

} // namespace ot_emu
