/* Fibers: execution contexts with their own stacks, and a switch between two of them.
 *
 * A guard page lies below each stack, so that a kernel that overflows its stack faults. Stacks are reused by
 * the next thread of the block, the next block and the next launch. Not thread-safe: one kernel runs at a
 * time.
 */
#ifndef OT_EMU_FIBER_H
#define OT_EMU_FIBER_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace ot_emu {

struct Fiber {
    void *sp;  /* where it was suspended */
    char *low; /* lowest usable byte of its stack; unknown for the thread that launched */
    size_t bytes;
    Fiber *next_free;
    void (*entry)(Fiber *); /* never returns */
    void *annotation;       /* for sanitizers */
};

/* Returns a fiber that will run entry(fiber) when it is first switched to. */
Fiber *fiber_take(void (*entry)(Fiber *));
/* Returns a fiber to the pool. A fiber may do this to itself just before its last switch. */
void fiber_give(Fiber *fiber);
/* Discards the fiber's state, so that fiber_take can return it again and it starts at its entry. */
void fiber_abandon(Fiber *fiber);
/* Makes the calling thread's own stack a fiber that others can switch back to. */
void fiber_begin(Fiber *host);
void fiber_end(Fiber *host);

/* ---- the switch ---- */

extern Fiber *fiber_entered;

/* Inline, and left by a jump. After a switch, the CPU mispredicts every `ret` on the way back to the kernel,
 * so there should be few. The compiler saves the clobbered registers that it needs. */
#if defined(__x86_64__)
__attribute__((always_inline)) inline void fiber_swap(Fiber *from, Fiber *to) {
    asm volatile("leaq -128(%%rsp), %%rsp\n\t" /* the red zone */
                 "pushq %%rbp\n\t"
                 "leaq 1f(%%rip), %%rax\n\t"
                 "pushq %%rax\n\t"
                 "movq %%rsp, (%0)\n\t"
                 "movq (%1), %%rsp\n\t"
                 "popq %%rax\n\t"
                 "popq %%rbp\n\t"
                 "jmpq *%%rax\n"
                 "1:\n\t"
                 "leaq 128(%%rsp), %%rsp"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
                   "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
                   "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
}
#elif defined(__aarch64__)
__attribute__((always_inline)) inline void fiber_swap(Fiber *from, Fiber *to) {
    register Fiber *x0 asm("x0") = from;
    register Fiber *x1 asm("x1") = to;
    asm volatile("adr x2, 1f\n\t"
                 "stp x2, x29, [sp, #-16]!\n\t"
                 "mov x3, sp\n\t"
                 "str x3, [x0]\n\t"
                 "ldr x3, [x1]\n\t"
                 "mov sp, x3\n\t"
                 "ldp x2, x29, [sp], #16\n\t"
                 "br x2\n"
                 "1:"
                 : "+r"(x0), "+r"(x1)
                 :
                 : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
                   "x16", "x17", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30",
                   "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",
                   "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
                   "v27", "v28", "v29", "v30", "v31", "cc", "memory");
}
#else
inline void fiber_swap(Fiber *from, Fiber *to) {
    if (!from->sp)
        from->sp = new ucontext_t;
    swapcontext((ucontext_t *)from->sp, (ucontext_t *)to->sp);
}
#endif

/* Suspends the running fiber `from` and resumes `to`. */
__attribute__((always_inline)) inline void fiber_switch(Fiber *from, Fiber *to) {
    fiber_entered = to;
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to->low, to->bytes);
    fiber_swap(from, to);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->annotation, 0);
    fiber_swap(from, to);
#else
    fiber_swap(from, to);
#endif
}

} // namespace ot_emu

#endif
