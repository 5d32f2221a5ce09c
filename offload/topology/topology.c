#include "offload/topology/topology.h"

#include <assert.h>
#include <errno.h>
#include <hwloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/topology/disk.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/signals.h"

struct ot_topology {
    hwloc_topology_t machine;
    hwloc_bitmap_t allowed; /* hardware threads that the process may use */
    bool has_gpu;
    int n_nodes, n_cores;
    hwloc_obj_t *nodes; /* nodes with usable memory and cores; nearest to the GPU first */
    hwloc_obj_t *cores; /* usable cores, in the order of `nodes` */
    int n_dirs;
    struct ot_topology_summary summary;
    char text[512];
};

/* ---- nodes and cores ---- */

static bool is_allowed(const struct ot_topology *t, hwloc_obj_t object) {
    return hwloc_bitmap_intersects(object->cpuset, t->allowed);
}

static int count_allowed(const struct ot_topology *t, hwloc_obj_type_t type) {
    int n = 0;
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_obj_by_type(t->machine, type, object));)
        n += is_allowed(t, object);
    return n;
}

/* Size of the first usable cache of a type, or of all together. */
static int64_t sum_caches(const struct ot_topology *t, hwloc_obj_type_t type, bool all) {
    int64_t bytes = 0;
    for (hwloc_obj_t object = NULL; (object = hwloc_get_next_obj_by_type(t->machine, type, object));)
        if (is_allowed(t, object) && (all || bytes == 0))
            bytes += (int64_t)object->attr->cache.size;
    return bytes;
}

static hwloc_obj_t find_node(const struct ot_topology *t, int os_index) {
    for (int i = 0; i < t->n_nodes; i++)
        if ((int)t->nodes[i]->os_index == os_index)
            return t->nodes[i];
    return NULL;
}

/* The object in the tree of cores that a memory node belongs to. hwloc keeps memory nodes beside this
 * tree. */
static hwloc_obj_t find_place(hwloc_obj_t node) {
    while (hwloc_obj_type_is_memory(node->type))
        node = node->parent;
    return node;
}

/* Larger means nearer: the depth of the smallest part of the machine (a group of nodes, a package) that has
 * both nodes. */
static int rank_nearness(const struct ot_topology *t, hwloc_obj_t a, hwloc_obj_t b) {
    if (a == b)
        return INT32_MAX;
    return hwloc_get_common_ancestor_obj(t->machine, find_place(a), find_place(b))->depth;
}

/* True if an earlier node has the same cores: then this node is a second kind of memory, such as HBM or
 * CXL. */
static bool is_second(const struct ot_topology *t, hwloc_obj_t node) {
    for (int i = 0; i < t->n_nodes; i++)
        if (hwloc_bitmap_isequal(t->nodes[i]->cpuset, node->cpuset))
            return true;
    return false;
}

/* Lists the nodes. Leaves out nodes that the process may not allocate from, and second kinds of memory. */
static void list_nodes(struct ot_topology *t) {
    hwloc_const_nodeset_t usable = hwloc_topology_get_allowed_nodeset(t->machine);
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(t->machine, HWLOC_OBJ_NUMANODE, node));)
        if (is_allowed(t, node) && hwloc_bitmap_isset(usable, node->os_index) && !is_second(t, node))
            t->nodes[t->n_nodes++] = node;
}

static void sort_nodes(struct ot_topology *t) {
    hwloc_obj_t first = find_node(t, t->summary.gpu_node);
    if (!first)
        return;
    for (int i = 1; i < t->n_nodes; i++) /* insertion sort: equally near nodes keep their order */
        for (int k = i; k > 0; k--) {
            hwloc_obj_t *pair = &t->nodes[k - 1];
            if (rank_nearness(t, first, pair[0]) >= rank_nearness(t, first, pair[1]))
                break;
            hwloc_obj_t nearer = pair[1];
            pair[1] = pair[0];
            pair[0] = nearer;
        }
}

static bool is_listed(const struct ot_topology *t, hwloc_obj_t core) {
    for (int i = 0; i < t->n_cores; i++)
        if (t->cores[i] == core)
            return true;
    return false;
}

