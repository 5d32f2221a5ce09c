/* How the rows of a data file become a dataset: what dataset.h and pipeline.h are given. */
#ifndef OT_DATA_DATASET_CONFIG_H
#define OT_DATA_DATASET_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "src/data/format.h"
#include "src/data/sample.h"

struct ot_pool;

enum { OT_DATA_MAX_SEQ_LEN = 1 << 24 }; /* longer than any model's context; packing has tables of this size */

struct ot_dataset_config {
    const char *path;
    const struct ot_tokenizer *tokenizer;
    struct ot_special_tokens specials;
    int32_t vocab_size;
    int64_t seq_len; /* 2..OT_DATA_MAX_SEQ_LEN */
    struct ot_template_choice chat;
    const char *prompt_format; /* NULL: by the kind of the rows */
    const char *columns;       /* "OURS=THEIRS,.."; NULL: rows have our names */
    bool train_prompt;         /* no prompt masking */
    bool no_eos;
    bool skip_bad; /* count malformed rows and go on */
    struct ot_pool *pool;
    /* Called now and then with bytes of the file read and in all (0: unknown); may be NULL. */
    void (*progress)(void *context, int64_t bytes_read, int64_t bytes_total);
    void *progress_context;
};

#endif
