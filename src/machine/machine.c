#include "src/machine/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <time.h>

#include <linux/magic.h>

#include "offload/topology/disk.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/units.h"

/* Several of these buffers are on the stack at a time, and with `ulimit -s 256` the stack is small. */
enum { PATH_BYTES = 4096, FILE_BYTES = 16384 };

/* Reads a small file of /proc or /sys whole. False: it does not exist. */
static bool read_small(const char *root, const char *folder, const char *name, char text[FILE_BYTES]) {
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, FILE_BYTES - 1, file);
    text[n] = '\0';
    fclose(file);
    return n > 0;
}

/* The number after `key` at the start of a line; -1: not found. */
static int64_t find_number(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0)
            return strtoll(line + length, NULL, 10);
    }
    return -1;
}

/* The text after `key` at the start of a line, without blanks around it; "": not found. */
static void find_text(const char *text, const char *key, char *out, size_t bytes) {
    size_t length = strlen(key);
    out[0] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) != 0)
            continue;
        line += length + strspn(line + length, " \t:");
        snprintf(out, bytes, "%.*s", (int)strcspn(line, "\n"), line);
        return;
    }
}

/* Takes the first range from a list in the kernel's form ("0-3,8"). False at the end of the list. */
static bool next_range(const char **list, long *first, long *last) {
    char *end;
    if (**list < '0' || **list > '9')
        return false;
    *first = *last = strtol(*list, &end, 10);
    if (*end == '-')
        *last = strtol(end + 1, &end, 10);
    *list = end + (*end == ',');
    return true;
}

static bool list_has(const char *list, long number) {
    for (long first, last; next_range(&list, &first, &last);)
        if (number >= first && number <= last)
            return true;
    return false;
}

static int list_count(const char *list) {
    long count = 0;
    for (long first, last; next_range(&list, &first, &last);)
        count += last >= first ? last - first + 1 : 0;
    return (int)count;
}

/* Bytes in total and bytes left. */
static void apply_limit(struct ot_machine *out, int64_t limit, int64_t left, const char *within) {
    if (limit < out->ram_bytes)
        out->ram_bytes = limit;
    if (left < out->free_bytes) {
        out->free_bytes = ot_max(left, 0);
        out->within = within;
    }
}

/* ---- control groups ---- */

struct controller { /* the files of a control group, for each version */
    const char *mount, *limit, *usage, *cache_keys[2], *quota, *period;
};
static const struct controller version_2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}, "cpu.max", NULL};
static const struct controller version_1_memory = {"/sys/fs/cgroup/memory",
                                                   "memory.limit_in_bytes",
                                                   "memory.usage_in_bytes",
                                                   {"total_inactive_file ", "total_active_file "},
                                                   NULL,
                                                   NULL};
static const struct controller version_1_cpu = {"/sys/fs/cgroup/cpu", NULL, NULL, {NULL}, "cpu.cfs_quota_us",
                                                "cpu.cfs_period_us"};

static void apply_memory(const char *root, const struct controller *group, const char *folder,
                         struct ot_machine *out) {
    char text[FILE_BYTES];
    if (!group->limit || !read_small(root, folder, group->limit, text) || text[0] == 'm') /* "max" */
        return;
    int64_t limit = strtoll(text, NULL, 10);
    if (limit <= 0 || limit >= out->ram_bytes) /* v1 writes a huge number for "no limit" */
        return;
    int64_t usage = read_small(root, folder, group->usage, text) ? strtoll(text, NULL, 10) : 0;
    int64_t cache = 0; /* pages of files, which the kernel drops when memory is short */
    bool has_stat = read_small(root, folder, "memory.stat", text);
    for (int i = 0; i < 2 && has_stat; i++)
        cache += ot_max(find_number(text, group->cache_keys[i]), 0);
    apply_limit(out, limit, limit - usage + cache, " within the container's limit");
}

static void apply_quota(const char *root, const struct controller *group, const char *folder,
                        struct ot_machine *out) {
    char text[FILE_BYTES], *end = text;
    if (!group->quota || !read_small(root, folder, group->quota, text) || text[0] == 'm')
        return;
    double quota = strtod(text, &end), period = strtod(end, NULL);
    if (group->period)
        period = read_small(root, folder, group->period, text) ? strtod(text, NULL) : 0;
    if (quota > 0 && period > 0 && ceil(quota / period) < out->cores)
        out->cores = (int)ceil(quota / period);
}

