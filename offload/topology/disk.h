/* Finds the attachment of devices in /sys. Finds the disks behind a directory: follows partitions, device
 * mapper and md down to the physical disks. Finds the memory node of a disk or a GPU.
 *
 * File systems without their own block device have no disk here: network file systems, tmpfs, overlay, and
 * btrfs, whose device numbers name no block device.
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

/* Fills in the disks of a file system, sorted by name. root: "" for this machine, or a test's folder with
 * sys/ inside. device: st_dev of a file. Returns the number of disks, at most OT_DISK_MAX. */
int ot_disk_find(const char *root, dev_t device, struct ot_disk disks[OT_DISK_MAX]);
/* The memory node that all disks of `path` share. -1: no disk, node unknown, or more than one node. */
int ot_disk_node(const char *root, const char *path);
/* The memory node of a PCI device ("0000:65:00.0"); -1: unknown. */
int ot_disk_pci_node(const char *root, const char *bus_id);

#endif
