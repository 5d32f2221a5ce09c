/* Fibers: a stack of one's own and a switch that saves what the calling convention says a call keeps.
 *
 * Stacks are mapped with a guard page below, so that a kernel that overflows its stack faults, and are
 * reused: by the next thread of the block, the next block and the next launch. Not thread-safe: one kernel
 * runs at a time.
 */
#ifndef OT_EMU_FIBER_H
#define OT_EMU_FIBER_H

#include <stddef.h>

namespace ot_emu {

struct Fiber {
    void *sp;  /* where it was left */
    char *low; /* lowest usable byte of its stack; the thread that launched: unknown */
    size_t bytes;
    Fiber *next_free;
    void (*entry)(Fiber *); /* never returns */
    void *annotation;       /* of a sanitizer */
};

/* A fiber that will run entry(fiber) when it is first switched to. */
Fiber *fiber_take(void (*entry)(Fiber *));
/* It may be given out again; a fiber may do this to itself just before its last switch. */
void fiber_give(Fiber *fiber);
/* Forgets what the fiber was doing: it can be taken again and starts at its entry. */
void fiber_abandon(Fiber *fiber);
/* Leaves `from`, the running one, and goes on in `to`. */
void fiber_switch(Fiber *from, Fiber *to);
/* The calling thread's own stack as a fiber to come back to. */
void fiber_begin(Fiber *host);
void fiber_end(Fiber *host);

} // namespace ot_emu

#endif
