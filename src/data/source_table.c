/* Rows of files that are not JSON: tables (CSV and TSV, RFC 4180) and plain text.
 *
 * A row becomes a JSON object, so that everything behind the source sees one kind of row. Each field of a
 * table is a string. A field in double quotes may contain separators, line ends and doubled quotes. A quote
 * inside of a field without quotes is itself, as in most tables of SQL. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/data/source_state.h"

enum { MOST_COLUMNS = 1024 };

/* ---- recognising ---- */

bool ot_source_is_name_byte(int byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
           byte == '_';
}

char ot_source_header_separator(const char *line, size_t bytes) {
    static const char separators[] = ",\t;";
    size_t count[sizeof separators] = {0}, best = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        const char *separator = line[i] ? strchr(separators, line[i]) : NULL;
        quoted ^= line[i] == '"';
        if (separator)
            count[separator - separators]++;
        else if (!ot_source_is_name_byte((unsigned char)line[i]) &&
                 (!line[i] || !strchr(quoted ? "\"- ." : "\"-.", line[i])))
            return '\0';
    }
    for (size_t i = 1; separators[i]; i++)
        best = count[i] > count[best] ? i : best;
    return count[best] > 0 ? separators[best] : '\0';
}

static bool ends_with(const char *text, size_t bytes, const char *ending) {
    size_t n = strlen(ending);
    return bytes > n && text[bytes - n - 1] == '.' && strncasecmp(text + bytes - n, ending, n) == 0;
}

bool ot_source_is_named(const char *name, const char *ending) {
    size_t bytes = strlen(name);
    static const char *const packed[] = {"gz", "zst"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (ends_with(name, bytes, packed[i])) {
            bytes -= strlen(packed[i]) + 1;
            break;
        }
    return ends_with(name, bytes, ending);
}

/* ---- JSON ---- */

static int append_text(struct ot_source *s, int64_t line, const char *text) {
    return ot_source_append(s, line, text, strlen(text));
}

/* Appends the inside of a JSON string. */
static int append_escaped(struct ot_source *s, int64_t line, const char *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";
    size_t plain = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte >= ' ' && byte != '"' && byte != '\\')
            continue;
        const char escape[] = {'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]};
        OT_TRY(ot_source_append(s, line, bytes + plain, i - plain));
        OT_TRY(ot_source_append(s, line, escape, sizeof escape));
        plain = i + 1;
    }
    return ot_source_append(s, line, bytes + plain, n - plain);
}

int ot_source_append_string(struct ot_source *s, int64_t line, const char *bytes, size_t n) {
    OT_TRY(append_text(s, line, "\""));
    OT_TRY(append_escaped(s, line, bytes, n));
    return append_text(s, line, "\"");
}

/* ---- fields ---- */

enum field_end { END_SEPARATOR, END_RECORD, END_FILE };

static int put_bytes(struct ot_source *s, int64_t line, const void *bytes, size_t n) {
    bool is_text = s->layout == LAYOUT_TEXT;
    if (n > OT_SOURCE_MAX_ROW_BYTES - s->field_bytes)
        return ot_fail(OT_E_INPUT, "%s:%lld: a %s of more than %zu MB; %s", s->path, (long long)line,
                       is_text ? "line" : "field", OT_SOURCE_MAX_ROW_BYTES >> 20,
                       is_text ? "put line ends into the text" : "is a closing quote missing?");
    int rc = ot_grow(&s->field, &s->field_capacity, s->field_bytes + n, 1, "bytes of a field");
    if (rc < 0)
        return ot_fail_context(rc, "%s:%lld", s->path, (long long)line);
    memcpy(s->field + s->field_bytes, bytes, n);
    s->field_bytes += n;
    return 0;
}

static int put_byte(struct ot_source *s, int64_t line, int byte) {
    const char c = (char)byte;
    return put_bytes(s, line, &c, 1);
}

/* Consumes a byte that was peeked. */
static void step(struct ot_source *s, int byte) {
    s->line += byte == '\n';
    s->begin++;
}

/* Reads what is between two quotes; the first one is consumed. */
static int take_quoted(struct ot_source *s, int64_t line) {
    for (int byte;;) {
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0)
            return ot_fail(
                OT_E_INPUT,
                "%s:%lld: a quoted field has no closing quote before the end of the file; close it, "
                "and double the quotes inside of it",
                s->path, (long long)line);
        step(s, byte);
        if (byte == '"') {
            OT_TRY(ot_source_peek(s, &byte));
            if (byte != '"')
                return 0;
            step(s, byte);
        }
        OT_TRY(put_byte(s, line, byte));
    }
}

/* Reads a field and what ends it. *line: where the field begins. */
static int take_field(struct ot_source *s, int64_t *line, enum field_end *end) {
    int byte;
    bool quoted;
    s->field_bytes = 0;
    *line = s->line;
    OT_TRY(ot_source_peek(s, &byte));
    quoted = byte == '"';
    if (quoted) {
        step(s, byte);
        OT_TRY(take_quoted(s, *line));
    }
    for (;;) {
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0 || byte == '\n' || byte == s->separator)
            break;
        if (quoted && byte != '\r')
            return ot_fail(
                OT_E_INPUT,
                "%s:%lld: text follows a closing quote; double the quotes inside of a quoted field", s->path,
                (long long)s->line);
        step(s, byte);
        if (!quoted)
            OT_TRY(put_byte(s, *line, byte));
    }
    if (!quoted && byte != s->separator && s->field_bytes > 0 && s->field[s->field_bytes - 1] == '\r')
        s->field_bytes--; /* of \r\n */
    *end = byte < 0 ? END_FILE : byte == '\n' ? END_RECORD : END_SEPARATOR;
    if (byte >= 0)
        step(s, byte);
    return 0;
}

