/* The rows of a run: one data file split into training and held-out rows, or two files, tokenized and
 * packed. */
#ifndef OT_RUN_ROWS_H
#define OT_RUN_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "src/data/dataset.h"
#include "src/data/packing.h"
#include "src/session/session.h"

struct ot_rows {
    int64_t seq_len;
    struct ot_dataset *data;           /* --data */
    struct ot_dataset *own_eval;       /* --eval-data, or NULL */
    bool *held_out;                    /* [rows of data]; NULL where nothing is split off */
    struct ot_packing *train;          /* NULL for the eval command */
    struct ot_packing *eval;           /* NULL where there is nothing to evaluate on */
    const struct ot_dataset *eval_set; /* what `eval` packs */
};

/* How the options read `path`. */
struct ot_dataset_config ot_rows_config(const struct ot_session *session, const char *path, int64_t seq_len);

/* By the session's options and command. Shows how far it is on a terminal. Errors: as ot_dataset_open;
 * OT_E_INPUT where nothing is left to train on. `out` needs ot_rows_close in either case. */
int ot_rows_open(const struct ot_session *session, int64_t seq_len, struct ot_rows *out);
void ot_rows_close(struct ot_rows *rows);
int64_t ot_rows_bytes(const struct ot_rows *rows); /* memory held */

#endif