static void list_cores_of(struct ot_topology *t, hwloc_obj_type_t type, hwloc_const_cpuset_t set) {
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(t->machine, type, core));)
        if (is_allowed(t, core) && hwloc_bitmap_intersects(core->cpuset, set) && !is_listed(t, core))
            t->cores[t->n_cores++] = core;
}

/* Lists cores in the order of the nodes. Some virtual machines report no cores, only hardware threads. */
static void list_cores(struct ot_topology *t) {
    hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(t->machine, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    for (int i = 0; i < t->n_nodes; i++)
        list_cores_of(t, type, t->nodes[i]->cpuset);
    list_cores_of(t, type, t->allowed); /* then cores whose node is not listed */
}

/* ---- opening ---- */

/* synthetic: NULL for this machine. On a synthetic machine hwloc does not bind. */
static int load_as(struct ot_topology *t, const char *synthetic) {
    if (hwloc_topology_init(&t->machine) != 0)
        return -1;
    if ((!synthetic || hwloc_topology_set_synthetic(t->machine, synthetic) == 0) &&
        hwloc_topology_load(t->machine) == 0)
        return 0;
    hwloc_topology_destroy(t->machine);
    t->machine = NULL;
    return -1;
}

struct loading {
    struct ot_topology *topology;
    const char *synthetic;
};

static int load(void *context) {
    const struct loading *loading = context;
    struct ot_topology *t = loading->topology;
    setenv("HWLOC_PLUGINS_PATH", "", 0);
    setenv("HWLOC_HIDE_ERRORS", "2", 0);
    if (load_as(t, loading->synthetic) == 0)
        return 0;
    char flat[64]; /* one node with the allowed cores: never bound */
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    snprintf(flat, sizeof flat, "numa:1 core:%d pu:1", cores);
    return load_as(t, flat) == 0 ? 0 : ot_fail(OT_E_DEVICE, "hwloc cannot read the machine's topology");
}

/* The hardware threads that both the cpuset (known to hwloc) and the thread's affinity mask allow. */
static int find_allowed(struct ot_topology *t, const struct ot_topology_config *config) {
    t->allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t->machine));
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    int rc = t->allowed && mask ? 0 : -1;
    bool has_mask = false;
    if (rc == 0 && config->synthetic)
        has_mask = config->synthetic_cpus && hwloc_bitmap_list_sscanf(mask, config->synthetic_cpus) == 0;
    else if (rc == 0)
        has_mask = hwloc_get_cpubind(t->machine, mask, HWLOC_CPUBIND_THREAD) == 0;
    if (has_mask && hwloc_bitmap_intersects(t->allowed, mask))
        hwloc_bitmap_and(t->allowed, t->allowed, mask);
    hwloc_bitmap_free(mask);
    return rc;
}

static void find_devices(struct ot_topology *t, const struct ot_topology_config *config) {
    const char *root = config->root ? config->root : "";
    int only = t->n_nodes == 1 ? (int)t->nodes[0]->os_index : -1; /* used if the firmware names no node */
    t->has_gpu = config->gpu_bus_id;
    t->summary.gpu_node = config->gpu_bus_id ? ot_disk_pci_node(root, config->gpu_bus_id) : -1;
    if (t->has_gpu && t->summary.gpu_node < 0)
        t->summary.gpu_node = only;
    t->n_dirs = config->n_dirs;
    for (int i = 0; i < OT_TOPOLOGY_MAX_DIRS; i++)
        t->summary.disk_node[i] = i < config->n_dirs ? ot_disk_node(root, config->dirs[i]) : -1;
}

static void describe(struct ot_topology *t) {
    const struct ot_topology_summary *s = &t->summary;
    char threads[32] = "";
    if (s->threads != s->cores)
        snprintf(threads, sizeof threads, " (%d threads)", s->threads);
    int n = snprintf(t->text, sizeof t->text, "%d package%s, %d core%s%s, %d memory node%s", s->packages,
                     s->packages == 1 ? "" : "s", s->cores, s->cores == 1 ? "" : "s", threads, s->nodes,
                     s->nodes == 1 ? "" : "s");
    if (s->nodes == 1)
        return;
    if (s->gpu_node >= 0)
        n += snprintf(t->text + n, sizeof t->text - (size_t)n, "; GPU on node %d", s->gpu_node);
    for (int i = 0; i < t->n_dirs; i++) {
        char node[16] = "?";
        if (s->disk_node[i] >= 0)
            snprintf(node, sizeof node, "%d", s->disk_node[i]);
        n += snprintf(t->text + n, sizeof t->text - (size_t)n, "%s%s", i ? ", " : "; disks on node ", node);
    }
}

