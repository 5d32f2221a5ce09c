/* Reads the stages of a tokenizer.json: "normalizer", "pre_tokenizer", "decoder" and "post_processor". Nested
 * sequences become one list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/tokenizer/tokenizer_state.h"

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* A stage in the file. text: for messages, like "FILE: normalizer Replace". */
struct place {
    const char *where;
    char text[512];
};

/* A key of the file with a stage. A stage of the type "Sequence" has more stages under the key `items`. */
struct stage_key {
    const char *name, *items;
    int (*load)(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                const char *type);
};

static int load_stage(struct ot_tokenizer *t, const char *where, const struct stage_key *key,
                      const struct ot_json *value) {
    const char *type = ot_json_string(ot_json_get(value, "type"), NULL);
    const struct ot_json *items = ot_json_get(value, key->items);
    struct place place = {.where = where};
    if (!type)
        return ot_fail(OT_E_INPUT, "%s: a %s must be an object with a string 'type', not %s", where,
                       key->name, ot_json_type_name(ot_json_type(value)));
    snprintf(place.text, sizeof place.text, "%.380s: %s %.80s", where, key->name, type);
    if (strcmp(type, "Sequence") != 0)
        return key->load(t, &place, value, type);
    if (ot_json_type(items) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: '%s' must be an array", place.text, key->items);
    for (size_t i = 0; i < ot_json_length(items); i++)
        OT_TRY(load_stage(t, where, key, ot_json_at(items, i)));
    return 0;
}

/* Loads the stages of a key of the file. The key may be absent or null. */
static int load_key(struct ot_tokenizer *t, const char *where, const struct stage_key *key,
                    const struct ot_json *value) {
    return ot_json_type(value) == OT_JSON_NULL ? 0 : load_stage(t, where, key, value);
}

static int need_string(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                       const char *key, struct ot_string *out) {
    const char *ignored;
    OT_TRY(ot_json_need_string(value, place->text, key, true, &ignored));
    return ot_load_string(t, ot_json_get(value, key), out);
}

/* A member that is a string of one character. */
static int load_character(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                          const char *key, struct ot_string *out) {
    size_t bytes, length = 0;
    const char *text = ot_json_string(ot_json_get(value, key), &bytes);
    if (text && bytes > 0)
        ot_utf8_decode(text, &length);
    if (!text || length != bytes || length == 0)
        return ot_fail(OT_E_INPUT, "%s: '%s' must be one character", place->text, key);
    return ot_load_string(t, ot_json_get(value, key), out);
}

static int need_character(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                          const char *key, struct ot_string *out) {
    const char *ignored;
    OT_TRY(ot_json_need_string(value, place->text, key, true, &ignored));
    return load_character(t, place, value, key, out);
}

/* ---- normalisers ---- */

static int load_charsmap(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                         struct ot_normalizer *n) {
    size_t bytes, n_table;
    char *table = NULL;
    const char *text;
    n->kind = OT_NORMALIZE_CHARSMAP;
    OT_TRY(ot_json_need_string(value, place->text, "precompiled_charsmap", true, &text));
    text = ot_json_string(ot_json_get(value, "precompiled_charsmap"), &bytes);
    OT_TRY(ot_base64_decode(text, bytes, place->text, &table, &n_table));
    int rc = ot_charsmap_open(table, n_table, place->text, t->arena, &n->charsmap);
    free(table);
    return rc;
}

/* Finds a normalizer without members. */
static bool is_bare(const char *type, struct ot_normalizer *n) {
    static const struct {
        const char *name;
        enum ot_normalizer_kind kind;
    } bare[] = {{"Lowercase", OT_NORMALIZE_LOWERCASE},
                {"StripAccents", OT_NORMALIZE_STRIP_ACCENTS},
                {"Nmt", OT_NORMALIZE_NMT},
                {"ByteLevel", OT_NORMALIZE_SPELL_BYTES}};
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++) {
        if (strcmp(type, bare[i].name) == 0) {
            n->kind = bare[i].kind;
            return true;
        }
    }
    return false;
}

