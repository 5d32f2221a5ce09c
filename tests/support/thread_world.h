/* Several ranks inside one process, for tests of the engine under ThreadSanitizer: each rank is a thread with
 * a device and a communicator of its own. The ranks copy from each other's device memory (cpu devices), with
 * random delays. Operations of a group run in a random order, which is the same on all ranks. All functions
 * of offload/comm/comm.h work; there is no struct ot_world.
 *
 *     struct thread_world *world = thread_world_open(4, seed);
 *     on the thread of each rank: check_ok(thread_world_join(world, rank, device, &comm));
 *                                 ...
 *                                 ot_comm_close(comm);
 *     thread_world_close(world);
 */
#ifndef OT_TESTS_THREAD_WORLD_H
#define OT_TESTS_THREAD_WORLD_H

#include <stdint.h>

#include "offload/comm/comm.h"

struct thread_world;

/* delay_seed: 0: no delays. Fails the test if there is no memory. */
struct thread_world *thread_world_open(int ranks, uint64_t delay_seed);
void thread_world_close(struct thread_world *world); /* after all communicators are closed */

/* The `number`-th operation of this rank, counted from 1, fails instead of moving data. Then this rank is
 * broken, and all others fail because it is gone. Called before the ranks join. */
void thread_world_fail_at(struct thread_world *world, int rank, int number);
/* The longest wait for another rank; 60 s if it is not called. Called before the ranks join. */
void thread_world_set_timeout(struct thread_world *world, double seconds);

/* Opens the communicator of a rank on its device. The device may be an emulated GPU too. (A real one calls
 * all host functions on one thread, where the ranks would wait for each other for ever.) Does not wait for
 * the others. Errors: ot_comm_open. */
int thread_world_join(struct thread_world *world, int rank, struct ot_device *device, struct ot_comm **out);
/* The number of operations that this rank has completed. */
int thread_world_operations(const struct thread_world *world, int rank);

#endif
