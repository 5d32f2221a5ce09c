/* The cores and the memory that this process may use. Cores: limited by affinity, cpuset and quota. Memory:
 * limited by free memory, control groups (v1 and v2), memory nodes, ulimits and strict overcommit.
 * /proc/meminfo shows none of these limits, and in a container it shows the host. */
#ifndef OT_MACHINE_MACHINE_H
#define OT_MACHINE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/plan/plan.h"

struct ot_machine {
    int cores;           /* hardware threads that the process may use */
    char cpus[256];      /* their numbers, "0-3,8"; cut if too long */
    char cpu[96];        /* model name of the CPU; "": unknown */
    char kernel[96];     /* release of the kernel */
    bool is_wsl;         /* under WSL2: Windows shares its GPU and can pin only a part of the memory */
    bool has_driver;     /* the NVIDIA driver is loaded */
    int64_t ram_bytes;   /* RAM of the machine, or the container's limit if that is less */
    int64_t free_bytes;  /* available to a new program without swapping or being killed */
    const char *within;  /* " within ulimit -v", or another limit that is below the free RAM; else "" */
    int64_t lock_bytes;  /* memory that may be locked (ulimit -l); INT64_MAX: no limit */
    char huge_pages[16]; /* transparent huge pages: "always", "madvise", "never"; "": unknown */
};

/* root: "" for this machine, or a test's folder with proc/ and sys/ inside. Errors: OT_E_IO: no usable
 * /proc/meminfo. */
int ot_machine_read(const char *root, struct ot_machine *out);

/* Bytes of already mapped memory that could still become resident. The ulimits and the commit limit are not
 * counted again, because they limit mapping. Errors: as ot_machine_read. */
int ot_machine_free_pages(const char *root, int64_t *out);

/* Default budgets (given as 0) for the cpu device, whose two tiers share the RAM. The device gets half of the
 * free RAM, the host the rest of nine tenths; one tenth is left to the system. */
void ot_machine_budgets(const struct ot_machine *machine, int64_t gpu_given, int64_t host_given,
                        size_t budget_bytes[OT_TIER_COUNT]);

/* The host budget with a GPU: the given budget, else nine tenths of the free RAM, or half of it on WSL2. */
size_t ot_machine_host_budget(const struct ot_machine *machine, int64_t given);

/* A warning, in one line with the cure, if a setting of the system makes `bytes` of pinned memory slower than
 * possible; "" if none does. by_disks: disks read into this memory too. */
enum { OT_MACHINE_NOTE_BYTES = 512 };
const char *ot_machine_pinning_note(const struct ot_machine *machine, int64_t bytes, bool by_disks,
                                    char text[OT_MACHINE_NOTE_BYTES]);

/* A warning, in one line with the cure, if a directory of --nvme is not on a disk (tmpfs), or if other
 * programs keep the disk busy; "" if neither. Watches the disk for `seconds`. */
const char *ot_machine_dir_note(const char *root, const char *dir, double seconds,
                                char text[OT_MACHINE_NOTE_BYTES]);
/* The same if other programs use the GPU. taken_bytes: GPU memory in use before the run allocated any. */
const char *ot_machine_gpu_note(int64_t taken_bytes, int64_t total_bytes, char text[OT_MACHINE_NOTE_BYTES]);

/* A fingerprint, in hexadecimal digits, of everything that measured rates depend on: CPU, cores, RAM, kernel,
 * device, the disks of the directories (or the kind of file system, if it is not on a disk) and the version
 * of the program. It stays the same after a restart and changes if one of these changes. Errors: OT_E_IO (a
 * directory cannot be read). */
enum { OT_FINGERPRINT_BYTES = 65 };
int ot_machine_fingerprint(const struct ot_machine *machine, const char *device_name, int n_dirs,
                           const char *const *dirs, char text[OT_FINGERPRINT_BYTES]);

#endif
