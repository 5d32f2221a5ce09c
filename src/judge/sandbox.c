#include "src/judge/sandbox.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/text.h"

/* The progress handler is called after so many instructions of the virtual machine. */
enum { STEPS_AT_A_TIME = 1000 };

struct ot_sandbox {
    sqlite3 *db;
    bool locked;
    bool is_file;
    int64_t steps_left;
    double started;
    char refused[OT_SANDBOX_WHY_BYTES]; /* what the authorizer denied; empty: nothing */
};

void ot_result_free(struct ot_result *result) {
    free(result->cells);
    free(result->bytes);
    *result = (struct ot_result){0};
}

/* ---- what is allowed ---- */

static int deny(struct ot_sandbox *s, const char *what) {
    snprintf(s->refused, sizeof s->refused, "%s is not allowed", what);
    return SQLITE_DENY;
}

static int allow_function(struct ot_sandbox *s, const char *name) {
    static const char denied[] = "load_extension fts3_tokenizer random randomblob sqlite_log edit";
    char lower[40];
    size_t n = name ? strlen(name) : 0;
    if (n >= sizeof lower)
        return SQLITE_OK;
    for (size_t i = 0; i <= n && name; i++)
        lower[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] + ('a' - 'A')) : name[i];
    if (!name || !ot_words_have(denied, lower))
        return SQLITE_OK;
    char what[64];
    snprintf(what, sizeof what, "the function %s()", lower);
    return deny(s, what);
}

/* CREATE TABLE writes to the table of the schema, and may make indices of its own. */
static bool sets_up(int action, const char *a) {
    switch (action) {
    case SQLITE_CREATE_TABLE:
    case SQLITE_CREATE_INDEX:
    case SQLITE_REINDEX:
    case SQLITE_TRANSACTION:
        return true;
    case SQLITE_INSERT:
    case SQLITE_UPDATE:
    case SQLITE_DELETE:
        return a != NULL;
    default:
        return false;
    }
}

static const char *action_name(int action) {
    switch (action) {
    case SQLITE_ATTACH:
        return "ATTACH";
    case SQLITE_DETACH:
        return "DETACH";
    case SQLITE_PRAGMA:
        return "PRAGMA";
    case SQLITE_INSERT:
        return "INSERT";
    case SQLITE_UPDATE:
        return "UPDATE";
    case SQLITE_DELETE:
        return "DELETE";
    case SQLITE_CREATE_TABLE:
    case SQLITE_CREATE_VTABLE:
    case SQLITE_CREATE_TEMP_TABLE:
        return "CREATE TABLE";
    case SQLITE_DROP_TABLE:
        return "DROP TABLE";
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
        return "a transaction";
    default:
        return "a statement that is no query";
    }
}

static int authorize(void *context, int action, const char *a, const char *b, const char *database,
                     const char *trigger) {
    struct ot_sandbox *s = context;
    (void)database;
    (void)trigger;
    if (action == SQLITE_SELECT || action == SQLITE_READ || action == SQLITE_RECURSIVE)
        return SQLITE_OK;
    if (action == SQLITE_FUNCTION)
        return allow_function(s, b);
    if (!s->locked && sets_up(action, a))
        return SQLITE_OK;
    return deny(s, action_name(action));
}

static bool is_late(const struct ot_sandbox *s) {
    return ot_clock_seconds() - s->started > OT_SANDBOX_SECONDS;
}

static int count_steps(void *context) {
    struct ot_sandbox *s = context;
    s->steps_left -= STEPS_AT_A_TIME;
    return s->steps_left < 0 || is_late(s);
}

/* ---- opening ---- */

