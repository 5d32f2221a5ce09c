/* Reachability in a graph whose nodes are added in topological order. Each node has a bit set of its
 * ancestors. A set has room only for the nodes before its own, so n nodes take n^2 / 16 bytes: about 35 MB
 * for two steps of a 70B model with 64 micro-batches, while linking or verifying runs. Private to
 * offload/schedule.
 */
#ifndef OT_OFFLOAD_SCHEDULE_REACH_H
#define OT_OFFLOAD_SCHEDULE_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_reach {
    int n;
    uint64_t *sets; /* the set of node i has i / 64 + 1 words */
};

int ot_reach_open(struct ot_reach *reach, int n); /* Errors: OT_E_BUDGET */
void ot_reach_close(struct ot_reach *reach);

/* Offset of the node's set in words: the sets of all nodes before it come first. */
static inline size_t ot_reach_offset(int node) {
    size_t full = (size_t)node / 64, rest = (size_t)node % 64;
    return 64 * (full * (full + 1) / 2) + rest * (full + 1);
}

/* True if ancestor comes before node. Needs ancestor < node. */
static inline bool ot_reach_has(const struct ot_reach *reach, int node, int ancestor) {
    return reach->sets[ot_reach_offset(node) + (size_t)ancestor / 64] >> (ancestor % 64) & 1;
}

/* Gives the node an empty set. Call once for each node, before any other call with it. */
void ot_reach_begin(struct ot_reach *reach, int node);

/* Notes that ancestor and all of ancestor's ancestors come before node. ancestor's own set must be
 * complete. */
void ot_reach_add(struct ot_reach *reach, int node, int ancestor);

#endif
