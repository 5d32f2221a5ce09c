/* Writes the rows of a Parquet file as JSON objects. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"
#include "src/data/source_parquet_state.h"

int ot_parquet_damaged(const struct ot_source *s, const struct parquet_column *column, const char *what) {
    char where[96] = "its footer";
    if (column)
        snprintf(where, sizeof where, "column '%.40s' of group %zu of its rows", column->node->name,
                 s->parquet->group);
    return ot_fail(OT_E_INPUT, "%s: the Parquet file is damaged in %s: %s; copy or write the file again",
                   s->path, where, what);
}

int ot_parquet_refuse(const struct ot_source *s, const struct parquet_column *column, const char *what,
                      const char *name) {
    return ot_fail(
        OT_E_INPUT,
        "%s: column '%.40s' of the Parquet file has %s %s; write the file again with the settings of "
        "pandas (compression snappy, zstd, gzip or none; plain or dictionary encoding)",
        s->path, column->node->name, what, name);
}

int ot_parquet_read(const struct ot_source *s, void *to, size_t n, int64_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (char *)to + done, n - done, at + (int64_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ot_fail_errno(OT_E_IO, errno, "%s: cannot read the data", s->path);
        if (got == 0)
            return ot_fail(OT_E_INPUT, "%s: the file became shorter while it was read", s->path);
        done += (size_t)got;
    }
    return 0;
}

/* ---- values ---- */

static int put(struct ot_source *s, const char *text) {
    return ot_source_append(s, s->line, text, strlen(text));
}

static bool is_utf8(const struct parquet_value *v) {
    size_t at = 0, n = 1;
    for (; at < v->n && n > 0; at += n)
        n = ot_utf8_character((const char *)v->bytes + at, v->n - at);
    return n > 0;
}

static int put_real(struct ot_source *s, int digits, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.*g", digits, value);
    return put(s, isfinite(value) ? text : "null");
}

static int put_value(struct ot_source *s, const struct parquet_node *node, const struct parquet_value *v) {
    char text[24];
    union {
        int32_t half;
        int64_t whole;
        float single;
        double real;
    } number = {.whole = 0};
    if (node->type != PARQUET_BYTES)
        memcpy(&number, v->bytes, ot_min(v->n, sizeof number));
    if (node->type == PARQUET_BOOLEAN)
        return put(s, v->bytes[0] ? "true" : "false");
    if (node->type == PARQUET_FLOAT)
        return put_real(s, 9, (double)number.single);
    if (node->type == PARQUET_DOUBLE)
        return put_real(s, 17, number.real);
    if (node->type == PARQUET_BYTES && (node->is_text || is_utf8(v))) /* the parser of rows checks texts */
        return ot_source_append_string(s, s->line, (const char *)v->bytes, v->n);
    if (node->type != PARQUET_INT32 && node->type != PARQUET_INT64)
        return put(s, "null");
    int64_t whole = node->type == PARQUET_INT32 ? number.half : number.whole;
    snprintf(text, sizeof text, "%lld", (long long)whole);
    return put(s, text);
}

/* ---- rows ---- */

/* Finds the next levels of a column, which must begin an element at the level `repetition`. */
static int expect(struct ot_source *s, struct parquet_column *c, unsigned repetition) {
    int rc = ot_parquet_peek(s, c);
    if (rc == 1 && c->repetition == repetition)
        return 0;
    return rc < 0 ? rc : ot_parquet_damaged(s, c, "it has other rows than the other columns");
}

/* Writes a field that is null or an empty list: each column below it has one entry that says so. */
static int put_absent(struct ot_source *s, const struct parquet_node *node, unsigned repetition,
                      const char *text) {
    for (size_t i = node->leaf; i < node->leaf_end; i++) {
        struct parquet_column *c = &s->parquet->columns[i];
        OT_TRY(expect(s, c, repetition));
        if (c->definition >= node->definition)
            return ot_parquet_damaged(s, c, "it has a value where other columns have none");
        c->has = false;
    }
    return put(s, text);
}

static int put_field(struct ot_source *s, size_t i, unsigned repetition);