static int look(struct ot_topology *t, const struct ot_topology_config *config) {
    struct loading loading = {t, config->synthetic};
    int rc = ot_crash_contain("hwloc", load, &loading);
    if (rc == -OT_E_BUDGET) /* hwloc crashed: do not call it again */
        t->machine = NULL;
    if (rc < 0)
        return rc;
    if (find_allowed(t, config) != 0)
        return ot_fail(OT_E_BUDGET, "no memory for the machine's topology");
    size_t nodes = (size_t)hwloc_get_nbobjs_by_type(t->machine, HWLOC_OBJ_NUMANODE);
    size_t threads = (size_t)hwloc_get_nbobjs_by_type(t->machine, HWLOC_OBJ_PU);
    t->nodes = calloc(nodes + 1, sizeof(hwloc_obj_t));
    t->cores = calloc(threads + 1, sizeof(hwloc_obj_t));
    if (!t->nodes || !t->cores)
        return ot_fail(OT_E_BUDGET, "no memory for the machine's topology");
    list_nodes(t);
    find_devices(t, config);
    sort_nodes(t);
    list_cores(t);
    struct ot_topology_summary *s = &t->summary;
    s->packages = count_allowed(t, HWLOC_OBJ_PACKAGE);
    s->packages = s->packages > 0 ? s->packages : 1;
    s->nodes = t->n_nodes > 0 ? t->n_nodes : 1;
    s->cores = t->n_cores;
    s->threads = count_allowed(t, HWLOC_OBJ_PU);
    s->l1_bytes = sum_caches(t, HWLOC_OBJ_L1CACHE, false);
    s->l2_bytes = sum_caches(t, HWLOC_OBJ_L2CACHE, false);
    s->l3_bytes = sum_caches(t, HWLOC_OBJ_L3CACHE, true);
    describe(t);
    return 0;
}