static int load_normalizer(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                           const char *type) {
    if (t->n_normalizers == OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d normalizers", place->where, OT_MAX_STAGES);
    struct ot_normalizer *n = &t->normalizers[t->n_normalizers++];
    if (strcmp(type, "Prepend") == 0) {
        n->kind = OT_NORMALIZE_PREPEND;
        return need_string(t, place, value, "prepend", &n->content);
    }
    if (strcmp(type, "Replace") == 0) {
        n->kind = OT_NORMALIZE_REPLACE;
        OT_TRY(need_string(t, place, value, "content", &n->content));
        return ot_load_pattern(t, place->text, ot_json_get(value, "pattern"), &n->pattern);
    }
    if (strcmp(type, "NFC") == 0 || strcmp(type, "NFD") == 0 || strcmp(type, "NFKC") == 0 ||
        strcmp(type, "NFKD") == 0) {
        n->kind = OT_NORMALIZE_UNICODE;
        n->compatible = type[2] == 'K';
        n->compose = type[strlen(type) - 1] == 'C';
        return 0;
    }
    if (is_bare(type, n))
        return 0;
    if (strcmp(type, "Precompiled") == 0)
        return load_charsmap(t, place, value, n);
    if (strcmp(type, "Strip") == 0) {
        n->kind = OT_NORMALIZE_STRIP;
        OT_TRY(ot_json_need_bool(value, place->text, "strip_left", true, &n->left));
        return ot_json_need_bool(value, place->text, "strip_right", true, &n->right);
    }
    return ot_fail(OT_E_INPUT,
                   "%s is not supported; supported: Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, "
                   "Lowercase, Strip, StripAccents, Nmt, ByteLevel, Precompiled",
                   place->text);
}

/* ---- pre-tokenizers ---- */

static int add_splitter(struct ot_tokenizer *t, const struct place *place, struct ot_splitter **out) {
    if (t->n_splitters == OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d pre-tokenizers", place->text, OT_MAX_STAGES);
    *out = &t->splitters[t->n_splitters++];
    (*out)->splits = true;
    return 0;
}

static int load_behavior(const struct place *place, const struct ot_json *value, bool required,
                         enum ot_behavior *out) {
    static const char *const names[] = {[OT_REMOVED] = "Removed",
                                        [OT_ISOLATED] = "Isolated",
                                        [OT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
                                        [OT_MERGED_WITH_NEXT] = "MergedWithNext",
                                        [OT_CONTIGUOUS] = "Contiguous"};
    const char *name = "Isolated";
    OT_TRY(ot_json_need_string(value, place->text, "behavior", required, &name));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum ot_behavior)i;
            return 0;
        }
    }
    return ot_fail(OT_E_INPUT,
                   "%s: behavior '%.80s' is not supported; supported: Removed, Isolated, MergedWithPrevious, "
                   "MergedWithNext, Contiguous",
                   place->text, name);
}

static int load_byte_level(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value) {
    struct ot_splitter *s = NULL;
    OT_TRY(add_splitter(t, place, &s));
    s->kind = OT_SPLIT_BYTE_LEVEL;
    s->behavior = OT_ISOLATED;
    s->pattern.kind = OT_PATTERN_REGEX;
    OT_TRY(ot_json_need_bool(value, place->text, "add_prefix_space", true, &s->add_prefix_space));
    OT_TRY(ot_json_need_bool(value, place->text, "use_regex", false, &s->splits));
    if (s->splits)
        OT_TRY(ot_regex_open(gpt2_pattern, strlen(gpt2_pattern), place->text, &s->pattern.regex));
    OT_TRY(add_splitter(t, place, &s));
    s->kind = OT_SPLIT_SPELL_BYTES;
    return 0;
}

