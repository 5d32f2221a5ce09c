/* Topology: which cores and which memory this process may use, and which of them are near the GPU and the
 * disks (hwloc; disk.h). Affinity masks and cpusets are respected: what the process may not use does not
 * exist here.
 *
 * Roles share the cores out. Beside a GPU the cores are the optimizer's: its threads are bound one to a core,
 * those nearest to the GPU first, since the memory that they update lies there; when each core has one, they
 * begin again. Lane threads are bound to the node of the GPU, those of the I/O to the nodes of the disks,
 * free within them. Without a GPU, ops and optimizer want the same cores at the same time: both are spread
 * over the nodes and left free within them. Where there is one node and no more cores than threads, binding
 * gains nothing and is left to the kernel.
 *
 * Memory that the GPU copies from comes from its node, as long as that has some left. Without a GPU, pages
 * take turns on the nodes, as the threads that work on them are on all.
 *
 * A container may forbid either (mbind needs CAP_SYS_NICE under Docker's seccomp profile). Nothing but speed
 * depends on it.
 */
#ifndef OT_OFFLOAD_TOPOLOGY_TOPOLOGY_H
#define OT_OFFLOAD_TOPOLOGY_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_topology;

enum ot_thread_role { OT_ROLE_COMPUTE, OT_ROLE_OPTIMIZER, OT_ROLE_IO, OT_ROLE_LANE };

enum { OT_TOPOLOGY_MAX_DIRS = 16 };

struct ot_topology_config {
    const char *gpu_bus_id; /* "0000:65:00.0"; NULL: no GPU */
    int n_dirs;             /* of the NVMe store; at most OT_TOPOLOGY_MAX_DIRS */
    const char *const *dirs;
    /* Test seams. NULL: this machine. */
    const char *synthetic;      /* hwloc's synthetic description, "pack:2 numa:1 core:8 pu:2" */
    const char *synthetic_cpus; /* which of its hardware threads may be used: "0-3,8"; NULL: all */
    const char *root;           /* a folder with sys/ inside */
};

/* Tells hwloc by environment variables to load no plugins (ours is linked without, and those of the machine
 * pull in X11 and OpenCL) and to print nothing: no other thread may use the environment meanwhile. Errors:
 * OT_E_BUDGET. A machine that cannot be looked into is one node with the allowed cores. */
int ot_topology_open(const struct ot_topology_config *config, struct ot_topology **out);
void ot_topology_close(struct ot_topology *topology); /* NULL is fine */

struct ot_topology_summary {
    int packages, nodes, cores, threads;  /* that may be used; threads: of the hardware */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* of one core, of one core, all together; 0: unknown */
    int gpu_node;                         /* OS index; -1: unknown or none */
    int disk_node[OT_TOPOLOGY_MAX_DIRS];  /* by directory; -1: unknown, or on several nodes */
};
void ot_topology_summarise(const struct ot_topology *topology, struct ot_topology_summary *out);
/* "2 packages, 16 cores (32 threads), 2 memory nodes; GPU on node 1; disks on node 0, ?" */
const char *ot_topology_describe(const struct ot_topology *topology);

/* The calling thread becomes number `index` of `count` threads of the role. 0, or an errno value. */
int ot_topology_bind_thread(const struct ot_topology *topology, enum ot_thread_role role, int index,
                            int count);
/* Where that binds it, as a list of hardware threads ("0-3,8"); "" where it is left free. */
void ot_topology_thread_cpus(const struct ot_topology *topology, enum ot_thread_role role, int index,
                             int count, char *text, size_t bytes);
/* The range's pages, not touched yet, come from the nodes that are best for it. 0, or an errno value. */
int ot_topology_bind_memory(const struct ot_topology *topology, void *memory, size_t bytes);
/* Which nodes: "1", "0-1"; "" where it is left to the kernel. */
void ot_topology_memory_nodes(const struct ot_topology *topology, char *text, size_t bytes);

/* The same as hooks for ot_pool_open_with and struct ot_placement; what is refused is one line in the log. */
struct ot_topology_binding {
    const struct ot_topology *topology; /* NULL: nothing is bound */
    enum ot_thread_role role;
};
void ot_topology_place_thread(void *binding, int index, int count);
void ot_topology_place_memory(void *binding, void *memory, size_t bytes);

#endif
