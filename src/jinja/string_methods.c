/* Methods of str that give strings, numbers and booleans; splitting is in string_split.c. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/jinja.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/jinja/string_split.h"
#include "src/jinja/unicode.h"
#include "src/tokenizer/text.h"

#define SELF const struct ot_jinja_value *self
#define METHOD(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,                      \
                    struct ot_jinja_value *out)

static const char *const no_parameters[] = {NULL};

static int need_none(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what) {
    struct ot_jinja_value none[1];
    return ot_jinja_bind(heap, call, what, no_parameters, 0, none);
}

/* ---- case ---- */

static int change_case(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,
                       enum ot_jinja_case to, struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    OT_TRY(need_none(heap, call, "a method that changes case"));
    OT_TRY(ot_jinja_step(heap, self->as.string->bytes >> 4));
    ot_jinja_change_case(self->as.string->text, self->as.string->bytes, to, &b);
    return ot_jinja_take(heap, &b, out);
}

METHOD(lower) {
    return change_case(heap, self, call, OT_JINJA_LOWER, out);
}

METHOD(upper) {
    return change_case(heap, self, call, OT_JINJA_UPPER, out);
}

METHOD(title) {
    return change_case(heap, self, call, OT_JINJA_TITLE, out);
}

METHOD(capitalize) {
    return change_case(heap, self, call, OT_JINJA_CAPITAL, out);
}

METHOD(swapcase) {
    return change_case(heap, self, call, OT_JINJA_SWAP, out);
}

/* ---- strip, replace, pad ---- */

static bool is_one_of(const char *text, size_t n, const struct ot_jinja_string *chars) {
    for (size_t i = 0, length; i < chars->bytes; i += length) {
        ot_utf8_decode(chars->text + i, &length);
        if (length == n && memcmp(chars->text + i, text, n) == 0)
            return true;
    }
    return false;
}

/* Length of the character to strip at the front of text[0..n), or at its end. */
static size_t strips(const char *text, size_t n, const struct ot_jinja_string *chars, bool front) {
    size_t length;
    if (!chars)
        return front ? ot_jinja_space_at(text, n) : ot_jinja_space_before(text, n);
    if (front)
        ot_utf8_decode(text, &length);
    else
        ot_utf8_decode_before(text, n, &length);
    return is_one_of(front ? text : text + n - length, length, chars) ? length : 0;
}

int ot_jinja_strip(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                   const struct ot_jinja_string *chars, enum ot_jinja_strip sides,
                   struct ot_jinja_value *out) {
    const char *begin = text->text;
    size_t n = text->bytes, length;
    OT_TRY(ot_jinja_step(heap, chars ? n * chars->bytes >> 8 : 0));
    while ((sides & OT_JINJA_STRIP_LEFT) && n > 0 && (length = strips(begin, n, chars, true)) > 0) {
        begin += length;
        n -= length;
    }
    while ((sides & OT_JINJA_STRIP_RIGHT) && n > 0 && (length = strips(begin, n, chars, false)) > 0)
        n -= length;
    return ot_jinja_string(heap, begin, n, false, out);
}

static int strip_sides(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,
                       enum ot_jinja_strip sides, struct ot_jinja_value *out) {
    static const char *const parameters[] = {"chars", NULL};
    struct ot_jinja_value chars;
    const struct ot_jinja_string *set = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "strip()", parameters, 0, &chars));
    if (chars.kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_text(heap, &chars, "the argument of strip()", &set));
    return ot_jinja_strip(heap, self->as.string, set, sides, out);
}

METHOD(strip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_BOTH, out);
}

METHOD(lstrip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_LEFT, out);
}

METHOD(rstrip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_RIGHT, out);
}

int ot_jinja_replace(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                     const struct ot_jinja_string *from, const struct ot_jinja_string *to, int64_t most,
                     struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    size_t at = 0;
    for (int64_t n = 0; most < 0 || n < most; n++) {
        size_t found = ot_jinja_search(text, from, at);
        if (from->bytes == 0 && n > 0 && at < text->bytes) { /* before each character, and at the end */
            size_t length;
            ot_utf8_decode(text->text + at, &length);
            ot_string_append(&b, text->text + at, length);
            at += length;
        } else if (found == SIZE_MAX || (from->bytes == 0 && n > 0)) {
            break;
        } else {
            ot_string_append(&b, text->text + at, found - at);
        }
        ot_string_append(&b, to->text, to->bytes);
        at = from->bytes > 0 ? found + from->bytes : at;
        if (b.bytes > OT_JINJA_MOST_OUTPUT || ot_jinja_step(heap, 1 + (to->bytes >> 6)) < 0) {
            free(b.text);
            return ot_jinja_fail(heap, "a replacement makes a text too long");
        }
    }
    ot_string_append(&b, text->text + at, text->bytes - at);
    return ot_jinja_take(heap, &b, out);
}

