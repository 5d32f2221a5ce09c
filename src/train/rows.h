/* The rows of a run, tokenized and packed: either --data, one or several sources, split into training rows
 * and held-out rows, or --data and --eval-data. --show-sample prints one of them. */
#ifndef OT_TRAIN_ROWS_H
#define OT_TRAIN_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/text.h"
#include "src/data/dataset.h"
#include "src/data/mixture.h"
#include "src/data/packing.h"
#include "src/session/open.h"

struct ot_rows {
    int64_t seq_len;
    struct ot_dataset *data;             /* --data */
    struct ot_dataset *own_eval;         /* --eval-data, or NULL */
    const bool *held_out;                /* [rows of data]: true for held-out rows; NULL: nothing is split
                                        * off */
    const uint16_t *copies;              /* [rows of data]: times a row is trained in an epoch; NULL: once */
    struct ot_row_arrays split, mixture; /* the memory of both, or their files */
    struct ot_string_builder key;        /* all that both depend on, beside data */
    struct ot_mixture_source *sources;   /* [n_sources]: --data */
    struct ot_mixture_part *parts;       /* [n_sources]; NULL: the sources have no shares */
    int n_sources;
    struct ot_packing *train;          /* NULL for the eval command */
    struct ot_packing *eval;           /* NULL: there is nothing to evaluate on */
    const struct ot_dataset *eval_set; /* the rows that `eval` packs */
};

/* Opens and packs the rows as the session's options and command require. Shows its progress on a terminal.
 * Errors: as ot_dataset_open; OT_E_INPUT if no row is left to train on. `out` needs ot_rows_close in either
 * case. */
int ot_rows_open(const struct ot_session *session, int64_t seq_len, struct ot_rows *out);
void ot_rows_close(struct ot_rows *rows);
int64_t ot_rows_bytes(const struct ot_rows *rows); /* memory held */
/* FLOPs of a token of these rows, forward and backward, as MFU counts them (models/model.h). */
double ot_rows_flops_per_token(const struct ot_rows *rows, const struct ot_model *model);
/* Seconds that a token of these rows would take at the machine's roof (forecast.h); 0: unknown. */
double ot_rows_at_roof(const struct ot_rows *rows, const struct ot_session *session);
/* The fingerprint of --data, and of its mixture. */
struct ot_data_fingerprint ot_rows_fingerprint(const struct ot_rows *rows);

/* ---- showing a row ---- */

/* Prints one row as the model sees it (--show-sample), on stderr, in colour on a terminal. */

/* Errors: as ot_dataset_show_sample. */
int ot_sample_view_print(const struct ot_session *session, const struct ot_rows *rows);

#endif
