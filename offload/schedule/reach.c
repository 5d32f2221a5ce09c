#include "offload/schedule/reach.h"

#include <stdlib.h>

#include "src/base/error.h"

int ot_reach_open(struct ot_reach *reach, int n) {
    *reach = (struct ot_reach){.n = n};
    reach->sets = calloc(ot_reach_offset(n) + 1, sizeof *reach->sets);
    if (!reach->sets)
        return ot_fail(OT_E_BUDGET, "no memory for the order of %d tasks: use larger micro-batches", n);
    return 0;
}

void ot_reach_close(struct ot_reach *reach) {
    free(reach->sets);
    *reach = (struct ot_reach){0};
}

void ot_reach_add(struct ot_reach *reach, int node, int ancestor) {
    uint64_t *to = reach->sets + ot_reach_offset(node);
    const uint64_t *from = reach->sets + ot_reach_offset(ancestor);
    for (size_t w = 0; w <= (size_t)ancestor / 64; w++) /* ancestors have smaller numbers */
        to[w] |= from[w];
    to[(size_t)ancestor / 64] |= (uint64_t)1 << (ancestor % 64);
}