/* ---- records ---- */

static int add_column(struct ot_source *s, int64_t line) {
    char *name = strndup(s->field_bytes > 0 ? s->field : "", s->field_bytes);
    if (!name || !ot_try_grow(&s->columns, &s->columns_capacity, s->n_columns + 1, sizeof *s->columns)) {
        free(name);
        return ot_fail(OT_E_BUDGET, "%s: no memory for the header", s->path);
    }
    s->columns[s->n_columns++] = name;
    if (!*name || strlen(name) != s->field_bytes)
        return ot_fail(OT_E_INPUT, "%s:%lld: column %zu of the header has no name; give each column one",
                       s->path, (long long)line, s->n_columns);
    for (size_t i = 0; i + 1 < s->n_columns; i++)
        if (strcmp(s->columns[i], name) == 0)
            return ot_fail(OT_E_INPUT, "%s:%lld: the header has two columns '%.60s'; rename one", s->path,
                           (long long)line, name);
    return s->n_columns <= MOST_COLUMNS ? 0
                                        : ot_fail(OT_E_INPUT, "%s:%lld: the header has more than %d columns",
                                                  s->path, (long long)line, MOST_COLUMNS);
}

int ot_source_table_begin(struct ot_source *s, char separator) {
    enum field_end end;
    int64_t line;
    s->separator = separator;
    do {
        OT_TRY(take_field(s, &line, &end));
        OT_TRY(add_column(s, line));
    } while (end == END_SEPARATOR);
    return 0;
}

void ot_source_table_end(struct ot_source *s) {
    for (size_t i = 0; i < s->n_columns; i++)
        free(s->columns[i]);
    free(s->columns);
    free(s->field);
}

static int wrong_fields(const struct ot_source *s, int64_t line, const char *than) {
    return ot_fail(OT_E_INPUT,
                   "%s:%lld: a record with %s fields than the header's %zu; put a field that contains the "
                   "separator or a line end in double quotes",
                   s->path, (long long)line, than, s->n_columns);
}

int ot_source_take_record(struct ot_source *s, int64_t *line) {
    enum field_end end = END_SEPARATOR;
    int byte;
    for (;;) { /* empty lines */
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0)
            return 0;
        if (byte != '\n' && byte != '\r')
            break;
        step(s, byte);
    }
    *line = s->line;
    for (size_t i = 0; i < s->n_columns; i++) {
        int64_t begin;
        if (end != END_SEPARATOR)
            return wrong_fields(s, *line, "fewer");
        OT_TRY(take_field(s, &begin, &end));
        OT_TRY(append_text(s, *line, i == 0 ? "{" : ","));
        OT_TRY(ot_source_append_string(s, *line, s->columns[i], strlen(s->columns[i])));
        OT_TRY(append_text(s, *line, ":"));
        OT_TRY(ot_source_append_string(s, *line, s->field ? s->field : "", s->field_bytes));
    }
    if (end == END_SEPARATOR)
        return wrong_fields(s, *line, "more");
    OT_TRY(append_text(s, *line, "}"));
    return 1;
}

/* ---- text ---- */

/* Appends the rest of the file. */
static int take_document(struct ot_source *s) {
    int64_t line = s->line;
    for (int byte;;) {
        OT_TRY(ot_source_peek(s, &byte));
        if (byte < 0)
            return 0;
        OT_TRY(append_escaped(s, line, (const char *)s->buffer + s->begin, s->end - s->begin));
        s->begin = s->end;
    }
}

/* Reads a line into s->field, without its end. Returns 1, or 0 at the end of the file. */
static int take_line(struct ot_source *s) {
    int64_t line = s->line;
    int byte;
    s->field_bytes = 0;
    OT_TRY(ot_source_peek(s, &byte));
    if (byte < 0)
        return 0;
    while (byte >= 0 && byte != '\n') {
        const unsigned char *start = s->buffer + s->begin;
        const unsigned char *end = memchr(start, '\n', s->end - s->begin);
        size_t n = end ? (size_t)(end - start) : s->end - s->begin;
        OT_TRY(put_bytes(s, line, start, n));
        s->begin += n;
        OT_TRY(ot_source_peek(s, &byte));
    }
    if (byte >= 0)
        step(s, byte);
    if (s->field_bytes > 0 && s->field[s->field_bytes - 1] == '\r')
        s->field_bytes--;
    return 1;
}

static bool is_blank(const struct ot_source *s) {
    for (size_t i = 0; i < s->field_bytes; i++)
        if (!strchr(" \t\r\f\v", s->field[i]) || !s->field[i])
            return false;
    return true;
}

/* Appends the next line that is not blank, and of a paragraph also those behind it. Returns 0 if there is
 * none. */
static int take_lines(struct ot_source *s, int64_t *line) {
    int rc;
    do {
        *line = s->line;
        rc = take_line(s);
    } while (rc == 1 && is_blank(s));
    if (rc <= 0)
        return rc;
    for (;;) {
        OT_TRY(append_escaped(s, *line, s->field, s->field_bytes));
        rc = s->text_by == OT_TEXT_BY_PARAGRAPH ? take_line(s) : 0;
        if (rc <= 0 || is_blank(s))
            return rc < 0 ? rc : 1;
        OT_TRY(append_escaped(s, *line, "\n", 1));
    }
}

int ot_source_take_text(struct ot_source *s, int64_t *line) {
    int rc = 1;
    OT_TRY(append_text(s, s->line, "{\"text\":\""));
    if (s->text_by != OT_TEXT_BY_DOCUMENT) {
        rc = take_lines(s, line);
    } else {
        *line = s->line;
        s->ended = true;
        OT_TRY(take_document(s));
    }
    if (rc > 0)
        OT_TRY(append_text(s, *line, "\"}"));
    return rc;
}
