/* Device memory: allocations in one reserved range of addresses. Behind each allocation is a page without
 * access. Freed memory is unmapped, and its addresses are reused only after all others. */
#include <errno.h>
#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "tests/emu/emu_runtime.h"

namespace ot_emu {

static constexpr size_t MEMORY_ALIGNMENT = 256; /* alignment of cudaMalloc's results */

char *arena_base;
PageBounds *page_bounds; /* one for each page of the arena */

static std::mutex memory_mutex;
static std::map<char *, size_t> allocations, registrations;
static std::map<char *, size_t> mapped; /* registrations of cudaHostAlloc, which kernels may access */
static size_t allocated_bytes, registered_bytes;
static char *cursor;

static void *reserve(size_t bytes, int protection) {
    void *p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("tests/emu: no addresses for device memory");
        abort();
    }
    return p;
}

/* Fills fresh memory with poison. The larger part of it is mapped, piece by piece, from one file of poison.
 * That costs nothing for pages that are never written: a device's workspace is 64 MiB in tests that touch a
 * few KiB. */
static void fill_with_poison(char *pages, size_t bytes) {
    static constexpr size_t PIECE = 2 << 20;
    static int file = -1;
    while (bytes >= PIECE) {
        if (file < 0) {
            std::vector<char> poison(PIECE, (char)POISON);
            file = memfd_create("poison", MFD_CLOEXEC);
            if (file < 0 || write(file, poison.data(), PIECE) != (ssize_t)PIECE)
                break;
        }
        if (mmap(pages, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED)
            break;
        pages += PIECE;
        bytes -= PIECE;
    }
    memset(pages, POISON, bytes);
}

static void open_arena() {
    arena_base = cursor = (char *)reserve(ARENA_BYTES, PROT_NONE);
    page_bounds = (PageBounds *)reserve(ARENA_BYTES / PAGE * sizeof *page_bounds, PROT_READ | PROT_WRITE);
}

static size_t round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

static char *page_of(const void *p) {
    return (char *)((uintptr_t)p & ~(uintptr_t)(PAGE - 1));
}

/* The first free pages from the cursor on. The page after each allocation stays without access. */
static char *find_room(size_t pages_bytes) {
    char *at = cursor;
    for (int round = 0; round < 2; round++, at = arena_base) {
        for (auto next = allocations.lower_bound(at);; ++next) {
            char *end = next == allocations.end() ? arena_base + ARENA_BYTES : page_of(next->first);
            if (at + pages_bytes + PAGE <= end)
                return at;
            if (next == allocations.end())
                break;
            at = page_of(next->first + next->second - 1) + 2 * PAGE;
        }
    }
    return nullptr;
}

static void set_bounds(const char *memory, size_t bytes, bool alive) {
    for (const char *page = page_of(memory); page < memory + bytes; page += PAGE) {
        PageBounds *bounds = &page_bounds[(page - arena_base) >> PAGE_SHIFT];
        *bounds = {};
        if (alive) {
            bounds->first = (uint32_t)(memory > page ? memory - page : 0);
            bounds->last = (uint32_t)std::min(PAGE, (size_t)(memory + bytes - page));
        }
    }
}

/* The range that contains p, or the end. */
static std::map<char *, size_t>::iterator find(std::map<char *, size_t> &ranges, const void *p) {
    auto after = ranges.upper_bound((char *)p);
    if (after == ranges.begin())
        return ranges.end();
    --after;
    return (char *)p < after->first + after->second ? after : ranges.end();
}

static bool covers(std::map<char *, size_t> &ranges, const void *p, size_t bytes) {
    auto range = find(ranges, p);
    return range != ranges.end() && (const char *)p + bytes <= range->first + range->second;
}

bool is_device_memory(const void *p, size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return covers(allocations, p, bytes);
}

bool is_registered(const void *p, size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return covers(registrations, p, bytes);
}

bool leaves_registration(const void *p, size_t bytes) {
    return is_registered(p, 1) && !is_registered(p, bytes);
}

bool is_mapped(const void *p, size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    return covers(mapped, p, bytes);
}

std::string describe_address(const void *p) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    char text[128];
    auto after = allocations.upper_bound((char *)p);
    const char *at = (const char *)p;
    if (after != allocations.begin()) {
        auto before = std::prev(after);
        const char *end = before->first + before->second;
        if (at < end)
            snprintf(text, sizeof text, "byte %zu of an allocation of %zu bytes",
                     (size_t)(at - before->first), before->second);
        else
            snprintf(text, sizeof text, "%zu bytes past the end of an allocation of %zu bytes",
                     (size_t)(at - end), before->second);
        if (at < end || after == allocations.end() || at - end < after->first - at)
            return text;
    }
    if (after == allocations.end())
        return "in no allocation";
    snprintf(text, sizeof text, "%zu bytes before an allocation of %zu bytes", (size_t)(after->first - at),
             after->second);
    return text;
}

