#include "offload/schedule/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/error.h"

const char *ot_lane_name(enum ot_lane_id lane) {
    static const char *const names[] = {"h2d", "compute", "d2h", "comm", "cpu", "nvme_read", "nvme_write"};
    return names[lane];
}

const char *ot_task_kind_name(enum ot_task_kind kind) {
    static const char *const names[] = {
        "batch in",      "fetch",       "decode",      "forward",  "used out",   "scale in",
        "boundary out",  "boundary in", "kept out",    "kept in",  "keys",       "keys in",
        "keys out",      "backward",    "sum out",     "sum in",   "grad merge", "grad finish",
        "grad out",      "grad keep",   "result out",  "decide",   "params in",  "shadow",
        "update cpu",    "update gpu",  "upload",      "store",    "state in",   "update stream",
        "state out",     "cache in",    "cache out",   "loss out", "nvme read",  "nvme write",
        "gather",        "meet",        "grad narrow", "exchange", "grad join",  "grad gather",
        "result gather", "transfer"};
    return names[kind];
}

const char *ot_task_describe(const struct ot_task *task, const struct ot_chain *chain, char *text,
                             size_t bytes) {
    static const char *const phases[] = {"", "begin", "attention", "middle", "attention", "end"};
    const char *place = task->block >= 0  ? chain->blocks[task->block].name
                        : task->slab >= 0 ? chain->slabs[task->slab].name
                                          : "";
    int n = snprintf(text, bytes, "%s%s%s", ot_task_kind_name(task->kind), *place ? " " : "", place);
    int part = task->micro >= 0 ? task->micro : task->tile;
    if (part >= 0 && n > 0 && (size_t)n < bytes)
        n += snprintf(text + n, bytes - (size_t)n, " #%d", part);
    bool moves_keys = task->kind == OT_TASK_KEYS_IN || task->kind == OT_TASK_KEYS_OUT;
    bool has_group = moves_keys || task->phase == OT_PHASE_ATTEND || task->phase == OT_PHASE_ATTEND_BACK;
    if (task->phase != OT_PHASE_WHOLE && n > 0 && (size_t)n < bytes)
        n += snprintf(text + n, bytes - (size_t)n, " %s", phases[task->phase]);
    if (has_group && n > 0 && (size_t)n < bytes)
        snprintf(text + n, bytes - (size_t)n, " of group %d", task->group);
    return text;
}

struct ot_shard_range ot_task_key_rows(const struct ot_plan *plan, const struct ot_layout *layout,
                                       const struct ot_task *task) {
    int64_t n = plan->micro_tokens, first = task->micro % ot_plan_sections(plan) * n;
    bool in = task->kind == OT_TASK_KEYS_IN, sums = (in ? task->to : task->from) == layout->row_sums;
    return in     ? (struct ot_shard_range){0, sums ? first + n : first}
           : sums ? (struct ot_shard_range){0, first}
                  : (struct ot_shard_range){first, n};
}

void ot_schedule_free(struct ot_schedule *schedule) {
    for (struct ot_access_block *block = schedule->accesses, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    for (int l = 0; l < OT_LANE_COUNT; l++)
        free(schedule->lane_tasks[l]);
    free(schedule->deps);
    free(schedule->transfers);
    free(schedule->tasks);
    memset(schedule, 0, sizeof *schedule);
}

/* ---- reach ---- */

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
