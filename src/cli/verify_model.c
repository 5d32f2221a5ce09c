/* Verifying a model directory: opening and loading it checks everything; this looks at the values as they
 * pass. */
#include <math.h>
#include <stdlib.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/cli/units.h"
#include "src/cli/verify.h"
#include "src/files/model_dir.h"
#include "src/tokenizer/tokenizer.h"

struct check {
    struct ot_verify *verify;
    int64_t done, total; /* parameters */
    bool progress;
};

static int take_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct check *c = context;
    float most = 0;
    (void)first;
    for (int64_t i = 0; i < n; i++) { /* all finite: the loader refuses others by name */
        float magnitude = fabsf(values[i]);
        most = magnitude > most ? magnitude : most;
    }
    struct ot_verify_slab *row = &c->verify->slabs[slab];
    row->most_weight = (double)most > row->most_weight ? (double)most : row->most_weight;
    c->done += n;
    if (c->progress)
        ot_verify_show_progress(c->verify, c->done * 2 < c->total ? c->done * 2 : c->total, c->total);
    return 0;
}

static int check_tokenizer(const struct ot_model_facts *facts, struct ot_verify *verify) {
    struct ot_tokenizer *tokenizer;
    if (!facts->tokenizer_path)
        return 0;
    int rc = ot_tokenizer_open(facts->tokenizer_path, &tokenizer);
    ot_tokenizer_close(tokenizer);
    return ot_verify_note(verify, rc);
}

static int check_weights(const struct ot_model_dir *dir, struct check *c) {
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    const struct ot_chain *chain;
    struct ot_model *model;
    OT_TRY(ot_model_open(&facts->config, OT_F32, 1, &model));
    chain = ot_model_chain(model);
    for (int i = 0; i < chain->n_slabs; i++)
        c->total += chain->slabs[i].n_params;
    int rc = ot_verify_add_slabs(c->verify, model);
    if (rc == 0)
        rc = ot_model_dir_load(dir, model, NULL, take_values, c);
    ot_model_close(model);
    return rc;
}

int ot_verify_model(const char *path, bool progress, struct ot_verify *out) {
    struct check c = {.verify = out, .progress = progress};
    struct ot_model_dir *dir = NULL;
    int rc;
    OT_TRY(ot_verify_open(out, path, false));
    OT_TRY_GOTO(ot_model_dir_open(path, &dir), rc, out);
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    char bytes[OT_TEXT_BYTES];
    snprintf(out->what, sizeof out->what, "%s, %s, %d weight file%s of %s bytes%s",
             ot_family_row(facts->config.family)->model_type, ot_dtype_name(facts->dtype), facts->n_shards,
             facts->n_shards == 1 ? "" : "s", ot_text_count(facts->weight_bytes, bytes),
             facts->tokenizer_path ? ", with a tokenizer" : ", without a tokenizer");
    OT_TRY_GOTO(check_tokenizer(facts, out), rc, out);
    rc = check_weights(dir, &c);
out:
    ot_model_dir_close(dir);
    return ot_verify_note(out, rc);
}
