/* Packing: which rows share a sequence, and in which order sequences are trained on.
 *
 * Sequences of at most seq_len tokens are filled one after the other: with the longest row that still fits,
 * and as soon as two rows can fill the rest exactly, with those two. On text-to-SQL rows that leaves 0.2 % of
 * 2048-token sequences empty, best-fit decreasing 0.6 % (for packing by lengths compare Krell et al. 2021,
 * "Efficient sequence packing without cross-contamination"). How many sequences there are and which lengths
 * share one depends on the lengths alone, so every epoch has the same number of steps; which of the rows of a
 * length goes where, and the order of the sequences, are drawn anew for each epoch from (seed, epoch) by
 * counter-based random numbers. Nothing depends on what was drawn before, so any epoch can be entered at any
 * sequence.
 *
 * Threads: one at a time.
 */
#ifndef OT_DATA_PACKING_H
#define OT_DATA_PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_dataset;
struct ot_packing;

/* Draws a fraction of the documents (rounded, never all of them) for evaluation: sets eval[i] for each row of
 * the dataset, so that pieces of one document stay together. Same seed and file: same rows. Returns the
 * number of documents drawn. */
int64_t ot_split_rows(const struct ot_dataset *dataset, double fraction, uint64_t seed, bool *eval);

struct ot_packing_config {
    const struct ot_dataset *dataset; /* outlives the packing */
    const bool *only;                 /* [rows]; NULL: all rows. Read at open only */
    bool only_value;                  /* rows with only[i] == only_value are used */
    int64_t seq_len;
    bool one_row; /* --pack no: a sequence is one row */
    bool shuffle; /* false: every epoch has the same order, with one_row that of the file */
    uint64_t seed;
};

/* Errors: OT_E_BUDGET. No row at all is fine: 0 sequences. */
int ot_packing_open(const struct ot_packing_config *config, struct ot_packing **out);
void ot_packing_close(struct ot_packing *packing); /* NULL is fine */

int64_t ot_packing_sequences(const struct ot_packing *packing); /* per epoch */
int64_t ot_packing_rows(const struct ot_packing *packing);
int64_t ot_packing_tokens(const struct ot_packing *packing);         /* per epoch */
int64_t ot_packing_trained_tokens(const struct ot_packing *packing); /* per epoch */
double ot_packing_fill(const struct ot_packing *packing);            /* tokens / (sequences * seq_len) */
size_t ot_packing_bytes(const struct ot_packing *packing);           /* memory held */

/* Draws the order of an epoch, >= 0; no allocation. */
void ot_packing_set_epoch(struct ot_packing *packing, int64_t epoch);
/* The rows of a sequence of the present epoch, by number in the dataset; valid until the next set_epoch. */
const uint32_t *ot_packing_sequence(const struct ot_packing *packing, int64_t sequence, int64_t *n_rows);

#endif
