/* Counts the rows of `plan --data FILE`, tokenized and packed as a run does it. If the model's tokenizer
 * is not on this machine, their bytes are packed instead, into sequences of as many bytes as the tokens
 * usually have. */
#ifndef OT_PLAN_ROWS_H
#define OT_PLAN_ROWS_H

#include "src/options/options.h"

struct ot_plan_rows {
    int64_t rows, sequences, tokens; /* in an epoch of training, without held-out rows */
};

/* options: those of a case. The model's tokenizer must be on this machine. Errors: as ot_session_open_files
 * and ot_rows_open. */
int ot_plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out);

/* Bytes of text a token, for a tokenizer with `vocab` tokens. */
double ot_plan_rows_bytes_per_token(int64_t vocab);
/* The same without a tokenizer. Errors: as above. */
int ot_plan_rows_estimate(const struct ot_options *options, double bytes_per_token, int64_t seq_len,
                          struct ot_plan_rows *out);

#endif
