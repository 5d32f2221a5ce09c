/* The pipeline turns one row of a data file from bytes into tokens. Loading a dataset and showing a sample
 * both use it.
 *
 * Threads: once the kind of the rows is detected, any number of threads may make rows, each with its own
 * scratch.
 */
#ifndef OT_DATA_PIPELINE_H
#define OT_DATA_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops_compare.h"
#include "src/base/json.h"
#include "src/data/format.h"
#include "src/data/row_cache.h"
#include "src/data/sample.h"
#include "src/data/source.h"

/* ---- columns ---- */

/* Renames the fields of rows whose fields have other names than ours (--columns question=query,answer=sql).
 * Renaming is the first thing done with a parsed row. If "chosen" is renamed, "rejected" is left out.
 *
 * Threads: once open, any number of threads may rename rows.
 */

struct ot_columns;

/* text: "OURS=THEIRS,..". custom: OURS may be any name, because the fields of --prompt-format may. Errors:
 * OT_E_USAGE, OT_E_BUDGET. */
int ot_columns_open(const char *text, bool custom, struct ot_columns **out);
void ot_columns_close(struct ot_columns *columns); /* NULL is fine */
/* all: the row must have every column. Errors: OT_E_INPUT (names `where` and the column), OT_E_BUDGET. */
int ot_columns_rename(const struct ot_columns *columns, struct ot_json *row, bool all, const char *where);

/* ---- datasets ---- */

/* Options for making a dataset from the rows of a data file, and for a pipeline. */

struct ot_pool;

enum { OT_DATA_MAX_SEQ_LEN = 1 << 24 }; /* exceeds every model's context; packing has tables of this size */

struct ot_dataset_config {
    const char *path; /* of a pipeline: a file; of a dataset: what data_files.h takes */
    const struct ot_tokenizer *tokenizer;
    struct ot_special_tokens specials;
    int32_t vocab_size;
    int64_t seq_len; /* 2..OT_DATA_MAX_SEQ_LEN */
    struct ot_template_choice chat;
    const char *prompt_format; /* NULL: chosen by the kind of the rows */
    const char *columns;       /* "OURS=THEIRS,.."; NULL: rows have our field names */
    bool train_prompt;         /* prompts train too */
    bool no_eos;
    bool pairs; /* the model is an encoder-decoder: rows have an input and a target (format.h, sample.h) */
    enum ot_objective_kind objective; /* rows are those of this objective (preference.h) */
    bool skip_bad;                    /* count malformed rows and continue */
    enum ot_text_by text_by;
    int64_t max_rows;                 /* a source gives only its first max_rows kept rows; 0: all */
    bool dedup;                       /* rows that equal an earlier row are dropped (dataset.h) */
    bool keeps_json;                  /* the dataset keeps each row as the file has it (ot_dataset_json) */
    struct ot_row_cache_config cache; /* of a dataset */
    struct ot_pool *pool;
    /* Called from time to time with the bytes read and the file's size (0: unknown). NULL: not called. */
    void (*progress)(void *context, int64_t bytes_read, int64_t bytes_total);
    void *progress_context;
};

/* ---- pipeline ---- */

struct ot_pipeline {
    const char *path; /* borrowed from the config */
    struct ot_format *format;
    struct ot_columns *columns; /* NULL: rows have our field names */
    struct ot_sample_config sample;
    enum ot_objective_kind objective;
};

struct ot_row_scratch { /* set to zero before the first use */
    struct ot_json_reader reader;
    struct ot_rendered rendered;
    struct ot_sample sample;
    /* Of an objective with two answers: the rejected one. If nothing trains in one of them, neither has a
     * piece. */
    struct ot_rendered rendered_rejected;
    struct ot_sample rejected;
    bool good; /* KTO */
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
/* Leaves the result in scratch. Two answers have at most seq_len tokens together, and their prompts lose
 * equally many tokens. Errors: OT_E_INPUT (names FILE:LINE), OT_E_BUDGET. */
int ot_pipeline_make(const struct ot_pipeline *pipeline, const char *text, size_t bytes, int64_t line,
                     struct ot_row_scratch *scratch);

#endif
