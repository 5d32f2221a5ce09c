#include "src/judge/judge.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/judge/compare.h"
#include "src/judge/contents.h"
#include "src/judge/sandbox.h"
#include "src/judge/tokens.h"

struct ot_judge {
    char *databases; /* NULL: contents are made up */
};

int ot_judge_open(const char *databases, struct ot_judge **out) {
    struct stat info;
    *out = NULL;
    if (databases && (stat(databases, &info) < 0 || !S_ISDIR(info.st_mode)))
        return ot_fail(OT_E_USAGE,
                       "--databases %s: there is no such directory; it has DB_ID/DB_ID.sqlite, as Spider has",
                       databases);
    struct ot_judge *judge = calloc(1, sizeof *judge);
    if (judge && databases)
        judge->databases = strdup(databases);
    if (!judge || (databases && !judge->databases)) {
        ot_judge_close(judge);
        return ot_fail(OT_E_BUDGET, "no memory to judge answers");
    }
    *out = judge;
    return 0;
}

void ot_judge_close(struct ot_judge *judge) {
    if (judge)
        free(judge->databases);
    free(judge);
}

/* ---- one row ---- */

/* The work on one row. */
struct trial {
    const struct ot_judged_row *row;
    const char *answer;
    struct ot_sql_tokens gold;
    struct ot_sandbox *sandbox;
    struct ot_result gold_result, result;
    struct ot_verdict *verdict;
};

static void say(struct trial *t, const char *what, const char *why) {
    snprintf(t->verdict->why, sizeof t->verdict->why, "%s: %s", what, why);
}

/* Runs the gold query on the present contents. Returns 1; 0: the row cannot be judged; or an error. */
static int run_gold(struct trial *t) {
    char why[OT_SANDBOX_WHY_BYTES];
    int rc = ot_sandbox_query(t->sandbox, t->row->gold, &t->gold_result, why);
    if (rc == 0)
        say(t, "the row's own query does not run", why);
    return rc;
}

/* Runs the answer on the present contents, and compares. Returns 1, or 0 if the answer is wrong. */
static int run_answer(struct trial *t) {
    char why[OT_SANDBOX_WHY_BYTES];
    bool equal;
    int rc = ot_sandbox_query(t->sandbox, t->answer, &t->result, why);
    OT_TRY(rc);
    if (rc == 0) {
        t->verdict->is_valid = false;
        say(t, "the answer does not run", why);
        return 0;
    }
    OT_TRY(ot_results_compare(&t->gold_result, &t->result, ot_sql_is_ordered(&t->gold), &equal));
    if (equal)
        return 1;
    if (t->gold_result.columns != t->result.columns)
        snprintf(why, sizeof why, "%d columns instead of %d", t->result.columns, t->gold_result.columns);
    else if (t->gold_result.rows != t->result.rows)
        snprintf(why, sizeof why, "%lld rows instead of %lld", (long long)t->result.rows,
                 (long long)t->gold_result.rows);
    else
        snprintf(why, sizeof why, "%lld rows, but other ones", (long long)t->result.rows);
    say(t, "the answer has another result", why);
    return 0;
}

/* Judges on the present contents. Returns 1 to go on. */
static int judge_here(struct trial *t, bool *wrong) {
    int rc = run_gold(t);
    if (rc <= 0)
        return rc;
    t->verdict->is_judged = true;
    if (*wrong)
        return 1;
    rc = run_answer(t);
    OT_TRY(rc);
    *wrong = rc == 0;
    return 1;
}

/* ---- made-up contents ---- */

/* Counts, in *news, the variants that this content tells from the gold query and no earlier one has. A
 * variant that does not run is dropped. */
static int separate(struct trial *t, const struct ot_variants *variants, signed char *state, int *news) {
    char why[OT_SANDBOX_WHY_BYTES];
    *news = 0;
    for (int v = 0; v < variants->n; v++) {
        bool equal;
        if (state[v] != 0)
            continue;
        int rc = ot_sandbox_query(t->sandbox, variants->texts[v], &t->result, why);
        OT_TRY(rc);
        if (rc == 0) {
            state[v] = -1;
            continue;
        }
        OT_TRY(ot_results_compare(&t->gold_result, &t->result, ot_sql_is_ordered(&t->gold), &equal));
        if (!equal) {
            state[v] = 1;
            (*news)++;
        }
    }
    return 0;
}

/* The first contents count in any case: one without NULLs, and one with. */
enum { ALWAYS_KEPT = 2 };