static void set_limits(sqlite3 *db) {
    static const struct {
        int id, value;
    } limits[] = {{SQLITE_LIMIT_LENGTH, OT_SANDBOX_VALUE_BYTES},
                  {SQLITE_LIMIT_SQL_LENGTH, OT_SANDBOX_SQL_BYTES},
                  {SQLITE_LIMIT_COLUMN, 500},
                  {SQLITE_LIMIT_EXPR_DEPTH, 100},
                  {SQLITE_LIMIT_COMPOUND_SELECT, 20},
                  {SQLITE_LIMIT_VDBE_OP, 50000},
                  {SQLITE_LIMIT_FUNCTION_ARG, 32},
                  {SQLITE_LIMIT_ATTACHED, 0},
                  {SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 200},
                  {SQLITE_LIMIT_VARIABLE_NUMBER, 500}, /* values of a row that ot_sandbox_insert binds */
                  {SQLITE_LIMIT_TRIGGER_DEPTH, 1},
                  {SQLITE_LIMIT_WORKER_THREADS, 0}};
    static const struct {
        int id, on;
    } settings[] = {{SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0},
                    {SQLITE_DBCONFIG_ENABLE_TRIGGER, 0},
                    {SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0},
                    {SQLITE_DBCONFIG_DEFENSIVE, 1},
                    {SQLITE_DBCONFIG_DQS_DML, 1}, /* "text" in double quotes, as many rows have it */
                    {SQLITE_DBCONFIG_DQS_DDL, 1}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        sqlite3_limit(db, limits[i].id, limits[i].value);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        sqlite3_db_config(db, settings[i].id, settings[i].on, NULL);
}

/* An URI of a file that is read and never changes: no journal is looked for and no lock is taken. */
static int file_uri(const char *path, char **out) {
    struct ot_string_builder uri = {0};
    ot_string_append_text(&uri, "file:");
    for (const char *c = path; *c; c++)
        if (*c == '?' || *c == '#' || *c == '%')
            ot_string_append_format(&uri, "%%%02x", (unsigned char)*c);
        else
            ot_string_append(&uri, c, 1);
    ot_string_append_text(&uri, "?mode=ro&immutable=1");
    *out = uri.text;
    return uri.failed ? ot_fail(OT_E_BUDGET, "no memory for the name of a database") : 0;
}

int ot_sandbox_open(const char *path, struct ot_sandbox **out) {
    struct ot_sandbox *s = calloc(1, sizeof *s);
    char *uri = NULL;
    int rc = 0, flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI |
                        (path ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_MEMORY);
    *out = NULL;
    if (!s)
        return ot_fail(OT_E_BUDGET, "no memory for a database");
    sqlite3_hard_heap_limit64(OT_SANDBOX_HEAP_BYTES);
    if (path)
        OT_TRY_GOTO(file_uri(path, &uri), rc, out);
    if (sqlite3_open_v2(path ? uri : ":memory:", &s->db, flags, NULL) != SQLITE_OK)
        OT_TRY_GOTO(ot_fail(path ? OT_E_INPUT : OT_E_BUDGET, "%s: cannot open the database: %s",
                            path ? path : "SQLite", s->db ? sqlite3_errmsg(s->db) : "no memory"),
                    rc, out);
    /* temporary tables in memory, never in files */
    sqlite3_exec(s->db, "PRAGMA temp_store = MEMORY", NULL, NULL, NULL);
    if (path && sqlite3_exec(s->db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL) != SQLITE_OK)
        OT_TRY_GOTO(ot_fail(OT_E_INPUT, "%s: this is no SQLite database: %s", path, sqlite3_errmsg(s->db)),
                    rc, out);
    set_limits(s->db);
    s->is_file = path != NULL;
    sqlite3_set_authorizer(s->db, authorize, s);
    sqlite3_progress_handler(s->db, STEPS_AT_A_TIME, count_steps, s);
    *out = s;
out:
    free(uri);
    if (rc < 0)
        ot_sandbox_close(s);
    return rc;
}

void ot_sandbox_close(struct ot_sandbox *s) {
    if (!s)
        return;
    sqlite3_close(s->db);
    free(s);
}

void ot_sandbox_lock(struct ot_sandbox *s) {
    s->locked = true;
}

void ot_sandbox_unlock(struct ot_sandbox *s) {
    s->locked = false;
}

/* ---- statements ---- */

static void begin(struct ot_sandbox *s) {
    s->steps_left = s->is_file ? OT_SANDBOX_FILE_STEPS : OT_SANDBOX_STEPS;
    s->started = ot_clock_seconds();
    s->refused[0] = '\0';
}

/* Says why a call of SQLite failed. */
static void explain(const struct ot_sandbox *s, int code, char why[OT_SANDBOX_WHY_BYTES]) {
    if (s->refused[0])
        snprintf(why, OT_SANDBOX_WHY_BYTES, "%s", s->refused);
    else if (code == SQLITE_INTERRUPT && s->steps_left >= 0)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it takes longer than %d s", OT_SANDBOX_SECONDS);
    else if (code == SQLITE_INTERRUPT)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it needs more than %d steps",
                 s->is_file ? OT_SANDBOX_FILE_STEPS : OT_SANDBOX_STEPS);
    else if (code == SQLITE_NOMEM)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it needs more than %d MiB of memory",
                 OT_SANDBOX_HEAP_BYTES >> 20);
    else
        snprintf(why, OT_SANDBOX_WHY_BYTES, "SQLite says: %.130s", sqlite3_errmsg(s->db));
}

