/* Dataset: all rows of a data file as token ids, with counts of what happened to them.
 *
 * The file is read and tokenized once, in parallel over rows; the result does not depend on the number of
 * threads. Tokens stay in memory, 4 bytes each, where their row was made. A row that is too long may have
 * become several pieces (sample.h): they are rows of their own here, with one document number.
 *
 * Threads: ot_dataset_open uses the pool and blocks; afterwards a dataset never changes.
 */
#ifndef OT_DATA_DATASET_H
#define OT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/dataset_config.h"

struct ot_dataset;

struct ot_data_stats {
    enum ot_row_kind kind;
    const char *template_name; /* chat template in use; NULL: none */
    enum ot_template_source template_source;
    int64_t rows; /* in the file, empty lines not counted; the sum of the next three */
    /* bad: malformed, skipped; untrained: dropped because nothing in it trains */
    int64_t kept, bad, untrained;
    int64_t truncated;              /* kept, but cut to seq_len */
    int64_t longest_whole;          /* tokens of the longest of those, before it was cut; 0: none */
    int64_t split;                  /* kept as several pieces */
    int64_t pieces;                 /* rows of the dataset: kept, and what splitting added */
    int64_t tokens, trained_tokens; /* trained: each is a target exactly once an epoch */
    int64_t longest;                /* tokens of the longest piece */
    /* rows whose answer begins inside the prompt's last token: that token does not train */
    int64_t straddling;
    /* rows whose own text holds special tokens, encoded as such as Hugging Face does */
    int64_t with_specials;
    int32_t first_special; /* the first of those, and its line */
    int64_t first_special_line, first_bad_line;
};

struct ot_row {
    const uint32_t *tokens; /* see OT_TOKEN_TRAINED */
    int64_t n;
    int64_t trained;  /* targets in this row */
    int64_t document; /* rows of the same document came from the same row of the file; counts from 0 without
                         gaps */
};

/* Errors: OT_E_IO, OT_E_INPUT (FILE:LINE, the fault, the cure; also an empty file and one in which nothing
 * trains), OT_E_USAGE, OT_E_BUDGET. */
int ot_dataset_open(const struct ot_dataset_config *config, struct ot_dataset **out);
void ot_dataset_close(struct ot_dataset *dataset); /* NULL is fine */

const struct ot_data_stats *ot_dataset_stats(const struct ot_dataset *dataset);
/* Whether two files of rows, read in the same way, give the same tokens in the same order. */
struct ot_data_print {
    int64_t rows, tokens, trained_tokens; /* rows: of the file; training and held-out ones together */
    uint32_t crc;                         /* over ids and marks, and the length and document of each piece */
};
struct ot_data_print ot_dataset_print(const struct ot_dataset *dataset); /* reads all tokens */

int64_t ot_dataset_rows(const struct ot_dataset *dataset);
int64_t ot_dataset_documents(const struct ot_dataset *dataset);
struct ot_row ot_dataset_row(const struct ot_dataset *dataset, int64_t row);
/* Tokens of the row before its first trained one: what to generate from. */
int64_t ot_row_prompt_tokens(const struct ot_row *row);
size_t ot_dataset_bytes(const struct ot_dataset *dataset); /* memory held, for the ledger */

/* --show-sample: row `index` (from 0) of the file as it will be trained on: its text with the trained tokens
 * marked, by colour and underline where `ansi`, else by [brackets], then a table of tokens. *text is freed by
 * the caller. Errors: as ot_dataset_open; OT_E_USAGE if the file has no such row. */
int ot_dataset_show_sample(const struct ot_dataset_config *config, int64_t index, bool ansi, char **text);

#endif