void memory_usage(struct ot_emu_usage *out) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    out->allocations = (int)allocations.size();
    out->registered = (int)registrations.size();
    out->allocated_bytes = allocated_bytes;
    out->registered_bytes = registered_bytes;
}

} // namespace ot_emu

using namespace ot_emu;

cudaError_t cudaMalloc(void **out, size_t bytes) {
    *out = nullptr;
    OT_EMU_ENTER();
    if (bytes == 0)
        return cudaSuccess;
    std::lock_guard<std::mutex> lock(memory_mutex);
    if (!arena_base)
        open_arena();
    if (bytes > card().memory_bytes - allocated_bytes)
        return leave(cudaErrorMemoryAllocation);
    size_t room = round_up(bytes, PAGE);
    char *pages = find_room(room);
    if (!pages || mprotect(pages, room, PROT_READ | PROT_WRITE) != 0)
        return leave(cudaErrorMemoryAllocation);
    char *memory = pages + room - round_up(bytes, MEMORY_ALIGNMENT);
    fill_with_poison(pages, room);
    set_bounds(memory, bytes, true);
    allocations[memory] = bytes;
    allocated_bytes += bytes;
    cursor = pages + room + PAGE;
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory) {
    if (!memory)
        return cudaSuccess;
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto allocation = allocations.find((char *)memory);
    if (allocation == allocations.end())
        return leave(refuse(cudaErrorInvalidValue, "cudaFree(%p): no allocation starts there", memory));
    char *pages = page_of(memory), *end = allocation->first + round_up(allocation->second, MEMORY_ALIGNMENT);
    set_bounds(allocation->first, allocation->second, false);
    mmap(pages, (size_t)(end - pages), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
    allocated_bytes -= allocation->second;
    allocations.erase(allocation);
    return leave(enter("cudaFree"));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    OT_EMU_ENTER();
    std::lock_guard<std::mutex> lock(memory_mutex);
    *total_bytes = card().memory_bytes;
    *free_bytes = card().memory_bytes - allocated_bytes;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    *out = nullptr;
    OT_EMU_ENTER();
    void *memory = malloc(bytes);
    if (memory)
        memset(memory, POISON, bytes); /* a real device does not clear the memory either */
    cudaError_t error = memory ? cudaHostRegister(memory, bytes, 0) : cudaErrorMemoryAllocation;
    if (error != cudaSuccess) {
        free(memory);
        return leave(error);
    }
    if (flags & cudaHostAllocMapped) {
        std::lock_guard<std::mutex> lock(memory_mutex);
        mapped[(char *)memory] = bytes;
    }
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory) {
    if (!memory)
        return cudaSuccess;
    {
        std::lock_guard<std::mutex> lock(memory_mutex);
        auto range = registrations.find((char *)memory);
        if (range == registrations.end())
            return leave(
                refuse(cudaErrorInvalidValue, "cudaFreeHost(%p): no allocation starts there", memory));
        registered_bytes -= range->second;
        registrations.erase(range);
        mapped.erase((char *)memory);
    }
    free(memory);
    return leave(enter("cudaFreeHost"));
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    OT_EMU_ENTER();
    if (!memory || bytes == 0)
        return leave(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto next = registrations.lower_bound((char *)memory);
    bool overlaps = find(registrations, memory) != registrations.end() ||
                    (next != registrations.end() && next->first < (char *)memory + bytes);
    if (overlaps)
        return leave(cudaErrorHostMemoryAlreadyRegistered);
    registrations[(char *)memory] = bytes;
    registered_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory) {
    std::lock_guard<std::mutex> lock(memory_mutex);
    auto range = registrations.find((char *)memory);
    if (range == registrations.end())
        return leave(cudaErrorHostMemoryNotRegistered);
    registered_bytes -= range->second;
    registrations.erase(range);
    return leave(enter("cudaHostUnregister"));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *memory) {
    OT_EMU_ENTER();
    *out = {cudaMemoryTypeUnregistered, -1, nullptr, (void *)memory};
    if (is_device_memory(memory, 1))
        *out = {cudaMemoryTypeDevice, 0, (void *)memory, nullptr};
    else if (is_registered(memory, 1))
        *out = {cudaMemoryTypeHost, 0, (void *)memory, (void *)memory};
    return cudaSuccess;
}
