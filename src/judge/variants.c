/* Variants of the gold query (contents.h). */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/judge/contents.h"

struct maker {
    const struct ot_sql_tokens *gold;
    const struct ot_sql_schema *schema;
    struct ot_variants *out;
    bool failed;
};

/* The gold query with tokens [first, end) replaced. */
static void add(struct maker *m, int first, int end, const char *replacement) {
    const struct ot_sql_tokens *t = m->gold;
    struct ot_string_builder b = {0};
    if (m->failed || m->out->n == OT_VARIANTS_MOST)
        return;
    size_t from = first < t->n ? t->at[first].begin : strlen(t->text);
    ot_string_append(&b, t->text, from);
    ot_string_append_format(&b, " %s ", replacement);
    ot_string_append_text(&b, end > first ? t->text + t->at[end - 1].end : t->text + from);
    if (b.failed)
        free(b.text);
    else
        m->out->texts[m->out->n++] = b.text;
    m->failed = b.failed;
}

static void vary_literal(struct maker *m, int i) {
    const struct ot_sql_token *t = &m->gold->at[i];
    int bytes = (int)(t->end - t->begin);
    const char *text = m->gold->text + t->begin;
    char *changed;
    bool limits = ot_sql_is_any(m->gold, i - 1, "LIMIT OFFSET");
    if (bytes > 1000) /* a long literal is no literal that a model writes */
        return;
    for (int way = 0; way < (limits ? 1 : 2); way++) {
        int rc = t->type == OT_SQL_NUMBER
                     ? ot_string_format(&changed, way ? "(%.*s - 1)" : "(%.*s + 1)", bytes, text)
                 : way ? ot_string_format(&changed, "upper(%.*s)", bytes, text)
                       : ot_string_format(&changed, "(%.*s || 'x')", bytes, text);
        if (rc < 0) {
            m->failed = true;
            return;
        }
        add(m, i, i + 1, changed);
        free(changed);
    }
}

/* Tokens that take each other's place. A number of a set: the words differ within it. */
static const char *const sets[] = {
    "= <>",
    "== <>",
    "!= =",
    "<> =",
    "< <= >",
    "<= < >=",
    "> >= <",
    ">= > <=",
    "+ -",
    "- +",
    "* +",
    "/ *",
    "AND OR",
    "OR AND",
    "MAX MIN",
    "MIN MAX",
    "SUM AVG",
    "AVG SUM",
    "COUNT MAX",
    "ASC DESC",
    "DESC ASC",
    "UNION EXCEPT",
    "INTERSECT UNION",
    "EXCEPT INTERSECT",
    "IN NOT_IN",
    "LIKE NOT_LIKE",
    "NOT ",
    "DISTINCT ",
    "ALL ",
    "LEFT INNER",
};

static void vary_by_sets(struct maker *m, int i) {
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        size_t bytes, own = strcspn(sets[s], " ");
        const char *word = ot_words_at(sets[s], 0, &bytes);
        char text[24];
        if (!word)
            continue;
        memcpy(text, word, own);
        text[own] = '\0';
        if (!ot_sql_is(m->gold, i, text))
            continue;
        if (sets[s][own + 1] == '\0')
            add(m, i, i + 1, "");
        for (int w = 1; (word = ot_words_at(sets[s], w, &bytes)) != NULL && bytes > 0; w++) {
            memcpy(text, word, bytes);
            text[bytes] = '\0';
            for (char *c = text; *c; c++)
                *c = *c == '_' ? ' ' : *c;
            add(m, i, i + 1, text);
        }
    }
}

/* A name that is a column: the other columns of its tables take its place. "x" in double quotes is a text if
 * no column has this name. */
static void vary_name(struct maker *m, int i) {
    char *name = ot_sql_unquote(m->gold, i);
    int added = 0;
    bool found = false;
    if (!name) {
        m->failed = true;
        return;
    }
    for (int t = 0; t < m->schema->n_tables; t++) {
        const struct ot_sql_table *table = &m->schema->tables[t];
        bool has = false;
        for (int c = 0; c < table->n_columns; c++)
            has = has || strcasecmp(table->columns[c].name, name) == 0;
        found = found || has || strcasecmp(table->name, name) == 0;
        for (int c = 0; c < table->n_columns && has && added < 2; c++) {
            char *quoted = ot_sql_quote(table->columns[c].name);
            if (!quoted)
                m->failed = true;
            else if (strcasecmp(table->columns[c].name, name) != 0 && ++added)
                add(m, i, i + 1, quoted);
            free(quoted);
        }
    }
    free(name);
    if (!found && m->gold->at[i].type == OT_SQL_QUOTED)
        vary_literal(m, i);
}

