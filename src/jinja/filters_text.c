/* Filters that make texts. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/filters.h"
#include "src/jinja/jinja.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/jinja/unicode.h"
#include "src/tokenizer/text.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

/* Takes the filter's value, its only argument, as a string. */
static int take_string(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                       struct ot_jinja_value *out) {
    static const char *const parameters[] = {"value", NULL};
    struct ot_jinja_value v;
    OT_TRY(ot_jinja_bind(heap, call, what, parameters, 1, &v));
    return ot_jinja_to_string(heap, &v, out);
}

static int change_case(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, enum ot_jinja_case to,
                       struct ot_jinja_value *out) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "a filter that changes case", &text));
    OT_TRY(ot_jinja_step(heap, text.as.string->bytes >> 4));
    ot_jinja_change_case(text.as.string->text, text.as.string->bytes, to, &b);
    return ot_jinja_take(heap, &b, out);
}

FILTER(lower) {
    return change_case(heap, call, OT_JINJA_LOWER, out);
}

FILTER(upper) {
    return change_case(heap, call, OT_JINJA_UPPER, out);
}

FILTER(capitalize) {
    return change_case(heap, call, OT_JINJA_CAPITAL, out);
}

/* jinja2's words begin after white space, hyphens and opening brackets. */
static bool ends_word(const char *text, size_t n) {
    return ot_jinja_space_at(text, n) > 0 || strchr("-({[<", *text);
}

FILTER(title) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "title", &text));
    const struct ot_jinja_string *s = text.as.string;
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    for (size_t at = 0, end, n; at < s->bytes; at = end) {
        bool border = s->text[at] && ends_word(s->text + at, s->bytes - at);
        for (end = at; end < s->bytes; end += n) {
            if ((s->text[end] && ends_word(s->text + end, s->bytes - end)) != border)
                break;
            ot_utf8_decode(s->text + end, &n);
        }
        if (border)
            ot_string_append(&b, s->text + at, end - at);
        else
            ot_jinja_change_case(s->text + at, end - at, OT_JINJA_CAPITAL, &b);
    }
    return ot_jinja_take(heap, &b, out);
}

FILTER(trim) {
    static const char *const parameters[] = {"value", "chars", NULL};
    struct ot_jinja_value v[2], text;
    const struct ot_jinja_string *chars = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "trim", parameters, 1, v));
    OT_TRY(ot_jinja_to_string(heap, &v[0], &text));
    if (v[1].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_text(heap, &v[1], "the argument of trim", &chars));
    return ot_jinja_strip(heap, text.as.string, chars, OT_JINJA_STRIP_BOTH, out);
}

FILTER(replace) {
    static const char *const parameters[] = {"s", "old", "new", "count", NULL};
    struct ot_jinja_value v[4], text[3];
    int64_t most = -1;
    OT_TRY(ot_jinja_bind(heap, call, "replace", parameters, 3, v));
    for (int i = 0; i < 3; i++)
        OT_TRY(ot_jinja_to_string(heap, &v[i], &text[i]));
    if (v[3].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_int(heap, &v[3], "the count of replace", &most));
    return ot_jinja_replace(heap, text[0].as.string, text[1].as.string, text[2].as.string, most, out);
}

FILTER(center) {
    static const char *const parameters[] = {"value", "width", NULL};
    struct ot_jinja_value v[2], text;
    int64_t width = 80;
    OT_TRY(ot_jinja_bind(heap, call, "center", parameters, 1, v));
    OT_TRY(ot_jinja_to_string(heap, &v[0], &text));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "the width of center", &width));
    return ot_jinja_pad(heap, text.as.string, width, ' ', true, true, out);
}

FILTER(string) {
    return take_string(heap, call, "string", out);
}

FILTER(safe) {
    OT_TRY(take_string(heap, call, "safe", out));
    out->safe = true;
    return 0;
}

FILTER(escape) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "e", &text));
    *out = text;
    if (text.safe)
        return 0;
    ot_jinja_escape(text.as.string, &b);
    OT_TRY(ot_jinja_take(heap, &b, out));
    out->safe = true;
    return 0;
}

