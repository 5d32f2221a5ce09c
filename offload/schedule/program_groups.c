/* Key groups (plan/slabs.h): the tasks of a section in a block whose keys come to the device in groups of
 * heads. Each phase (block.h) is a task. Between them go the copies of the groups:
 *
 *     forward     BEGIN | KEYS_IN, ATTEND, KEYS_OUT of each group | END
 *     keys        BEGIN | ATTEND, KEYS_OUT of each group
 *     backward    BEGIN | KEYS_IN, ATTEND of each group | MIDDLE |
 *                 KEYS_IN of keys and of sums, ATTEND_BACK, KEYS_OUT of each group | END
 *
 * A slot is free again when attention has used it, and its rows are on their way out. The next group takes
 * the other slot, so its copy runs beside attention. */
#include "offload/schedule/program.h"

/* The phases of a section in one direction. Each finds what the one before has left in the buffers that they
 * share. */
struct phases {
    enum ot_task_kind kind;
    int block, micro;
    int n, next; /* phases in all, and the number of the next one */
};

/* Tags of what phases leave number them within a block. */
enum { MOST_PHASES = 1 << 12 };

static int groups_of(const struct ot_program *p) {
    return ot_plan_key_groups(p->plan);
}

bool ot_program_has_groups(const struct ot_program *p, int block) {
    return groups_of(p) > 1 && p->pass != OT_PASS_DECODE && block > 0 && block < p->chain->n_blocks - 1;
}

/* ---- phases ---- */

static struct ot_tag left_by(const struct phases *all, int phase) {
    return ot_tag(OT_CONTENT_PHASE, all->block * MOST_PHASES + phase, all->micro, 0);
}

/* Adds the access of the present phase to a buffer that all phases use. before, after: its content before the
 * first of them, and after the last. */
static void hand_on(struct ot_program *p, struct ot_task *task, const struct phases *all, int buffer,
                    struct ot_tag before, struct ot_tag after) {
    int phase = all->next - 1;
    ot_program_update(p, task, buffer, phase == 0 ? before : left_by(all, phase - 1),
                      phase == all->n - 1 ? after : left_by(all, phase));
}

static struct ot_task *add_phase(struct ot_program *p, struct phases *all, enum ot_phase phase) {
    struct ot_task *task = ot_program_task(p, all->kind, OT_LANE_COMPUTE);
    task->block = all->block;
    task->micro = all->micro;
    task->phase = phase;
    task->keys = p->layout->row_keys;
    all->next++;
    ot_program_block_reads(p, task, p->chain->blocks[all->block].n_uses);
    hand_on(p, task, all, p->layout->work, (struct ot_tag){0}, (struct ot_tag){0});
    hand_on(p, task, all, p->layout->scratch, (struct ot_tag){0}, (struct ot_tag){0});
    return task;
}

static void read_x(struct ot_program *p, struct ot_task *task, int x) {
    task->x = x;
    ot_program_read(p, task, x, ot_tag(OT_CONTENT_BOUNDARY, task->block - 1, task->micro, 0));
}

/* ---- keys and sums on their way ---- */

/* The keys of a group up to a section of the row (micro), or the sums of their gradients before a turn. */
static struct ot_tag keys_tag(const struct ot_program *p, int block, int group, int micro) {
    return ot_tag(OT_CONTENT_KEYS, block * groups_of(p) + group, micro, 0);
}
static struct ot_tag sums_tag(const struct ot_program *p, int block, int group, int turn) {
    return ot_tag(OT_CONTENT_KEY_SUMS, block * groups_of(p) + group, turn, 0);
}

static int section_of(const struct ot_program *p, int micro) {
    return micro % ot_plan_sections(p->plan);
}
static bool is_last_section(const struct ot_program *p, int micro) {
    return section_of(p, micro) == ot_plan_sections(p->plan) - 1;
}

/* The slots take turns. */
static int take_slot(struct ot_program *p) {
    return p->next_key_slot++ % OT_KEY_SLOTS;
}

/* A copy of a group between its slot and its home. The caller adds the accesses. */
static struct ot_task *copy(struct ot_program *p, const struct phases *all, bool in, int group, int slot,
                            int from, int to) {
    struct ot_task *task = in ? ot_program_task(p, OT_TASK_KEYS_IN, OT_LANE_H2D)
                              : ot_program_task(p, OT_TASK_KEYS_OUT, OT_LANE_D2H);
    task->block = all->block;
    task->micro = all->micro;
    task->group = group;
    task->key_slot = slot;
    task->from = from;
    task->to = to;
    return task;
}

