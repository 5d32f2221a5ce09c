/* The functions that code compiled with -fsanitize=thread,alignment calls: one for each kind of load and
 * store, and one for pointers that are not aligned to their type. They have the names of the compiler's own
 * runtimes, which are not linked. Calls from host code in the same sources are ignored. */
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu.h"
#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"

using namespace ot_emu;

const bool ot_emu::checks_are_on = [] {
    const char *value = getenv("OT_EMU_CHECKS");
    if (value && strcmp(value, "slow") == 0)
        return getenv("OT_TEST_SLOW") != nullptr;
    return !value || strcmp(value, "0") != 0;
}();

#ifdef OT_EMU_CHECK_ACCESSES

#define CHECK(access, at, bytes)                                                                             \
    if (checks_are_on && current)                                                                            \
    check_instruction(access, at, bytes, __builtin_return_address(0))

#define ACCESSES(bytes)                                                                                      \
    extern "C" void __tsan_read##bytes(void *at) {                                                           \
        CHECK(Access::READ, at, bytes);                                                                      \
    }                                                                                                        \
    extern "C" void __tsan_write##bytes(void *at) {                                                          \
        CHECK(Access::WRITE, at, bytes);                                                                     \
    }                                                                                                        \
    extern "C" void __tsan_unaligned_read##bytes(void *at) {                                                 \
        CHECK(Access::READ, at, bytes);                                                                      \
    }                                                                                                        \
    extern "C" void __tsan_unaligned_write##bytes(void *at) {                                                \
        CHECK(Access::WRITE, at, bytes);                                                                     \
    }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" void __tsan_read_range(void *at, unsigned long bytes) {
    CHECK(Access::READ, at, bytes);
}
extern "C" void __tsan_write_range(void *at, unsigned long bytes) {
    CHECK(Access::WRITE, at, bytes);
}
extern "C" void __tsan_vptr_update(void **, void *) {}
extern "C" void __tsan_vptr_read(void **) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

/* The first members of the compiler's description of such a place (libubsan's TypeMismatchData). */
struct TypeMismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
};

extern "C" void __ubsan_handle_type_mismatch_v1(TypeMismatch *data, unsigned long at) {
    if (!current || !checks_are_on)
        return;
    ot_emu_site site = {data->file, (int)data->line};
    OT_EMU_FAIL(cudaErrorMisalignedAddress, site, "an access at %p, which is not aligned to %d bytes",
                (void *)at, 1 << data->log_alignment);
}

bool ot_emu_checks_accesses(void) {
    return checks_are_on;
}

#else

bool ot_emu_checks_accesses(void) {
    return false;
}

#endif