/* ---- indent, truncate, wordcount ---- */

struct indent {
    const char *text;
    size_t bytes;
    bool first, blank;
};

static void indent_lines(const struct ot_jinja_list *lines, const struct indent *indent,
                         struct ot_string_builder *b) {
    for (size_t i = 0; i < lines->n; i++) {
        const struct ot_jinja_string *line = lines->items[i].as.string;
        bool indents = i == 0 ? indent->first : indent->blank || line->bytes > 0;
        if (i > 0)
            ot_string_append_text(b, "\n");
        if (indents)
            ot_string_append(b, indent->text, indent->bytes);
        ot_string_append(b, line->text, line->bytes);
    }
}

FILTER(indent) {
    static const char *const parameters[] = {"s", "width", "first", "blank", NULL};
    struct ot_jinja_value v[4], spaces, text;
    struct ot_jinja_list *lines;
    struct ot_string_builder b = {0};
    int64_t width = 4;
    OT_TRY(ot_jinja_bind(heap, call, "indent", parameters, 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    if (v[0].kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "indent needs a string, not %s", ot_jinja_kind_name(&v[0]));
    if (v[1].kind == OT_JINJA_STRING) {
        spaces = v[1];
    } else {
        struct ot_jinja_string none = {"", 0, 0};
        OT_TRY(ot_jinja_take_int(heap, &v[1], "the width of indent", &width));
        OT_TRY(ot_jinja_pad(heap, &none, width, ' ', true, false, &spaces));
    }
    /* A line end that is added first makes an empty last line count. */
    ot_string_append(&b, v[0].as.string->text, v[0].as.string->bytes);
    ot_string_append_text(&b, "\n");
    OT_TRY(ot_jinja_take(heap, &b, &text));
    OT_TRY(ot_jinja_split_lines(heap, text.as.string, false, &lines));
    if (lines->n * spaces.as.string->bytes > OT_JINJA_MOST_OUTPUT)
        return ot_jinja_fail(heap, "indent makes a text too long");
    struct indent indent = {spaces.as.string->text, spaces.as.string->bytes, ot_jinja_take_flag(&v[2], false),
                            ot_jinja_take_flag(&v[3], false)};
    indent_lines(lines, &indent, &b);
    return ot_jinja_take(heap, &b, out);
}

static size_t byte_of_char(const struct ot_jinja_string *s, size_t chars) {
    size_t at = 0, n;
    for (; chars > 0 && at < s->bytes; chars--, at += n)
        ot_utf8_decode(s->text + at, &n);
    return at;
}

FILTER(truncate) {
    static const char *const parameters[] = {"s", "length", "killwords", "end", "leeway", NULL};
    struct ot_jinja_value v[5], text;
    static const struct ot_jinja_string points = {"...", 3, 3};
    const struct ot_jinja_string *end = &points;
    int64_t length = 255, leeway = 5;
    struct ot_string_builder b = {0};
    OT_TRY(ot_jinja_bind(heap, call, "truncate", parameters, 1, v));
    OT_TRY(ot_jinja_to_string(heap, &v[0], &text));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "the length of truncate", &length));
    OT_TRY(ot_jinja_take_text(heap, &v[3], "the end of truncate", &end));
    if (v[4].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_int(heap, &v[4], "the leeway of truncate", &leeway));
    if (length < (int64_t)end->chars || leeway < 0)
        return ot_jinja_fail(heap, "truncate needs a length of at least its end, and a leeway of at least 0");
    const struct ot_jinja_string *s = text.as.string;
    *out = text;
    if ((int64_t)s->chars <= length || (int64_t)s->chars - length <= leeway)
        return 0;
    size_t n = byte_of_char(s, (size_t)length - end->chars), word = n;
    while (word > 0 && s->text[word - 1] != ' ')
        word--;
    if (!ot_jinja_take_flag(&v[2], false) && word > 0)
        n = word - 1;
    ot_string_append(&b, s->text, n);
    ot_string_append(&b, end->text, end->bytes);
    return ot_jinja_take(heap, &b, out);
}

