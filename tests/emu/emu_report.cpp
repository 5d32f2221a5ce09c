/* The texts of reports: names of kernels, threads and places. */
#include <stdarg.h>
#include <stdio.h>

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/emu_runtime.h"
#include "tests/emu/emu_symbols.h"

namespace ot_emu {

static std::string triple(uint3 v) {
    char text[64];
    snprintf(text, sizeof text, "(%u,%u,%u)", v.x, v.y, v.z);
    return text;
}

std::string name_of(const Thread *thread) {
    return "thread " + triple(thread->index);
}

std::string name_of(ot_emu_site site) {
    return site.file ? site.file + (":" + std::to_string(site.line)) : "";
}

void record_failure(cudaError_t error, const Thread *thread, ot_emu_site site, const char *format, ...) {
    char sentence[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    block.failed = true;
    block.error = error;
    block.report = "kernel " + symbol_name(block.call->kernel) + ", block " + triple(block.index);
    if (thread)
        block.report += ", " + name_of(thread);
    block.report += std::string(": ") + sentence;
    if (site.file)
        block.report += " (" + name_of(site) + ")";
}

std::string describe_place(const void *address, const Thread *thread) {
    const char *at = (const char *)address, *shared_end = block.shared + block.shared_bytes;
    if (at >= block.shared - PAGE && at < shared_end + PAGE)
        return "offset " + std::to_string(at - block.shared) + " of shared memory, which has " +
               std::to_string(block.shared_bytes) + " bytes";
    if (arena_base && at >= arena_base && at < arena_base + ARENA_BYTES)
        return describe_address(address);
    if (thread->fiber && at < thread->fiber->low && at >= thread->fiber->low - PAGE)
        return "past the end of the thread's stack";
    return "memory of the host";
}

std::string describe_code(const void *pc) {
    std::string line = source_line(pc);
    return symbol_name(pc) + (line.empty() ? "" : " (" + line + ")");
}

} // namespace ot_emu
