/* Host memory that the processes of all ranks map, if all ranks are on one host.
 *
 * Rank 0 makes an anonymous file in memory (memfd_create(2)) and tells the others its process and descriptor;
 * they open it through /proc and map it. The file has no name in any directory and needs no /dev/shm. The
 * kernel frees it with the last mapping, also if processes are killed. Ranks need no common parent, but they
 * must see each other's processes and belong to one user: containers of their own have no memory in common.
 */
#ifndef OT_OFFLOAD_COMM_SHARED_MEMORY_H
#define OT_OFFLOAD_COMM_SHARED_MEMORY_H

#include "offload/comm/comm.h"

/* Maps `bytes` bytes, whole pages, at any address. All ranks call it with the same number. No page is
 * resident yet, and all are zero. It succeeds on all ranks, or fails on all with the error of the first rank
 * that has one; the sentence names the rank. Errors: OT_E_BUDGET, OT_E_IO, OT_E_COMM. */
int ot_shared_memory_map(struct ot_comm *comm, size_t bytes, void **out);
void ot_shared_memory_unmap(void *memory, size_t bytes); /* NULL is fine; does not wait for the other ranks */

#endif