/* A limit on any level up the tree counts. Inside a container the path may not exist; then the root of the
 * mount is the container's own group. */
static void apply_group(const char *root, const struct controller *group, const char *path,
                        struct ot_machine *out) {
    char folder[PATH_BYTES + 64];
    snprintf(folder, sizeof folder, "%s%s", group->mount, path);
    for (;;) {
        apply_memory(root, group, folder, out);
        apply_quota(root, group, folder, out);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(group->mount))
            return;
        *slash = '\0';
    }
}

static bool lists(const char *controllers, const char *name) {
    size_t length = strlen(name);
    for (; *controllers; controllers += *controllers == ',') {
        size_t n = strcspn(controllers, ",");
        if (n == length && memcmp(controllers, name, n) == 0)
            return true;
        controllers += n;
    }
    return false;
}

static void apply_groups(const char *root, struct ot_machine *out) {
    char text[FILE_BYTES];
    if (!read_small(root, "/proc/self", "cgroup", text))
        return;
    char *lines = text, *line;
    while ((line = strsep(&lines, "\n"))) { /* "4:memory:/docker/1f" or "0::/user.slice" */
        strsep(&line, ":");
        const char *controllers = strsep(&line, ":");
        if (!line || strlen(line) >= PATH_BYTES)
            continue;
        const char *path = strcmp(line, "/") == 0 ? "" : line;
        if (!*controllers)
            apply_group(root, &version_2, path, out);
        if (lists(controllers, "memory"))
            apply_group(root, &version_1_memory, path, out);
        if (lists(controllers, "cpu"))
            apply_group(root, &version_1_cpu, path, out);
    }
}

/* ---- the other limits ---- */

/* A cpuset may exclude memory nodes, but /proc/meminfo counts all nodes. The kernel does not report how much
 * memory a node could free; its file cache is an estimate. */
static void apply_nodes(const char *root, const char *status, struct ot_machine *out) {
    char allowed[1024], nodes[FILE_BYTES];
    int64_t total = 0, left = 0;
    bool all = true;
    find_text(status, "Mems_allowed_list:", allowed, sizeof allowed);
    if (!allowed[0] || !read_small(root, "/sys/devices/system/node", "has_memory", nodes))
        return;
    for (long node = 0, n = list_count(nodes), seen = 0; seen < n; node++) {
        static const char *const parts[] = {"MemFree:", "Inactive(file):", "SReclaimable:"};
        char folder[64], text[FILE_BYTES], key[64];
        if (!list_has(nodes, node))
            continue;
        seen++;
        snprintf(folder, sizeof folder, "/sys/devices/system/node/node%ld", node);
        bool counts = list_has(allowed, node) && read_small(root, folder, "meminfo", text);
        all = all && counts;
        if (!counts)
            continue;
        snprintf(key, sizeof key, "Node %ld MemTotal:", node);
        total += find_number(text, key) * 1024;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            snprintf(key, sizeof key, "Node %ld %s", node, parts[i]);
            int64_t kib = find_number(text, key);
            left += kib > 0 ? kib * 1024 : 0;
        }
    }
    if (!all && total > 0)
        apply_limit(out, total, left, " on the memory nodes of its cpuset");
}

static void apply_ulimits(const char *status, struct ot_machine *out) {
    static const struct {
        int resource;
        const char *key, *within;
    } limits[] = {{RLIMIT_AS, "VmSize:", " within ulimit -v"}, {RLIMIT_DATA, "VmData:", " within ulimit -d"}};
    struct rlimit limit;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (getrlimit((__rlimit_resource_t)limits[i].resource, &limit) != 0 ||
            limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > INT64_MAX)
            continue;
        int64_t used = find_number(status, limits[i].key), bytes = (int64_t)limit.rlim_cur;
        apply_limit(out, bytes, bytes - (used > 0 ? used * 1024 : 0), limits[i].within);
    }
}

/* With strict overcommit (vm.overcommit_memory = 2), memory that other programs have reserved is not
 * available, even if they do not use it. */