bool ot_sandbox_set_up(struct ot_sandbox *s, const char *statements, char why[OT_SANDBOX_WHY_BYTES]) {
    size_t bytes = strlen(statements);
    begin(s);
    if (bytes > OT_SANDBOX_SQL_BYTES) {
        snprintf(why, OT_SANDBOX_WHY_BYTES, "the statements have more than %d bytes", OT_SANDBOX_SQL_BYTES);
        return false;
    }
    for (const char *next = statements; *next;) {
        sqlite3_stmt *statement = NULL;
        int code = sqlite3_prepare_v2(s->db, next, -1, &statement, &next);
        while (code == SQLITE_OK && statement && (code = sqlite3_step(statement)) == SQLITE_ROW)
            code = SQLITE_OK;
        if (code != SQLITE_OK && code != SQLITE_DONE) {
            explain(s, code, why);
            sqlite3_finalize(statement);
            return false;
        }
        sqlite3_finalize(statement);
    }
    return true;
}

/* True if nothing but spaces and semicolons is left. */
static bool is_end(const char *rest) {
    return rest[strspn(rest, " \t\r\n;")] == '\0';
}

/* Returns NULL, with the reason in `why`, if this is not one query. */
static sqlite3_stmt *prepare(struct ot_sandbox *s, const char *sql, char why[OT_SANDBOX_WHY_BYTES]) {
    sqlite3_stmt *statement = NULL;
    const char *rest;
    begin(s);
    if (strlen(sql) > OT_SANDBOX_SQL_BYTES) {
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it has more than %d bytes", OT_SANDBOX_SQL_BYTES);
        return NULL;
    }
    int code = sqlite3_prepare_v2(s->db, sql, -1, &statement, &rest);
    if (code != SQLITE_OK)
        explain(s, code, why);
    else if (!statement)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it is empty");
    else if (!is_end(rest))
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it has more than one statement");
    else if (!sqlite3_stmt_readonly(statement) || sqlite3_column_count(statement) == 0)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it is no query");
    else if (sqlite3_bind_parameter_count(statement) > 0)
        snprintf(why, OT_SANDBOX_WHY_BYTES, "it has a parameter");
    else
        return statement;
    sqlite3_finalize(statement);
    return NULL;
}

/* ---- results ---- */

static int add_bytes(struct ot_result *r, struct ot_cell *cell, const void *bytes, int n) {
    OT_TRY(ot_grow(&r->bytes, &r->byte_capacity, r->n_bytes + (size_t)n + 1, 1, "bytes of a result"));
    cell->text = r->n_bytes;
    cell->bytes = (size_t)n;
    if (n > 0)
        memcpy(r->bytes + r->n_bytes, bytes, (size_t)n);
    r->n_bytes += (size_t)n;
    return 0;
}

