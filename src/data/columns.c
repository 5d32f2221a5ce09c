#include "src/data/columns.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

enum { MOST_COLUMNS = 16 };

struct ot_columns {
    char *text; /* the names point into this text */
    struct ot_json_name names[MOST_COLUMNS];
    size_t n;
    bool drops_rejected; /* the user wants the chosen answers alone */
};

static bool is_field(const char *name) {
    static const char *const fields[] = {"text",          "prompt",       "completion", "response",
                                         "instruction",   "input",        "output",     "messages",
                                         "conversations", "conversation", "question",   "context",
                                         "answer",        "tools",        "system",     "target"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(name, fields[i]) == 0)
            return true;
    return false;
}

/* Parses a pair "OURS=THEIRS". */
static int take_column(struct ot_columns *c, char *pair, bool custom) {
    char *theirs = strchr(pair, '=');
    if (!theirs || theirs == pair || !theirs[1])
        return ot_fail(
            OT_E_USAGE,
            "--columns: '%.60s' is not a pair OURS=THEIRS; give pairs such as question=query,answer=sql",
            pair);
    *theirs++ = '\0';
    if (!custom && !is_field(pair))
        return ot_fail(
            OT_E_USAGE,
            "--columns: rows have no field '%.60s'; known fields: text, prompt, completion, response, "
            "instruction, input, output, messages, conversations, conversation, question, "
            "context, answer, target, tools and system",
            pair);
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->names[i].to, pair) == 0 || strcmp(c->names[i].from, theirs) == 0)
            return ot_fail(OT_E_USAGE, "--columns: %.60s=%.60s uses a name of an earlier pair again", pair,
                           theirs);
    if (c->n == MOST_COLUMNS)
        return ot_fail(OT_E_USAGE, "--columns: more than %d pairs", MOST_COLUMNS);
    c->names[c->n++] = (struct ot_json_name){.from = theirs, .to = pair};
    c->drops_rejected = c->drops_rejected || strcmp(theirs, "chosen") == 0;
    return 0;
}

int ot_columns_open(const char *text, bool custom, struct ot_columns **out) {
    struct ot_columns *c = calloc(1, sizeof *c);
    int rc = 0;
    *out = NULL;
    if (!c || !(c->text = strdup(text)))
        rc = ot_fail(OT_E_BUDGET, "no memory for --columns");
    char *rest = rc == 0 ? c->text : NULL;
    for (char *pair; rc == 0 && (pair = strsep(&rest, ","));)
        rc = take_column(c, pair, custom);
    if (rc < 0) {
        ot_columns_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void ot_columns_close(struct ot_columns *c) {
    if (!c)
        return;
    free(c->text);
    free(c);
}

int ot_columns_rename(const struct ot_columns *c, struct ot_json *row, bool all, const char *where) {
    for (size_t i = 0; all && i < c->n; i++)
        if (!ot_json_get(row, c->names[i].from))
            return ot_fail(OT_E_INPUT, "%s: the row has no column '%s', but --columns names it", where,
                           c->names[i].from);
    ot_json_rename(row, c->names, c->n);
    if (c->drops_rejected)
        ot_json_rename(row, &(struct ot_json_name){.from = "rejected", .to = "not chosen"}, 1);
    return 0;
}
