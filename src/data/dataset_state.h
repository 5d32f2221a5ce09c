/* The inside of a dataset, for the files that make one and answer questions about it. */
#ifndef OT_DATA_DATASET_STATE_H
#define OT_DATA_DATASET_STATE_H

#include "src/data/data_files.h"
#include "src/data/dataset.h"
#include "src/data/row_cache.h"

/* The arrays, in the order of row_cache.h. */
enum { TOKENS, ROWS, JSON, ENDS };

struct entry {   /* of ROWS; a file has it as it is */
    uint64_t at; /* its first token in TOKENS */
    uint32_t n_tokens, trained, document;
    uint32_t second : 31, good : 1; /* as in ot_row */
    uint32_t crc;                   /* of its tokens, if they are in a cache */
    uint32_t unused;
};

enum { OT_DATASET_MAX_SOURCES = 64, TEMPLATE_NAME_BYTES = 64 };

/* All that a cache has of a dataset, but for the arrays. */
struct dataset_head {
    struct ot_data_stats stats; /* without its texts */
    int64_t first_row[OT_DATASET_MAX_SOURCES];
    uint32_t tokens_crc; /* of all tokens, row after row */
    struct ot_data_fingerprint print;
    char template_name[TEMPLATE_NAME_BYTES];
};

struct ot_dataset {
    struct dataset_head head;
    struct ot_data_stats stats;
    struct ot_row_arrays arrays;
    struct ot_data_files files;
    size_t first_file[OT_DATASET_MAX_SOURCES];
    int n_sources;
    bool pairs;
    bool may_keep, keeps_optionally; /* caches of what depends on it (ot_dataset_keeps) */
    char *cache_dir;                 /* of the cache; NULL: it has none */
    enum ot_objective_kind objective;
};

static inline size_t ot_dataset_n_rows(const struct ot_dataset *d) {
    return d->arrays.maps[ROWS].bytes / sizeof(struct entry);
}

static inline struct entry *ot_dataset_entry(const struct ot_dataset *d, size_t row) {
    return (struct entry *)d->arrays.maps[ROWS].data + row;
}

static inline uint32_t *ot_dataset_tokens(const struct ot_dataset *d, size_t row) {
    return (uint32_t *)d->arrays.maps[TOKENS].data + ot_dataset_entry(d, row)->at;
}

/* Reads the whole table of rows. */
struct ot_data_fingerprint ot_dataset_make_fingerprint(const struct ot_dataset *d);

/* Writes the text that names all that the tokens of a dataset depend on (row_cache.h). The caller frees *key.
 * NULL: a source can be read once alone, so it has no cache. Errors: OT_E_BUDGET. */
int ot_dataset_key(const struct ot_dataset_config *config, const struct ot_data_files *files,
                   const size_t *first_file, int n_sources, char **key, size_t *bytes);

#endif