METHOD(replace) {
    static const char *const parameters[] = {"old", "new", "count", NULL};
    struct ot_jinja_value v[3];
    const struct ot_jinja_string *from = NULL, *to = NULL;
    int64_t most = -1;
    OT_TRY(ot_jinja_bind(heap, call, "replace()", parameters, 2, v));
    OT_TRY(ot_jinja_take_text(heap, &v[0], "the first argument of replace()", &from));
    OT_TRY(ot_jinja_take_text(heap, &v[1], "the second argument of replace()", &to));
    OT_TRY(ot_jinja_take_int(heap, &v[2], "the count of replace()", &most));
    return ot_jinja_replace(heap, self->as.string, from, to, most, out);
}

int ot_jinja_pad(struct ot_jinja_heap *heap, const struct ot_jinja_string *text, int64_t width, char fill,
                 bool left, bool right, struct ot_jinja_value *out) {
    int64_t missing = width - (int64_t)text->chars;
    if (missing <= 0)
        return ot_jinja_string(heap, text->text, text->bytes, false, out);
    if (missing > OT_JINJA_MOST_OUTPUT)
        return ot_jinja_fail(heap, "the text is longer than %d MiB", OT_JINJA_MOST_OUTPUT >> 20);
    /* Python's center puts the odd one to the left if the width is odd. */
    size_t n = (size_t)missing;
    size_t front = !right ? n : !left ? 0 : n / 2 + (n & (size_t)width & 1);
    char *b = ot_jinja_alloc(heap, text->bytes + n + 1, 1);
    if (!b)
        return heap->error;
    memset(b, fill, text->bytes + n);
    if (text->bytes > 0)
        memcpy(b + front, text->text, text->bytes);
    return ot_jinja_string(heap, b, text->bytes + n, false, out);
}

static int pad(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool left, bool right,
               struct ot_jinja_value *out) {
    static const char *const parameters[] = {"width", "fillchar", NULL};
    struct ot_jinja_value v[2];
    int64_t width = 0;
    const struct ot_jinja_string *fill = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "a method that pads", parameters, 1, v));
    OT_TRY(ot_jinja_take_int(heap, &v[0], "a width", &width));
    OT_TRY(ot_jinja_take_text(heap, &v[1], "the character to pad with", &fill));
    if (fill && (fill->bytes != 1 || fill->chars != 1))
        return ot_jinja_unsupported(heap, "padding with what is not one ASCII character");
    return ot_jinja_pad(heap, self->as.string, width, fill ? fill->text[0] : ' ', left, right, out);
}

METHOD(center) {
    return pad(heap, self, call, true, true, out);
}

METHOD(ljust) {
    return pad(heap, self, call, false, true, out);
}

METHOD(rjust) {
    return pad(heap, self, call, true, false, out);
}

METHOD(zfill) {
    static const char *const parameters[] = {"width", NULL};
    struct ot_jinja_value v, padded;
    int64_t width = 0;
    const struct ot_jinja_string *s = self->as.string;
    OT_TRY(ot_jinja_bind(heap, call, "zfill()", parameters, 1, &v));
    OT_TRY(ot_jinja_take_int(heap, &v, "a width", &width));
    bool sign = s->bytes > 0 && (s->text[0] == '-' || s->text[0] == '+');
    struct ot_jinja_string digits = {s->text + sign, s->bytes - sign, s->chars - sign};
    OT_TRY(ot_jinja_pad(heap, &digits, width - sign, '0', true, false, &padded));
    if (!sign) {
        *out = padded;
        return 0;
    }
    struct ot_string_builder b = {0};
    ot_string_append(&b, s->text, 1);
    ot_string_append(&b, padded.as.string->text, padded.as.string->bytes);
    return ot_jinja_take(heap, &b, out);
}

/* ---- prefixes and places ---- */

static bool has_affix(const struct ot_jinja_string *s, const struct ot_jinja_string *affix, bool end) {
    return affix->bytes <= s->bytes &&
           memcmp(end ? s->text + s->bytes - affix->bytes : s->text, affix->text, affix->bytes) == 0;
}

