/* Columns: rows whose fields have other names than ours (--columns question=query,answer=sql). The members of
 * a row are renamed before anything looks at them.
 *
 * Threads: once open, any number of threads may rename rows with it.
 */
#ifndef OT_DATA_COLUMNS_H
#define OT_DATA_COLUMNS_H

#include <stdbool.h>

#include "src/base/json.h"

struct ot_columns;

/* text: "OURS=THEIRS,..". custom: ours may be any name, as fields of --prompt-format are. Errors: OT_E_USAGE,
 * OT_E_BUDGET. */
int ot_columns_open(const char *text, bool custom, struct ot_columns **out);
void ot_columns_close(struct ot_columns *columns); /* NULL is fine */
/* all: every column must be there. Errors: OT_E_INPUT (naming `where` and the column), OT_E_BUDGET. */
int ot_columns_rename(const struct ot_columns *columns, struct ot_json *row, bool all, const char *where);

#endif
