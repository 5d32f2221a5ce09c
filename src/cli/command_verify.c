/* offload-train verify: checks a checkpoint, a run's newest checkpoint and best state, or a model for damage.
 */
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/checkpoint/verify.h"
#include "src/cli/command.h"
#include "src/train/resume.h"

struct verification {
    const struct ot_options *options;
    struct ot_found found;
    struct ot_verify model, checkpoint, best;
    int n_older;    /* older checkpoints that were read; reading stops at the first intact one */
    bool has_whole; /* the last one read is intact */
};

static int verify_older(struct verification *v) {
    const struct ot_checkpoint_list *list = &v->found.list;
    while (v->checkpoint.n_damages > 0 && !v->has_whole && 1 + v->n_older < list->n) {
        struct ot_verify older;
        int rc = ot_verify_checkpoint(list->entries[1 + v->n_older].dir, !v->options->quiet, &older);
        v->has_whole = rc == 0 && older.n_damages == 0;
        v->n_older++;
        ot_verify_free(&older);
        OT_TRY(rc);
    }
    return 0;
}

static int verify(struct verification *v) {
    const struct ot_options *o = v->options;
    if (v->found.is_model)
        OT_TRY(ot_verify_model(o->dir, !o->quiet, &v->model));
    if (v->found.list.n > 0)
        OT_TRY(ot_verify_checkpoint(v->found.list.entries[0].dir, !o->quiet, &v->checkpoint));
    if (v->found.best.n > 0)
        OT_TRY(ot_verify_checkpoint(v->found.best.entries[0].dir, !o->quiet, &v->best));
    return verify_older(v);
}

/* The state of an older checkpoint; index 0 is the one before the newest. */
static const char *state_of(const struct verification *v, int older) {
    if (older >= v->n_older)
        return "not read";
    return v->has_whole && older == v->n_older - 1 ? "ok" : "damaged";
}

static int count_damages(const struct verification *v) {
    return v->model.n_damages + v->checkpoint.n_damages + v->best.n_damages;
}

/* The sentence that names a missing part; NULL: no part is missing. */
static const char *find_missing(const struct verification *v) {
    return v->checkpoint.missing ? v->checkpoint.missing : v->best.missing;
}

static void print(const struct verification *v) {
    const struct ot_checkpoint_list *list = &v->found.list;
    if (v->found.is_model)
        ot_verify_print(&v->model, stdout);
    if (list->n > 0)
        ot_verify_print(&v->checkpoint, stdout);
    if (v->found.best.n > 0)
        ot_verify_print(&v->best, stdout);
    for (int i = 1; i < list->n; i++)
        printf("older checkpoint %s: %s\n", list->entries[i].dir, state_of(v, i - 1));
    printf("%s\n", count_damages(v) > 0 ? "damaged" : find_missing(v) ? "incomplete" : "ok");
}

static int print_json(const struct verification *v) {
    const struct ot_checkpoint_list *list = &v->found.list;
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_bool(&w, "ok", count_damages(v) == 0 && !find_missing(v));
    if (v->found.is_model)
        ot_verify_put_json(&v->model, "model", &w);
    if (list->n > 0)
        ot_verify_put_json(&v->checkpoint, "checkpoint", &w);
    if (v->found.best.n > 0)
        ot_verify_put_json(&v->best, "best", &w);
    ot_json_begin_array(&w, "older");
    for (int i = 1; i < list->n; i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "dir", list->entries[i].dir);
        ot_json_put_text(&w, "state", state_of(v, i - 1));
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

static int conclude(const struct verification *v) {
    if (v->checkpoint.n_damages > 0) {
        bool has_older = v->found.list.n > 1;
        return ot_fail(OT_E_INPUT, "%s; %s%s", v->checkpoint.damages[0],
                       v->has_whole ? v->found.list.entries[v->n_older].dir
                       : has_older  ? "all older checkpoints are damaged"
                                    : "there is no older checkpoint",
                       v->has_whole ? " is intact" : "");
    }
    if (v->model.n_damages > 0)
        return ot_fail(OT_E_INPUT, "%s", v->model.damages[0]);
    if (v->best.n_damages > 0)
        return ot_fail(OT_E_INPUT, "%s", v->best.damages[0]);
    return find_missing(v)
               ? ot_fail(OT_E_INPUT, "the parts that are here are intact, but %s", find_missing(v))
               : 0;
}

int ot_command_verify(const struct ot_options *options) {
    struct verification v = {.options = options};
    int rc;
    OT_TRY_GOTO(ot_find_checkpoints(options->dir, &v.found), rc, out);
    rc = verify(&v);
    ot_log_set_status("");
    if (rc < 0)
        goto out;
    if (options->json)
        OT_TRY_GOTO(print_json(&v), rc, out);
    else
        print(&v);
    rc = conclude(&v);
out:
    ot_verify_free(&v.model);
    ot_verify_free(&v.checkpoint);
    ot_verify_free(&v.best);
    ot_found_free(&v.found);
    return rc;
}