static int read_cell(sqlite3_stmt *statement, int column, struct ot_result *r, struct ot_cell *cell) {
    const double whole = 9007199254740992.0; /* 2^53: below it every whole double is one integer */
    *cell = (struct ot_cell){0};
    switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
        cell->type = OT_CELL_INTEGER;
        cell->integer = sqlite3_column_int64(statement, column);
        return 0;
    case SQLITE_FLOAT:
        cell->type = OT_CELL_REAL;
        cell->real = sqlite3_column_double(statement, column);
        if (cell->real >= -whole && cell->real <= whole && (double)(int64_t)cell->real == cell->real) {
            cell->type = OT_CELL_INTEGER;
            cell->integer = (int64_t)cell->real;
        }
        return 0;
    case SQLITE_TEXT:
        cell->type = OT_CELL_TEXT;
        return add_bytes(r, cell, sqlite3_column_text(statement, column),
                         sqlite3_column_bytes(statement, column));
    case SQLITE_BLOB:
        cell->type = OT_CELL_BLOB;
        return add_bytes(r, cell, sqlite3_column_blob(statement, column),
                         sqlite3_column_bytes(statement, column));
    default:
        return 0;
    }
}

static int add_row(sqlite3_stmt *statement, struct ot_result *r) {
    size_t first = (size_t)r->rows * (size_t)r->columns, columns = (size_t)r->columns;
    OT_TRY(ot_grow(&r->cells, &r->cell_capacity, first + columns, sizeof *r->cells, "values of a result"));
    for (int i = 0; i < r->columns; i++)
        OT_TRY(read_cell(statement, i, r, &r->cells[first + (size_t)i]));
    r->rows++;
    return 0;
}

int ot_sandbox_query(struct ot_sandbox *s, const char *sql, struct ot_result *result,
                     char why[OT_SANDBOX_WHY_BYTES]) {
    sqlite3_stmt *statement = prepare(s, sql, why);
    int code = SQLITE_DONE, rc = 1;
    if (!statement)
        return 0;
    if (result) {
        result->rows = 0;
        result->n_bytes = 0;
        result->columns = sqlite3_column_count(statement);
    }
    while (result && rc == 1 && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        if (result->rows >= OT_SANDBOX_RESULT_ROWS || result->n_bytes > OT_SANDBOX_RESULT_BYTES) {
            snprintf(why, OT_SANDBOX_WHY_BYTES, "its result has more than %d rows or %d MiB",
                     OT_SANDBOX_RESULT_ROWS, OT_SANDBOX_RESULT_BYTES >> 20);
            rc = 0;
        } else if (add_row(statement, result) < 0) {
            rc = -OT_E_BUDGET;
        }
    }
    if (rc == 1 && code != SQLITE_DONE) {
        explain(s, code, why);
        rc = 0;
    }
    sqlite3_finalize(statement);
    return rc;
}

/* ---- the schema, and rows ---- */

static bool is_number_type(const char *type) {
    static const char *const parts[] = {"int", "real", "floa", "doub", "num", "dec", "bool", "money"};
    for (size_t i = 0; type && i < sizeof parts / sizeof *parts; i++)
        if (strcasestr(type, parts[i]))
            return true;
    return false;
}

static int no_memory(void) {
    return ot_fail(OT_E_BUDGET, "no memory for the tables of a row");
}