static void bring(struct ot_program *p, const struct phases *all, int group, int slot, int home, int buffer,
                  struct ot_tag at_home, struct ot_tag in_slot) {
    struct ot_task *task = copy(p, all, true, group, slot, home, buffer);
    ot_program_read(p, task, home, at_home);
    ot_program_narrow(task, group, 1);
    ot_program_write(p, task, buffer, in_slot);
    ot_program_narrow(task, slot, 1);
}

/* Brings the keys of the sections before. newest: the last section of the row whose keys are at home. */
static void bring_keys(struct ot_program *p, const struct phases *all, int group, int slot, int newest) {
    if (section_of(p, all->micro) > 0)
        bring(p, all, group, slot, p->layout->row_keys_home, p->layout->row_keys,
              keys_tag(p, all->block, group, newest), keys_tag(p, all->block, group, all->micro - 1));
}

/* Sends the section's own keys home. The last section's stay out: no other section reads them. */
static void send_keys(struct ot_program *p, const struct phases *all, int group, int slot) {
    struct ot_tag keys = keys_tag(p, all->block, group, all->micro), before = keys;
    before.micro--;
    if (is_last_section(p, all->micro))
        return;
    struct ot_task *task = copy(p, all, false, group, slot, p->layout->row_keys, p->layout->row_keys_home);
    ot_program_read(p, task, task->from, keys);
    ot_program_narrow(task, slot, 1);
    if (section_of(p, all->micro) == 0)
        ot_program_write(p, task, task->to, keys);
    else
        ot_program_update(p, task, task->to, before, keys);
    ot_program_narrow(task, group, 1);
}

/* The phase of a group: adds the section's keys to those in the slot. */
static struct ot_task *add_group_phase(struct ot_program *p, struct phases *all, enum ot_phase phase,
                                       int group, int slot) {
    struct ot_tag keys = keys_tag(p, all->block, group, all->micro), before = keys;
    struct ot_task *task = add_phase(p, all, phase);
    before.micro--;
    task->group = group;
    task->key_slot = slot;
    if (section_of(p, all->micro) == 0 || all->kind == OT_TASK_KEYS)
        ot_program_write(p, task, task->keys, keys);
    else
        ot_program_update(p, task, task->keys, before, keys);
    ot_program_narrow(task, slot, 1);
    return task;
}

/* ---- forward, and keys ---- */

void ot_program_forward_groups(struct ot_program *p, int block, int micro) {
    struct phases all = {OT_TASK_FORWARD, block, micro, 2 + groups_of(p), 0};
    int saved = ot_program_place_kept(p, block, micro), x = ot_program_find_input(p, block - 1, micro);
    struct ot_tag kept = ot_tag(OT_CONTENT_SAVED, block, micro, 0);
    while (all.next < all.n && p->rc >= 0) {
        int group = all.next - 1, slot = 0;
        bool begins = all.next == 0, ends = all.next == all.n - 1, attends = !begins && !ends;
        struct ot_task *task;
        if (attends) {
            slot = take_slot(p);
            bring_keys(p, &all, group, slot, micro - 1);
            task = add_group_phase(p, &all, OT_PHASE_ATTEND, group, slot);
        } else {
            task = add_phase(p, &all, begins ? OT_PHASE_BEGIN : OT_PHASE_END);
            read_x(p, task, x);
        }
        if (ends) {
            task->y = ot_boundary_is_own(p->chain, p->plan, block)
                          ? ot_program_place_boundary(p, block, micro)
                          : ot_program_stage_buffer(p, block, micro);
            ot_program_write(p, task, task->y, ot_tag(OT_CONTENT_BOUNDARY, block, micro, 0));
        }
        if (saved != OT_NO_BUFFER) {
            task->saved = saved;
            task->saved_level = ot_plan_kept(p->chain, p->plan, block).level;
            hand_on(p, task, &all, saved, (struct ot_tag){0}, kept);
        }
        if (attends)
            send_keys(p, &all, group, slot);
    }
    if (saved != OT_NO_BUFFER && p->pass == OT_PASS_TRAIN)
        ot_program_send_kept(p, block, micro, saved);
}

void ot_program_keys_groups(struct ot_program *p, int block, int micro, int x) {
    struct phases all = {OT_TASK_KEYS, block, micro, 1 + groups_of(p), 0};
    read_x(p, add_phase(p, &all, OT_PHASE_BEGIN), x);
    for (int group = 0; group < groups_of(p) && p->rc >= 0; group++) {
        int slot = take_slot(p);
        add_group_phase(p, &all, OT_PHASE_ATTEND, group, slot);
        send_keys(p, &all, group, slot);
    }
}

