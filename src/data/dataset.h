/* A dataset: all rows of one or several data files as token ids, with counts of kept, dropped and cut rows.
 *
 * Each file is read and tokenized once, in parallel over rows. The result does not depend on the number of
 * threads. Tokens, 4 bytes each, and the table of rows, 32 bytes a row, stay in memory, or in the files of a
 * cache (row_cache.h). A row that is too long may
 * have been split into pieces (sample.h): each piece is a row of the dataset, and all have the same document
 * number.
 *
 * COMPARISONS. For an objective that compares answers, a row has two: tokens [0, second) are the chosen one
 * with its prompt, the others are the rejected one with its prompt. For KTO the second answer is that of the
 * next row of the dataset, after this row's prompt (the first row is next to the last one).
 *
 * DUPLICATES. With config->dedup a row is dropped if all its tokens, with their marks, and for KTO its label
 * equal those of an earlier row of any source. Rows are compared after the cut to seq_len, by 128 bits of
 * their SHA-256. While rows are read, this takes 22 to 43 bytes a kept row (row_set.h).
 *
 * Threads: ot_dataset_open uses the pool and blocks; afterwards a dataset never changes.
 */
#ifndef OT_DATA_DATASET_H
#define OT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/pipeline.h"

struct ot_dataset;

struct ot_row_place {
    size_t file; /* ot_dataset_file */
    int64_t line;
};

struct ot_data_stats {
    int64_t files, texts;      /* texts: files that config->text_by cuts into rows */
    enum ot_row_kind kind;     /* of the first file */
    bool several_kinds;        /* another file has rows of another kind */
    const char *template_name; /* chat template in use; NULL: none */
    enum ot_template_source template_source;
    int64_t rows; /* rows that were read, without empty lines; kept + bad + untrained + duplicates */
    /* bad: malformed and skipped. untrained: dropped because no token trains. duplicates: config->dedup */
    int64_t kept, bad, untrained, duplicates;
    bool reached_max;               /* a source has given config->max_rows rows */
    int64_t truncated;              /* kept and cut to seq_len */
    int64_t longest_whole;          /* tokens of the longest truncated row before it was cut; 0: none */
    int64_t split;                  /* kept as several pieces */
    int64_t pieces;                 /* rows of the dataset: kept rows, and the pieces that splitting added */
    int64_t tokens, trained_tokens; /* trained: each of these is a target exactly once an epoch */
    int64_t longest;                /* tokens of the longest piece */
    /* rows whose answer begins inside the prompt's last token; that token does not train */
    int64_t straddling;
    /* rows whose own text contains special tokens; they are encoded as such, as Hugging Face does */
    int64_t with_specials;
    int64_t untrainable_turns,
        untrainable_rows;  /* assistant turns without an exact place, and their rows (chat_render.h) */
    int64_t good;          /* KTO: kept rows with a good answer */
    int64_t left_out;      /* rows of whose turns the template leaves out a text */
    int32_t first_special; /* id of the first such token */
    struct ot_row_place first_untrainable, first_left_out, first_special_at, first_bad;
};

struct ot_row {
    const uint32_t *tokens; /* see OT_TOKEN_TRAINED */
    int64_t n;
    int64_t trained;  /* number of targets in this row; KTO: in its own answer */
    int64_t second;   /* COMPARISONS above; 0: the row compares nothing */
    bool good;        /* KTO */
    int64_t document; /* rows of the same document came from the same row of the file; counts from 0 without
                         gaps */
};

/* Errors: OT_E_IO, OT_E_INPUT (the message names FILE:LINE, the fault and the cure; also if the file is empty
 * or nothing in it trains), OT_E_USAGE, OT_E_BUDGET. */
int ot_dataset_open(const struct ot_dataset_config *config, struct ot_dataset **out);
/* The same for several sources: paths[n] in place of config->path, which then names all of them in
 * messages. */
int ot_dataset_open_sources(const struct ot_dataset_config *config, const char *const *paths, int n,
                            struct ot_dataset **out);
void ot_dataset_close(struct ot_dataset *dataset); /* NULL is fine */

const struct ot_data_stats *ot_dataset_stats(const struct ot_dataset *dataset);
int ot_dataset_sources(const struct ot_dataset *dataset);
/* The first row of a source; of the one past the last: the number of rows. */
int64_t ot_dataset_source_begin(const struct ot_dataset *dataset, int source);
const char *ot_dataset_file(const struct ot_dataset *dataset, size_t file); /* its path; file < stats.files */
/* A fingerprint: equal if two files of rows, read in the same way, give the same tokens in the same order. */
struct ot_data_fingerprint {
    int64_t rows, tokens, trained_tokens; /* rows: of the file, with the held-out rows */
    uint32_t crc; /* of ids and trained marks, and of the length and document of each piece */
};
struct ot_data_fingerprint ot_dataset_fingerprint(const struct ot_dataset *dataset);

/* True if each row compares two answers. */
bool ot_dataset_compares(const struct ot_dataset *dataset);
/* True if rows have an input, the tokens that do not train, and a target. */
bool ot_dataset_has_pairs(const struct ot_dataset *dataset);
int64_t ot_dataset_rows(const struct ot_dataset *dataset);
int64_t ot_dataset_documents(const struct ot_dataset *dataset);
struct ot_row ot_dataset_row(const struct ot_dataset *dataset, int64_t row);
/* The row of the file that a document was made from, as JSON; NULL unless config->keeps_json. Its fields have
 * the names that they have in the file. */
const char *ot_dataset_json(const struct ot_dataset *dataset, int64_t document, size_t *bytes);
/* The following compare parts of the dataset with their checksums, if it is cached. Errors: OT_E_INPUT. */
int ot_dataset_check_row(const struct ot_dataset *dataset, int64_t row);              /* and its tokens */
int ot_dataset_check_table(const struct ot_dataset *dataset, int64_t row, int64_t n); /* of n rows, without */
int ot_dataset_check_json(const struct ot_dataset *dataset, int64_t document);
/* Tells the kernel that rows are looked at one after the other, without their tokens. false: at random again,
 * as at the beginning. */
void ot_dataset_expect_order(const struct ot_dataset *dataset, bool in_order);
/* Number of tokens before the row's first trained token: the prompt to generate from. */
int64_t ot_row_prompt_tokens(const struct ot_row *row);
size_t ot_dataset_bytes(const struct ot_dataset *dataset);          /* memory held in bytes, for the ledger */
const char *ot_dataset_cache_dir(const struct ot_dataset *dataset); /* NULL: it has no cache */
int64_t ot_dataset_cached_bytes(const struct ot_dataset *dataset);  /* of its files; 0: it has no cache */
/* Returns the place for caches of what depends on the dataset: its own cache, if it has one. It is valid as
 * long as the dataset. */
struct ot_row_cache_config ot_dataset_keeps(const struct ot_dataset *dataset);

/* --show-sample: shows row `index` (from 0) of the first file as it will be trained on. First its text with
 * the trained tokens marked, by colour and underline if `ansi`, otherwise by [brackets]; then a table of
 * tokens. The caller frees *text. Errors: as ot_dataset_open; OT_E_USAGE if the file has no such row. */
int ot_dataset_show_sample(const struct ot_dataset_config *config, int64_t index, bool ansi, char **text);

#endif