FILTER(wordcount) {
    struct ot_jinja_value text;
    int64_t words = 0;
    bool inside = false;
    OT_TRY(take_string(heap, call, "wordcount", &text));
    OT_TRY(ot_jinja_step(heap, text.as.string->bytes >> 4));
    for (size_t i = 0, n; i < text.as.string->bytes; i += n) {
        bool word = ot_jinja_has_class(ot_utf8_decode(text.as.string->text + i, &n), OT_JINJA_WORD);
        words += word && !inside;
        inside = word;
    }
    *out = ot_jinja_int(words);
    return 0;
}

/* ---- format, tojson ---- */

FILTER(format) {
    struct ot_jinja_value text, values;
    struct ot_jinja_list *list;
    if (call->n_named > 0 || call->n == 0)
        return ot_jinja_unsupported(heap, "the filter format with named values");
    OT_TRY(ot_jinja_to_string(heap, &call->args[0], &text));
    OT_TRY(ot_jinja_new_list(heap, call->n, &list));
    for (size_t i = 1; i < call->n; i++)
        list->items[list->n++] = call->args[i];
    values = ot_jinja_of_list(OT_JINJA_TUPLE, list);
    return ot_jinja_percent(heap, text.as.string, &values, out);
}

static int take_separators(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                           struct ot_jinja_dump *dump) {
    OT_TRY(ot_jinja_text(heap, dump->indent ? "," : ", ", &dump->item_separator));
    OT_TRY(ot_jinja_text(heap, ": ", &dump->key_separator));
    if (v->kind == OT_JINJA_ABSENT || v->kind == OT_JINJA_NONE)
        return 0;
    const struct ot_jinja_list *pair = v->as.list;
    if ((v->kind != OT_JINJA_TUPLE && v->kind != OT_JINJA_LIST) || pair->n != 2 ||
        pair->items[0].kind != OT_JINJA_STRING || pair->items[1].kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "the separators of tojson must be two strings");
    dump->item_separator = pair->items[0];
    dump->key_separator = pair->items[1];
    return 0;
}

FILTER(tojson) {
    static const char *const parameters[] = {"x", "ensure_ascii", "indent", "separators", "sort_keys", NULL};
    struct ot_jinja_value v[5], spaces = {0};
    struct ot_jinja_dump dump = {0};
    struct ot_string_builder b = {0};
    int64_t width = 0;
    OT_TRY(ot_jinja_bind(heap, call, "tojson", parameters, 1, v));
    dump.ascii = ot_jinja_take_flag(&v[1], false);
    dump.sort_keys = ot_jinja_take_flag(&v[4], false);
    if (v[2].kind == OT_JINJA_STRING) {
        spaces = v[2];
    } else if (v[2].kind != OT_JINJA_ABSENT && v[2].kind != OT_JINJA_NONE) {
        struct ot_jinja_string none = {"", 0, 0};
        OT_TRY(ot_jinja_take_int(heap, &v[2], "the indent of tojson", &width));
        OT_TRY(ot_jinja_pad(heap, &none, ot_min(width, 100), ' ', true, false, &spaces));
    }
    if (spaces.kind == OT_JINJA_STRING) {
        dump.indent = spaces.as.string->text;
        dump.indent_bytes = spaces.as.string->bytes;
    }
    OT_TRY(take_separators(heap, &v[3], &dump));
    int rc = ot_jinja_print_json(heap, &v[0], &dump, &b);
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
    free(b.text);
    return rc;
}

const struct ot_jinja_function ot_jinja_text_filters[] = {
    {"capitalize", capitalize},
    {"center", center},
    {"e", escape},
    {"escape", escape},
    {"format", format},
    {"indent", indent},
    {"lower", lower},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", upper},
    {"wordcount", wordcount},
    {NULL, NULL},
};
