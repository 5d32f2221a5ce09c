#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "offload/topology/disk.h"
#include "src/base/error.h"
#include "src/base/fnv.h"
#include "src/base/text.h"
#include "src/machine/machine.h"

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
