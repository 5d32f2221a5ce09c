/* offload-train plan: predicts the memory and the time of a run from the shape of the model. It needs no
 * weights; it reads a data file only to count its tokens. It predicts for a machine that the user describes,
 * or measures this one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/plan/case.h"
#include "src/plan/print_plan.h"
#include "src/plan/table.h"
#include "src/report/report.h"
#include "src/report/table.h"

enum { MAX_TRACED_TASKS = 250000 };

static int write_trace(const struct ot_plan_case *c) {
    const struct ot_chain *chain = c->request.chain;
    const struct ot_plan *plan = &c->chosen.plan;
    struct ot_layout layout = {0};
    struct ot_schedule schedule = {0};
    struct ot_trace *trace = NULL;
    struct ot_prediction prediction;
    struct ot_simulation simulation = {chain, plan, &layout, &schedule, &c->costs};
    int rc;
    OT_TRY_GOTO(ot_layout_make(chain, plan, &layout), rc, out);
    OT_TRY_GOTO(ot_schedule_make_train(chain, plan, &layout, &schedule), rc, out);
    OT_TRY_GOTO(ot_trace_open(chain, MAX_TRACED_TASKS, &trace), rc, out);
    OT_TRY_GOTO(ot_simulate(&simulation, trace, &prediction), rc, out);
    OT_TRY_GOTO(ot_report_check_trace(c->options), rc, out);
    rc = ot_trace_write(NULL, trace, c->options->trace);
out:
    ot_trace_close(trace);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return rc;
}

static int answer_one(const struct ot_options *options) {
    struct ot_plan_case *c = calloc(1, sizeof *c);
    char time[OT_TEXT_BYTES];
    int rc;
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory");
    OT_TRY_GOTO(ot_plan_case_open(options, options->model, options->gpu, c), rc, out);
    if (c->is_price_missing)
        OT_TRY_GOTO(ot_fail(OT_E_USAGE, "--price/h %.60s: no price of %s", options->price, options->gpu), rc,
                    out);
    double since = ot_clock_seconds();
    OT_TRY_GOTO(ot_plan_case_predict(c), rc, out);
    ot_log(OT_LOG_INFO, "planned %d plans tried in %s", c->tried,
           ot_text_duration(ot_clock_seconds() - since, time));
    if (options->trace)
        OT_TRY_GOTO(write_trace(c), rc, out);
    ot_wear_warn(ot_plan_case_answer(c).written, c->steps, options->nvme.n);
    if (options->json)
        rc = ot_plan_view_print_json(c);
    else
        ot_plan_view_print(c, stdout);
out:
    ot_plan_case_close(c);
    free(c);
    return rc;
}

static int answer_table(const struct ot_options *options) {
    struct ot_plan_table *table = calloc(1, sizeof *table);
    int rc;
    if (!table)
        return ot_fail(OT_E_BUDGET, "no memory for a table");
    table->options = options;
    table->kind = options->minimum ? OT_TABLE_MINIMUM : options->sweep ? OT_TABLE_SWEEP : OT_TABLE_COMPARE;
    rc = options->minimum ? ot_plan_minimum(options, table)
         : options->sweep ? ot_plan_sweep(options, table)
                          : ot_plan_compare(options, table);
    if (rc == 0)
        rc = ot_plan_table_print(table, stdout);
    free(table);
    return rc;
}

static int check_table(const struct ot_options *o) {
    bool compared = ot_plan_is_compared(o), table = compared || o->minimum || o->sweep;
    if (compared && (o->minimum || o->sweep))
        return ot_fail(OT_E_USAGE, "--%s works with one GPU and one model; give only one of each",
                       o->minimum ? "minimum" : "sweep");
    if (compared && (o->explain || o->trace))
        return ot_fail(OT_E_USAGE, "--%s works with one GPU and one model; give only one of each",
                       o->explain ? "explain" : "trace");
    if (!compared && (o->within > 0 || o->sort != OT_SORT_AUTO))
        return ot_fail(OT_E_USAGE,
                       "--%s orders a comparison: use it with several --gpu or --model, or --methods",
                       o->within > 0 ? "within" : "sort");
    if (o->markdown && !table)
        return ot_fail(OT_E_USAGE,
                       "--markdown prints tables: use it with several --gpu or --model, --methods, "
                       "--minimum or --sweep");
    return 0;
}

int ot_command_plan(const struct ot_options *options) {
    if (options->gpu && strcmp(options->gpu, "list") == 0)
        return options->json ? ot_cards_print_json() : (ot_cards_print(stdout), 0);
    OT_TRY(check_table(options));
    return ot_plan_is_compared(options) || options->minimum || options->sweep ? answer_table(options)
                                                                              : answer_one(options);
}
