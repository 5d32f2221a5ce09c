/* Renames the fields of rows whose fields have other names than ours (--columns question=query,answer=sql).
 * Renaming is the first thing done with a parsed row. If "chosen" is renamed, "rejected" is left out.
 *
 * Threads: once open, any number of threads may rename rows.
 */
#ifndef OT_DATA_COLUMNS_H
#define OT_DATA_COLUMNS_H

#include <stdbool.h>

#include "src/base/json.h"

struct ot_columns;

/* text: "OURS=THEIRS,..". custom: OURS may be any name, because the fields of --prompt-format may. Errors:
 * OT_E_USAGE, OT_E_BUDGET. */
int ot_columns_open(const char *text, bool custom, struct ot_columns **out);
void ot_columns_close(struct ot_columns *columns); /* NULL is fine */
/* all: the row must have every column. Errors: OT_E_INPUT (names `where` and the column), OT_E_BUDGET. */
int ot_columns_rename(const struct ot_columns *columns, struct ot_json *row, bool all, const char *where);

#endif