static void apply_commit(const char *root, const char *meminfo, struct ot_machine *out) {
    char text[FILE_BYTES];
    int64_t limit = find_number(meminfo, "CommitLimit:"), promised = find_number(meminfo, "Committed_AS:");
    if (read_small(root, "/proc/sys/vm", "overcommit_memory", text) && text[0] == '2' && limit > 0 &&
        promised >= 0)
        apply_limit(out, limit * 1024, (limit - promised) * 1024,
                    " within the commit limit (vm.overcommit_memory is 2)");
}

/* CAP_IPC_LOCK removes the limit. */
static int64_t find_lock_limit(const char *status) {
    enum { CAP_IPC_LOCK_BIT = 14 };
    char capabilities[32];
    struct rlimit limit;
    find_text(status, "CapEff:", capabilities, sizeof capabilities);
    bool exempt = strtoull(capabilities, NULL, 16) >> CAP_IPC_LOCK_BIT & 1;
    if (exempt || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur > INT64_MAX)
        return INT64_MAX;
    return (int64_t)limit.rlim_cur;
}

/* ---- cores and memory ---- */

static void find_cores(const char *status, struct ot_machine *out) {
    cpu_set_t set; /* sched_getaffinity knows at most 1024 cores; the list has no such limit */
    char list[8192];
    find_text(status, "Cpus_allowed_list:", list, sizeof list);
    snprintf(out->cpus, sizeof out->cpus, "%.*s", (int)sizeof out->cpus - 1, list);
    out->cores = list_count(list);
    if (out->cores == 0 && sched_getaffinity(0, sizeof set, &set) == 0)
        out->cores = CPU_COUNT(&set);
    if (out->cores == 0)
        out->cores = 1;
}

/* "always [madvise] never" */
static void find_huge_pages(const char *root, struct ot_machine *out) {
    char text[FILE_BYTES];
    if (!read_small(root, "/sys/kernel/mm/transparent_hugepage", "enabled", text))
        return;
    const char *chosen = strchr(text, '[');
    if (chosen)
        snprintf(out->huge_pages, sizeof out->huge_pages, "%.*s", (int)strcspn(chosen + 1, "]"), chosen + 1);
}

static void find_names(const char *root, struct ot_machine *out) {
    char text[FILE_BYTES];
    struct utsname name;
    if (uname(&name) == 0)
        snprintf(out->kernel, sizeof out->kernel, "%s", name.release);
    out->has_driver = read_small(root, "/proc/driver/nvidia", "version", text);
    out->is_wsl = read_small(root, "/proc", "version", text) && strcasestr(text, "microsoft");
    if (!read_small(root, "/proc", "cpuinfo", text))
        return;
    find_text(text, "model name", out->cpu, sizeof out->cpu);
    if (!out->cpu[0]) /* arm64 has numbers instead of a name */
        find_text(text, "CPU part", out->cpu, sizeof out->cpu);
}

/* Finds RAM and the limits that count pages in use. status: /proc/self/status. */
static int probe_pages(const char *root, const char *status, char meminfo[FILE_BYTES],
                       struct ot_machine *out) {
    if (!read_small(root, "/proc", "meminfo", meminfo))
        return ot_fail_errno(OT_E_IO, errno, "%s/proc/meminfo: cannot read how much memory is free", root);
    int64_t total = find_number(meminfo, "MemTotal:"), free_now = find_number(meminfo, "MemAvailable:");
    if (total <= 0 || free_now < 0)
        return ot_fail(OT_E_IO, "%s/proc/meminfo: MemTotal or MemAvailable is missing", root);
    *out = (struct ot_machine){.ram_bytes = total * 1024, .free_bytes = free_now * 1024, .within = ""};
    find_cores(status, out);
    apply_groups(root, out);
    apply_nodes(root, status, out);
    return 0;
}

int ot_machine_free_pages(const char *root, int64_t *out) {
    char meminfo[FILE_BYTES], status[FILE_BYTES] = "";
    struct ot_machine machine;
    read_small(root, "/proc/self", "status", status);
    OT_TRY(probe_pages(root, status, meminfo, &machine));
    *out = machine.free_bytes;
    return 0;
}

int ot_machine_read(const char *root, struct ot_machine *out) {
    char meminfo[FILE_BYTES], status[FILE_BYTES] = "";
    read_small(root, "/proc/self", "status", status);
    OT_TRY(probe_pages(root, status, meminfo, out));
    apply_ulimits(status, out);
    apply_commit(root, meminfo, out);
    out->lock_bytes = find_lock_limit(status);
    find_huge_pages(root, out);
    find_names(root, out);
    return 0;
}

