#include "offload/topology/disk.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Real stacks have a few levels. The limit ends a loop in a broken /sys. */
enum { MAX_DEPTH = 8 };

/* ---- files of /sys ---- */

/* Reads the first line of folder/name, without blanks around it. If there is none: returns false and sets
 * text to "". */
static bool read_line(const char *folder, const char *name, char *text, size_t bytes) {
    char path[PATH_MAX], line[256];
    text[0] = '\0';
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    char *first = fgets(line, sizeof line, file);
    fclose(file);
    if (!first)
        return false;
    while (isspace((unsigned char)*first))
        first++;
    size_t n = strlen(first);
    while (n > 0 && isspace((unsigned char)first[n - 1]))
        n--;
    snprintf(text, bytes, "%.*s", (int)n, first);
    return n > 0;
}

static bool is_there(const char *folder, const char *name) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && !access(path, F_OK);
}

static bool find_real(const char *folder, const char *name, char real[PATH_MAX]) {
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && realpath(path, real);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- memory nodes ---- */

static int read_node(const char *folder, const char *name) {
    char text[32];
    return read_line(folder, name, text, sizeof text) ? atoi(text) : -1;
}

/* An NVMe disk with several controllers (multipath) is in /sys below its subsystem, not below a PCI device.
 * The subsystem's folder has links to the controllers ("nvme0"), beside the disk ("nvme0n1"). */
static int find_subsystem_node(const char *folder) {
    int node = -1;
    DIR *dir = opendir(folder);
    if (!dir)
        return -1;
    for (struct dirent *entry; node < 0 && (entry = readdir(dir));) {
        char name[NAME_MAX + 32];
        if (strncmp(entry->d_name, "nvme", 4) != 0)
            continue;
        snprintf(name, sizeof name, "%s/numa_node", entry->d_name);
        node = read_node(folder, name);
        snprintf(name, sizeof name, "%s/device/numa_node", entry->d_name);
        node = node < 0 ? read_node(folder, name) : node;
    }
    closedir(dir);
    return node;
}

/* The memory node of the nearest ancestor that has one. path: in /sys, without links. -1: unknown. */
static int find_node(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash; (slash = strrchr(folder, '/')) && slash > folder; *slash = '\0') {
        int node = read_node(folder, "numa_node");
        if (node < 0)
            node = read_node(folder, "device/numa_node");
        if (node < 0 && strncmp(slash + 1, "nvme-subsys", 11) == 0)
            node = find_subsystem_node(folder);
        if (node >= 0)
            return node;
    }
    return -1;
}

int ot_disk_pci_node(const char *root, const char *bus_id) {
    unsigned domain, bus, device, function;
    char folder[PATH_MAX], name[64];
    /* Upper or lower case digits. */
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return -1;
    snprintf(name, sizeof name, "%04x:%02x:%02x.%x", domain, bus, device, function);
    snprintf(folder, sizeof folder, "%s/sys/bus/pci/devices/%s", root, name);
    char real[PATH_MAX];
    return realpath(folder, real) ? find_node(real) : -1;
}

/* ---- disks ---- */

struct found {
    struct ot_disk *disks;
    int n;
};

static void add_disk(const char *path, struct found *found) {
    const char *name = last_part(path);
    for (int i = 0; i < found->n; i++)
        if (strcmp(found->disks[i].name, name) == 0)
            return; /* already found, through another partition */
    if (found->n == OT_DISK_MAX)
        return;
    struct ot_disk *disk = &found->disks[found->n++];
    char sectors[32];
    *disk = (struct ot_disk){.node = find_node(path)};
    snprintf(disk->name, sizeof disk->name, "%s", name);
    read_line(path, "device/model", disk->model, sizeof disk->model);
    if (!read_line(path, "device/serial", disk->serial, sizeof disk->serial) &&
        !read_line(path, "serial", disk->serial, sizeof disk->serial) && /* virtio */
        !read_line(path, "wwid", disk->serial, sizeof disk->serial))
        read_line(path, "device/wwid", disk->serial, sizeof disk->serial); /* SCSI, SATA */
    if (read_line(path, "size", sectors, sizeof sectors))
        disk->bytes = strtoll(sectors, NULL, 10) * 512; /* /sys counts in 512 bytes for every disk */
}

static void look_below(const char *path, int depth, struct found *found);

/* Looks at the devices below a device mapper or md device. Returns false if there are none. */
static bool look_at_parts(const char *path, int depth, struct found *found) {
    char folder[PATH_MAX], real[PATH_MAX];
    bool any = false;
    if (!find_real(path, "slaves", folder))
        return false;
    DIR *dir = opendir(folder);
    if (!dir)
        return false;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && find_real(folder, entry->d_name, real)) {
            any = true;
            look_below(real, depth + 1, found);
        }
    closedir(dir);
    return any;
}

static void look_below(const char *path, int depth, struct found *found) {
    char disk[PATH_MAX];
    if (depth > MAX_DEPTH)
        return;
    if (is_there(path, "partition")) {
        if (find_real(path, "..", disk))
            look_below(disk, depth + 1, found);
    } else if (!look_at_parts(path, depth, found)) {
        add_disk(path, found);
    }
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const struct ot_disk *)a)->name, ((const struct ot_disk *)b)->name);
}

int ot_disk_find(const char *root, dev_t device, struct ot_disk disks[OT_DISK_MAX]) {
    struct found found = {.disks = disks};
    char folder[PATH_MAX], name[64], real[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/sys/dev/block", root);
    snprintf(name, sizeof name, "%u:%u", major(device), minor(device));
    if (find_real(folder, name, real))
        look_below(real, 0, &found);
    qsort(disks, (size_t)found.n, sizeof *disks, compare_names); /* readdir returns them in any order */
    return found.n;
}

int ot_disk_node(const char *root, const char *path) {
    struct ot_disk disks[OT_DISK_MAX];
    struct stat file;
    int n = stat(path, &file) == 0 ? ot_disk_find(root, file.st_dev, disks) : 0;
    for (int i = 1; i < n; i++)
        if (disks[i].node != disks[0].node)
            return -1;
    return n > 0 ? disks[0].node : -1;
}
