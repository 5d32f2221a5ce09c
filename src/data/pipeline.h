/* The pipeline turns one row of a data file from bytes into tokens. Loading a dataset and showing a sample
 * both use it.
 *
 * Threads: once the kind of the rows is detected, any number of threads may make rows, each with its own
 * scratch.
 */
#ifndef OT_DATA_PIPELINE_H
#define OT_DATA_PIPELINE_H

#include "src/data/columns.h"
#include "src/data/dataset_config.h"

struct ot_pipeline {
    const char *path; /* borrowed from the config */
    struct ot_format *format;
    struct ot_columns *columns; /* NULL: rows have our field names */
    struct ot_sample_config sample;
};

struct ot_row_scratch { /* set to zero before the first use */
    struct ot_rendered rendered;
    struct ot_sample sample;
};

/* The tokenizer's BOS and EOS for templates. The spellings are borrowed from the tokenizer. Errors:
 * OT_E_BUDGET. */
int ot_pipeline_marks(const struct ot_tokenizer *tokenizer, const struct ot_special_tokens *specials,
                      struct ot_chat_marks *out);

/* Checks the options. *pipeline must be zero; close it also after an error. Errors: OT_E_USAGE, OT_E_INPUT (a
 * special token is beyond the embedding), OT_E_BUDGET. */
int ot_pipeline_open(struct ot_pipeline *pipeline, const struct ot_dataset_config *config);
void ot_pipeline_close(struct ot_pipeline *pipeline);
void ot_row_scratch_free(struct ot_row_scratch *scratch);

/* Sets the kind of the rows from this row if it is not set yet. Errors: as ot_json_parse and
 * ot_format_detect. */
int ot_pipeline_detect(struct ot_pipeline *pipeline, const char *text, size_t bytes, int64_t line);
/* Leaves the result in scratch->sample. Errors: OT_E_INPUT (names FILE:LINE), OT_E_BUDGET. */
int ot_pipeline_make(const struct ot_pipeline *pipeline, const char *text, size_t bytes, int64_t line,
                     struct ot_row_scratch *scratch);

#endif
