/* What this process may use of the machine: cores by affinity, cpuset and quota; memory by what is free and
 * by the limits of its control groups (v1 and v2), its memory nodes, the ulimits and strict overcommit,
 * since none of them shows in /proc/meminfo and a container sees the host's. */
#ifndef OT_MACHINE_MACHINE_H
#define OT_MACHINE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/plan/plan.h"

struct ot_machine {
    int cores;           /* hardware threads that may be used */
    char cpus[256];      /* which, "0-3,8"; cut where it is long */
    char cpu[96];        /* model name; "": unknown */
    char kernel[96];     /* its release */
    bool is_wsl;         /* Windows lends the GPU (WSL2), and pins a part of memory alone */
    int64_t ram_bytes;   /* of the machine, or of the container where that is less */
    int64_t free_bytes;  /* for a new program, without swapping or being killed */
    const char *within;  /* " within ulimit -v", where something else than RAM counts; else "" */
    int64_t lock_bytes;  /* that may be locked in memory (ulimit -l); INT64_MAX: no limit */
    char huge_pages[16]; /* transparent ones: "always", "madvise", "never"; "": unknown */
};

/* root: "" for this machine; a test's folder with proc/ and sys/ inside. Errors: OT_E_IO without a
 * /proc/meminfo. */
int ot_machine_probe(const char *root, struct ot_machine *out);

/* Bytes that mapped memory could still become resident with. The ulimits and the commit limit, which count
 * what is mapped, have had their say when it was mapped. Errors: as ot_machine_probe. */
int ot_machine_free_pages(const char *root, int64_t *out);

/* Budgets where the user gave none (0) for the cpu device, whose two tiers share the RAM: half of what is
 * free for the device, and what is left of nine tenths for the host; one tenth stays with the system. */
void ot_machine_budgets(const struct ot_machine *machine, int64_t gpu_given, int64_t host_given,
                        size_t budget_bytes[OT_TIER_COUNT]);

/* The host's beside a GPU, whose memory is its own: what was given, or nine tenths of what is free; on
 * WSL2 half of it. */
size_t ot_machine_host_budget(const struct ot_machine *machine, int64_t given);

/* What stands in the way of `bytes` of pinned memory being as fast as it could be, as one line that names the
 * cure; "" where nothing does. by_disks: disks are read into it as well. */
enum { OT_MACHINE_NOTE_BYTES = 512 };
const char *ot_machine_pinning_note(const struct ot_machine *machine, int64_t bytes, bool by_disks,
                                    char text[OT_MACHINE_NOTE_BYTES]);

/* Why a directory of --nvme is no disk, or is slower than its disk: tmpfs, or other programs that keep the
 * disk busy, which takes a look of `seconds`. One line that names the cure; "" where nothing is known. */
const char *ot_machine_dir_note(const char *root, const char *dir, double seconds,
                                char text[OT_MACHINE_NOTE_BYTES]);
/* Likewise where other programs use the GPU. taken_bytes: of its memory, before the run took any. */
const char *ot_machine_gpu_note(int64_t taken_bytes, int64_t total_bytes, char text[OT_MACHINE_NOTE_BYTES]);

/* A name for this machine as measurements depend on it: CPU, cores, RAM, kernel, device, the disks behind the
 * directories (or what kind of file system is there instead of a disk) and the program's version. The same
 * again after a restart, another as soon as one of them changes. Hexadecimal digits. Errors: OT_E_IO (a
 * directory that cannot be looked at). */
enum { OT_FINGERPRINT_BYTES = 65 };
int ot_machine_fingerprint(const struct ot_machine *machine, const char *device_name, int n_dirs,
                           const char *const *dirs, char text[OT_FINGERPRINT_BYTES]);

#endif
