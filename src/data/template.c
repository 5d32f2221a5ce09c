#include "src/data/template.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/tokenizer/tokenizer.h"

/* ---- rendered text ---- */

void ot_rendered_reset(struct ot_rendered *r) {
    r->bytes = 0;
    r->n_spans = 0;
    r->complete = r->marked = r->left_out = r->failed = false;
    r->untrainable_turns = 0;
}

void ot_rendered_free(struct ot_rendered *r) {
    free(r->text);
    free(r->spans);
    memset(r, 0, sizeof *r);
}

int ot_rendered_check(const struct ot_rendered *r) {
    return r->failed ? ot_fail(OT_E_BUDGET, "no memory for the text of a row") : 0;
}

static bool reserve_text(struct ot_rendered *r, size_t bytes) {
    return ot_try_grow(&r->text, &r->capacity, bytes, 1);
}

static bool reserve_span(struct ot_rendered *r) {
    return ot_try_grow(&r->spans, &r->span_capacity, r->n_spans + 1, sizeof *r->spans);
}

static void append_span(struct ot_rendered *r, const char *text, size_t bytes, struct ot_span span) {
    if (bytes == 0 || r->failed)
        return;
    struct ot_span *last = r->n_spans > 0 ? &r->spans[r->n_spans - 1] : NULL;
    bool same =
        last && last->trained == span.trained && last->user == span.user && last->id < 0 && span.id < 0;
    if (!reserve_text(r, r->bytes + bytes) || (!same && !reserve_span(r))) {
        r->failed = true;
        return;
    }
    memcpy(r->text + r->bytes, text, bytes);
    r->bytes += bytes;
    if (same)
        last->end = r->bytes;
    else
        r->spans[r->n_spans++] =
            (struct ot_span){.end = r->bytes, .trained = span.trained, .user = span.user, .id = span.id};
}

void ot_rendered_append(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool user) {
    append_span(r, text, bytes, (struct ot_span){.trained = trained, .user = user, .id = -1});
}

void ot_rendered_append_token(struct ot_rendered *r, const char *text, size_t bytes, int32_t id,
                              bool trained) {
    append_span(r, text, bytes, (struct ot_span){.trained = trained, .id = id});
}

static bool is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

bool ot_text_is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!is_space(text[i]))
            return false;
    return true;
}

/* ---- prompt formats ---- */

struct piece { /* a literal with its escapes resolved, or a field's name */
    bool is_field;
    char *text;
    size_t bytes;
};

struct ot_prompt_format {
    struct piece *pieces;
    size_t n_pieces, n_fields;
};

/* Parses a literal up to a placeholder's '{' or the end. piece->text has room for the whole format. */
static int parse_literal(const char **cursor, const char *format, struct piece *piece) {
    const char *c = *cursor;
    for (; *c; c++) {
        char byte = *c;
        if (byte == '{' || byte == '}') {
            if (c[1] != byte && byte == '{')
                break;
            if (c[1] != byte)
                return ot_fail(OT_E_USAGE, "prompt format '%s': a single '}'; write }} for a brace", format);
            c++;
        } else if (byte == '\\') {
            static const char from[] = "nrt\\", to[] = "\n\r\t\\";
            const char *known = c[1] ? strchr(from, c[1]) : NULL;
            if (!known)
                return ot_fail(OT_E_USAGE,
                               "prompt format '%s': unknown escape '\\%c'; known: \\n \\r \\t \\\\", format,
                               c[1] ? c[1] : ' ');
            byte = to[known - from];
            c++;
        }
        piece->text[piece->bytes++] = byte;
    }
    *cursor = c;
    return 0;
}

static int parse_field(const char **cursor, const char *format, struct piece *piece) {
    const char *name = *cursor + 1;
    size_t bytes = strcspn(name, "{}");
    if (name[bytes] != '}' || bytes == 0)
        return ot_fail(
            OT_E_USAGE,
            "prompt format '%s': '{' must begin a placeholder such as {question}; write {{ for a brace",
            format);
    memcpy(piece->text, name, bytes);
    piece->bytes = bytes;
    piece->is_field = true;
    *cursor = name + bytes + 1;
    return 0;
}

static int parse_pieces(struct ot_prompt_format *f, const char *format) {
    size_t most = strlen(format) + 1; /* each piece takes at least one byte */
    f->pieces = calloc(most, sizeof *f->pieces);
    if (!f->pieces)
        return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
    for (const char *c = format; *c;) {
        struct piece *piece = &f->pieces[f->n_pieces++];
        piece->text = calloc(strlen(c) + 1, 1);
        if (!piece->text)
            return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
        bool literal = c[0] != '{' || c[1] == '{';
        OT_TRY(literal ? parse_literal(&c, format, piece) : parse_field(&c, format, piece));
        f->n_fields += piece->is_field;
    }
    return 0;
}

