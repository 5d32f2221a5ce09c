/* Reads "model" of a tokenizer.json: finds its kind, and reads the keys that both kinds share. */
#include "src/tokenizer/tokenizer_state.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"

int ot_load_note_id(const char *where, const char *token, const struct ot_json *value, int64_t *max_id) {
    int64_t id = ot_json_int(value, -1);
    if (ot_json_type(value) != OT_JSON_INT || id < 0 || id > OT_VOCAB_MAX_ID)
        return ot_fail(OT_E_INPUT, "%s: token '%.100s' has no id between 0 and %d", where, token,
                       OT_VOCAB_MAX_ID);
    *max_id = ot_max(id, *max_id);
    return 0;
}

int ot_load_measure_added(const char *where, const struct ot_json *added, int64_t *count, int64_t *max_id) {
    for (size_t i = 0; i < ot_json_length(added); i++, ++*count) {
        const char *content = ot_json_string(ot_json_get(ot_json_at(added, i), "content"), NULL);
        if (!content)
            return ot_fail(OT_E_INPUT, "%s: added_tokens[%zu] has no string 'content'", where, i);
        OT_TRY(ot_load_note_id(where, content, ot_json_get(ot_json_at(added, i), "id"), max_id));
    }
    return 0;
}

/* Some older files, like T5's, have no type. */
static const char *type_of(const struct ot_json *model) {
    if (ot_json_get(model, "type"))
        return ot_json_string(ot_json_get(model, "type"), NULL);
    return ot_json_type(ot_json_get(model, "vocab")) == OT_JSON_ARRAY ? "Unigram" : "BPE";
}

int ot_load_model(struct ot_tokenizer *t, const char *where, const struct ot_json *model,
                  const struct ot_json *added) {
    if (ot_json_type(model) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: not a tokenizer.json: 'model' must be an object, not %s", where,
                       ot_json_type_name(ot_json_type(model)));
    const char *type = type_of(model);
    if (type && strcmp(type, "BPE") == 0) {
        t->model = OT_MODEL_BPE;
        return ot_load_bpe(t, where, model, added);
    }
    if (type && strcmp(type, "Unigram") == 0) {
        t->model = OT_MODEL_UNIGRAM;
        return ot_load_unigram(t, where, model, added);
    }
    return ot_fail(OT_E_INPUT, "%s: model.type '%s' is not supported; supported: BPE, Unigram", where,
                   type ? type : "(not a string)");
}