static int test_affix(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool end,
                      struct ot_jinja_value *out) {
    static const char *const parameters[] = {"affix", NULL};
    struct ot_jinja_value v;
    const struct ot_jinja_string *affix = NULL;
    if (call->n > 1)
        return ot_jinja_unsupported(heap, "startswith() and endswith() with places");
    OT_TRY(ot_jinja_bind(heap, call, end ? "endswith()" : "startswith()", parameters, 1, &v));
    *out = ot_jinja_bool(false);
    const struct ot_jinja_value *items = v.kind == OT_JINJA_TUPLE ? v.as.list->items : &v;
    size_t n = v.kind == OT_JINJA_TUPLE ? v.as.list->n : 1;
    for (size_t i = 0; i < n && !out->as.flag; i++) {
        OT_TRY(ot_jinja_take_text(heap, &items[i], "the argument of startswith() and endswith()", &affix));
        out->as.flag = has_affix(self->as.string, affix, end);
    }
    return 0;
}

METHOD(startswith) {
    return test_affix(heap, self, call, false, out);
}

METHOD(endswith) {
    return test_affix(heap, self, call, true, out);
}

static int remove_affix(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool end,
                        struct ot_jinja_value *out) {
    static const char *const parameters[] = {"affix", NULL};
    struct ot_jinja_value v;
    const struct ot_jinja_string *affix = NULL, *s = self->as.string;
    OT_TRY(ot_jinja_bind(heap, call, "a method that removes a prefix or suffix", parameters, 1, &v));
    OT_TRY(ot_jinja_take_text(heap, &v, "a prefix or suffix", &affix));
    *out = *self;
    if (!has_affix(s, affix, end))
        return 0;
    return ot_jinja_string(heap, end ? s->text : s->text + affix->bytes, s->bytes - affix->bytes, false, out);
}

METHOD(removeprefix) {
    return remove_affix(heap, self, call, false, out);
}

METHOD(removesuffix) {
    return remove_affix(heap, self, call, true, out);
}

static int take_part(struct ot_jinja_heap *heap, const struct ot_jinja_call *call,
                     const struct ot_jinja_string **part) {
    static const char *const parameters[] = {"sub", NULL};
    struct ot_jinja_value v;
    if (call->n > 1)
        return ot_jinja_unsupported(heap, "find(), index() and count() with places");
    OT_TRY(ot_jinja_bind(heap, call, "a method that searches", parameters, 1, &v));
    return ot_jinja_take_text(heap, &v, "the text to search for", part);
}

static int find_place(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool last,
                      bool must, struct ot_jinja_value *out) {
    const struct ot_jinja_string *part = NULL, *s = self->as.string;
    OT_TRY(take_part(heap, call, &part));
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    size_t at = ot_jinja_search(s, part, 0);
    for (size_t next; last && part->bytes > 0 && at != SIZE_MAX; at = next)
        if ((next = ot_jinja_search(s, part, at + 1)) == SIZE_MAX)
            break;
    if (last && part->bytes == 0)
        at = s->bytes;
    if (at == SIZE_MAX && must)
        return ot_jinja_fail(heap, "index() does not find the text");
    *out = ot_jinja_int(at == SIZE_MAX ? -1 : (int64_t)ot_jinja_count_chars(s->text, at));
    return 0;
}

METHOD(find) {
    return find_place(heap, self, call, false, false, out);
}

METHOD(rfind) {
    return find_place(heap, self, call, true, false, out);
}

METHOD(index_of) {
    return find_place(heap, self, call, false, true, out);
}

METHOD(rindex_of) {
    return find_place(heap, self, call, true, true, out);
}

METHOD(count) {
    const struct ot_jinja_string *part = NULL, *s = self->as.string;
    int64_t n = 0;
    OT_TRY(take_part(heap, call, &part));
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    for (size_t at = 0; part->bytes > 0 && (at = ot_jinja_search(s, part, at)) != SIZE_MAX; at += part->bytes)
        n++;
    *out = ot_jinja_int(part->bytes > 0 ? n : (int64_t)s->chars + 1);
    return 0;
}

/* ---- classes ---- */

static int has_class(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,
                     enum ot_jinja_class class, struct ot_jinja_value *out) {
    const struct ot_jinja_string *s = self->as.string;
    bool all = s->bytes > 0 || class == OT_JINJA_ASCII;
    OT_TRY(need_none(heap, call, "a method that tests characters"));
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    for (size_t i = 0, n; i < s->bytes && all; i += n)
        all = ot_jinja_has_class(ot_utf8_decode(s->text + i, &n), class);
    *out = ot_jinja_bool(all);
    return 0;
}