/* Writes what a field has if it is present, without its own repetition. */
static int put_content(struct ot_source *s, size_t i, unsigned repetition) {
    struct ot_parquet *p = s->parquet;
    const struct parquet_node *node = &p->nodes[i];
    if (node->is_list)
        return put_field(s, i + 1, repetition);
    if (node->children > 0) {
        for (size_t child = i + 1; child < node->end; child = p->nodes[child].end) {
            OT_TRY(put(s, child == i + 1 ? "{" : ","));
            OT_TRY(ot_source_append_string(s, s->line, p->nodes[child].name, strlen(p->nodes[child].name)));
            OT_TRY(put(s, ":"));
            OT_TRY(put_field(s, child, repetition));
        }
        return put(s, "}");
    }
    struct parquet_column *c = &p->columns[node->leaf];
    struct parquet_value value;
    OT_TRY(expect(s, c, repetition));
    if (c->definition != node->definition)
        return ot_parquet_damaged(s, c, "it has no value where other columns have one");
    OT_TRY(ot_parquet_take(s, c, &value));
    return put_value(s, node, &value);
}

static int put_elements(struct ot_source *s, size_t i, unsigned repetition) {
    const struct parquet_node *node = &s->parquet->nodes[i];
    struct parquet_column *first = &s->parquet->columns[node->leaf];
    OT_TRY(put(s, "["));
    for (;;) {
        OT_TRY(node->is_wrapper ? put_field(s, i + 1, repetition) : put_content(s, i, repetition));
        int rc = ot_parquet_peek(s, first);
        OT_TRY(rc);
        if (rc == 0 || first->repetition < node->repeated)
            return put(s, "]");
        OT_TRY(put(s, ","));
        repetition = node->repeated;
    }
}

static int put_field(struct ot_source *s, size_t i, unsigned repetition) {
    const struct parquet_node *node = &s->parquet->nodes[i];
    struct parquet_column *first = &s->parquet->columns[node->leaf];
    bool is_repeated = node->repetition == PARQUET_REPEATED;
    if (node->repetition == PARQUET_REQUIRED)
        return put_content(s, i, repetition);
    OT_TRY(expect(s, first, repetition));
    if (first->definition < node->definition)
        return put_absent(s, node, repetition, is_repeated ? "[]" : "null");
    return is_repeated ? put_elements(s, i, repetition) : put_content(s, i, repetition);
}

/* ---- the file ---- */

/* No column of the group that ends may have a further value. */
static int end_group(struct ot_source *s) {
    struct ot_parquet *p = s->parquet;
    for (size_t i = 0; i < p->n_columns; i++) {
        int rc = ot_parquet_peek(s, &p->columns[i]);
        if (rc != 0)
            return rc < 0 ? rc
                          : ot_parquet_damaged(s, &p->columns[i], "it has more rows than the footer says");
    }
    return 0;
}

static void begin_group(struct ot_parquet *p) {
    for (size_t i = 0; i < p->n_columns; i++)
        ot_parquet_column_begin(p, &p->columns[i], p->chunks[p->group * p->n_columns + i]);
    p->rows_left = p->group_rows[p->group++];
}

int ot_source_parquet_begin(struct ot_source *s) {
    if (s->packing != PACKED_NOT || s->total == 0)
        return ot_fail(OT_E_INPUT, "%s: a Parquet file %s; give it as a file", s->path,
                       s->packing != PACKED_NOT ? "inside a packed file" : "in a pipe cannot be read");
    s->parquet = calloc(1, sizeof *s->parquet);
    if (!s->parquet)
        return ot_source_no_memory(s);
    s->bytes_read = s->line = 0;
    return ot_parquet_read_footer(s);
}

int ot_source_take_parquet(struct ot_source *s) {
    struct ot_parquet *p = s->parquet;
    while (p->rows_left == 0) {
        OT_TRY(end_group(s));
        if (p->group == p->n_groups) {
            s->bytes_read = s->total;
            return 0;
        }
        begin_group(p);
    }
    p->rows_left--;
    s->line++;
    s->bytes_read = (int64_t)((double)s->total * (double)p->rows_read++ / (double)p->rows);
    OT_TRY(put_content(s, 0, 0));
    return 1;
}

void ot_source_parquet_end(struct ot_source *s) {
    struct ot_parquet *p = s->parquet;
    if (!p)
        return;
    for (size_t i = 0; p->columns && i < p->n_columns; i++)
        ot_parquet_column_begin(p, &p->columns[i], (struct parquet_chunk){0});
    for (size_t i = 0; i < p->n_nodes; i++)
        free(p->nodes[i].name);
    free(p->columns);
    free(p->nodes);
    free(p->chunks);
    free(p->group_rows);
    free(p->packed);
    free(p);
}
