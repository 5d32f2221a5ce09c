#include "src/judge/tokens.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/text.h"

/* ---- tokens ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Bytes of UTF-8 belong to names. */
static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || is_digit(c) ||
           (unsigned char)c >= 0x80;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f';
}

/* The end of a quoted token; a doubled quote is part of it. */
static size_t quoted_end(const char *text, size_t at, char close) {
    size_t i = at + 1;
    while (text[i] && (text[i] != close || (close != ']' && text[i + 1] == close)))
        i += text[i] == close ? 2 : 1;
    return text[i] ? i + 1 : i;
}

static size_t number_end(const char *text, size_t i) {
    while (is_digit(text[i]) || text[i] == '.')
        i++;
    if ((text[i] == 'e' || text[i] == 'E') &&
        (is_digit(text[i + 1]) || ((text[i + 1] == '+' || text[i + 1] == '-') && is_digit(text[i + 2]))))
        for (i += 2; is_digit(text[i]);)
            i++;
    return i;
}

/* Spaces and comments. */
static size_t skip(const char *text, size_t i) {
    for (;;) {
        if (is_space(text[i])) {
            i++;
        } else if (text[i] == '-' && text[i + 1] == '-') {
            while (text[i] && text[i] != '\n')
                i++;
        } else if (text[i] == '/' && text[i + 1] == '*') {
            const char *end = strstr(text + i + 2, "*/");
            i = end ? (size_t)(end - text) + 2 : strlen(text);
        } else {
            return i;
        }
    }
}

static struct ot_sql_token read_token(const char *text, size_t i) {
    static const char *const pairs[] = {"<=", ">=", "<>", "!=", "==", "||"};
    struct ot_sql_token token = {OT_SQL_SIGN, i, i + 1, 0};
    char c = text[i];
    if (c == '\'') {
        token.type = OT_SQL_TEXT;
        token.end = quoted_end(text, i, '\'');
    } else if (c == '"' || c == '`' || c == '[') {
        token.type = OT_SQL_QUOTED;
        token.end = quoted_end(text, i, c == '[' ? ']' : c);
    } else if (is_digit(c) || (c == '.' && is_digit(text[i + 1]))) {
        token.type = OT_SQL_NUMBER;
        token.end = number_end(text, i);
    } else if (is_word(c)) {
        token.type = OT_SQL_WORD;
        while (is_word(text[token.end]))
            token.end++;
    }
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs && token.type == OT_SQL_SIGN; p++)
        if (strncmp(text + i, pairs[p], 2) == 0)
            token.end = i + 2;
    return token;
}

int ot_sql_tokens_make(const char *text, struct ot_sql_tokens *out) {
    int depth = 0;
    *out = (struct ot_sql_tokens){.text = text};
    for (size_t i = skip(text, 0); text[i]; i = skip(text, out->at[out->n - 1].end)) {
        int rc = ot_grow(&out->at, &out->capacity, (size_t)out->n + 1, sizeof *out->at, "tokens of a query");
        if (rc < 0) {
            ot_sql_tokens_free(out);
            return rc;
        }
        struct ot_sql_token token = read_token(text, i);
        bool sign = token.type == OT_SQL_SIGN;
        depth -= sign && text[i] == ')' && depth > 0;
        token.depth = depth;
        depth += sign && text[i] == '(';
        out->at[out->n++] = token;
    }
    return 0;
}

void ot_sql_tokens_free(struct ot_sql_tokens *tokens) {
    free(tokens->at);
    *tokens = (struct ot_sql_tokens){0};
}

/* ---- questions ---- */

static bool has_text(const struct ot_sql_tokens *tokens, int i, const char *word, size_t bytes) {
    if (i < 0 || i >= tokens->n)
        return false;
    const struct ot_sql_token *t = &tokens->at[i];
    return (t->type == OT_SQL_WORD || t->type == OT_SQL_SIGN) && t->end - t->begin == bytes &&
           strncasecmp(tokens->text + t->begin, word, bytes) == 0;
}

bool ot_sql_is(const struct ot_sql_tokens *tokens, int i, const char *word) {
    return has_text(tokens, i, word, strlen(word));
}

