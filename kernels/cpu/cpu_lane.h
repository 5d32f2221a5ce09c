/* Inside the cpu device: what its ops are written against. Nothing outside kernels/cpu but tests includes it.
 *
 * A lane is a thread with a ring of commands. A command is a function and a copy of its arguments; an op's
 * entry point pushes one and returns, the lane's thread runs it later:
 *
 *     static void run_add(struct ot_lane *lane, const void *args) {
 *         const struct ot_add *add = args;
 *         ot_pool_run(ot_cpu_lane_pool(lane), add->n, CHUNK, add_chunk, (void *)add);
 *     }
 *     void ot_cpu_add(struct ot_lane *lane, const struct ot_add *args) {
 *         ot_cpu_lane_push(lane, run_add, args, sizeof *args);
 *     }
 *
 * The pool belongs to the device: lanes that compute at the same time take turns, loop by loop
 * (src/base/pool.h). Everything below but ot_cpu_lane_push is for use inside a command, on the lane's own
 * thread.
 */
#ifndef OT_KERNELS_CPU_LANE_H
#define OT_KERNELS_CPU_LANE_H

#include <stddef.h>

#include "kernels/device.h"
#include "src/base/pool.h"

/* The largest argument struct that a command carries (asserted); struct ot_attention_backward fits. */
enum { OT_CPU_COMMAND_BYTES = 256 };

/* args: the lane's copy, 16-byte aligned, valid until the command returns. */
typedef void (*ot_cpu_command_fn)(struct ot_lane *lane, const void *args);

/* Enqueues fn with a copy of args; waits while the ring is full. */
void ot_cpu_lane_push(struct ot_lane *lane, ot_cpu_command_fn fn, const void *args, size_t bytes);

struct ot_pool *ot_cpu_lane_pool(struct ot_lane *lane);

/* Memory of the lane for the running command, 64-byte aligned, garbage on entry; kept and grown from command
 * to command. One piece at a time: a second call gives up the first. NULL when memory is short, and the lane
 * has failed then. */
void *ot_cpu_lane_scratch(struct ot_lane *lane, size_t bytes);

/* The command failed with rc and left its sentence in this thread's error record: sticks to the lane. The
 * first stays. */
void ot_cpu_lane_fail(struct ot_lane *lane, int rc);

#endif
