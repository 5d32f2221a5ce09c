#include "tests/emu/emu_fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace ot_emu {

/* Larger, because sanitizers surround every local variable with red zones. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr size_t STACK_BYTES = 512 << 10;
#else
static constexpr size_t STACK_BYTES = 128 << 10;
#endif
static constexpr size_t GUARD_BYTES = 64 << 10;
static constexpr size_t STAGGER_BYTES = 5 * 64, STAGGER_RANGE = 32 << 10;

static Fiber *free_fibers;

/* ---- the first switch to a fiber ---- */

Fiber *fiber_entered; /* the fiber that is switched to: a new fiber learns its identity from it */

static void start() {
    Fiber *self = fiber_entered;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    self->entry(self);
    abort(); /* an entry never returns */
}

/* Words below the stack's top when start() begins: as if a call had pushed a return address, or aligned. */
#if defined(__x86_64__)
static constexpr int FIRST_FRAME_WORDS = 2 + 3;
#else
static constexpr int FIRST_FRAME_WORDS = 2 + 2;
#endif

/* Writes the frame that fiber_switch expects on a stack; start() begins as if it had been called. */
static void prepare(Fiber *fiber) {
#if defined(__x86_64__) || defined(__aarch64__)
    void **sp = (void **)(((uintptr_t)fiber->low + fiber->bytes) & ~(uintptr_t)15) - FIRST_FRAME_WORDS;
    sp[0] = (void *)start;
    sp[1] = sp[2] = nullptr; /* the frame pointer; the return address of start() */
    fiber->sp = sp;
#else
    ucontext_t *context = fiber->sp ? (ucontext_t *)fiber->sp : new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->low;
    context->uc_stack.ss_size = fiber->bytes;
    context->uc_link = nullptr;
    makecontext(context, start, 0);
    fiber->sp = context;
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
#if !defined(__x86_64__) && !defined(__aarch64__)
    delete (ucontext_t *)host->sp;
#endif
    host->sp = nullptr;
}

/* ---- stacks ---- */

/* Stacks lie at equal distances. If their tops did too, they would all compete for the same few cache
 * lines. */
static size_t stagger() {
    static size_t n;
    return n++ * STAGGER_BYTES % STAGGER_RANGE;
}

static Fiber *make_fiber() {
    char *memory = (char *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("tests/emu: no memory for the stack of a kernel's thread");
        abort();
    }
    Fiber *fiber = new Fiber();
    fiber->low = memory + GUARD_BYTES;
    fiber->bytes = STACK_BYTES - stagger();
    return fiber;
}

/* TSan keeps a call stack for each fiber; a reused fiber needs an empty one. */
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