static int judge_contents(struct trial *t, const struct ot_sql_schema *schema,
                          const struct ot_variants *variants, bool *wrong) {
    signed char state[OT_VARIANTS_MOST] = {0}; /* -1: does not run; 1: separated */
    int kept = 0, news, rc = 1;
    for (int i = 0; i < OT_CONTENTS_TRIED && kept < OT_CONTENTS_KEPT && rc == 1; i++) {
        OT_TRY(ot_contents_fill(t->sandbox, schema, &t->gold, i));
        ot_sandbox_lock(t->sandbox);
        rc = run_gold(t);
        if (rc <= 0)
            break;
        OT_TRY(separate(t, variants, state, &news));
        if (news == 0 && i >= ALWAYS_KEPT)
            continue;
        kept++;
        rc = judge_here(t, wrong);
    }
    for (int v = 0; v < variants->n; v++) {
        t->verdict->variants += state[v] >= 0;
        t->verdict->separated += state[v] > 0;
    }
    return rc;
}

static int judge_context(struct trial *t, bool *wrong) {
    char why[OT_SANDBOX_WHY_BYTES];
    struct ot_sql_schema schema = {0};
    struct ot_variants variants = {0};
    int rc;
    OT_TRY(ot_sandbox_open(NULL, &t->sandbox));
    if (!ot_sandbox_set_up(t->sandbox, t->row->context, why)) {
        say(t, "the tables of the context cannot be created", why);
        return 0;
    }
    OT_TRY_GOTO(ot_sandbox_schema(t->sandbox, &schema), rc, out);
    OT_TRY_GOTO(ot_variants_make(&t->gold, &schema, &variants), rc, out);
    rc = judge_contents(t, &schema, &variants, wrong);
out:
    ot_variants_free(&variants);
    ot_sql_schema_free(&schema);
    return rc;
}

/* ---- database files ---- */

static int is_database(const struct dirent *entry) {
    size_t n = strlen(entry->d_name), end = strlen(".sqlite");
    return n > end && strcmp(entry->d_name + n - end, ".sqlite") == 0;
}

static bool is_plain_name(const char *name) {
    return *name && *name != '.' && !strchr(name, '/');
}

static int judge_file(struct trial *t, const char *path, bool *wrong) {
    int rc = ot_sandbox_open(path, &t->sandbox);
    if (rc == -OT_E_INPUT) {
        say(t, "the database cannot be read", ot_error_text());
        return 0;
    }
    OT_TRY(rc);
    ot_sandbox_lock(t->sandbox);
    rc = judge_here(t, wrong);
    ot_sandbox_close(t->sandbox);
    t->sandbox = NULL;
    return rc;
}

static int judge_files(const struct ot_judge *judge, struct trial *t, bool *wrong) {
    struct dirent **entries;
    char *folder, *path;
    int rc = 1, n;
    if (!t->row->database || !is_plain_name(t->row->database)) {
        say(t, "the row has no database", "its db_id is missing, or is no name");
        return 0;
    }
    OT_TRY(ot_string_format(&folder, "%s/%s", judge->databases, t->row->database));
    n = scandir(folder, &entries, is_database, alphasort);
    if (n <= 0) {
        say(t, "there is no database", folder);
        rc = 0;
    }
    for (int i = 0; i < n; i++) {
        if (rc == 1)
            rc = ot_string_format(&path, "%s/%s", folder, entries[i]->d_name) < 0 ? -OT_E_BUDGET : 1;
        if (rc == 1) {
            rc = judge_file(t, path, wrong);
            free(path);
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    free(folder);
    return rc;
}

/* ---- verdicts ---- */

int ot_judge_answer(struct ot_judge *judge, const struct ot_judged_row *row, const char *answer,
                    struct ot_verdict *verdict) {
    struct trial t = {.row = row, .answer = answer, .verdict = verdict};
    bool wrong = false;
    *verdict = (struct ot_verdict){.is_valid = true};
    OT_TRY(ot_sql_tokens_make(row->gold, &t.gold));
    verdict->kind = ot_sql_find_kind(&t.gold);
    int rc = 0;
    if (judge->databases)
        rc = judge_files(judge, &t, &wrong);
    else if (row->context)
        rc = judge_context(&t, &wrong);
    else
        say(&t, "the row cannot be judged", "it has no context");
    if (rc == 0) /* on one of the contents, the gold query does not run */
        verdict->is_judged = false;
    verdict->is_valid = verdict->is_valid && verdict->is_judged;
    verdict->is_equal = verdict->is_judged && !wrong;
    ot_sandbox_close(t.sandbox);
    ot_sql_tokens_free(&t.gold);
    ot_result_free(&t.gold_result);
    ot_result_free(&t.result);
    return rc < 0 ? rc : 0;
}
