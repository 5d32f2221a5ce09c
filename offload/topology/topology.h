/* Topology: the cores and memory nodes that this process may use, and which of them are near the GPU and the
 * disks. Sources: hwloc, and /sys (disk.h). Cores outside the affinity mask or the cpuset do not exist here.
 *
 * THREADS. A thread's role decides its cores. With a GPU the optimizer has the cores: each optimizer thread
 * is bound to one core, in order of nearness to the GPU, because the memory that it updates is there. If
 * there are more threads than cores, the list of cores repeats. A lane thread may run on any core of the
 * GPU's node, an I/O thread on any core of the disks' nodes. Without a GPU, ops and optimizer use the cores
 * at the same time: their threads are spread over the nodes, and may run on any core of their node. On one
 * node with no more cores than threads, binding gains nothing, so the kernel places the threads.
 *
 * MEMORY. Pages that the GPU copies from come from the GPU's node while it has free memory. Without a GPU,
 * pages alternate between the nodes, because threads of all nodes use them.
 *
 * A container may forbid binding (mbind needs CAP_SYS_NICE under Docker's seccomp profile). Then training is
 * only slower.
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
    int n_dirs;             /* directories of the NVMe store; at most OT_TOPOLOGY_MAX_DIRS */
    const char *const *dirs;
    /* Test seams. NULL: this machine. */
    const char *synthetic;      /* hwloc's synthetic description, "pack:2 numa:1 core:8 pu:2" */
    const char *synthetic_cpus; /* its usable hardware threads: "0-3,8"; NULL: all */
    const char *root;           /* a folder with sys/ inside */
};

/* Reads the machine's topology. Sets environment variables, so no other thread may use the environment
 * meanwhile: they tell hwloc to print nothing and to load no plugins, because the plugins of a machine pull
 * in X11 and OpenCL. If hwloc cannot read the machine, the topology is one node with the allowed cores.
 * Errors: OT_E_BUDGET (no memory), OT_E_DEVICE (hwloc fails altogether). */
int ot_topology_open(const struct ot_topology_config *config, struct ot_topology **out);
void ot_topology_close(struct ot_topology *topology); /* NULL is fine */

struct ot_topology_summary {
    int packages, nodes, cores, threads;  /* usable ones; threads: hardware threads */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* l1, l2: one core's; l3: sum of all; 0: unknown */
    int gpu_node;                         /* OS index; -1: unknown, or no GPU */
    int disk_node[OT_TOPOLOGY_MAX_DIRS];  /* each directory's node; -1: unknown, or on several nodes */
};
void ot_topology_summarise(const struct ot_topology *topology, struct ot_topology_summary *out);
/* "2 packages, 16 cores (32 threads), 2 memory nodes; GPU on node 1; disks on node 0, ?" */
const char *ot_topology_describe(const struct ot_topology *topology);

/* Binds the calling thread as number `index` of the role's `count` threads. Returns 0 or an errno value. */
int ot_topology_bind_thread(const struct ot_topology *topology, enum ot_thread_role role, int index,
                            int count);
/* The hardware threads to which ot_topology_bind_thread binds, as a list ("0-3,8"). "": it does not bind. */
void ot_topology_thread_cpus(const struct ot_topology *topology, enum ot_thread_role role, int index,
                             int count, char *text, size_t bytes);
/* Lets the pages of the range come from the best nodes. Call it before the pages are touched. Returns 0 or an
 * errno value. */
int ot_topology_bind_memory(const struct ot_topology *topology, void *memory, size_t bytes);
/* The nodes that ot_topology_bind_memory uses, as a list ("1", "0-1"). "": the kernel chooses. */
void ot_topology_memory_nodes(const struct ot_topology *topology, char *text, size_t bytes);

/* Hooks for ot_pool_open_with and struct ot_placement. If binding is refused, each hook logs one line for the
 * whole process. */
struct ot_topology_binding {
    const struct ot_topology *topology; /* NULL: the hooks do nothing */
    enum ot_thread_role role;
};
void ot_topology_place_thread(void *binding, int index, int count);
void ot_topology_place_memory(void *binding, void *memory, size_t bytes);

#endif
