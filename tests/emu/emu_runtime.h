/* Declarations that the files of the emulated runtime share. */
#ifndef OT_EMU_RUNTIME_H
#define OT_EMU_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <string>

#include "tests/emu/emu.h"
#include "tests/emu/emu_faults.h"

namespace ot_emu {

/* Every call of the runtime begins with this. It returns an error to return at once, or cudaSuccess. */
cudaError_t enter(const char *function);
/* Stores an error for cudaGetLastError; returns it. */
cudaError_t leave(cudaError_t error);
#define OT_EMU_ENTER()                                                                                       \
    do {                                                                                                     \
        cudaError_t rc_ = ot_emu::enter(__func__);                                                           \
        if (rc_ != cudaSuccess)                                                                              \
            return ot_emu::leave(rc_);                                                                       \
    } while (0)

const ot_emu_card &card();
/* The device has failed for good: every later call returns the first such error. */
void set_sticky(cudaError_t error, const std::string &report);
cudaError_t sticky_error();
/* Refuses a call; the text appears in ot_emu_report() and cudaGetErrorString(error). */
cudaError_t refuse(cudaError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Streams call this before each command. False: the GPU is lost. */
bool command_may_run();

extern thread_local bool in_host_function; /* true where calls of the runtime are forbidden */

/* ---- emu_memory.cpp ---- */

/* Fills memory that no one has written: NaN in every format, -1 as an index. */
static constexpr int POISON = 0xff;

/* True if [p, p + bytes) lies in one live allocation (is_registered: in registered host memory). */
bool is_device_memory(const void *p, size_t bytes);
bool is_registered(const void *p, size_t bytes);
/* True if p lies in registered host memory that ends before p + bytes. */
bool leaves_registration(const void *p, size_t bytes);
bool is_mapped(const void *p, size_t bytes); /* host memory that kernels may access */
/* The bytes of the page of p that may be touched: [first, last) from the page's start. p must lie in the
 * arena. */
struct PageBounds {
    uint32_t first, last;
};
/* 64 KiB: the largest page of the systems that the tests run on. */
static const int PAGE_SHIFT = 16;
static const size_t PAGE = (size_t)1 << PAGE_SHIFT;
extern char *arena_base;
static const size_t ARENA_BYTES = (size_t)64 << 30;
extern PageBounds *page_bounds;
std::string describe_address(const void *p); /* "8 bytes past the end of an allocation of 96 bytes" */

/* ---- counters of ot_emu_usage ---- */

void count_stream(int change);
void count_event(int change, bool blocking);
void count_spinning_wait();
void count_queued(int64_t commands);
void count_launch();
void count_copy(bool pageable);
void memory_usage(struct ot_emu_usage *out);
void banks_usage(struct ot_emu_usage *out);
void banks_reset();

} // namespace ot_emu

#endif