int ot_prompt_format_open(const char *format, struct ot_prompt_format **out) {
    *out = NULL;
    struct ot_prompt_format *f = calloc(1, sizeof *f);
    if (!f)
        return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
    int rc;
    OT_TRY_GOTO(parse_pieces(f, format), rc, out);
    *out = f;
    f = NULL;
out:
    ot_prompt_format_close(f);
    return rc;
}

void ot_prompt_format_close(struct ot_prompt_format *f) {
    if (!f)
        return;
    for (size_t i = 0; i < f->n_pieces; i++)
        free(f->pieces[i].text);
    free(f->pieces);
    free(f);
}

size_t ot_prompt_format_fields(const struct ot_prompt_format *f) {
    return f->n_fields;
}

const char *ot_prompt_format_field(const struct ot_prompt_format *f, size_t index) {
    for (size_t i = 0; i < f->n_pieces; i++)
        if (f->pieces[i].is_field && index-- == 0)
            return f->pieces[i].text;
    return NULL;
}

void ot_prompt_format_render(const struct ot_prompt_format *f, const struct ot_json *row,
                             struct ot_rendered *r) {
    for (size_t i = 0; i < f->n_pieces; i++) {
        const struct piece *piece = &f->pieces[i];
        size_t bytes = piece->bytes;
        const char *text = piece->text;
        if (piece->is_field)
            text = ot_json_string(ot_json_get(row, piece->text), &bytes);
        if (text)
            ot_rendered_append(r, text, bytes, false, piece->is_field);
    }
}

/* ---- refused keys ---- */

static bool is_given(const struct ot_json *value) {
    size_t bytes = 1;
    if (ot_json_string(value, &bytes))
        return bytes > 0;
    return ot_json_type(value) == OT_JSON_ARRAY ? ot_json_length(value) > 0
                                                : ot_json_type(value) != OT_JSON_NULL;
}

int ot_row_refuse_preference(const struct ot_json *row, const char *where) {
    static const char *const keys[] = {"chosen", "rejected", "rejected_response", "rejected_messages"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_given(ot_json_get(row, keys[i])))
            return ot_fail(
                OT_E_INPUT,
                "%s: key '%s' makes this a row of preferences: give --objective dpo (or ipo, simpo, orpo); "
                "to train on the chosen answers alone, give --columns completion=chosen, or messages=chosen "
                "if each is a whole conversation",
                where, keys[i]);
    return 0;
}

static bool is_placed(const struct ot_prompt_format *format, const char *key) {
    for (size_t i = 0; format && i < ot_prompt_format_fields(format); i++)
        if (strcmp(ot_prompt_format_field(format, i), key) == 0)
            return true;
    return false;
}

int ot_row_refuse_unlearned(const struct ot_json *row, const struct ot_prompt_format *placed, bool is_text,
                            const char *where) {
    static const char *const keys[] = {"label", "loss", "train", "weight"};
    for (size_t i = is_text; i < sizeof keys / sizeof *keys; i++) {
        const struct ot_json *value = ot_json_get(row, keys[i]);
        bool is_false = ot_json_type(value) == OT_JSON_BOOL && !ot_json_bool(value, true);
        bool is_zero = strcmp(keys[i], "weight") == 0 && ot_json_real(value, 1) == 0;
        if ((is_false || is_zero) && !is_placed(placed, keys[i]))
            return ot_fail(
                OT_E_INPUT,
                "%s: key '%s' is %s: the row is not to be learned; remove such rows from the file, or "
                "learn from good and bad answers with --objective kto and a key 'label'",
                where, keys[i], is_false ? "false" : "0");
    }
    return 0;
}

static bool is_number_lost(const struct ot_json *value) {
    return ot_json_type(value) == OT_JSON_REAL && !isfinite(ot_json_real(value, 0));
}

static int check_members(const struct ot_json *object, const char *key, const char *where) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &name, &value)) {
        if (ot_json_type(ot_json_get(object, "role") ? ot_json_get(object, "role")
                                                     : ot_json_get(object, "from")) == OT_JSON_STRING &&
            is_number_lost(value))
            continue;
        OT_TRY(ot_row_check_value(value, key, where));
    }
    return 0;
}

int ot_row_check_value(const struct ot_json *value, const char *key, const char *where) {
    if (ot_json_type(value) == OT_JSON_NULL)
        return 0;
    if (ot_json_is_torn(value))
        return ot_fail(
            OT_E_INPUT,
            "%s: key '%s' has half of a surrogate pair (\\ud800 to \\udfff), which is no character", where,
            key);
    if (is_number_lost(value))
        return ot_fail(OT_E_INPUT, "%s: key '%s' has NaN or Infinity where the row needs a value", where,
                       key);
    if (ot_json_type(value) == OT_JSON_STRING)
        return 0;
    for (size_t i = 0; i < ot_json_length(value); i++)
        OT_TRY(ot_row_check_value(ot_json_at(value, i), key, where));
    return check_members(value, key, where);
}
