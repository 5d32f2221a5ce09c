/* Makes memory resident before it is used.
 *
 * mmap only reserves pages. The kernel provides each page at the first write to it, one page fault at a time,
 * so pinning an arena of 94 GB on one thread takes most of a minute. Here several threads cause the page
 * faults, which is as fast as the memory. If the system then has too few pages, it kills the program without
 * a message. So this code asks how much memory is free before each piece. If too little is left, it stops
 * with an error that says how far it got. Some virtual machines get more memory while they use it: before it
 * stops, it waits some seconds for that.
 *
 * Linux 5.14 and later populate a range with one call (MADV_POPULATE_WRITE). On older kernels, this code
 * writes to each page.
 */
#ifndef OT_BASE_TOUCH_H
#define OT_BASE_TOUCH_H

#include <stddef.h>
#include <stdint.h>

struct ot_touch_config {
    int threads; /* >= 1 */
    /* Returns the bytes that the system can still provide. NULL: not asked. */
    int64_t (*free_bytes)(void *context);
    void *context;
    double patience_seconds; /* how long to wait for more memory before giving up */
};

enum { OT_TOUCH_PIECE = 256 << 20, OT_TOUCH_RESERVE = 256 << 20 }; /* free memory to leave to the system */

/* memory [bytes]: page-aligned, mapped, writable and all zeros, also afterwards; nobody else uses it. Errors:
 * OT_E_BUDGET: the system has too little memory; the sentence says how much it gave. OT_E_IO: no thread can
 * start. */
int ot_touch_memory(void *memory, size_t bytes, const struct ot_touch_config *config);

#endif