static int load_metaspace(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value) {
    struct ot_splitter *s = NULL;
    bool prefix = true;
    const char *scheme = "always";
    OT_TRY(add_splitter(t, place, &s));
    s->kind = OT_SPLIT_METASPACE;
    s->behavior = OT_MERGED_WITH_NEXT;
    s->pattern.kind = OT_PATTERN_LITERAL;
    OT_TRY(ot_json_need_bool(value, place->text, "split", false, &s->splits));
    OT_TRY(ot_json_need_bool(value, place->text, "add_prefix_space", false, &prefix));
    OT_TRY(ot_json_need_string(value, place->text, "prepend_scheme", false, &scheme));
    if (!prefix || strcmp(scheme, "never") == 0)
        s->prepend = OT_PREPEND_NEVER;
    else if (strcmp(scheme, "first") == 0)
        s->prepend = OT_PREPEND_FIRST;
    else if (strcmp(scheme, "always") == 0)
        s->prepend = OT_PREPEND_ALWAYS;
    else
        return ot_fail(OT_E_INPUT,
                       "%s: prepend_scheme '%.80s' is not supported; supported: first, always, never",
                       place->text, scheme);
    return need_character(t, place, value, "replacement", &s->pattern.literal);
}

static int load_split(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value) {
    struct ot_splitter *s = NULL;
    OT_TRY(add_splitter(t, place, &s));
    OT_TRY(load_behavior(place, value, true, &s->behavior));
    OT_TRY(ot_json_need_bool(value, place->text, "invert", true, &s->invert));
    return ot_load_pattern(t, place->text, ot_json_get(value, "pattern"), &s->pattern);
}

static int load_delimiter(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value) {
    struct ot_splitter *s = NULL;
    OT_TRY(add_splitter(t, place, &s));
    s->behavior = OT_REMOVED;
    s->pattern.kind = OT_PATTERN_LITERAL;
    return need_character(t, place, value, "delimiter", &s->pattern.literal);
}

/* Loads a pre-tokenizer that is a class of characters and a behaviour. */
static int load_class(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                      const char *type) {
    struct ot_splitter *s = NULL;
    OT_TRY(add_splitter(t, place, &s));
    s->pattern.kind = OT_PATTERN_CLASS;
    if (strcmp(type, "Digits") == 0) {
        bool individual;
        OT_TRY(ot_json_need_bool(value, place->text, "individual_digits", true, &individual));
        s->pattern.is_member = ot_unicode_is_number;
        s->behavior = individual ? OT_ISOLATED : OT_CONTIGUOUS;
    } else if (strcmp(type, "Punctuation") == 0) {
        s->pattern.is_member = ot_unicode_is_punctuation;
        return load_behavior(place, value, false, &s->behavior);
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        s->pattern.is_member = ot_unicode_is_space;
        s->behavior = OT_REMOVED;
    } else {
        s->pattern.kind = OT_PATTERN_WHITESPACE;
        s->behavior = OT_REMOVED;
        s->invert = true;
    }
    return 0;
}

static int load_splitter(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                         const char *type) {
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(t, place, value);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(t, place, value);
    if (strcmp(type, "Split") == 0)
        return load_split(t, place, value);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return load_delimiter(t, place, value);
    if (ot_words_have("Digits Punctuation WhitespaceSplit Whitespace", type))
        return load_class(t, place, value, type);
    return ot_fail(
        OT_E_INPUT,
        "%s is not supported; supported: Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, "
        "WhitespaceSplit, Whitespace, CharDelimiterSplit",
        place->text);
}

int ot_load_stages(struct ot_tokenizer *t, const char *where, const struct ot_json *root) {
    static const struct stage_key normalizer = {"normalizer", "normalizers", load_normalizer},
                                  splitter = {"pre_tokenizer", "pretokenizers", load_splitter};
    OT_TRY(load_key(t, where, &normalizer, ot_json_get(root, normalizer.name)));
    OT_TRY(load_key(t, where, &splitter, ot_json_get(root, splitter.name)));
    /* If the bytes go directly to BPE, they need not be written as characters. */
    t->bpe.byte_level = t->model == OT_MODEL_BPE && t->n_splitters > 0 &&
                        t->splitters[t->n_splitters - 1].kind == OT_SPLIT_SPELL_BYTES;
    t->n_splitters -= t->bpe.byte_level;
    return 0;
}

/* ---- decoders ---- */

