/* Memory faults of kernel threads: what pages catch becomes the error of the launch. */
#include <memory>
#include <signal.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "kernels/emu/emu_block.h"
#include "kernels/emu/emu_check.h"
#include "kernels/emu/emu_symbols.h"

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

/* Somebody else's fault goes to whom it would have gone to: the instruction faults again. */
static void pass_on(int signal) {
    sigaction(signal, signal == SIGSEGV ? &previous_segv : &previous_bus, nullptr);
}

/* What the handler leaves for report_fault: little may be done in a handler. */
static struct Fault {
    const Thread *thread; /* NULL: none */
    const void *at, *pc;
    bool misaligned;
} fault;

static void on_fault(int signal, siginfo_t *info, void *context) {
    if (!current) {
        pass_on(signal);
        return;
    }
    /* x86 says "general protection" without an address where an aligned move met an odd one. */
    fault = {current, info->si_addr, program_counter(context), info->si_code == SI_KERNEL};
    leave_launch(); /* from the signal's stack: nobody returns to it */
}

void report_fault() {
    Fault found = fault;
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

/* A kernel that has used up its stack faults for lack of one: the handler has its own. The stack that was
 * there before comes back when the thread ends: AddressSanitizer gives it back to the system then. */
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

/* A handler that left by a switch has not taken back the red zones around its variables. */
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
