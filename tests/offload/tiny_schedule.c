#include "tests/offload/tiny_schedule.h"

#include "tests/support/check.h"

void tiny_schedule_make(struct tiny_schedule *m) {
    tiny_open_model(&m->run, &m->model);
    check_ok(ot_layout_make(ot_model_chain(m->model), &m->run.plan, &m->layout));
    check_ok(ot_schedule_make_train(ot_model_chain(m->model), &m->run.plan, &m->layout, &m->schedule));
    check_ok(ot_schedule_make_flush(ot_model_chain(m->model), &m->run.plan, &m->layout, &m->flush));
}

void tiny_schedule_free(struct tiny_schedule *m) {
    ot_schedule_free(&m->schedule);
    ot_schedule_free(&m->flush);
    ot_layout_free(&m->layout);
    ot_plan_free(&m->run.plan);
    ot_model_close(m->model);
}

int tiny_schedule_drop_edges(const struct tiny_schedule *m, struct ot_schedule *schedule) {
    int edges = 0;
    check_ok(ot_schedule_verify(schedule, &m->layout, &m->run.plan));
    for (int t = 0; t < schedule->n_tasks; t++) {
        struct ot_task *task = &schedule->tasks[t];
        for (int d = 0; d < task->n_deps; d++, edges++) {
            struct ot_dep kept = task->deps[d];
            task->deps[d] = task->deps[--task->n_deps];
            if (ot_schedule_verify(schedule, &m->layout, &m->run.plan) >= 0)
                fail_msg("task %d (%s) lost its edge from task %d (%s), and the verifier did not see it", t,
                         ot_task_kind_name(task->kind), kept.task,
                         ot_task_kind_name(schedule->tasks[kept.task].kind));
            task->deps[task->n_deps++] = task->deps[d];
            task->deps[d] = kept;
        }
    }
    return edges;
}
