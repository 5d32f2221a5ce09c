/* offload-train plan: what a run would take and how long, from the model's shape alone: no data file, no
 * weights; on a machine that is described, or on this one, which is measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/cli/plan_view.h"
#include "src/cli/run_shape.h"
#include "src/cli/units.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"

enum { MICRO_TOKENS = 4096, MAX_TRACED_TASKS = 250000 };

struct plan_run {
    struct ot_options *options;
    struct ot_described described;
    char machine[160], assumed[256];
    struct ot_resolved resolved;
    struct ot_model_config config;
    struct ot_model *model;
    struct ot_costs costs;
    struct ot_plan_request request;
    struct ot_planner_result chosen;
    struct ot_explanation explanation;
    struct ot_plan_view view;
};

/* ---- the model ---- */

static int read_config_file(const char *path, struct ot_model_config *out) {
    struct ot_json *root;
    struct ot_config_file file;
    OT_TRY(ot_json_read_file(path, OT_CONFIG_MAX_BYTES, &root));
    int rc = ot_model_config_parse(root, path, &file);
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

/* ---- the machine ---- */

/* The bytes of all --nvme: of a described machine the sizes alone count. */
static int sum_nvme(const struct ot_options *o, int64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < o->nvme.n; i++) {
        const struct ot_nvme_dir *dir = &o->nvme.dirs[i];
        int64_t size = dir->bytes;
        if (size == 0 && !ot_option_read_size(dir->path, &size))
            return ot_fail(OT_E_USAGE,
                           "--nvme %.200s: a described machine's disk needs a size, such as --nvme 500G",
                           dir->path);
        *bytes += size;
    }
    return 0;
}

static int choose_dtype(struct plan_run *run) {
    static const enum ot_dtype dtypes[] = {
        [OT_CHOICE_DTYPE_BF16] = OT_BF16, [OT_CHOICE_DTYPE_FP32] = OT_F32, [OT_CHOICE_DTYPE_FP16] = OT_F16};
    struct ot_described *machine = &run->described;
    if (run->options->dtype == OT_CHOICE_DTYPE_AUTO) {
        ot_options_choose_index(run->options, "dtype",
                                machine->dtype == OT_F16 ? OT_CHOICE_DTYPE_FP16 : OT_CHOICE_DTYPE_BF16);
        return 0;
    }
    enum ot_dtype wanted = dtypes[run->options->dtype];
    if (wanted == OT_F32 || (wanted == OT_BF16 && machine->dtype == OT_F16))
        return ot_fail(OT_E_USAGE, "--dtype %s: the peak of %s in it is not in the table; give --dtype %s",
                       ot_dtype_name(wanted), machine->card->title, ot_dtype_name(machine->dtype));
    machine->dtype = wanted;
    return 0;
}

static int describe_machine(struct plan_run *run) {
    const struct ot_options *o = run->options;
    struct ot_described *machine = &run->described;
    struct ot_described_request request = {.name = o->gpu,
                                           .gpu_mem = o->gpu_mem,
                                           .host_mem = o->host_mem,
                                           .cores = (int)o->threads,
                                           .host_bw = o->host_bw,
                                           .pcie = o->pcie,
                                           .nvme_read = o->nvme_read,
                                           .nvme_write = o->nvme_write};
    OT_TRY(sum_nvme(o, &request.nvme_bytes));
    OT_TRY(ot_cards_describe(&request, machine));
    OT_TRY(choose_dtype(run));
    const struct ot_card *card = machine->card;
    snprintf(run->machine, sizeof run->machine,
             "%s%s%s, described: %.1f GiB, %.1f TFLOP/s dense %s, PCIe %d.0 x%d",
             machine->pod ? machine->pod->title : "", machine->pod ? " with " : "", card->title,
             card->memory_mib / 1024.0, card->peak_tflops, ot_dtype_name(machine->dtype), card->pcie_gen,
             card->pcie_lanes);
    ot_cards_assumed(&request, machine, run->assumed, sizeof run->assumed);
    return 0;
}

/* ---- the step and the run ---- */