/* ---- budgets ---- */

static int64_t usable_bytes(const struct ot_machine *machine) {
    return machine->free_bytes - machine->free_bytes / 10;
}

size_t ot_machine_host_budget(const struct ot_machine *machine, int64_t given) {
    return (size_t)(given ? given : machine->is_wsl ? machine->free_bytes / 2 : usable_bytes(machine));
}

void ot_machine_budgets(const struct ot_machine *machine, int64_t gpu_given, int64_t host_given,
                        size_t budget_bytes[OT_TIER_COUNT]) {
    int64_t usable = usable_bytes(machine);
    int64_t gpu = gpu_given;
    if (!gpu) {
        gpu = machine->free_bytes / 2;
        if (host_given && gpu > usable - host_given)
            gpu = usable > host_given ? usable - host_given : 0;
    }
    int64_t host = host_given ? host_given : usable > gpu ? usable - gpu : 0;
    budget_bytes[OT_TIER_GPU] = (size_t)gpu;
    budget_bytes[OT_TIER_HOST] = (size_t)host;
}

/* ---- pinned memory ---- */

/* Measured: beyond the limit, io_uring refuses to register buffers (ENOMEM), and works without registering
 * them. */
const char *ot_machine_pinning_note(const struct ot_machine *machine, int64_t bytes, bool by_disks,
                                    char text[OT_MACHINE_NOTE_BYTES]) {
    char need[OT_TEXT_BYTES], have[OT_TEXT_BYTES];
    bool locked = by_disks && bytes > machine->lock_bytes, small = strcmp(machine->huge_pages, "never") == 0;
    int n = 0;
    text[0] = '\0';
    if (bytes <= 0 || (!locked && !small && !machine->is_wsl))
        return text;
    n += snprintf(text, OT_MACHINE_NOTE_BYTES, "%s of pinned memory: ", ot_text_bytes(bytes, need));
    if (locked)
        n += snprintf(text + n, OT_MACHINE_NOTE_BYTES - (size_t)n,
                      "locked memory is limited to %s, so disk buffers are not registered with the kernel, "
                      "which costs CPU time (to fix: ulimit -l unlimited)",
                      ot_text_bytes(machine->lock_bytes, have));
    if (machine->is_wsl)
        n += snprintf(text + n, OT_MACHINE_NOTE_BYTES - (size_t)n,
                      "%sWSL2 can pin only about half of the memory (if pinning fails, lower --host-mem)",
                      locked ? "; " : "");
    if (small)
        snprintf(text + n, OT_MACHINE_NOTE_BYTES - (size_t)n,
                 "%shuge pages are off, so pinning and copies are slower (to fix: echo madvise > "
                 "/sys/kernel/mm/transparent_hugepage/enabled)",
                 locked || machine->is_wsl ? "; " : "");
    return text;
}

/* ---- fingerprint ---- */

/* Model and serial number identify the disk even if the kernel numbers the disks differently. A virtual disk
 * may have neither. */
static void describe_disk(const struct ot_disk *disk, struct ot_string_builder *b) {
    const char *serial = disk->serial[0] ? disk->serial : disk->name;
    ot_string_append_format(b, "disk %s|%s|%" PRId64 "\n", disk->model, serial, disk->bytes);
}