static int read_columns(struct ot_sandbox *s, struct ot_sql_table *table) {
    sqlite3_stmt *statement = NULL;
    char *sql = sqlite3_mprintf("SELECT * FROM \"%w\" LIMIT 0", table->name);
    if (!sql)
        return no_memory();
    begin(s);
    int rc = 0, code = sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL);
    sqlite3_free(sql);
    int n = code == SQLITE_OK ? sqlite3_column_count(statement) : 0;
    table->columns = calloc((size_t)n + 1, sizeof *table->columns);
    if (!table->columns)
        rc = no_memory();
    for (int i = 0; i < n && rc == 0; i++) {
        const char *name = sqlite3_column_name(statement, i);
        const char *type = sqlite3_column_decltype(statement, i);
        struct ot_sql_column *column = &table->columns[table->n_columns++];
        *column = (struct ot_sql_column){
            .name = strdup(name ? name : ""), .is_number = is_number_type(type), .is_typed = type && *type};
        if (!column->name)
            rc = no_memory();
    }
    sqlite3_finalize(statement);
    return rc;
}

int ot_sandbox_schema(struct ot_sandbox *s, struct ot_sql_schema *out) {
    static const char sql[] =
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid";
    sqlite3_stmt *statement = NULL;
    size_t capacity = 0;
    int rc = 0;
    begin(s);
    *out = (struct ot_sql_schema){0};
    if (sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL) != SQLITE_OK)
        return 0; /* a file whose schema cannot be read has no tables */
    while (rc == 0 && sqlite3_step(statement) == SQLITE_ROW) {
        rc = ot_grow(&out->tables, &capacity, (size_t)out->n_tables + 1, sizeof *out->tables, "tables");
        if (rc < 0)
            break;
        struct ot_sql_table *table = &out->tables[out->n_tables++];
        const unsigned char *name = sqlite3_column_text(statement, 0);
        *table = (struct ot_sql_table){.name = strdup(name ? (const char *)name : "")};
        rc = table->name ? 0 : no_memory();
    }
    sqlite3_finalize(statement);
    for (int i = 0; i < out->n_tables && rc == 0; i++)
        rc = read_columns(s, &out->tables[i]);
    if (rc < 0)
        ot_sql_schema_free(out);
    return rc;
}

void ot_sql_schema_free(struct ot_sql_schema *schema) {
    for (int t = 0; t < schema->n_tables; t++) {
        for (int i = 0; i < schema->tables[t].n_columns; i++)
            free(schema->tables[t].columns[i].name);
        free(schema->tables[t].columns);
        free(schema->tables[t].name);
    }
    free(schema->tables);
    *schema = (struct ot_sql_schema){0};
}

int ot_sandbox_empty(struct ot_sandbox *s, const struct ot_sql_table *table) {
    char *sql = sqlite3_mprintf("DELETE FROM \"%w\"", table->name);
    if (!sql)
        return no_memory();
    begin(s);
    sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    sqlite3_free(sql);
    return 0;
}

static void bind(sqlite3_stmt *statement, int at, const struct ot_sql_value *value) {
    if (value->type == OT_CELL_INTEGER)
        sqlite3_bind_int64(statement, at, value->integer);
    else if (value->type == OT_CELL_REAL)
        sqlite3_bind_double(statement, at, value->real);
    else if (value->type == OT_CELL_TEXT)
        sqlite3_bind_text(statement, at, value->text, -1, SQLITE_TRANSIENT);
}

int ot_sandbox_insert(struct ot_sandbox *s, const struct ot_sql_table *table,
                      const struct ot_sql_value *values) {
    struct ot_string_builder marks = {0};
    sqlite3_stmt *statement = NULL;
    for (int i = 0; i < table->n_columns; i++)
        ot_string_append_text(&marks, i ? ",?" : "?");
    char *sql = marks.failed || !marks.text
                    ? NULL
                    : sqlite3_mprintf("INSERT OR IGNORE INTO \"%w\" VALUES (%s)", table->name, marks.text);
    free(marks.text);
    if (!sql)
        return table->n_columns == 0 ? 0 : no_memory();
    begin(s);
    if (sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL) == SQLITE_OK) {
        for (int i = 0; i < table->n_columns; i++)
            bind(statement, i + 1, &values[i]);
        sqlite3_step(
            statement); /* a constraint may forbid it, or the heap be full: then the row is missing */
    }
    sqlite3_finalize(statement);
    sqlite3_free(sql);
    return 0;
}
