/* Contents that tell answers apart: rows for the tables of a context, made from the gold query.
 *
 * LITERALS. The gold query compares columns with literals. These and their neighbours (one more, one less,
 * another text) are the values that matter, so a column takes half of its values from the literals that it is
 * compared with. The others come from a small set that all columns share, so that joins find partners and
 * groups have several rows. The first rows of a table satisfy all comparisons, or all but one.
 *
 * VARIANTS. The gold query is varied, one token at a time: an operator, a literal, a column, an aggregate, a
 * direction, a DISTINCT, a limit, a condition that is left out. A content is kept if it gives some variant
 * another result than the gold query, and no kept content does yet. Variants that no content separates may
 * mean the same as the gold query (COUNT(*) and COUNT(id), for example).
 *
 * The numbers of a content are counted, not drawn: they depend on its index, the table, the row and the
 * column. */
#ifndef OT_JUDGE_CONTENTS_H
#define OT_JUDGE_CONTENTS_H

#include "src/judge/sandbox.h"
#include "src/judge/tokens.h"

enum { OT_CONTENTS_TRIED = 10, OT_CONTENTS_KEPT = 5, OT_VARIANTS_MOST = 64 };

/* Variants of a query: copies of its text. Zero before the first use; free with ot_variants_free. */
struct ot_variants {
    char **texts;
    int n;
};
/* Errors: OT_E_BUDGET. */
int ot_variants_make(const struct ot_sql_tokens *gold, const struct ot_sql_schema *schema,
                     struct ot_variants *out);
void ot_variants_free(struct ot_variants *variants);

/* Replaces the rows of all tables by those of content `index`. The sandbox is unlocked on return. Errors:
 * OT_E_BUDGET. */
int ot_contents_fill(struct ot_sandbox *sandbox, const struct ot_sql_schema *schema,
                     const struct ot_sql_tokens *gold, int index);

#endif
