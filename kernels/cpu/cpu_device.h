/* The interface between the cpu device's lanes and its ops. Outside kernels/cpu only tests include this
 * header.
 *
 * A lane is a thread with a ring of commands. A command is a function and a copy of its arguments. An op's
 * entry point pushes a command and returns; the lane's thread runs it later:
 *
 *     static void run_add(struct ot_lane *lane, const void *args) {
 *         const struct ot_add *add = args;
 *         ot_pool_run(ot_cpu_lane_pool(lane), add->n, CHUNK, add_chunk, (void *)add);
 *     }
 *     void ot_cpu_add(struct ot_lane *lane, const struct ot_add *args) {
 *         ot_cpu_lane_push(lane, run_add, args, sizeof *args);
 *     }
 *
 * The pool belongs to the device. Lanes that compute at the same time take turns, loop by loop
 * (src/base/thread.h). All functions below except ot_cpu_lane_push are called inside a command, on the lane's
 * own thread.
 */
#ifndef OT_CPU_CPU_DEVICE_H
#define OT_CPU_CPU_DEVICE_H

#include <stddef.h>

#include "kernels/device.h"
#include "src/base/thread.h"

/* The largest argument struct of a command (asserted); struct ot_attention_backward fits. */
enum { OT_CPU_COMMAND_BYTES = 256 };

/* args: the lane's copy, 16-byte aligned, valid until the command returns. */
typedef void (*ot_cpu_command_fn)(struct ot_lane *lane, const void *args);

/* Enqueues fn with a copy of args. Waits while the ring is full. */
void ot_cpu_lane_push(struct ot_lane *lane, ot_cpu_command_fn fn, const void *args, size_t bytes);

struct ot_pool *ot_cpu_lane_pool(struct ot_lane *lane);

/* Memory of the lane for the running command, 64-byte aligned, with undefined content. The lane keeps and
 * grows it from command to command. A second call invalidates the first one's memory. NULL: too little
 * memory; the lane has then failed. */
void *ot_cpu_lane_scratch(struct ot_lane *lane, size_t bytes);

/* Makes the lane fail with rc, whose text is in this thread's error record. Does nothing if the lane has
 * failed already. */
void ot_cpu_lane_fail(struct ot_lane *lane, int rc);

#endif
