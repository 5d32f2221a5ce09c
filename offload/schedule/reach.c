#include "offload/schedule/reach.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/error.h"

int ot_reach_open(struct ot_reach *reach, int n) {
    const size_t huge_page = (size_t)2 << 20;
    size_t bytes = (ot_reach_offset(n) + 1) * sizeof *reach->sets;
    bool is_large = bytes >= huge_page;
    if (is_large)
        bytes = (bytes / huge_page + 1) * huge_page;
    *reach = (struct ot_reach){.n = n, .sets = is_large ? aligned_alloc(huge_page, bytes) : malloc(bytes)};
    if (!reach->sets)
        return ot_fail(OT_E_BUDGET,
                       "no memory for the order of %d tasks; larger micro-batches make fewer tasks", n);
    /* With small pages, a third of the planner's time goes into page faults here. A failure costs speed only.
     */
    if (is_large)
        madvise(reach->sets, bytes, MADV_HUGEPAGE);
    return 0;
}

void ot_reach_close(struct ot_reach *reach) {
    free(reach->sets);
    *reach = (struct ot_reach){0};
}

void ot_reach_begin(struct ot_reach *reach, int node) {
    memset(reach->sets + ot_reach_offset(node), 0, ((size_t)node / 64 + 1) * sizeof *reach->sets);
}

void ot_reach_add(struct ot_reach *reach, int node, int ancestor) {
    uint64_t *to = reach->sets + ot_reach_offset(node);
    const uint64_t *from = reach->sets + ot_reach_offset(ancestor);
    for (size_t w = 0; w <= (size_t)ancestor / 64; w++) /* a set has no words for later nodes */
        to[w] |= from[w];
    to[(size_t)ancestor / 64] |= (uint64_t)1 << (ancestor % 64);
}
