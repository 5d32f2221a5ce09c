/* Topology: which cores and which memory this process may use, and which of them are near the GPU and the
 * disks (hwloc). Affinity masks and cpusets are respected: what the process may not use does not exist here.
 *
 * Roles share the cores out: threads that compute ops (on the cpu device all of them), the optimizer's, the
 * I/O's and the lanes'. Bound are only the many: the optimizer's threads one to a core, nearest to the memory
 * that they update; I/O and lane threads to the node of their disk or GPU, free within it. Where the machine
 * has one node and no more cores than threads, binding gains nothing and is left to the kernel.
 */
#ifndef OT_OFFLOAD_TOPOLOGY_H
#define OT_OFFLOAD_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_topology;

enum ot_thread_role { OT_ROLE_COMPUTE, OT_ROLE_OPTIMIZER, OT_ROLE_IO, OT_ROLE_LANE };

struct ot_topology_config {
    const char *gpu_bus_id; /* "0000:65:00.0"; NULL: no GPU */
    int n_dirs;             /* of the NVMe store */
    const char *const *dirs;
    const char *synthetic; /* test seam: hwloc's synthetic description; NULL: this machine */
};

/* Errors: OT_E_BUDGET. A machine that cannot be looked into is one node with the allowed cores. */
int ot_topology_open(const struct ot_topology_config *config, struct ot_topology **out);
void ot_topology_close(struct ot_topology *topology); /* NULL is fine */

struct ot_topology_summary {
    int packages, nodes, cores, threads;  /* cores and hardware threads that may be used */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* of one core, one core, all; 0: unknown */
    int gpu_node;                         /* OS index; -1: unknown or none */
    int disk_node[16];                    /* by directory; -1: unknown */
};
void ot_topology_summarise(const struct ot_topology *topology, struct ot_topology_summary *out);

/* The calling thread becomes number `index` of `count` threads of the role. Failure is harmless: 0 or an
 * errno value, for one line in the log. */
int ot_topology_bind_thread(const struct ot_topology *topology, enum ot_thread_role role, int index,
                            int count);
/* The range's pages, not touched yet, come from the node nearest to the GPU (to the cores, without one). 0 or
 * an errno value. */
int ot_topology_bind_memory(const struct ot_topology *topology, void *memory, size_t bytes);
/* "1 package, 2 cores, 1 memory node" */
const char *ot_topology_describe(const struct ot_topology *topology);

#endif
