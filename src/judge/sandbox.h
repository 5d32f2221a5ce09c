/* SQLite, bounded: a database that a stranger's statements cannot use for anything but a result.
 *
 * A sandbox is one connection, to a database in memory or to a file that is opened read-only and immutable.
 * What a query may do is fixed before it is parsed:
 *
 *   actions   After `lock`, the authorizer allows SELECT, reads of columns, functions and recursive queries.
 *             It denies everything else: writes, ATTACH, PRAGMA, transactions, triggers, load_extension and
 *             the tokenizer function of FTS3. Extensions are off, and the schema is not trusted.
 *   text      One statement, at most SQL_BYTES long, of bounded depth, with a bounded number of columns and
 *             compound parts, and without parameters.
 *   steps     A query ends after a fixed number of instructions of SQLite's virtual machine. So recursive
 *             queries and endless joins end, at the same place on every machine.
 *   values    A text or a blob has at most VALUE_BYTES. So one instruction cannot take long: zeroblob(1e9)
 *             and printf('%.*c', ...) fail. Patterns of LIKE are short.
 *   time      As many slow functions as the steps allow would still take minutes. So a query ends after
 *             SECONDS too. This is the only bound that depends on the machine.
 *   memory    All sandboxes of the process together may have HEAP_BYTES of SQLite's memory. Temporary tables
 *             live in memory, never in files.
 *   results   At most RESULT_ROWS rows and RESULT_BYTES bytes.
 *
 * random() and randomblob() are refused: two runs of one query must agree.
 */
#ifndef OT_JUDGE_SANDBOX_H
#define OT_JUDGE_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OT_SANDBOX_SQL_BYTES = 1 << 16,
    OT_SANDBOX_VALUE_BYTES = 50000,
    OT_SANDBOX_HEAP_BYTES = 64 << 20,
    OT_SANDBOX_RESULT_ROWS = 20000,
    OT_SANDBOX_RESULT_BYTES = 8 << 20,
    OT_SANDBOX_STEPS = 10000000,       /* of a query on tables in memory: about 0.2 s */
    OT_SANDBOX_FILE_STEPS = 500000000, /* of a query on a database file */
    OT_SANDBOX_SECONDS = 20
};

enum { OT_SANDBOX_WHY_BYTES = 160 };

/* A value of a result. Numbers that are whole are integers, in whatever type SQLite has them. */
enum ot_cell_type { OT_CELL_NULL, OT_CELL_INTEGER, OT_CELL_REAL, OT_CELL_TEXT, OT_CELL_BLOB };
struct ot_cell {
    enum ot_cell_type type;
    int64_t integer;
    double real;
    size_t text, bytes; /* in the result's bytes */
};

struct ot_result { /* zero before the first use; free with ot_result_free */
    int64_t rows;
    int columns;
    struct ot_cell *cells; /* [rows, columns] */
    char *bytes;
    size_t n_bytes, cell_capacity, byte_capacity;
};
void ot_result_free(struct ot_result *result);

struct ot_sandbox;

/* path NULL: an empty database in memory. Errors: OT_E_BUDGET; OT_E_INPUT (the file is no database that can
 * be read). */
int ot_sandbox_open(const char *path, struct ot_sandbox **out);
void ot_sandbox_close(struct ot_sandbox *sandbox); /* NULL is fine */

/* Before `lock`: runs statements that create tables, or insert rows. Returns false, with the reason in `why`,
 * if one of them is something else, or fails. */
bool ot_sandbox_set_up(struct ot_sandbox *sandbox, const char *statements, char why[OT_SANDBOX_WHY_BYTES]);
/* From now on the database cannot be changed. ot_sandbox_unlock: for the owner, to fill tables anew. */
void ot_sandbox_lock(struct ot_sandbox *sandbox);
void ot_sandbox_unlock(struct ot_sandbox *sandbox);

/* Runs one query. Returns 1 and the result; 0 and the reason in `why`; or -OT_E_BUDGET. result NULL: only
 * checks that the query can be prepared. */
int ot_sandbox_query(struct ot_sandbox *sandbox, const char *sql, struct ot_result *result,
                     char why[OT_SANDBOX_WHY_BYTES]);

/* The tables in the order of their creation, and their columns. */
struct ot_sql_column {
    char *name;
    bool is_number; /* by its declared type */
    bool is_typed;  /* it has a declared type */
};
struct ot_sql_table {
    char *name;
    struct ot_sql_column *columns;
    int n_columns;
};
struct ot_sql_schema { /* zero before the first use */
    struct ot_sql_table *tables;
    int n_tables;
};
/* Errors: OT_E_BUDGET. */
int ot_sandbox_schema(struct ot_sandbox *sandbox, struct ot_sql_schema *out);
void ot_sql_schema_free(struct ot_sql_schema *schema);

/* A value to insert. */
struct ot_sql_value {
    enum ot_cell_type type;
    int64_t integer;
    double real;
    const char *text;
};
/* Unlocked: empties the table, or inserts a row [n_columns] unless a constraint of the table forbids it.
 * Errors: OT_E_BUDGET. */
int ot_sandbox_empty(struct ot_sandbox *sandbox, const struct ot_sql_table *table);
int ot_sandbox_insert(struct ot_sandbox *sandbox, const struct ot_sql_table *table,
                      const struct ot_sql_value *values);

#endif
