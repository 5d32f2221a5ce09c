#include "src/train/run_identity.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/files/model_config.h"

int ot_run_identity_make(const struct ot_session *session, const struct ot_rows *rows,
                         struct ot_run_identity *out) {
    struct ot_config_file file = {.config = session->config, .dtype = session->stored, .ids = session->ids};
    char *text;
    size_t bytes;
    *out = (struct ot_run_identity){.data = ot_dataset_fingerprint(rows->data), .base = session->base};
    if (rows->own_eval)
        out->eval_data = ot_dataset_fingerprint(rows->own_eval);
    OT_TRY(ot_model_config_write(&file, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "the model's config", &out->model);
    free(text);
    return rc;
}

/* Parses the writer's text and replaces *out. */
static int take(struct ot_json_writer *w, const char *what, struct ot_json **out) {
    char *text;
    size_t bytes;
    OT_TRY(ot_json_writer_take(w, &text, &bytes));
    ot_json_free(*out);
    *out = NULL;
    int rc = ot_json_parse(text, bytes, what, out);
    free(text);
    return rc;
}

int ot_run_identity_take_options(struct ot_run_identity *identity, const struct ot_options *options) {
    struct ot_json_writer values = {.indent = -1}, sources = {.indent = -1};
    ot_options_put_json(options, NULL, &values);
    OT_TRY(take(&values, "the options", &identity->options));
    ot_options_put_sources(options, NULL, &sources);
    return take(&sources, "the sources of the options", &identity->sources);
}

void ot_run_identity_free(struct ot_run_identity *identity) {
    ot_json_free(identity->options);
    ot_json_free(identity->sources);
    ot_json_free(identity->model);
    *identity = (struct ot_run_identity){0};
}
