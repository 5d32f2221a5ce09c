/* Packing: decides which rows share a sequence, and in which order sequences are trained.
 *
 * Sequences of at most seq_len tokens are filled one after the other, each time with the longest row that
 * still fits. As soon as two rows can fill the remaining space exactly, these two are taken. On text-to-SQL
 * rows this leaves 0.2 % of 2048-token sequences empty; best-fit decreasing leaves 0.6 %. (For packing by
 * lengths compare Krell et al. 2021, "Efficient sequence packing without cross-contamination".)
 *
 * The number of sequences and the lengths in each depend only on the rows' lengths, so every epoch has the
 * same number of steps. For each epoch, counter-based random numbers from (seed, epoch) decide which row of a
 * length goes where, and the order of the sequences. They do not depend on earlier draws, so training can
 * enter any epoch at any sequence.
 *
 * FILES. With a cache (row_cache.h), both the packing and the order of the present epoch are kept there, so a
 * later start neither packs nor shuffles: it maps them. They have 12 bytes a row, and 8 bytes a sequence.
 * While they are made, a file without a name has 4 bytes a row more. The table of rows and all arrays are
 * read and written from their beginnings to their ends, or in as many places as rows have lengths, or in
 * blocks (shuffle.h), so memory does not limit the number of rows.
 *
 * Threads: one at a time.
 */
#ifndef OT_DATA_PACKING_H
#define OT_DATA_PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/row_cache.h"

struct ot_dataset;
struct ot_packing;

/* Draws a fraction of the documents (rounded; never all of them, and at most `most`) for evaluation. Sets
 * eval[i] for each row of the dataset; pieces of one document stay together. The same seed and file give the
 * same rows. Returns the number of documents drawn. */
int64_t ot_split_rows(const struct ot_dataset *dataset, double fraction, int64_t most, uint64_t seed,
                      bool *eval);

struct ot_packing_config {
    const struct ot_dataset *dataset; /* outlives the packing */
    const uint16_t *copies; /* [rows]: times a row is used in an epoch; NULL: once. Read only during open */
    const bool *held_out;   /* [rows]: rows held out; NULL: all rows are packed. Read only during open */
    bool takes_held_out;    /* packs the rows held out, else the others */
    int64_t seq_len;
    bool one_row; /* --pack no: each sequence is one row */
    bool shuffle; /* false: every epoch has the same order; with one_row the order of the file */
    uint64_t seed;
    struct ot_row_cache_config cache; /* where it is kept (ot_dataset_keeps); outlives the packing */
    const char *key; /* with a cache: a text that lists all that copies and held_out depend on, beside the
                      * dataset. Read only during open */
};

/* The packing has no epoch yet. Errors: OT_E_BUDGET, OT_E_IO; OT_E_INPUT (too many rows; a damaged cache). A
 * dataset without rows gives 0 sequences and no error. */
int ot_packing_open(const struct ot_packing_config *config, struct ot_packing **out);
void ot_packing_close(struct ot_packing *packing); /* NULL is fine */

int64_t ot_packing_sequences(const struct ot_packing *packing); /* per epoch */
int64_t ot_packing_rows(const struct ot_packing *packing);
int64_t ot_packing_tokens(const struct ot_packing *packing);         /* per epoch */
int64_t ot_packing_trained_tokens(const struct ot_packing *packing); /* per epoch */
double ot_packing_fill(const struct ot_packing *packing);            /* tokens / (sequences * seq_len) */
size_t ot_packing_bytes(const struct ot_packing *packing);           /* memory, while an epoch is drawn */

/* Draws the order of an epoch (>= 0), or finds it in the cache, if it is not the present one. The epoch
 * before it leaves the cache. Errors: as ot_packing_open. */
int ot_packing_set_epoch(struct ot_packing *packing, int64_t epoch);
/* Compares what the cache has of a sequence of the present epoch with its checksums. Errors: OT_E_INPUT. */
int ot_packing_check(const struct ot_packing *packing, int64_t sequence);
/* The rows of a sequence of the present epoch, as row numbers of the dataset. Valid until the next
 * set_epoch. */
const uint32_t *ot_packing_sequence(const struct ot_packing *packing, int64_t sequence, int64_t *n_rows);

#endif
