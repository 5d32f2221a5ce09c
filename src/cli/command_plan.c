/* offload-train plan: what a run would take and how long, from the model's shape alone: no data file, no
 * weights; on a machine that is described, or on this one, which is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/cli/plan_machine.h"
#include "src/cli/plan_request.h"
#include "src/cli/saver.h"
#include "src/cli/plan_view.h"
#include "src/cli/report.h"
#include "src/cli/run_shape.h"
#include "src/cli/units.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"

enum { MAX_TRACED_TASKS = 250000 };

struct plan_run {
    struct ot_options *options;
    struct ot_plan_machine machine;
    struct ot_resolved resolved;
    struct ot_model_config config;
    struct ot_model *model;
    int64_t seq_len, step_sequences;
    int64_t steps; /* of the run; 0: nobody said how long it is */
    struct ot_costs costs;
    struct ot_plan_request request;
    struct ot_planner_result chosen;
    struct ot_explanation explanation;
};

/* ---- the model ---- */

static int read_config_file(const char *path, struct ot_model_config *out) {
    struct ot_json *root;
    struct ot_config_file file;
    OT_TRY(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &root));
    int rc = ot_model_config_parse(root, path, &file);
    if (rc == 0)
        *out = file.config;
    ot_json_free(root);
    return rc;
}

/* A config.json, a directory with one, or a name: its files where they are here, else the preset. */
static int read_model(struct plan_run *run) {
    const char *name = run->options->model, *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".json") == 0)
        return read_config_file(name, &run->config);
    OT_TRY(ot_model_resolve(name, &run->resolved));
    if (!run->resolved.path) {
        run->config = run->resolved.preset->config;
        return 0;
    }
    struct ot_model_dir *dir;
    OT_TRY(ot_model_dir_open(run->resolved.path, &dir));
    run->config = ot_model_dir_facts(dir)->config;
    ot_model_dir_close(dir);
    return 0;
}

/* ---- the step and the run ---- */

static int shape_run(struct plan_run *run) {
    struct ot_options *o = run->options;
    int64_t sequences = o->rows;
    OT_TRY(ot_shape_seq_len(o, run->config.max_position, &run->seq_len));
    int64_t most = OT_DEFAULT_STEP_TOKENS / run->seq_len;
    if (!o->tokens_per_step)
        ot_options_choose_count(o, "tokens-per-step", (most > 0 ? most : 1) * run->seq_len);
    run->step_sequences = o->tokens_per_step / run->seq_len;
    if (o->micro_batch > run->step_sequences)
        return ot_fail(
            OT_E_USAGE,
            "--micro-batch %lld is more than the %lld sequences of a step; raise --tokens-per-step",
            (long long)o->micro_batch, (long long)run->step_sequences);
    if (o->tokens)
        sequences = (o->tokens + run->seq_len - 1) / run->seq_len;
    if (sequences && !o->epochs)
        ot_options_choose_count(o, "epochs", OT_DEFAULT_EPOCHS);
    run->steps =
        o->steps ? o->steps : (sequences + run->step_sequences - 1) / run->step_sequences * o->epochs;
    return 0;
}

static void make_request(struct plan_run *run) {
    struct ot_plan_request *rq = &run->request;
    *rq = ot_plan_request_of(run->options);
    rq->chain = ot_model_chain(run->model);
    memcpy(rq->budget_bytes, run->machine.budget_bytes, sizeof rq->budget_bytes);
    rq->sequence_tokens = run->seq_len;
    rq->step_sequences = run->step_sequences;
    rq->micro_sequences = run->options->micro_batch;
    rq->train = true;
    rq->extra_device_bytes = (int64_t)run->machine.workspace_bytes;
    rq->snapshot_slots = ot_saver_slots(ot_model_param_count(&run->config), rq->chain->dtype);
}

/* After a refusal for want of memory: whether a disk would help, and how large. */
static int name_disk(const struct plan_run *run) {
    struct ot_plan_request with = run->request;
    struct ot_plan plan;
    char sentence[OT_ERROR_TEXT_BYTES];
    snprintf(sentence, sizeof sentence, "%s", ot_error_text());
    with.budget_bytes[OT_TIER_NVME] = (size_t)1 << 50;
    bool helps = run->request.budget_bytes[OT_TIER_NVME] == 0 && ot_plan_make(&with, &plan) == 0;
    if (!helps)
        return ot_fail(OT_E_BUDGET, "%s", sentence);
    long long gib = (long long)(ot_ledger_total(&plan.ledger, OT_TIER_NVME) >> 30) + 1;
    ot_plan_free(&plan);
    return ot_fail(OT_E_BUDGET, "%s; or leave the rest to a disk: --nvme %lldG", sentence, gib);
}

