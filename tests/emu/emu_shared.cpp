#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_runtime.h"

namespace ot_emu {

/* More than any GPU has; the limit of the launch is checked before. */
static constexpr size_t ROOM_BYTES = 256 << 10;
static constexpr size_t SHARED_ALIGNMENT = 128; /* as in kernel.cuh */

/* Places the block's bytes directly before a page without access, except for the bytes that aligning their
 * start leaves. */
void shared_begin(size_t bytes) {
    static char *end;
    if (!end) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *memory =
            (char *)mmap(nullptr, ROOM_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory + page, ROOM_BYTES, PROT_READ | PROT_WRITE) != 0) {
            perror("tests/emu: no memory for a block's shared memory");
            abort();
        }
        end = memory + page + ROOM_BYTES;
    }
    block.shared = end - (bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
    block.shared_bytes = bytes;
}

static size_t padded_bytes() {
    return (block.shared_bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
}

void shared_poison() {
    memset(block.shared, POISON, padded_bytes());
}

void shared_check_end() {
    for (size_t i = block.shared_bytes; i < padded_bytes(); i++)
        if ((unsigned char)block.shared[i] != POISON) {
            record_failure(cudaErrorIllegalAddress, nullptr, {},
                           "shared memory was written %zu bytes past its end (it has %zu)",
                           i - block.shared_bytes, block.shared_bytes);
            return;
        }
}

} // namespace ot_emu