static int describe_dir(const char *path, struct ot_string_builder *b) {
    struct ot_disk disks[OT_DISK_MAX];
    struct stat file;
    struct statfs system;
    if (stat(path, &file) != 0 || statfs(path, &system) != 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot find the disk of this directory", path);
    int n = ot_disk_find("", file.st_dev, disks);
    ot_string_append_format(b, "directory %lx\n", (unsigned long)system.f_type);
    for (int i = 0; i < n; i++)
        describe_disk(&disks[i], b);
    if (n == 0)
        ot_string_append_format(b, "no disk %" PRIu64 "\n",
                                (uint64_t)system.f_blocks * (uint64_t)system.f_bsize);
    return 0;
}

int ot_machine_fingerprint(const struct ot_machine *machine, const char *device_name, int n_dirs,
                           const char *const *dirs, char text[OT_FINGERPRINT_BYTES]) {
    struct ot_string_builder b = {0};
    int rc = 0;
    int64_t gib = (int64_t)1 << 30; /* rounds: the kernel keeps a slightly different amount at each boot */
    ot_string_append_format(&b, "offload-train %s\nkernel %s\ncpu %s\ncores %d of %s\nram %" PRId64 "\n",
                            OT_VERSION, machine->kernel, machine->cpu, machine->cores, machine->cpus,
                            (machine->ram_bytes + gib / 2) / gib);
    ot_string_append_format(&b, "device %s\n", device_name);
    for (int i = 0; i < n_dirs && rc == 0; i++)
        rc = describe_dir(dirs[i], &b);
    if (rc == 0 && b.failed)
        rc = ot_fail(OT_E_BUDGET, "no memory for the machine's fingerprint");
    if (rc == 0) /* a cache never has so many machines that 64 bits collide */
        snprintf(text, OT_FINGERPRINT_BYTES, "%016" PRIx64, ot_fnv64(OT_FNV64, b.text, b.bytes));
    free(b.text);
    return rc;
}

/* ---- notes ---- */

/* Warnings about causes of slow runs that are not in the plan: a directory that is not on a disk, and a disk
 * or a GPU that other programs use. */

/* A disk that works more than this share of the time is busy: our transfers would wait for other programs.
 */
static const double busy_share = 0.5;

/* Milliseconds since boot in which the disk had work: field 10 of its statistics. -1: unknown. */
static double read_busy_ms(const char *root, const char *disk) {
    enum { FIELD = 10 };
    char path[512], line[512];
    snprintf(path, sizeof path, "%s/sys/block/%s/stat", root, disk);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    char *at = fgets(line, sizeof line, file), *end = at;
    fclose(file);
    double value = -1;
    for (int i = 0; at && i < FIELD; i++, at = end) {
        value = strtod(at, &end);
        if (end == at)
            return -1;
    }
    return at ? value : -1;
}

static double find_busy_share(const char *root, const struct ot_disk *disk, double seconds) {
    struct timespec pause = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    double before = read_busy_ms(root, disk->name), began = ot_clock_seconds();
    if (before < 0)
        return 0;
    while (nanosleep(&pause, &pause) < 0)
        ;
    double after = read_busy_ms(root, disk->name);
    return (after - before) * 1e-3 / (ot_clock_seconds() - began);
}

const char *ot_machine_dir_note(const char *root, const char *dir, double seconds,
                                char text[OT_MACHINE_NOTE_BYTES]) {
    struct ot_disk disks[OT_DISK_MAX];
    struct stat file;
    struct statfs system;
    text[0] = '\0';
    if (stat(dir, &file) < 0 || statfs(dir, &system) < 0)
        return text;
    if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
        snprintf(text, OT_MACHINE_NOTE_BYTES,
                 "--nvme %.200s: this directory is on tmpfs, which uses RAM, so it saves no memory; use a "
                 "directory on a disk",
                 dir);
        return text;
    }
    int n = ot_disk_find(root, file.st_dev, disks);
    for (int i = 0; i < n; i++) {
        double share = find_busy_share(root, &disks[i], seconds / n);
        if (share > busy_share) {
            snprintf(text, OT_MACHINE_NOTE_BYTES,
                     "--nvme %.200s: other programs keep its disk %.40s busy (%d %% of the time), so it is "
                     "slower than predicted; check with iostat -x, and use another disk or start later",
                     dir, disks[i].name, share > 1 ? 100 : (int)(100 * share));
            break;
        }
    }
    return text;
}

const char *ot_machine_gpu_note(int64_t taken_bytes, int64_t total_bytes, char text[OT_MACHINE_NOTE_BYTES]) {
    const int64_t most = (int64_t)2 << 30; /* the driver's context and a display use less than this */
    int64_t reserve = ot_min(total_bytes / 16, most);
    char taken[OT_TEXT_BYTES], total[OT_TEXT_BYTES];
    text[0] = '\0';
    if (taken_bytes > reserve)
        snprintf(text, OT_MACHINE_NOTE_BYTES,
                 "other programs use %s of the GPU's %s; if they also compute, the run is slower than "
                 "predicted; nvidia-smi lists them",
                 ot_text_bytes(taken_bytes, taken), ot_text_bytes(total_bytes, total));
    return text;
}
