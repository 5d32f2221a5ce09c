/* What this process may use of the machine: cores by affinity and quota, memory by what is free and by the
 * limits of its control groups (v1 and v2), since a container sees the host's /proc/meminfo. */
#ifndef OT_CLI_MACHINE_H
#define OT_CLI_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/plan.h"

struct ot_machine {
    int cores;
    int64_t ram_bytes;  /* of the machine, or of the container where that is less */
    int64_t free_bytes; /* for a new program, without swapping or being killed */
    bool limited;       /* a control group's limit is what counts */
};

/* root: "" for this machine; a test's folder with proc/ and sys/ inside. Errors: OT_E_IO without a
 * /proc/meminfo. */
int ot_machine_probe(const char *root, struct ot_machine *out);

/* Budgets where the user gave none (0) for the cpu device, whose two tiers share the RAM: half of what is
 * free for the device, and what is left of nine tenths for the host; one tenth stays with the system. */
void ot_machine_budgets(const struct ot_machine *machine, int64_t gpu_given, int64_t host_given,
                        size_t budget_bytes[OT_TIER_COUNT]);

/* The host's beside a GPU, whose memory is its own: what was given, or nine tenths of what is free. */
size_t ot_machine_host_budget(const struct ot_machine *machine, int64_t given);

#endif
