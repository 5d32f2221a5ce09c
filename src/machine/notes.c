/* Warnings about causes of slow runs that are not in the plan: a directory that is not on a disk, and a disk
 * or a GPU that other programs use. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>

#include <linux/magic.h>

#include "offload/topology/disk.h"
#include "src/base/clock.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/machine/machine.h"

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
    int64_t own = ot_min(total_bytes / 16, most);
    char taken[OT_TEXT_BYTES], total[OT_TEXT_BYTES];
    text[0] = '\0';
    if (taken_bytes > own)
        snprintf(text, OT_MACHINE_NOTE_BYTES,
                 "other programs use %s of the GPU's %s; if they also compute, the run is slower than "
                 "predicted; nvidia-smi lists them",
                 ot_text_bytes(taken_bytes, taken), ot_text_bytes(total_bytes, total));
    return text;
}
