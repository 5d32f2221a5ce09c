/* Makes memory resident before it is used.
 *
 * mmap promises pages; the kernel finds them when they are first written, one page fault at a time. Pinning
 * an arena of 94 GB on one thread so takes the better part of a minute. Here several threads fault pages in,
 * so the rate is that of the memory. And a system that cannot keep its promise ends a program by a signal,
 * without a word. So the owner is asked for the memory that is free before each piece; where too little is
 * left, this stops, and the caller can say how far it got. Some virtual machines get more memory as they use
 * it: before it stops, it waits some seconds for that.
 *
 * Linux 5.14 and later populate a range by one call (MADV_POPULATE_WRITE); before that a write to each page
 * does.
 */
#ifndef OT_BASE_TOUCH_H
#define OT_BASE_TOUCH_H

#include <stddef.h>
#include <stdint.h>

struct ot_touch_config {
    int threads; /* >= 1 */
    /* Bytes that the system could still give now; NULL: it is not asked. */
    int64_t (*free_bytes)(void *context);
    void *context;
    double patience_seconds; /* how long a system with too little may take to get more */
};

enum {
    OT_TOUCH_PIECE = 256 << 20,
    OT_TOUCH_RESERVE = 256 << 20
}; /* free memory that is left to the system */

/* memory [bytes]: page-aligned, mapped, private, writable and all zeros; it stays so. Errors: OT_E_BUDGET:
 * the system has not that much, with how much it had; OT_E_IO (no thread starts). */
int ot_touch_memory(void *memory, size_t bytes, const struct ot_touch_config *config);

#endif
