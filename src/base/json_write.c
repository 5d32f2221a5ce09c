#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json_state.h"
#include "src/base/utf8.h"

static void append_line_break(struct ot_json_writer *w) {
    ot_string_append_text(&w->out, "\n");
    for (int i = 0; i < w->depth; i++)
        ot_string_append_text(&w->out, "  ");
}

/* ---- strings ---- */

static void append_escaped(struct ot_json_writer *w, unsigned char c) {
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char escape[8];
    for (const char *pair = named; *pair; pair += 2)
        if ((unsigned char)*pair == c) {
            ot_string_append(&w->out, (char[]){'\\', pair[1]}, 2);
            return;
        }
    snprintf(escape, sizeof escape, "\\u%04x", c);
    ot_string_append_text(&w->out, escape);
}

/* Each byte that is not UTF-8 becomes U+FFFD, so the output is valid JSON for every text. */
static void append_quoted(struct ot_json_writer *w, const char *value, size_t bytes) {
    const unsigned char *text = (const unsigned char *)value;
    ot_string_append_text(&w->out, "\"");
    size_t plain = 0; /* start of the bytes that need no change */
    for (size_t at = 0; (at += ot_json_plain_bytes(value + at, bytes - at)) < bytes;) {
        size_t length = ot_utf8_character(value + at, bytes - at);
        if (length > 0 && text[at] >= 0x20 && text[at] != '"' && text[at] != '\\') {
            at += length;
            continue;
        }
        ot_string_append(&w->out, value + plain, at - plain);
        if (length == 0)
            ot_string_append_text(&w->out, "\xef\xbf\xbd");
        else
            append_escaped(w, text[at]);
        plain = ++at;
    }
    ot_string_append(&w->out, value + plain, bytes - plain);
    ot_string_append_text(&w->out, "\"");
}

/* ---- structure ---- */

static void start_item(struct ot_json_writer *w, const char *key) {
    if (w->comma)
        ot_string_append_text(&w->out, w->indent < 0 ? ", " : ",");
    if (w->indent >= 0 && w->depth > 0)
        append_line_break(w);
    if (key) {
        append_quoted(w, key, strlen(key));
        ot_string_append_text(&w->out, ": ");
    }
    w->comma = true;
}

static void begin(struct ot_json_writer *w, const char *key, const char *bracket) {
    start_item(w, key);
    ot_string_append_text(&w->out, bracket);
    w->depth++;
    w->comma = false;
}

static void end(struct ot_json_writer *w, const char *bracket) {
    w->depth--;
    if (w->indent >= 0 && w->comma) /* no newline in an empty container */
        append_line_break(w);
    ot_string_append_text(&w->out, bracket);
    w->comma = true;
}

void ot_json_begin_object(struct ot_json_writer *w, const char *key) {
    begin(w, key, "{");
}

void ot_json_end_object(struct ot_json_writer *w) {
    end(w, "}");
}

void ot_json_begin_array(struct ot_json_writer *w, const char *key) {
    begin(w, key, "[");
}

void ot_json_end_array(struct ot_json_writer *w) {
    end(w, "]");
}

/* ---- values ---- */

void ot_json_put_string(struct ot_json_writer *w, const char *key, const char *value, size_t bytes) {
    start_item(w, key);
    append_quoted(w, value, bytes);
}

void ot_json_put_text(struct ot_json_writer *w, const char *key, const char *value) {
    ot_json_put_string(w, key, value, strlen(value));
}

void ot_json_put_int(struct ot_json_writer *w, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    start_item(w, key);
    ot_string_append_text(&w->out, text);
}

static void format_real(char *text, size_t capacity, double value, int digits) {
    snprintf(text, capacity, "%.*g", digits, value);
    for (char *c = text; *c; c++) /* the locale may have a decimal comma */
        if (*c == ',')
            *c = '.';
}

void ot_json_put_real(struct ot_json_writer *w, const char *key, double value) {
    char text[40];
    format_real(text, sizeof text, value, 9);
    start_item(w, key);
    ot_string_append_text(&w->out, isfinite(value) ? text : "null");
}

/* The shortest text that reads back as the same bits and is still a real. */
void ot_json_put_exact(struct ot_json_writer *w, const char *key, double value) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            format_real(text, sizeof text, value, digits);
            break;
        }
    }
    start_item(w, key);
    ot_string_append_text(&w->out, isfinite(value) ? text : "null");
    if (isfinite(value) && !strpbrk(text, ".e"))
        ot_string_append_text(&w->out, ".0");
}

void ot_json_put_bool(struct ot_json_writer *w, const char *key, bool value) {
    start_item(w, key);
    ot_string_append_text(&w->out, value ? "true" : "false");
}

void ot_json_put_null(struct ot_json_writer *w, const char *key) {
    start_item(w, key);
    ot_string_append_text(&w->out, "null");
}

static void put_object(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    void *cursor = NULL;
    const char *member_key;
    struct ot_json *member;
    ot_json_begin_object(w, key);
    while (ot_json_next(value, &cursor, &member_key, &member))
        ot_json_put_value(w, member_key, member);
    ot_json_end_object(w);
}

static void put_array(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    ot_json_begin_array(w, key);
    for (size_t i = 0; i < ot_json_length(value); i++)
        ot_json_put_value(w, NULL, ot_json_at(value, i));
    ot_json_end_array(w);
}

/* The parser limits the depth of the tree, so the recursion is bounded too. */
void ot_json_put_value(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    size_t bytes = 0;
    const char *text;
    switch (ot_json_type(value)) {
    case OT_JSON_NULL:
        ot_json_put_null(w, key);
        break;
    case OT_JSON_BOOL:
        ot_json_put_bool(w, key, ot_json_bool(value, false));
        break;
    case OT_JSON_INT:
        ot_json_put_int(w, key, ot_json_int(value, 0));
        break;
    case OT_JSON_REAL:
        ot_json_put_exact(w, key, ot_json_real(value, 0));
        break;
    case OT_JSON_STRING:
        text = ot_json_string(value, &bytes);
        ot_json_put_string(w, key, text, bytes);
        break;
    case OT_JSON_ARRAY:
        put_array(w, key, value);
        break;
    case OT_JSON_OBJECT:
        put_object(w, key, value);
        break;
    }
}

int ot_json_writer_take(struct ot_json_writer *w, char **text, size_t *bytes) {
    ot_string_append(&w->out, "", 0); /* an empty text is valid */
    struct ot_string_builder done = w->out;
    *w = (struct ot_json_writer){.indent = w->indent};
    if (done.failed) {
        free(done.text);
        *text = NULL;
        return ot_fail(OT_E_BUDGET, "no memory to write JSON");
    }
    *text = done.text;
    if (bytes)
        *bytes = done.bytes;
    return 0;
}