static int load_strip(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                      struct ot_decoder *d) {
    int64_t start, stop;
    OT_TRY(load_character(t, place, value, "content", &d->content));
    OT_TRY(ot_json_need_int(value, place->text, "start", true, 0, INT32_MAX, &start));
    OT_TRY(ot_json_need_int(value, place->text, "stop", true, 0, INT32_MAX, &stop));
    d->start = (size_t)start;
    d->stop = (size_t)stop;
    return 0;
}

static int load_replace(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                        struct ot_decoder *d) {
    OT_TRY(need_string(t, place, value, "content", &d->content));
    return ot_load_pattern(t, place->text, ot_json_get(value, "pattern"), &d->pattern);
}

static int load_metaspace_decoder(struct ot_tokenizer *t, const struct place *place,
                                  const struct ot_json *value, struct ot_decoder *d) {
    const char *scheme = "always";
    bool prefix = true;
    OT_TRY(ot_json_need_string(value, place->text, "prepend_scheme", false, &scheme));
    OT_TRY(ot_json_need_bool(value, place->text, "add_prefix_space", false, &prefix));
    d->drop_first = prefix && strcmp(scheme, "never") != 0;
    return load_character(t, place, value, "replacement", &d->content);
}

static int load_decoder(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                        const char *type) {
    static const char *const names[] = {[OT_DECODE_REPLACE] = "Replace",
                                        [OT_DECODE_BYTE_FALLBACK] = "ByteFallback",
                                        [OT_DECODE_FUSE] = "Fuse",
                                        [OT_DECODE_STRIP] = "Strip",
                                        [OT_DECODE_BYTE_LEVEL] = "ByteLevel",
                                        [OT_DECODE_METASPACE] = "Metaspace"};
    size_t kind = 0;
    while (kind < sizeof names / sizeof *names && strcmp(type, names[kind]) != 0)
        kind++;
    if (kind == sizeof names / sizeof *names)
        return ot_fail(
            OT_E_INPUT,
            "%s is not supported; supported: Sequence, Replace, ByteFallback, Fuse, Strip, ByteLevel, "
            "Metaspace",
            place->text);
    if (t->n_decoders == OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d decoders", place->where, OT_MAX_STAGES);
    struct ot_decoder *d = &t->decoders[t->n_decoders++];
    d->kind = (enum ot_decoder_kind)kind;
    if (d->kind == OT_DECODE_REPLACE)
        return load_replace(t, place, value, d);
    if (d->kind == OT_DECODE_STRIP)
        return load_strip(t, place, value, d);
    return d->kind == OT_DECODE_METASPACE ? load_metaspace_decoder(t, place, value, d) : 0;
}

int ot_load_decoders(struct ot_tokenizer *t, const char *where, const struct ot_json *decoder) {
    static const struct stage_key key = {"decoder", "decoders", load_decoder};
    t->has_decoder = ot_json_type(decoder) != OT_JSON_NULL;
    return load_key(t, where, &key, decoder);
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

static int load_processor(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                          const char *type) {
    const char *where = place->where;
    if (strcmp(type, "ByteLevel") == 0) /* trims offsets in Hugging Face; not needed for our offsets */
        return 0;
    bool is_template = strcmp(type, "TemplateProcessing") == 0,
         is_bert = strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0;
    /* Hugging Face takes the parts of a template for a pair of texts. */
    if ((is_template || is_bert) && t->has_template)
        return ot_fail(OT_E_INPUT, "%s after a template that adds tokens is not supported", place->text);
    if ((is_template || is_bert) && ++t->n_processors > OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d post-processors that add tokens", where, OT_MAX_STAGES);
    if (is_template)
        return load_template(t, where, value);
    if (is_bert)
        return load_bert(t, where, value);
    return ot_fail(OT_E_INPUT,
                   "%s is not supported; supported: Sequence, TemplateProcessing, RobertaProcessing, "
                   "BertProcessing, ByteLevel",
                   place->text);
}

int ot_load_post_processor(struct ot_tokenizer *t, const char *where, const struct ot_json *processor) {
    static const struct stage_key key = {"post_processor", "processors", load_processor};
    return load_key(t, where, &key, processor);
}
