/* Reachability in a growing graph: one bit set of ancestors per node, nodes added in topological order.
 * Internal to offload/. A set has room for the nodes before its own, so that n nodes cost n^2 / 16 bytes: two
 * steps of a 70B model with 64 micro-batches take some 35 MB for the moment that linking and verifying last.
 */
#ifndef OT_OFFLOAD_SCHEDULE_REACH_H
#define OT_OFFLOAD_SCHEDULE_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_reach {
    int n;
    uint64_t *sets; /* node i's has i / 64 + 1 words */
};

int ot_reach_open(struct ot_reach *reach, int n); /* Errors: OT_E_BUDGET */
void ot_reach_close(struct ot_reach *reach);

/* Where node's set begins, in words: behind those of all nodes before it. */
static inline size_t ot_reach_offset(int node) {
    size_t full = (size_t)node / 64, rest = (size_t)node % 64;
    return 64 * (full * (full + 1) / 2) + rest * (full + 1);
}

/* ancestor < node */
static inline bool ot_reach_has(const struct ot_reach *reach, int node, int ancestor) {
    return reach->sets[ot_reach_offset(node) + (size_t)ancestor / 64] >> (ancestor % 64) & 1;
}

/* ancestor comes before node, and with it all its own ancestors, which must be complete. */
void ot_reach_add(struct ot_reach *reach, int node, int ancestor);

#endif
