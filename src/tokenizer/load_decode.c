/* Reads "decoder" and "post_processor" of a tokenizer.json. */
#include "src/tokenizer/tokenizer_state.h"

#include <stdio.h>
#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/json.h"

/* ---- decoders ---- */

static int load_decoder(struct ot_tokenizer *t, const char *where, const struct ot_json *value);

static int load_sequence(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    const struct ot_json *items = ot_json_get(value, "decoders");
    if (ot_json_type(items) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: decoder Sequence: 'decoders' must be an array", where);
    for (size_t i = 0; i < ot_json_length(items); i++)
        OT_TRY(load_decoder(t, where, ot_json_at(items, i)));
    return 0;
}

static int load_character(struct ot_tokenizer *t, const char *place, const struct ot_json *value,
                          const char *key, struct ot_string *out) {
    size_t bytes, length = 0;
    const char *text = ot_json_string(ot_json_get(value, key), &bytes);
    if (text && bytes > 0)
        ot_utf8_decode(text, &length);
    if (!text || length != bytes || length == 0)
        return ot_fail(OT_E_INPUT, "%s: '%s' must be one character", place, key);
    return ot_load_string(t, ot_json_get(value, key), out);
}

static int load_strip(struct ot_tokenizer *t, const char *place, const struct ot_json *value,
                      struct ot_decoder *d) {
    int64_t start, stop;
    OT_TRY(load_character(t, place, value, "content", &d->content));
    OT_TRY(ot_json_need_int(value, place, "start", true, 0, INT32_MAX, &start));
    OT_TRY(ot_json_need_int(value, place, "stop", true, 0, INT32_MAX, &stop));
    d->start = (size_t)start;
    d->stop = (size_t)stop;
    return 0;
}

static int load_replace(struct ot_tokenizer *t, const char *place, const struct ot_json *value,
                        struct ot_decoder *d) {
    const char *content;
    OT_TRY(ot_json_need_string(value, place, "content", true, &content));
    OT_TRY(ot_load_string(t, ot_json_get(value, "content"), &d->content));
    return ot_load_pattern(t, place, ot_json_get(value, "pattern"), &d->pattern);
}

static int load_metaspace(struct ot_tokenizer *t, const char *place, const struct ot_json *value,
                          struct ot_decoder *d) {
    const char *scheme = "always";
    bool prefix = true;
    OT_TRY(ot_json_need_string(value, place, "prepend_scheme", false, &scheme));
    OT_TRY(ot_json_need_bool(value, place, "add_prefix_space", false, &prefix));
    d->drop_first = prefix && strcmp(scheme, "never") != 0;
    return load_character(t, place, value, "replacement", &d->content);
}

static int load_decoder(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    static const char *const names[] = {[OT_DECODE_REPLACE] = "Replace",
                                        [OT_DECODE_BYTE_FALLBACK] = "ByteFallback",
                                        [OT_DECODE_FUSE] = "Fuse",
                                        [OT_DECODE_STRIP] = "Strip",
                                        [OT_DECODE_BYTE_LEVEL] = "ByteLevel",
                                        [OT_DECODE_METASPACE] = "Metaspace"};
    const char *type = ot_json_string(ot_json_get(value, "type"), NULL);
    char place[512];
    size_t kind = 0;
    if (!type)
        return ot_fail(OT_E_INPUT, "%s: a decoder must be an object with a string 'type', not %s", where,
                       ot_json_type_name(ot_json_type(value)));
    if (strcmp(type, "Sequence") == 0)
        return load_sequence(t, where, value);
    snprintf(place, sizeof place, "%.380s: decoder %.80s", where, type);
    while (kind < sizeof names / sizeof *names && strcmp(type, names[kind]) != 0)
        kind++;
    if (kind == sizeof names / sizeof *names)
        return ot_fail(
            OT_E_INPUT,
            "%s is not supported; supported: Sequence, Replace, ByteFallback, Fuse, Strip, ByteLevel, "
            "Metaspace",
            place);
    if (t->n_decoders == OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d decoders", where, OT_MAX_STAGES);
    struct ot_decoder *d = &t->decoders[t->n_decoders++];
    d->kind = (enum ot_decoder_kind)kind;
    if (d->kind == OT_DECODE_REPLACE)
        return load_replace(t, place, value, d);
    if (d->kind == OT_DECODE_STRIP)
        return load_strip(t, place, value, d);
    return d->kind == OT_DECODE_METASPACE ? load_metaspace(t, place, value, d) : 0;
}

int ot_load_decoders(struct ot_tokenizer *t, const char *where, const struct ot_json *decoder) {
    t->has_decoder = ot_json_type(decoder) != OT_JSON_NULL;
    return t->has_decoder ? load_decoder(t, where, decoder) : 0;
}

/* ---- post-processors ---- */

static int check_special(const struct ot_tokenizer *t, const char *where, const char *name, int64_t id) {
    if (id >= 0 && id < t->vocab.n && t->vocab.tokens[id].text)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: post_processor: '%.100s' has an id that is no token", where, name);
}

/* Reads the ids of one special token of a template. */
static int load_special(struct ot_tokenizer *t, const char *where, const struct ot_json *specials,
                        const char *name, int32_t *ids, int32_t *n) {
    const struct ot_json *list = ot_json_get(ot_json_get(specials, name), "ids");
    if (ot_json_length(list) == 0)
        return ot_fail(OT_E_INPUT, "%s: post_processor: special_tokens lacks the ids of '%.100s'", where,
                       name);
    for (size_t i = 0; i < ot_json_length(list); i++) {
        int64_t id = ot_json_int(ot_json_at(list, i), -1);
        OT_TRY(check_special(t, where, name, id));
        if (ids)
            ids[*n] = (int32_t)id;
        ++*n;
    }
    return 0;
}

/* Tokens that one processor puts around a text. */
struct frame {
    int32_t *before, *after;
    int32_t n_before, n_after;
};

/* Walks over the template twice: first to count (f->before and f->after are NULL), then to fill in. */
static int walk_template(struct ot_tokenizer *t, const char *where, const struct ot_json *value,
                         struct frame *f) {
    const struct ot_json *pieces = ot_json_get(value, "single"),
                         *specials = ot_json_get(value, "special_tokens");
    int sequences = 0;
    f->n_before = f->n_after = 0;
    for (size_t i = 0; i < ot_json_length(pieces); i++) {
        const struct ot_json *piece = ot_json_at(pieces, i);
        const char *sequence = ot_json_string(ot_json_get(ot_json_get(piece, "Sequence"), "id"), NULL);
        const char *special = ot_json_string(ot_json_get(ot_json_get(piece, "SpecialToken"), "id"), NULL);
        if (sequence && strcmp(sequence, "A") == 0)
            sequences++;
        else if (special && sequences == 0)
            OT_TRY(load_special(t, where, specials, special, f->before, &f->n_before));
        else if (special)
            OT_TRY(load_special(t, where, specials, special, f->after, &f->n_after));
        else
            return ot_fail(OT_E_INPUT,
                           "%s: post_processor: single[%zu] is neither sequence A nor a special token", where,
                           i);
    }
    if (sequences != 1)
        return ot_fail(OT_E_INPUT, "%s: post_processor: 'single' must hold sequence A once", where);
    return 0;
}

static int make_frame(struct ot_tokenizer *t, struct frame *f) {
    f->before = ot_arena_alloc(t->arena, (size_t)f->n_before + 1, sizeof *f->before);
    f->after = ot_arena_alloc(t->arena, (size_t)f->n_after + 1, sizeof *f->after);
    return f->before && f->after ? 0 : ot_fail(OT_E_BUDGET, "no memory for a post-processor");
}

/* Puts a frame around the frame of the earlier processors. */
static int put_around(struct ot_tokenizer *t, const struct frame *outer) {
    struct frame f = {.n_before = outer->n_before + t->n_before, .n_after = t->n_after + outer->n_after};
    OT_TRY(make_frame(t, &f));
    for (int32_t i = 0; i < f.n_before; i++)
        f.before[i] = i < outer->n_before ? outer->before[i] : t->before[i - outer->n_before];
    for (int32_t i = 0; i < f.n_after; i++)
        f.after[i] = i < t->n_after ? t->after[i] : outer->after[i - t->n_after];
    t->before = f.before;
    t->after = f.after;
    t->n_before = f.n_before;
    t->n_after = f.n_after;
    return 0;
}

static int load_template(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    struct frame f = {0};
    OT_TRY(walk_template(t, where, value, &f));
    OT_TRY(make_frame(t, &f));
    OT_TRY(walk_template(t, where, value, &f));
    t->has_template = f.n_before + f.n_after > 0;
    return put_around(t, &f);
}

/* Bert and Roberta: cls comes before the text, sep after it. Each is a pair of a token's text and its id. */
static int load_bert(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    static const char *const names[] = {"cls", "sep"};
    struct frame f = {.n_before = 1, .n_after = 1};
    OT_TRY(make_frame(t, &f));
    for (int i = 0; i < 2; i++) {
        int64_t id = ot_json_int(ot_json_at(ot_json_get(value, names[i]), 1), -1);
        OT_TRY(check_special(t, where, names[i], id));
        *(i ? f.after : f.before) = (int32_t)id;
    }
    return put_around(t, &f);
}

static int load_processor(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    const char *type = ot_json_string(ot_json_get(value, "type"), NULL);
    if (!type)
        return ot_fail(OT_E_INPUT, "%s: a post_processor must be an object with a string 'type', not %s",
                       where, ot_json_type_name(ot_json_type(value)));
    if (strcmp(type, "ByteLevel") == 0) /* trims offsets in Hugging Face; not needed for our offsets */
        return 0;
    bool is_template = strcmp(type, "TemplateProcessing") == 0,
         is_bert = strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0;
    /* Hugging Face takes the parts of a template for a pair of texts. */
    if ((is_template || is_bert) && t->has_template)
        return ot_fail(OT_E_INPUT, "%s: post_processor %s after a template that adds tokens is not supported",
                       where, type);
    if ((is_template || is_bert) && ++t->n_processors > OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d post-processors that add tokens", where, OT_MAX_STAGES);
    if (is_template)
        return load_template(t, where, value);
    if (is_bert)
        return load_bert(t, where, value);
    if (strcmp(type, "Sequence") != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: post_processor %.80s is not supported; supported: Sequence, TemplateProcessing, "
                       "RobertaProcessing, BertProcessing, ByteLevel",
                       where, type);
    const struct ot_json *items = ot_json_get(value, "processors");
    if (ot_json_type(items) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: post_processor Sequence: 'processors' must be an array", where);
    for (size_t i = 0; i < ot_json_length(items); i++)
        OT_TRY(load_processor(t, where, ot_json_at(items, i)));
    return 0;
}

int ot_load_post_processor(struct ot_tokenizer *t, const char *where, const struct ot_json *processor) {
    return ot_json_type(processor) == OT_JSON_NULL ? 0 : load_processor(t, where, processor);
}
