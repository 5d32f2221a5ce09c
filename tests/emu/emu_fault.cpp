/* Memory faults of kernel threads: turns a page fault into the error of the launch. */
#include <memory>
#include <signal.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "tests/emu/emu_block.h"
#include "tests/emu/emu_check.h"
#include "tests/emu/emu_symbols.h"

namespace ot_emu {

static struct sigaction previous_segv, previous_bus;

static const void *program_counter(const void *context) {
#if defined(__x86_64__)
    return (const void *)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void *)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
    return nullptr;
#endif
}

/* Restores the previous handler for a fault of other code; the instruction then faults again. */
static void pass_on(int signal) {
    sigaction(signal, signal == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
}

/* Data that the handler leaves for report_fault, because a handler may do little. */
static struct PageFault {
    const Thread *thread; /* NULL: no fault */
    const void *at, *pc;
    bool misaligned;
} fault;

static void on_fault(int signal, siginfo_t *info, void *context) {
    if (!current) {
        pass_on(signal);
        return;
    }
    /* x86 reports "general protection" without an address for an aligned access to a misaligned address. */
    fault = {current, info->si_addr, program_counter(context), info->si_code == SI_KERNEL};
    leave_launch(); /* leaves the signal's stack; nothing returns to it */
}

void report_fault() {
    PageFault found = fault;
    fault = {};
    if (!found.thread)
        return;
    std::string code = describe_code(found.pc), place = describe_place(found.at, found.thread);
    if (found.misaligned)
        record_failure(cudaErrorMisalignedAddress, found.thread, {}, "misaligned 16-byte access in %s",
                       code.c_str());
    else
        record_failure(cudaErrorIllegalAddress, found.thread, {}, "access to %p, %s, in %s", found.at,
                       place.c_str(), code.c_str());
}

/* A stack for the handler, because a kernel that has used up its own stack faults for lack of one. The
 * previous signal stack is restored when the thread ends, because AddressSanitizer unmaps it then. */
struct SignalStack {
    static const size_t BYTES = 256 << 10;
    std::unique_ptr<char[]> memory{new char[BYTES]};
    stack_t previous = {};

    SignalStack() {
        stack_t stack = {};
        stack.ss_sp = memory.get();
        stack.ss_size = BYTES;
        sigaltstack(&stack, &previous);
    }
    ~SignalStack() { sigaltstack(&previous, nullptr); }
};

/* Unpoisons the signal stack: a handler that left by a switch has not removed the red zones around its
 * variables. */
static void have_signal_stack() {
    static thread_local SignalStack stack;
    (void)stack;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack.memory.get(), SignalStack::BYTES);
#endif
}

void catch_faults() {
    have_signal_stack();
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &previous_segv);
    sigaction(SIGBUS, &action, &previous_bus);
}

void release_faults() {
    sigaction(SIGSEGV, &previous_segv, nullptr);
    sigaction(SIGBUS, &previous_bus, nullptr);
}

} // namespace ot_emu
