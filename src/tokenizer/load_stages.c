/* Reads "normalizer" and "pre_tokenizer" of a tokenizer.json. Nested sequences become one list. */
#include "src/tokenizer/tokenizer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/base64.h"
#include "src/base/error.h"
#include "src/base/json.h"

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* A place in the file for messages, like "FILE: normalizer Replace". */
struct place {
    char text[512];
};

static struct place place_of(const char *where, const char *part, const char *type) {
    struct place p;
    snprintf(p.text, sizeof p.text, "%.380s: %s %.80s", where, part, type);
    return p;
}

static int type_of(const char *where, const char *part, const struct ot_json *value, const char **type) {
    *type = ot_json_string(ot_json_get(value, "type"), NULL);
    if (!*type)
        return ot_fail(OT_E_INPUT, "%s: a %s must be an object with a string 'type', not %s", where, part,
                       ot_json_type_name(ot_json_type(value)));
    return 0;
}

static int items_of(const struct place *place, const struct ot_json *value, const char *key,
                    const struct ot_json **items) {
    *items = ot_json_get(value, key);
    if (ot_json_type(*items) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: '%s' must be an array", place->text, key);
    return 0;
}

static int need_string(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                       const char *key, struct ot_string *out) {
    const char *ignored;
    OT_TRY(ot_json_need_string(value, place->text, key, true, &ignored));
    return ot_load_string(t, ot_json_get(value, key), out);
}

/* ---- normalisers ---- */

static int load_normalizer(struct ot_tokenizer *t, const char *where, const struct ot_json *value);

static int load_normalizers(struct ot_tokenizer *t, const char *where, const struct place *place,
                            const struct ot_json *value) {
    const struct ot_json *items;
    OT_TRY(items_of(place, value, "normalizers", &items));
    for (size_t i = 0; i < ot_json_length(items); i++)
        OT_TRY(load_normalizer(t, where, ot_json_at(items, i)));
    return 0;
}

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

static int fill_normalizer(struct ot_tokenizer *t, const struct place *place, const struct ot_json *value,
                           const char *type, struct ot_normalizer *n) {
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

static int load_normalizer(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    const char *type;
    OT_TRY(type_of(where, "normalizer", value, &type));
    struct place place = place_of(where, "normalizer", type);
    if (strcmp(type, "Sequence") == 0)
        return load_normalizers(t, where, &place, value);
    if (t->n_normalizers == OT_MAX_STAGES)
        return ot_fail(OT_E_INPUT, "%s: more than %d normalizers", where, OT_MAX_STAGES);
    return fill_normalizer(t, &place, value, type, &t->normalizers[t->n_normalizers++]);
}

/* ---- pre-tokenizers ---- */

static int load_splitter(struct ot_tokenizer *t, const char *where, const struct ot_json *value);

static int load_splitters(struct ot_tokenizer *t, const char *where, const struct place *place,
                          const struct ot_json *value) {
    const struct ot_json *items;
    OT_TRY(items_of(place, value, "pretokenizers", &items));
    for (size_t i = 0; i < ot_json_length(items); i++)
        OT_TRY(load_splitter(t, where, ot_json_at(items, i)));
    return 0;
}

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
    OT_TRY(need_string(t, place, value, "replacement", &s->pattern.literal));
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
    size_t length = 0;
    if (s->pattern.literal.bytes > 0)
        ot_utf8_decode(s->pattern.literal.text, &length);
    if (length != s->pattern.literal.bytes || length == 0)
        return ot_fail(OT_E_INPUT, "%s: 'replacement' must be one character", place->text);
    return 0;
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
    size_t length = 0;
    OT_TRY(add_splitter(t, place, &s));
    s->behavior = OT_REMOVED;
    s->pattern.kind = OT_PATTERN_LITERAL;
    OT_TRY(need_string(t, place, value, "delimiter", &s->pattern.literal));
    if (s->pattern.literal.bytes > 0)
        ot_utf8_decode(s->pattern.literal.text, &length);
    if (length != s->pattern.literal.bytes || length == 0)
        return ot_fail(OT_E_INPUT, "%s: 'delimiter' must be one character", place->text);
    return 0;
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

static int load_splitter(struct ot_tokenizer *t, const char *where, const struct ot_json *value) {
    static const char *const classes[] = {"Digits", "Punctuation", "WhitespaceSplit", "Whitespace"};
    const char *type;
    OT_TRY(type_of(where, "pre_tokenizer", value, &type));
    struct place place = place_of(where, "pre_tokenizer", type);
    if (strcmp(type, "Sequence") == 0)
        return load_splitters(t, where, &place, value);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(t, &place, value);
    if (strcmp(type, "Metaspace") == 0)
        return load_metaspace(t, &place, value);
    if (strcmp(type, "Split") == 0)
        return load_split(t, &place, value);
    if (strcmp(type, "CharDelimiterSplit") == 0)
        return load_delimiter(t, &place, value);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(type, classes[i]) == 0)
            return load_class(t, &place, value, type);
    return ot_fail(
        OT_E_INPUT,
        "%s is not supported; supported: Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, "
        "WhitespaceSplit, Whitespace, CharDelimiterSplit",
        place.text);
}

int ot_load_stages(struct ot_tokenizer *t, const char *where, const struct ot_json *root) {
    const struct ot_json *normalizer = ot_json_get(root, "normalizer"),
                         *splitter = ot_json_get(root, "pre_tokenizer");
    if (ot_json_type(normalizer) != OT_JSON_NULL)
        OT_TRY(load_normalizer(t, where, normalizer));
    if (ot_json_type(splitter) != OT_JSON_NULL)
        OT_TRY(load_splitter(t, where, splitter));
    /* If the bytes go directly to BPE, they need not be written as characters. */
    t->bpe.byte_level = t->model == OT_MODEL_BPE && t->n_splitters > 0 &&
                        t->splitters[t->n_splitters - 1].kind == OT_SPLIT_SPELL_BYTES;
    t->n_splitters -= t->bpe.byte_level;
    return 0;
}
