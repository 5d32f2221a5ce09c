/* Counts the rows of `plan --data FILE`, tokenized and packed as a run does it. */
#ifndef OT_PLAN_ROWS_H
#define OT_PLAN_ROWS_H

#include "src/options/options.h"

struct ot_plan_rows {
    int64_t rows, sequences; /* in an epoch of training, without held-out rows */
};

/* options: those of a case. The model's tokenizer must be on this machine. Errors: as ot_session_open_files
 * and ot_rows_open. */
int ot_plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out);

#endif