METHOD(is_alpha) {
    return has_class(heap, self, call, OT_JINJA_ALPHA, out);
}

METHOD(is_digit) {
    return has_class(heap, self, call, OT_JINJA_DIGIT, out);
}

METHOD(is_decimal) {
    return has_class(heap, self, call, OT_JINJA_DECIMAL, out);
}

METHOD(is_numeric) {
    return has_class(heap, self, call, OT_JINJA_NUMERIC, out);
}

METHOD(is_alnum) {
    return has_class(heap, self, call, OT_JINJA_ALNUM, out);
}

METHOD(is_space) {
    return has_class(heap, self, call, OT_JINJA_SPACE, out);
}

METHOD(is_ascii) {
    return has_class(heap, self, call, OT_JINJA_ASCII, out);
}

static int has_case(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool upper,
                    struct ot_jinja_value *out) {
    const struct ot_jinja_string *s = self->as.string;
    bool any = false, other = false;
    OT_TRY(need_none(heap, call, "a method that tests case"));
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    for (size_t i = 0, n; i < s->bytes; i += n) {
        uint32_t c = ot_utf8_decode(s->text + i, &n);
        any |= upper ? ot_jinja_is_upper(c) : ot_jinja_is_lower(c);
        other |= upper ? ot_jinja_is_lower(c) : ot_jinja_is_upper(c);
    }
    *out = ot_jinja_bool(any && !other);
    return 0;
}

METHOD(is_upper) {
    return has_case(heap, self, call, true, out);
}

METHOD(is_lower) {
    return has_case(heap, self, call, false, out);
}

/* ---- join ---- */

METHOD(join) {
    static const char *const parameters[] = {"iterable", NULL};
    struct ot_jinja_value items, item;
    struct ot_jinja_reader reader;
    struct ot_string_builder b = {0};
    const struct ot_jinja_string *part = NULL;
    int rc, n = 0;
    OT_TRY(ot_jinja_bind(heap, call, "join()", parameters, 1, &items));
    OT_TRY(ot_jinja_read_begin(heap, &items, &reader));
    while ((rc = ot_jinja_read(heap, &reader, &item)) > 0) {
        OT_TRY_GOTO(ot_jinja_take_text(heap, &item, "each item of join()", &part), rc, out);
        if (n++ > 0)
            ot_string_append(&b, self->as.string->text, self->as.string->bytes);
        ot_string_append(&b, part->text, part->bytes);
        if (b.bytes > OT_JINJA_MOST_OUTPUT) {
            rc = ot_jinja_fail(heap, "the text is longer than %d MiB", OT_JINJA_MOST_OUTPUT >> 20);
            goto out;
        }
    }
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
out:
    free(b.text);
    return rc;
}

const struct ot_jinja_method_row ot_jinja_string_methods[] = {
    {"capitalize", capitalize},
    {"casefold", NULL},
    {"center", center},
    {"count", count},
    {"encode", NULL},
    {"endswith", endswith},
    {"expandtabs", NULL},
    {"find", find},
    {"format", ot_jinja_format_braces},
    {"format_map", NULL},
    {"index", index_of},
    {"isalnum", is_alnum},
    {"isalpha", is_alpha},
    {"isascii", is_ascii},
    {"isdecimal", is_decimal},
    {"isdigit", is_digit},
    {"isidentifier", NULL},
    {"islower", is_lower},
    {"isnumeric", is_numeric},
    {"isprintable", NULL},
    {"isspace", is_space},
    {"istitle", NULL},
    {"isupper", is_upper},
    {"join", join},
    {"ljust", ljust},
    {"lower", lower},
    {"lstrip", lstrip},
    {"maketrans", NULL},
    {"partition", ot_jinja_partition},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rfind", rfind},
    {"rindex", rindex_of},
    {"rjust", rjust},
    {"rpartition", ot_jinja_rpartition},
    {"rsplit", ot_jinja_rsplit},
    {"rstrip", rstrip},
    {"split", ot_jinja_split},
    {"splitlines", ot_jinja_splitlines},
    {"startswith", startswith},
    {"strip", strip},
    {"swapcase", swapcase},
    {"title", title},
    {"translate", NULL},
    {"upper", upper},
    {"zfill", zfill},
    {NULL, NULL},
};
