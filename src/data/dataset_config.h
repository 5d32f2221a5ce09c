/* Options for making a dataset from the rows of a data file; used by dataset.h and pipeline.h. */
#ifndef OT_DATA_DATASET_CONFIG_H
#define OT_DATA_DATASET_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "src/data/format.h"
#include "src/data/sample.h"

struct ot_pool;

enum { OT_DATA_MAX_SEQ_LEN = 1 << 24 }; /* exceeds every model's context; packing has tables of this size */

struct ot_dataset_config {
    const char *path;
    const struct ot_tokenizer *tokenizer;
    struct ot_special_tokens specials;
    int32_t vocab_size;
    int64_t seq_len; /* 2..OT_DATA_MAX_SEQ_LEN */
    struct ot_template_choice chat;
    const char *prompt_format; /* NULL: chosen by the kind of the rows */
    const char *columns;       /* "OURS=THEIRS,.."; NULL: rows have our field names */
    bool train_prompt;         /* prompts train too */
    bool no_eos;
    bool pairs;    /* the model is an encoder-decoder: rows have an input and a target (format.h, sample.h) */
    bool skip_bad; /* count malformed rows and continue */
    struct ot_pool *pool;
    /* Called from time to time with the bytes read and the file's size (0: unknown). NULL: not called. */
    void (*progress)(void *context, int64_t bytes_read, int64_t bytes_total);
    void *progress_context;
};

#endif
