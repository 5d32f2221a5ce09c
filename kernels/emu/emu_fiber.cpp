#include "kernels/emu/emu_fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

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

/* Sanitizers surround every local variable with red zones. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr size_t STACK_BYTES = 512 << 10;
#else
static constexpr size_t STACK_BYTES = 128 << 10;
#endif
static constexpr size_t GUARD_BYTES = 64 << 10;

static Fiber *free_fibers;

/* ---- the switch ---- */

#if defined(__x86_64__)
extern "C" void ot_emu_swap_stacks(void **save, void *load);
asm(R"(
.text
.globl ot_emu_swap_stacks
.hidden ot_emu_swap_stacks
.type ot_emu_swap_stacks,@function
ot_emu_swap_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size ot_emu_swap_stacks,.-ot_emu_swap_stacks
)");
/* Six registers, the address that `ret` takes, and one word that puts the stack where a call would have. */
static void *first_frame(char *top, void (*start)()) {
    void **sp = (void **)top - 8;
    sp[6] = (void *)start;
    return sp;
}
#elif defined(__aarch64__)
extern "C" void ot_emu_swap_stacks(void **save, void *load);
asm(R"(
.text
.globl ot_emu_swap_stacks
.hidden ot_emu_swap_stacks
.type ot_emu_swap_stacks,%function
ot_emu_swap_stacks:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size ot_emu_swap_stacks,.-ot_emu_swap_stacks
)");
static void *first_frame(char *top, void (*start)()) {
    void **sp = (void **)top - 20;
    sp[11] = (void *)start;
    return sp;
}
#endif

static Fiber *starting; /* who is switched to: a new fiber's only way to know itself */

static void start() {
    Fiber *self = starting;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    self->entry(self);
    abort(); /* an entry never returns */
}

#if defined(__x86_64__) || defined(__aarch64__)
static void prepare(Fiber *fiber) {
    fiber->sp = first_frame(fiber->low + fiber->bytes, start);
}
static void swap_stacks(Fiber *from, Fiber *to) {
    ot_emu_swap_stacks(&from->sp, to->sp);
}
static void release_context(Fiber *) {}
#else
static void prepare(Fiber *fiber) {
    ucontext_t *context = fiber->sp ? (ucontext_t *)fiber->sp : new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->low;
    context->uc_stack.ss_size = fiber->bytes;
    context->uc_link = nullptr;
    makecontext(context, start, 0);
    fiber->sp = context;
}
static void swap_stacks(Fiber *from, Fiber *to) {
    if (!from->sp)
        from->sp = new ucontext_t;
    swapcontext((ucontext_t *)from->sp, (ucontext_t *)to->sp);
}
static void release_context(Fiber *host) {
    delete (ucontext_t *)host->sp;
    host->sp = nullptr;
}
#endif

void fiber_switch(Fiber *from, Fiber *to) {
    starting = to;
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to->low, to->bytes);
    swap_stacks(from, to);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#elif defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->annotation, 0);
    swap_stacks(from, to);
#else
    swap_stacks(from, to);
#endif
}

void fiber_begin(Fiber *host) {
    *host = {};
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    void *low;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &low, &host->bytes);
    pthread_attr_destroy(&attributes);
    host->low = (char *)low;
#elif defined(__SANITIZE_THREAD__)
    host->annotation = __tsan_get_current_fiber();
#endif
}

void fiber_end(Fiber *host) {
    release_context(host);
}

/* ---- stacks ---- */

static Fiber *make_fiber() {
    char *memory = (char *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("kernels/emu: no memory for the stack of a kernel's thread");
        abort();
    }
    Fiber *fiber = new Fiber();
    fiber->low = memory + GUARD_BYTES;
    fiber->bytes = STACK_BYTES;
    return fiber;
}

/* TSan keeps a call stack for each fiber: one that is taken anew needs an empty one. */
static void annotate(Fiber *fiber) {
#if defined(__SANITIZE_THREAD__)
    if (fiber->annotation)
        __tsan_destroy_fiber(fiber->annotation);
    fiber->annotation = __tsan_create_fiber(0);
#else
    (void)fiber;
#endif
}

Fiber *fiber_take(void (*entry)(Fiber *)) {
    Fiber *fiber = free_fibers;
    if (fiber) {
        free_fibers = fiber->next_free;
        return fiber;
    }
    fiber = make_fiber();
    fiber->entry = entry;
    annotate(fiber);
    prepare(fiber);
    return fiber;
}

void fiber_give(Fiber *fiber) {
    fiber->next_free = free_fibers;
    free_fibers = fiber;
}

void fiber_abandon(Fiber *fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(fiber->low, fiber->bytes);
#endif
    annotate(fiber);
    prepare(fiber);
    fiber_give(fiber);
}

} // namespace ot_emu