int ot_topology_open(const struct ot_topology_config *config, struct ot_topology **out) {
    assert(config->n_dirs <= OT_TOPOLOGY_MAX_DIRS);
    *out = NULL;
    struct ot_topology *t = calloc(1, sizeof *t);
    if (!t)
        return ot_fail(OT_E_BUDGET, "no memory for the machine's topology");
    int rc = look(t, config);
    if (rc < 0) {
        ot_topology_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void ot_topology_close(struct ot_topology *t) {
    if (!t)
        return;
    free(t->cores);
    free(t->nodes);
    hwloc_bitmap_free(t->allowed);
    if (t->machine)
        hwloc_topology_destroy(t->machine);
    free(t);
}

void ot_topology_summarise(const struct ot_topology *topology, struct ot_topology_summary *out) {
    *out = topology->summary;
}

const char *ot_topology_describe(const struct ot_topology *topology) {
    return topology->text;
}

/* ---- threads ---- */

static void add_node_cpus(const struct ot_topology *t, int os_index, hwloc_bitmap_t set) {
    hwloc_obj_t node = find_node(t, os_index);
    if (node)
        hwloc_bitmap_or(set, set, node->cpuset);
}

/* Adds the cpus of one core's node. Spreads `count` threads evenly over the cores to choose the core. */
static void add_share(const struct ot_topology *t, int index, int count, hwloc_bitmap_t set) {
    hwloc_obj_t core = t->cores[(int64_t)index * t->n_cores / count];
    for (int i = 0; i < t->n_nodes; i++)
        if (hwloc_bitmap_intersects(t->nodes[i]->cpuset, core->cpuset))
            hwloc_bitmap_or(set, set, t->nodes[i]->cpuset);
}

static void add_by_role(const struct ot_topology *t, enum ot_thread_role role, int index, int count,
                        hwloc_bitmap_t set) {
    switch (role) {
    case OT_ROLE_OPTIMIZER:
        if (!t->has_gpu)
            add_share(t, index, count, set);
        else if (count <= t->summary.threads && (t->n_nodes > 1 || count < t->n_cores))
            hwloc_bitmap_copy(set, t->cores[index % t->n_cores]->cpuset);
        break;
    case OT_ROLE_COMPUTE:
        add_share(t, index, count, set);
        break;
    case OT_ROLE_IO:
        for (int i = 0; i < t->n_dirs; i++)
            add_node_cpus(t, t->summary.disk_node[i], set);
        break;
    case OT_ROLE_LANE:
        add_node_cpus(t, t->summary.gpu_node, set);
        break;
    }
}

/* Sets the cpus of a thread. Empty: do not bind the thread. */
static void choose_cpus(const struct ot_topology *t, enum ot_thread_role role, int index, int count,
                        hwloc_bitmap_t set) {
    assert(index >= 0 && index < count);
    add_by_role(t, role, index, count, set);
    hwloc_bitmap_and(set, set, t->allowed);
    if (hwloc_bitmap_isequal(set, t->allowed))
        hwloc_bitmap_zero(set);
}

void ot_topology_thread_cpus(const struct ot_topology *topology, enum ot_thread_role role, int index,
                             int count, char *text, size_t bytes) {
    text[0] = '\0';
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return;
    choose_cpus(topology, role, index, count, set);
    hwloc_bitmap_list_snprintf(text, bytes, set);
    hwloc_bitmap_free(set);
}

int ot_topology_bind_thread(const struct ot_topology *topology, enum ot_thread_role role, int index,
                            int count) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return ENOMEM;
    choose_cpus(topology, role, index, count, set);
    int error = 0;
    if (!hwloc_bitmap_iszero(set) && hwloc_set_cpubind(topology->machine, set, HWLOC_CPUBIND_THREAD) != 0)
        error = errno;
    hwloc_bitmap_free(set);
    return error;
}

/* ---- memory ---- */

/* Sets the nodes for memory. Returns false if the kernel shall choose: it takes a page from the node of the
 * thread that touches the page first. */
static bool choose_nodes(const struct ot_topology *t, hwloc_bitmap_t set) {
    hwloc_obj_t near_gpu = find_node(t, t->summary.gpu_node);
    if (t->n_nodes < 2 || (t->has_gpu && !near_gpu))
        return false;
    for (int i = 0; i < t->n_nodes; i++)
        if (!near_gpu || t->nodes[i] == near_gpu)
            hwloc_bitmap_set(set, t->nodes[i]->os_index);
    return true;
}

void ot_topology_memory_nodes(const struct ot_topology *topology, char *text, size_t bytes) {
    text[0] = '\0';
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return;
    if (choose_nodes(topology, set))
        hwloc_bitmap_list_snprintf(text, bytes, set);
    hwloc_bitmap_free(set);
}

/* The binding is not strict: when the node is full, pages come from other nodes. */
int ot_topology_bind_memory(const struct ot_topology *topology, void *memory, size_t bytes) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (!set)
        return ENOMEM;
    int error = 0;
    if (choose_nodes(topology, set)) {
        hwloc_membind_policy_t policy = topology->has_gpu ? HWLOC_MEMBIND_BIND : HWLOC_MEMBIND_INTERLEAVE;
        if (hwloc_set_area_membind(topology->machine, memory, bytes, set, policy, HWLOC_MEMBIND_BYNODESET) !=
            0)
            error = errno;
    }
    hwloc_bitmap_free(set);
    return error;
}

/* ---- hooks ---- */

static void report(int error, const char *what, atomic_bool *said) {
    if (error && !atomic_exchange(said, true))
        ot_log(OT_LOG_INFO, "%s is refused (%s): the kernel chooses; training may be slower", what,
               strerror(error));
}

void ot_topology_place_thread(void *binding, int index, int count) {
    static atomic_bool said;
    const struct ot_topology_binding *b = binding;
    if (b->topology)
        report(ot_topology_bind_thread(b->topology, b->role, index, count), "binding threads to cores",
               &said);
}

void ot_topology_place_memory(void *binding, void *memory, size_t bytes) {
    static atomic_bool said;
    const struct ot_topology_binding *b = binding;
    if (b->topology)
        report(ot_topology_bind_memory(b->topology, memory, bytes), "binding pages to memory nodes", &said);
}
