/* Reachability in a growing graph: one bit set of ancestors per node, nodes added in topological order.
 * Internal to offload/. n nodes cost n^2 / 8 bytes: two steps of a 70B model with 64 micro-batches take some
 * 70 MB for the moment that linking and verifying last.
 */
#ifndef OT_OFFLOAD_REACH_H
#define OT_OFFLOAD_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_reach {
    int n;
    size_t words; /* of one set */
    uint64_t *sets;
};

int ot_reach_open(struct ot_reach *reach, int n); /* Errors: OT_E_BUDGET */
void ot_reach_close(struct ot_reach *reach);

static inline bool ot_reach_has(const struct ot_reach *reach, int node, int ancestor) {
    return reach->sets[(size_t)node * reach->words + (size_t)ancestor / 64] >> (ancestor % 64) & 1;
}

/* ancestor comes before node, and with it all its own ancestors, which must be complete. */
void ot_reach_add(struct ot_reach *reach, int node, int ancestor);

#endif
