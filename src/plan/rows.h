/* The rows of `plan --data FILE`: tokenized and packed as a run would, and counted. */
#ifndef OT_PLAN_ROWS_H
#define OT_PLAN_ROWS_H

#include "src/options/options.h"

struct ot_plan_rows {
    int64_t rows, sequences; /* of an epoch of training: rows that are held out do not count */
};

/* By the options of a case, whose model needs a tokenizer here. Errors: as ot_session_open_files and
 * ot_rows_open. */
int ot_plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out);

#endif