/* ---- predicting ---- */

static int predict(struct plan_run *run) {
    const struct ot_plan_request *rq = &run->request;
    char time[OT_TEXT_BYTES];
    OT_TRY(ot_plan_machine_cost(&run->machine, rq->chain, run->seq_len, run->seq_len * run->step_sequences,
                                &run->costs));
    double since = ot_clock_seconds();
    int rc = ot_planner_choose(rq, &run->costs, &run->chosen);
    if (rc < 0)
        return rc == -OT_E_BUDGET ? name_disk(run) : rc;
    ot_log(OT_LOG_INFO, "planned %d plans simulated in %s", run->chosen.tried,
           ot_text_duration(ot_clock_seconds() - since, time));
    if (run->options->explain)
        OT_TRY(ot_planner_explain(rq, &run->costs, &run->chosen, &run->explanation));
    return 0;
}

static int write_trace(const struct plan_run *run) {
    const struct ot_chain *chain = run->request.chain;
    const struct ot_plan *plan = &run->chosen.plan;
    struct ot_layout layout = {0};
    struct ot_schedule schedule = {0};
    struct ot_trace *trace = NULL;
    struct ot_prediction prediction;
    struct ot_simulation simulation = {chain, plan, &layout, &schedule, &run->costs};
    int rc;
    OT_TRY_GOTO(ot_layout_make(chain, plan, &layout), rc, out);
    OT_TRY_GOTO(ot_schedule_make_train(chain, plan, &layout, &schedule), rc, out);
    OT_TRY_GOTO(ot_trace_open(chain, MAX_TRACED_TASKS, &trace), rc, out);
    OT_TRY_GOTO(ot_simulate(&simulation, trace, &prediction), rc, out);
    OT_TRY_GOTO(ot_report_check_trace(run->options), rc, out);
    rc = ot_trace_write(NULL, trace, run->options->trace);
out:
    ot_trace_close(trace);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return rc;
}

static int show(const struct plan_run *run) {
    const struct ot_options *o = run->options;
    struct ot_plan_view view = {.options = o,
                                .machine = run->machine.name,
                                .assumed = run->machine.assumed,
                                .card = run->machine.card,
                                .model_name = run->resolved.path ? run->resolved.found : o->model,
                                .model = run->model,
                                .dtype = run->machine.dtype,
                                .budget_bytes = run->machine.budget_bytes,
                                .workspace_bytes = run->machine.workspace_bytes,
                                .seq_len = run->seq_len,
                                .step_sequences = run->step_sequences,
                                .steps = run->steps,
                                .costs = &run->costs,
                                .chosen = &run->chosen,
                                .explanation = o->explain ? &run->explanation : NULL};
    if (o->json)
        return ot_plan_view_print_json(&view);
    ot_plan_view_print(&view, stdout);
    return 0;
}

static int plan(struct plan_run *run) {
    OT_TRY(read_model(run));
    OT_TRY(ot_plan_machine_open(run->options, &run->machine));
    OT_TRY(shape_run(run));
    OT_TRY(ot_model_open(&run->config, run->machine.dtype, run->seq_len, &run->model));
    make_request(run);
    OT_TRY(predict(run));
    if (run->options->trace)
        OT_TRY(write_trace(run));
    return show(run);
}

int ot_command_plan(struct ot_options *options) {
    if (options->gpu && strcmp(options->gpu, "list") == 0)
        return options->json ? ot_cards_print_json() : (ot_cards_print(stdout), 0);
    struct plan_run *run = calloc(1, sizeof *run);
    if (!run)
        return ot_fail(OT_E_BUDGET, "no memory");
    run->options = options;
    int rc = plan(run);
    ot_plan_free(&run->chosen.plan);
    ot_costs_free(&run->costs);
    ot_model_close(run->model);
    ot_plan_machine_close(&run->machine);
    ot_resolved_free(&run->resolved);
    free(run);
    return rc;
}