/* The end of the condition that begins at token `first`. */
static int condition_end(const struct ot_sql_tokens *t, int first) {
    static const char ends[] = "AND OR GROUP ORDER LIMIT HAVING UNION INTERSECT EXCEPT ;";
    int i = first;
    for (; i < t->n && t->at[i].depth >= t->at[first - 1].depth; i++) {
        bool inside = t->at[i].depth > t->at[first - 1].depth;
        bool between = ot_sql_is(t, i, "AND") && (ot_sql_is(t, i - 2, "BETWEEN"));
        if (!inside && !between && (ot_sql_is_any(t, i, ends) || ot_sql_is(t, i, ")")))
            break;
    }
    return i;
}

/* COUNT(*): a column takes the place of the star. */
static void count_columns(struct maker *m, int i) {
    for (int t = 0; t < m->schema->n_tables; t++) {
        const struct ot_sql_table *table = &m->schema->tables[t];
        char *last = table->n_columns > 0 ? ot_sql_quote(table->columns[table->n_columns - 1].name) : NULL;
        if (last)
            add(m, i, i + 1, last);
        m->failed = m->failed || (!last && table->n_columns > 0);
        free(last);
    }
}

/* ORDER BY without a direction gets one behind its last column. */
static void add_descending(struct maker *m, int order) {
    const struct ot_sql_tokens *t = m->gold;
    int i = order + 2, depth = t->at[order].depth;
    while (i < t->n && t->at[i].depth >= depth &&
           !(t->at[i].depth == depth && ot_sql_is_any(t, i, "LIMIT ) ; UNION INTERSECT EXCEPT")))
        i++;
    if (!ot_sql_is_any(t, i - 1, "ASC DESC"))
        add(m, i, i, "DESC");
}

/* Leaves out, or adds, a part of the query. */
static void vary_part(struct maker *m, int i) {
    const struct ot_sql_tokens *t = m->gold;
    if (ot_sql_is_any(t, i, "WHERE HAVING") && condition_end(t, i + 1) > i + 1)
        add(m, i + 1, condition_end(t, i + 1), "1");
    if (ot_sql_is_any(t, i, "AND OR") && !ot_sql_is(t, i - 2, "BETWEEN") && condition_end(t, i + 1) > i + 1)
        add(m, i, condition_end(t, i + 1), "");
    if (ot_sql_is(t, i, "SELECT") && !ot_sql_is(t, i + 1, "DISTINCT"))
        add(m, i, i + 1, "SELECT DISTINCT");
    if (ot_sql_is(t, i, "(") && ot_sql_is_any(t, i - 1, "COUNT SUM AVG") && !ot_sql_is(t, i + 1, "*") &&
        !ot_sql_is(t, i + 1, "DISTINCT"))
        add(m, i, i + 1, "(DISTINCT");
    if (ot_sql_is(t, i, "*") && ot_sql_is(t, i - 1, "(") && ot_sql_is(t, i - 2, "COUNT"))
        count_columns(m, i);
    if (ot_sql_is(t, i, "LIMIT") && i + 1 < t->n)
        add(m, i, i + 2, "");
    if (ot_sql_is(t, i, "ORDER") && ot_sql_is(t, i + 1, "BY"))
        add_descending(m, i);
    if (ot_sql_is(t, i, "UNION") && !ot_sql_is(t, i + 1, "ALL"))
        add(m, i, i + 1, "UNION ALL");
    if (ot_sql_is(t, i, "JOIN") && !ot_sql_is_any(t, i - 1, "LEFT INNER OUTER CROSS NATURAL"))
        add(m, i, i + 1, "LEFT JOIN");
}

int ot_variants_make(const struct ot_sql_tokens *gold, const struct ot_sql_schema *schema,
                     struct ot_variants *out) {
    *out = (struct ot_variants){.texts = calloc(OT_VARIANTS_MOST, sizeof *out->texts)};
    struct maker m = {gold, schema, out, out->texts == NULL};
    for (int i = 0; i < gold->n && !m.failed; i++) {
        enum ot_sql_token_type type = gold->at[i].type;
        if (type == OT_SQL_NUMBER || type == OT_SQL_TEXT)
            vary_literal(&m, i);
        vary_part(&m, i);
        vary_by_sets(&m, i);
        if (type == OT_SQL_WORD || type == OT_SQL_QUOTED)
            vary_name(&m, i);
    }
    if (!m.failed)
        return 0;
    ot_variants_free(out);
    return ot_fail(OT_E_BUDGET, "no memory for the variants of a query");
}

void ot_variants_free(struct ot_variants *variants) {
    for (int i = 0; i < variants->n; i++)
        free(variants->texts[i]);
    free(variants->texts);
    *variants = (struct ot_variants){0};
}