/* ---- backward ---- */

/* Adds the accesses of a phase of backward to what all phases change. */
static void change(struct ot_program *p, struct ot_task *task, const struct phases *all,
                   const struct ot_backward_buffers *given) {
    const struct ot_block_spec *spec = &p->chain->blocks[all->block];
    task->first = given->first;
    task->dxy = given->dxy;
    hand_on(p, task, all, given->dxy, ot_tag(OT_CONTENT_BOUNDARY_GRAD, all->block, all->micro, 0),
            ot_tag(OT_CONTENT_BOUNDARY_GRAD, all->block - 1, all->micro, 0));
    for (int u = 0; u < spec->n_uses; u++) {
        struct ot_tag sum = ot_tag(OT_CONTENT_GRAD_SUM, all->block * OT_MAX_USES + u, given->turn, 0),
                      more = sum;
        more.micro++;
        task->grads[u] = given->grads[u];
        if (given->grads[u] != OT_NO_BUFFER)
            hand_on(p, task, all, given->grads[u], given->first ? (struct ot_tag){0} : sum, more);
    }
    if (given->saved == OT_NO_BUFFER)
        return;
    task->saved = given->saved;
    task->saved_level = ot_plan_kept(p->chain, p->plan, all->block).level;
    hand_on(p, task, all, given->saved, ot_tag(OT_CONTENT_SAVED, all->block, all->micro, 0),
            (struct ot_tag){0});
}

/* Attention of a group again: its keys come, and only they. newest: see bring_keys. */
static void attend_again(struct ot_program *p, struct phases *all, const struct ot_backward_buffers *given,
                         int group, int newest) {
    int slot = take_slot(p);
    bring_keys(p, all, group, slot, newest);
    change(p, add_group_phase(p, all, OT_PHASE_ATTEND, group, slot), all, given);
}

/* Backward of a group's attention. The sums are those of the keys up to this section; then those of its own
 * keys are complete, and the others go home. */
static void attend_backward(struct ot_program *p, struct phases *all, const struct ot_backward_buffers *given,
                            int group, int newest) {
    const struct ot_layout *layout = p->layout;
    struct ot_tag sums = sums_tag(p, all->block, group, given->turn),
                  more = sums_tag(p, all->block, group, given->turn + 1);
    int slot = take_slot(p);
    bool last = is_last_section(p, all->micro);
    bring_keys(p, all, group, slot, newest);
    if (!last)
        bring(p, all, group, slot, layout->row_sums_home, layout->row_sums, sums, sums);
    struct ot_task *task = add_group_phase(p, all, OT_PHASE_ATTEND_BACK, group, slot);
    ot_program_update(p, task, layout->row_sums, last ? (struct ot_tag){0} : sums, more);
    ot_program_narrow(task, slot, 1);
    change(p, task, all, given);
    if (section_of(p, all->micro) == 0)
        return;
    task = copy(p, all, false, group, slot, layout->row_sums, layout->row_sums_home);
    ot_program_read(p, task, task->from, more);
    ot_program_narrow(task, slot, 1);
    ot_program_write(p, task, task->to, more);
    ot_program_narrow(task, group, 1);
}

void ot_program_backward_groups(struct ot_program *p, int block, int micro,
                                const struct ot_backward_buffers *given) {
    int groups = groups_of(p);
    bool again = ot_plan_kept(p->chain, p->plan, block).level < OT_KEEP_ATTENTION;
    struct phases all = {OT_TASK_BACKWARD, block, micro, 3 + (again ? 2 : 1) * groups, 0};
    int newest = micro - section_of(p, micro) + ot_plan_sections(p->plan) - 2; /* all but the last */
    const enum ot_phase phases[] = {OT_PHASE_BEGIN, OT_PHASE_MIDDLE, OT_PHASE_END};
    for (int i = 0; i < 3; i++) {
        struct ot_task *task = add_phase(p, &all, phases[i]);
        read_x(p, task, given->x);
        change(p, task, &all, given);
        for (int g = 0; phases[i] == OT_PHASE_BEGIN && again && g < groups && p->rc >= 0; g++)
            attend_again(p, &all, given, g, newest);
        for (int g = 0; phases[i] == OT_PHASE_MIDDLE && g < groups && p->rc >= 0; g++)
            attend_backward(p, &all, given, g, newest);
    }
}
