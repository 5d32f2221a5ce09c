/* Verifies a model directory, or adapters over their base: opening and loading it checks the files, and this
 * file gathers the largest values as they are read. */
#include <math.h>
#include <stdlib.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/verify.h"
#include "src/files/adapter_config.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/tokenizer/tokenizer.h"

struct check {
    struct ot_verify *verify;
    const struct ot_chain *chain;
    int64_t done, total; /* in values, padding included */
    bool progress;
};

static int take_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct check *c = context;
    float most = 0;
    for (int64_t i = 0; i < n;
         i++) { /* all finite: for any other value the loader returns an error that names the tensor */
        float magnitude = fabsf(values[i]);
        most = ot_max(magnitude, most);
    }
    struct ot_verify_slab *row = &c->verify->slabs[slab];
    row->most_weight = ot_max((double)most, row->most_weight);
    row->state = first + n == c->chain->slabs[slab].n_params ? OT_VERIFY_OK : OT_VERIFY_NOT_READ;
    c->done += n;
    if (c->progress)
        ot_verify_show_progress(c->verify, c->done, c->total);
    return 0;
}

static int check_tokenizer(const struct ot_model_facts *facts, struct ot_verify *verify) {
    struct ot_tokenizer *tokenizer = NULL;
    if (!facts->tokenizer_path && (facts->sentencepiece || facts->tokenizer_file))
        return ot_verify_note(verify, ot_fail(OT_E_INPUT, "%s", facts->tokenizer_missing));
    if (!facts->tokenizer_path)
        return 0;
    int rc = ot_tokenizer_open(facts->tokenizer_path, &tokenizer);
    ot_tokenizer_close(tokenizer);
    if (rc < 0 && facts->tokenizer_is_made)
        rc = ot_fail_context(rc, "%s: the tokenizer that its keys describe", verify->dir);
    if (rc < 0 && facts->has_made_sentencepiece)
        rc = ot_fail_context(rc, "%s: the tokenizer that is made from it", facts->sentencepiece);
    if (rc < 0 && facts->tokenizer_file)
        rc = ot_fail_context(rc, "%s: with the added tokens of the files beside it", facts->tokenizer_file);
    return ot_verify_note(verify, rc);
}

/* Loads slab by slab and stops at the first wrong value. */
static int load_weights(const struct ot_model_dir *dir, const struct ot_model *model, struct check *c) {
    OT_TRY(ot_model_dir_check(dir, model));
    int rc = ot_model_dir_load(dir, model, NULL, take_values, c), at = 0;
    while (at < c->verify->n_slabs && c->verify->slabs[at].state == OT_VERIFY_OK)
        at++;
    if (rc < 0 && at < c->verify->n_slabs)
        c->verify->slabs[at].state = OT_VERIFY_DAMAGED;
    return rc;
}

/* lora: the spec of the adapters laid over the model; NULL: none. */
static int check_weights(const struct ot_model_dir *dir, const char *lora, struct check *c) {
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    const struct ot_selection selection = {.lora = lora};
    struct ot_model *model;
    if (!facts->has_weights)
        return ot_fail(OT_E_INPUT, "%s: %s", c->verify->dir, facts->weights_missing);
    OT_TRY(lora ? ot_model_open_selected(&facts->config, OT_F32, 1, &selection, &model)
                : ot_model_open(&facts->config, OT_F32, 1, &model));
    c->chain = ot_model_chain(model);
    for (int i = 0; i < c->chain->n_slabs; i++)
        c->total += c->chain->slabs[i].n_params;
    int rc = ot_verify_add_slabs(c->verify, model);
    if (rc == 0)
        rc = load_weights(dir, model, c);
    ot_model_close(model);
    return rc;
}

static void describe(const struct ot_model_facts *facts, const char *adapter, struct ot_verify *out) {
    char bytes[OT_TEXT_BYTES];
    snprintf(out->what, sizeof out->what, "%s%s, %s, %d weight file%s of %s bytes%s",
             adapter ? "adapters over " : "", ot_family_row(facts->config.family)->model_type,
             ot_dtype_name(facts->dtype), facts->n_shards, facts->n_shards == 1 ? "" : "s",
             ot_text_count(facts->weight_bytes, bytes),
             facts->tokenizer_path ? ", with a tokenizer" : ", without a tokenizer");
}

int ot_verify_model(const char *path, bool progress, struct ot_verify *out) {
    struct check c = {.verify = out, .progress = progress};
    struct ot_resolved found = {0};
    struct ot_model_dir *dir = NULL;
    char *lora = NULL;
    int rc;
    OT_TRY(ot_verify_open(out, path, false));
    OT_TRY_GOTO(ot_model_resolve(path, &found), rc, out);
    OT_TRY_GOTO(ot_model_dir_open(found.path, &dir), rc, out);
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    describe(facts, found.adapter, out);
    OT_TRY_GOTO(check_tokenizer(facts, out), rc, out);
    if (found.adapter) {
        OT_TRY_GOTO(ot_model_dir_add_adapter(dir, found.adapter), rc, out);
        OT_TRY_GOTO(ot_adapter_config_check_saved(found.adapter, dir), rc, out);
        OT_TRY_GOTO(ot_adapter_config_read(found.adapter, &facts->config, false, &lora), rc, out);
    }
    rc = check_weights(dir, lora, &c);
out:
    free(lora);
    ot_resolved_free(&found);
    ot_model_dir_close(dir);
    return ot_verify_note(out, rc);
}