bool ot_sql_is_any(const struct ot_sql_tokens *tokens, int i, const char *words) {
    size_t bytes;
    const char *word;
    for (int w = 0; (word = ot_words_at(words, w, &bytes)) != NULL; w++)
        if (has_text(tokens, i, word, bytes))
            return true;
    return false;
}

char *ot_sql_unquote(const struct ot_sql_tokens *tokens, int i) {
    const struct ot_sql_token *t = &tokens->at[i];
    bool quoted = t->type == OT_SQL_TEXT || t->type == OT_SQL_QUOTED;
    size_t begin = t->begin + quoted, n = 0;
    char close = tokens->text[t->begin] == '[' ? ']' : tokens->text[t->begin];
    bool closed = quoted && t->end > begin && tokens->text[t->end - 1] == close;
    char *out = ot_string_copy(tokens->text + begin, t->end - closed - begin);
    for (size_t from = 0; out && quoted && close != ']'; from++) {
        if (out[from] == close && out[from + 1] == close)
            from++;
        out[n++] = out[from];
        if (!out[from])
            break;
    }
    return out;
}

char *ot_sql_quote(const char *name) {
    struct ot_string_builder b = {0};
    ot_string_append_text(&b, "\"");
    for (; *name; name++)
        ot_string_append(&b, *name == '"' ? "\"\"" : name, *name == '"' ? 2 : 1);
    ot_string_append_text(&b, "\"");
    if (b.failed)
        free(b.text);
    return b.failed ? NULL : b.text;
}

/* ---- kinds ---- */

const char *ot_sql_kind_name(enum ot_sql_kind kind) {
    static const char *const names[OT_SQL_KINDS] = {"simple", "aggregate", "order",
                                                    "group",  "join",      "nested"};
    return names[kind];
}

/* True if a comma joins two tables: FROM a, b. */
static bool joins_by_comma(const struct ot_sql_tokens *tokens, int from) {
    static const char ends[] = "WHERE GROUP ORDER LIMIT HAVING WINDOW UNION INTERSECT EXCEPT ) ;";
    int depth = tokens->at[from].depth;
    for (int i = from + 1; i < tokens->n && tokens->at[i].depth >= depth; i++) {
        if (tokens->at[i].depth > depth)
            continue;
        if (ot_sql_is_any(tokens, i, ends))
            return false;
        if (ot_sql_is(tokens, i, ","))
            return true;
    }
    return false;
}

enum ot_sql_kind ot_sql_find_kind(const struct ot_sql_tokens *tokens) {
    static const char functions[] = "COUNT SUM AVG MIN MAX TOTAL GROUP_CONCAT";
    enum ot_sql_kind kind = OT_SQL_SIMPLE;
    int selects = 0;
    for (int i = 0; i < tokens->n; i++) {
        enum ot_sql_kind found = OT_SQL_SIMPLE;
        selects += ot_sql_is(tokens, i, "SELECT");
        if (selects > 1 || ot_sql_is_any(tokens, i, "UNION INTERSECT EXCEPT"))
            found = OT_SQL_NESTED;
        else if (ot_sql_is(tokens, i, "JOIN") || (ot_sql_is(tokens, i, "FROM") && joins_by_comma(tokens, i)))
            found = OT_SQL_JOIN;
        else if (ot_sql_is(tokens, i, "GROUP") && ot_sql_is(tokens, i + 1, "BY"))
            found = OT_SQL_GROUP;
        else if (ot_sql_is(tokens, i, "ORDER") && ot_sql_is(tokens, i + 1, "BY"))
            found = OT_SQL_ORDER;
        else if (ot_sql_is_any(tokens, i, functions) && ot_sql_is(tokens, i + 1, "("))
            found = OT_SQL_AGGREGATE;
        kind = found > kind ? found : kind;
    }
    return kind;
}

bool ot_sql_is_ordered(const struct ot_sql_tokens *tokens) {
    for (int i = 0; i < tokens->n; i++)
        if (tokens->at[i].depth == 0 && ot_sql_is(tokens, i, "ORDER") && ot_sql_is(tokens, i + 1, "BY"))
            return true;
    return false;
}
