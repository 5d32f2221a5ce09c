/* Where devices hang in the machine, by /sys: the disks behind a directory, through partitions, device mapper
 * and md down to the disks themselves, and the memory node that a disk or a GPU is attached to.
 *
 * File systems without a block device of their own (network, tmpfs, overlay; btrfs, whose device numbers are
 * made up) have no disk here.
 */
#ifndef OT_OFFLOAD_TOPOLOGY_DISK_H
#define OT_OFFLOAD_TOPOLOGY_DISK_H

#include <stdint.h>
#include <sys/types.h>

enum { OT_DISK_MAX = 16 };

struct ot_disk {
    char name[64];              /* "nvme0n1" */
    char model[64], serial[64]; /* "": unknown */
    int64_t bytes;
    int node; /* memory node, OS index; -1: unknown */
};

/* root: "" for this machine; a test's folder with sys/ inside. device: st_dev of a file. Returns how many
 * disks there are; what does not fit is left out. */
int ot_disk_find(const char *root, dev_t device, struct ot_disk disks[OT_DISK_MAX]);
/* The memory node of all disks that hold `path`; -1: none, unknown, or several. */
int ot_disk_node(const char *root, const char *path);
/* The memory node of a PCI device ("0000:65:00.0"); -1: unknown. */
int ot_disk_pci_node(const char *root, const char *bus_id);

#endif
