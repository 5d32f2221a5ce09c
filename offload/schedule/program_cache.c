/* The cache of generation (CACHE in plan/plan.h): copies of a block's keys and values around its visit, if
 * their home is not the device. The rows that a copy takes depend on the texts, so engine/cache.c finds them.
 *
 * Slots are used in turn. The cache of a later visit comes in as soon as the block that had its slot has sent
 * its rows back. On nvme the slot on the host keeps the rows in between, because the extents that are written
 * also have older rows. */
#include "offload/schedule/program.h"
#include "src/base/minmax.h"

static bool has_cache(const struct ot_program *p, int block) {
    return p->pass == OT_PASS_DECODE && p->layout->cache && p->layout->cache[block] != OT_NO_BUFFER;
}

/* The content after this many micro-batches of the pass. After all of them it is that of the next pass. */
static struct ot_tag cache_tag(const struct ot_program *p, int block, int micro) {
    bool all = micro == p->visits[0].n_micro; /* all visits have as many */
    return ot_tag(OT_CONTENT_CACHE, block, all ? 0 : micro, all);
}

static int slot_of(const struct ot_program *p, int number) {
    return p->layout->cache_slots[number % p->plan->cache_slots];
}

/* The buffer on the host between the device and the home: the home itself, or a slot. */
static int host_buffer(const struct ot_program *p, int block, int number) {
    return p->plan->cache == OT_HOME_NVME ? p->layout->host_cache_slots[number % p->plan->host_cache_slots]
                                          : p->layout->cache[block];
}

static struct ot_task *move(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane, int block,
                            int from, int to) {
    struct ot_task *task = ot_program_task(p, kind, lane);
    task->block = block;
    task->from = from;
    task->to = to;
    return task;
}

static void bring(struct ot_program *p, int block, int number) {
    struct ot_tag tag = cache_tag(p, block, 0);
    int home = p->layout->cache[block], host = host_buffer(p, block, number);
    if (host != home) {
        struct ot_task *task = move(p, OT_TASK_NVME_READ, OT_LANE_NVME_READ, block, home, host);
        task->cache = host;
        ot_program_read(p, task, home, tag);
        ot_program_write(p, task, host, tag);
    }
    struct ot_task *task = move(p, OT_TASK_CACHE_IN, OT_LANE_H2D, block, host, slot_of(p, number));
    ot_program_read(p, task, host, tag);
    ot_program_write(p, task, task->to, tag);
}

void ot_program_bring_caches(struct ot_program *p) {
    int slots = p->plan->cache == OT_HOME_NVME ? ot_min(p->plan->cache_slots, p->plan->host_cache_slots)
                                               : p->plan->cache_slots;
    if (p->plan->cache == OT_HOME_GPU)
        return;
    for (; p->next_cache < p->n_visits && p->caches_in < p->caches_out + slots; p->next_cache++)
        if (has_cache(p, p->visits[p->next_cache].block))
            bring(p, p->visits[p->next_cache].block, p->caches_in++);
}

void ot_program_use_cache(struct ot_program *p, struct ot_task *task) {
    if (!has_cache(p, task->block))
        return;
    struct ot_tag before = cache_tag(p, task->block, task->micro);
    task->cache = p->plan->cache == OT_HOME_GPU ? p->layout->cache[task->block] : slot_of(p, p->caches_out);
    if (task->half == OT_HALF_REST)
        ot_program_read(p, task, task->cache, cache_tag(p, task->block, p->visits[0].n_micro));
    else
        ot_program_update(p, task, task->cache, before, cache_tag(p, task->block, task->micro + 1));
}

void ot_program_send_cache(struct ot_program *p, int block) {
    if (!has_cache(p, block) || p->plan->cache == OT_HOME_GPU)
        return;
    struct ot_tag before = cache_tag(p, block, 0), after = cache_tag(p, block, p->visits[0].n_micro);
    int number = p->caches_out++, home = p->layout->cache[block], host = host_buffer(p, block, number);
    struct ot_task *task = move(p, OT_TASK_CACHE_OUT, OT_LANE_D2H, block, slot_of(p, number), host);
    ot_program_read(p, task, task->from, after);
    ot_program_update(p, task, host, before, after);
    if (host == home)
        return;
    task = move(p, OT_TASK_NVME_WRITE, OT_LANE_NVME_WRITE, block, host, home);
    task->cache = host;
    ot_program_read(p, task, host, after);
    ot_program_update(p, task, home, before, after);
}
