#include "src/cli/machine.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

enum { PATH_BYTES = 4096, FILE_BYTES = 65536 };

/* Reads a small file of /proc or /sys whole; false where it is not there. */
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

/* The number after `key` at the start of a line; -1 if there is none. */
static int64_t find_number(const char *text, const char *key) {
    size_t length = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0)
            return strtoll(line + length, NULL, 10);
    }
    return -1;
}

struct controller { /* where a control group says what, in each version */
    const char *mount, *limit, *usage, *cache_key, *quota, *period;
};
static const struct controller version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                            "inactive_file ", "cpu.max",    NULL};
static const struct controller version_1_memory = {"/sys/fs/cgroup/memory",
                                                   "memory.limit_in_bytes",
                                                   "memory.usage_in_bytes",
                                                   "total_inactive_file ",
                                                   NULL,
                                                   NULL};
static const struct controller version_1_cpu = {"/sys/fs/cgroup/cpu", NULL, NULL, NULL, "cpu.cfs_quota_us",
                                                "cpu.cfs_period_us"};

static void apply_memory(const char *root, const struct controller *group, const char *folder,
                         struct ot_machine *out) {
    char text[FILE_BYTES];
    if (!group->limit || !read_small(root, folder, group->limit, text) || text[0] == 'm') /* "max" */
        return;
    int64_t limit = strtoll(text, NULL, 10);
    if (limit <= 0 || limit >= out->ram_bytes) /* v1 writes "none" as a huge number */
        return;
    int64_t usage = read_small(root, folder, group->usage, text) ? strtoll(text, NULL, 10) : 0;
    int64_t cache = read_small(root, folder, "memory.stat", text) ? find_number(text, group->cache_key) : 0;
    int64_t left = limit - usage + (cache > 0 ? cache : 0);
    out->ram_bytes = limit;
    if (left < out->free_bytes) {
        out->free_bytes = left > 0 ? left : 0;
        out->limited = true;
    }
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

/* A limit anywhere up the tree counts. Inside a container the path may not exist; its mount's root is then
 * its own. */
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
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n"))) { /* "4:memory:/docker/1f" or "0::/user.slice" */
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

int ot_machine_probe(const char *root, struct ot_machine *out) {
    char text[FILE_BYTES];
    if (!read_small(root, "/proc", "meminfo", text))
        return ot_fail_errno(OT_E_IO, errno, "%s/proc/meminfo: cannot tell how much memory is free", root);
    int64_t total = find_number(text, "MemTotal:"), free_now = find_number(text, "MemAvailable:");
    if (total <= 0 || free_now < 0)
        return ot_fail(OT_E_IO, "%s/proc/meminfo: no MemTotal and MemAvailable", root);
    *out = (struct ot_machine){.cores = 1, .ram_bytes = total * 1024, .free_bytes = free_now * 1024};
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        out->cores = CPU_COUNT(&set);
    apply_groups(root, out);
    return 0;
}

size_t ot_machine_host_budget(const struct ot_machine *machine, int64_t given) {
    return (size_t)(given ? given : machine->free_bytes - machine->free_bytes / 10);
}

void ot_machine_budgets(const struct ot_machine *machine, int64_t gpu_given, int64_t host_given,
                        size_t budget_bytes[OT_TIER_COUNT]) {
    int64_t usable = (int64_t)ot_machine_host_budget(machine, 0);
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
