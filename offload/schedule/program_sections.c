/* Sections (plan/slabs.h): the accesses of blocks to the keys of a sequence and to the sums of their
 * gradients, and the tasks that compute the keys again before backward. */
#include "offload/schedule/program.h"

/* True if the call of a block is for a section of a sequence. */
static bool is_section(const struct ot_program *p, int block) {
    return p->layout->row_keys != OT_NO_BUFFER && p->pass != OT_PASS_DECODE && block > 0 &&
           block < p->chain->n_blocks - 1;
}

void ot_program_add_keys(struct ot_program *p, struct ot_task *task) {
    struct ot_tag tag = ot_tag(OT_CONTENT_KEYS, task->block, task->micro, 0), before = tag;
    before.micro--;
    if (!is_section(p, task->block))
        return;
    task->keys = p->layout->row_keys;
    if (task->micro % ot_plan_sections(p->plan) == 0)
        ot_program_write(p, task, task->keys, tag);
    else
        ot_program_update(p, task, task->keys, before, tag);
}

bool ot_program_needs_keys(const struct ot_program *p, int block, int turn) {
    return is_section(p, block) && turn % ot_plan_sections(p->plan) == 0;
}

void ot_program_compute_keys(struct ot_program *p, int block, int first) {
    int last = first + ot_plan_sections(p->plan) - 1;
    for (int m = first; m < last && p->rc >= 0; m++) {
        int x = ot_program_find_boundary(p, block - 1, m);
        if (ot_program_has_groups(p, block)) {
            ot_program_keys_groups(p, block, m, x);
            continue;
        }
        struct ot_task *task = ot_program_task(p, OT_TASK_KEYS, OT_LANE_COMPUTE);
        task->block = block;
        task->micro = m;
        ot_program_block_inputs(p, task, p->chain->blocks[block].n_uses);
        task->x = x;
        ot_program_read(p, task, x, ot_tag(OT_CONTENT_BOUNDARY, block - 1, m, 0));
        ot_program_add_keys(p, task);
        if (m == first)
            ot_program_write(p, task, p->layout->row_sums, ot_tag(OT_CONTENT_KEY_SUMS, block, first, 0));
    }
}

void ot_program_use_keys(struct ot_program *p, struct ot_task *task, int turn) {
    int sections = ot_plan_sections(p->plan), last = turn - turn % sections + sections - 1;
    struct ot_tag keys = ot_tag(OT_CONTENT_KEYS, task->block, last, 0);
    struct ot_tag sums = ot_tag(OT_CONTENT_KEY_SUMS, task->block, turn, 0), more = sums;
    if (!is_section(p, task->block))
        return;
    more.micro++;
    task->keys = p->layout->row_keys;
    if (task->micro == last)
        ot_program_add_keys(p, task);
    else
        ot_program_update(p, task, task->keys, keys, keys); /* writes its own once more */
    ot_program_update(p, task, p->layout->row_sums, sums, more);
}