/* Sets the request's sequences; steps of the run: 0 where nobody said how long it is. */
static int shape_run(struct plan_run *run, int64_t *steps) {
    struct ot_options *o = run->options;
    int64_t seq_len, sequences = o->rows;
    OT_TRY(ot_shape_seq_len(o, run->config.max_position, &seq_len));
    if (!o->tokens_per_step)
        ot_options_choose_count(
            o, "tokens-per-step",
            seq_len > OT_DEFAULT_STEP_TOKENS ? seq_len : OT_DEFAULT_STEP_TOKENS / seq_len * seq_len);
    run->request.sequence_tokens = seq_len;
    run->request.step_sequences = o->tokens_per_step / seq_len;
    if (o->micro_batch > run->request.step_sequences)
        return ot_fail(
            OT_E_USAGE,
            "--micro-batch %lld is more than the %lld sequences of a step; raise --tokens-per-step",
            (long long)o->micro_batch, (long long)run->request.step_sequences);
    if (o->tokens)
        sequences = (o->tokens + seq_len - 1) / seq_len;
    if (sequences && !o->epochs)
        ot_options_choose_count(o, "epochs", OT_DEFAULT_EPOCHS);
    int64_t of_epoch = (sequences + run->request.step_sequences - 1) / run->request.step_sequences;
    *steps = o->steps ? o->steps : of_epoch * o->epochs;
    return 0;
}

static void make_request(struct plan_run *run) {
    const struct ot_options *o = run->options;
    struct ot_plan_request *rq = &run->request;
    rq->chain = ot_model_chain(run->model);
    memcpy(rq->budget_bytes, run->described.budget_bytes, sizeof rq->budget_bytes);
    rq->micro_sequences = o->micro_batch;
    rq->train = true;
    rq->clip = o->clip > 0;
    rq->weights = o->home.weights;
    rq->state = o->home.state;
    rq->activations = o->home.activations;
    memcpy(rq->shares, o->optimizer_engine.share, sizeof rq->shares);
    rq->slots = (int)o->slots;
    rq->recompute = o->recompute == OT_CHOICE_RECOMPUTE_AUTO ? -1 : o->recompute == OT_CHOICE_RECOMPUTE_ALL;
    rq->order = (enum ot_order)o->order;
    rq->extra_device_bytes = (int64_t)run->described.workspace_bytes;
}

/* ---- predicting ---- */

static int predict(struct plan_run *run) {
    const struct ot_plan_request *rq = &run->request;
    double since = ot_clock_seconds();
    char time[OT_TEXT_BYTES];
    OT_TRY(ot_costs_estimate(rq->chain, &run->described.rates, rq->sequence_tokens,
                             rq->sequence_tokens > MICRO_TOKENS ? rq->sequence_tokens : MICRO_TOKENS,
                             &run->costs));
    OT_TRY(ot_planner_choose(rq, &run->costs, &run->chosen));
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
    OT_TRY_GOTO(ot_schedule_link(&schedule, &layout), rc, out);
    OT_TRY_GOTO(ot_trace_open(chain, MAX_TRACED_TASKS, &trace), rc, out);
    OT_TRY_GOTO(ot_simulate(&simulation, trace, &prediction), rc, out);
    rc = ot_trace_write(NULL, trace, run->options->trace);
out:
    ot_trace_close(trace);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return rc;
}

static int show(struct plan_run *run, int64_t steps) {
    const struct ot_options *o = run->options;
    struct ot_plan_view view = {.options = o,
                                .machine = run->machine,
                                .assumed = run->assumed,
                                .card = run->described.card,
                                .model_name = run->resolved.path ? run->resolved.found : o->model,
                                .model = run->model,
                                .dtype = run->described.dtype,
                                .budget_bytes = run->described.budget_bytes,
                                .workspace_bytes = run->described.workspace_bytes,
                                .seq_len = run->request.sequence_tokens,
                                .step_sequences = run->request.step_sequences,
                                .steps = steps,
                                .costs = &run->costs,
                                .chosen = &run->chosen,
                                .explanation = o->explain ? &run->explanation : NULL};
    if (o->json)
        return ot_plan_view_print_json(&view);
    ot_plan_view_print(&view, stdout);
    return 0;
}

static int plan(struct plan_run *run) {
    int64_t steps = 0;
    OT_TRY(read_model(run));
    OT_TRY(describe_machine(run));
    OT_TRY(shape_run(run, &steps));
    OT_TRY(ot_model_open(&run->config, run->described.dtype, run->request.sequence_tokens, &run->model));
    make_request(run);
    OT_TRY(predict(run));
    if (run->options->trace)
        OT_TRY(write_trace(run));
    return show(run, steps);
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
    ot_resolved_free(&run->resolved);
    free(run);
    return rc;
}
