/* Answers questions about an open dataset, and closes it. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/data/dataset_state.h"

void ot_dataset_close(struct ot_dataset *d) {
    if (!d)
        return;
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        ot_grow_map_close(&d->arrays[i]);
    ot_data_files_close(&d->files);
    free(d->cache_dir);
    free(d);
}

const struct ot_data_stats *ot_dataset_stats(const struct ot_dataset *d) {
    return &d->stats;
}

int ot_dataset_sources(const struct ot_dataset *d) {
    return d->n_sources;
}

int64_t ot_dataset_source_begin(const struct ot_dataset *d, int source) {
    return source < d->n_sources ? d->head.first_row[source] : (int64_t)ot_dataset_n_rows(d);
}

const char *ot_dataset_file(const struct ot_dataset *d, size_t file) {
    return d->files.paths[file];
}

bool ot_dataset_compares(const struct ot_dataset *d) {
    return d->objective != OT_OBJECTIVE_SFT;
}

bool ot_dataset_has_pairs(const struct ot_dataset *d) {
    return d->pairs;
}

int64_t ot_dataset_rows(const struct ot_dataset *d) {
    return (int64_t)ot_dataset_n_rows(d);
}

int64_t ot_dataset_documents(const struct ot_dataset *d) {
    return d->stats.kept;
}

struct ot_row ot_dataset_row(const struct ot_dataset *d, int64_t row) {
    const struct entry *entry = ot_dataset_entry(d, (size_t)row);
    return (struct ot_row){.tokens = ot_dataset_tokens(d, (size_t)row),
                           .n = entry->n_tokens,
                           .trained = entry->trained,
                           .second = entry->second,
                           .good = entry->good,
                           .document = entry->document};
}

int64_t ot_row_prompt_tokens(const struct ot_row *row) {
    int64_t n = 0;
    while (n < row->n && !ot_token_trained(row->tokens[n]))
        n++;
    return n;
}

int ot_dataset_check_row(const struct ot_dataset *d, int64_t row) {
    const struct entry *entry = ot_dataset_entry(d, (size_t)row);
    const uint32_t *tokens = ot_dataset_tokens(d, (size_t)row);
    return !d->is_cached || ot_crc32(0, tokens, entry->n_tokens * sizeof *tokens) == entry->crc
               ? 0
               : ot_fail(
                     OT_E_INPUT,
                     "%s: damaged at row %lld; remove the file and start again: the cache of rows is then "
                     "made again",
                     d->arrays[TOKENS].path, (long long)row + 1);
}

struct ot_data_fingerprint ot_dataset_fingerprint(const struct ot_dataset *d) {
    uint32_t crc = d->head.tokens_crc;
    const size_t n = ot_dataset_n_rows(d);
    for (size_t i = 0; i < n; i++) {
        const uint32_t piece[] = {ot_dataset_entry(d, i)->n_tokens, ot_dataset_entry(d, i)->document};
        crc = ot_crc32(crc, piece, sizeof piece);
    }
    for (size_t i = 0; ot_dataset_compares(d) && i < n; i++) {
        const uint32_t answers[] = {ot_dataset_entry(d, i)->second, ot_dataset_entry(d, i)->good};
        crc = ot_crc32(crc, answers, sizeof answers);
    }
    return (struct ot_data_fingerprint){.rows = d->stats.kept,
                                        .tokens = d->stats.tokens,
                                        .trained_tokens = d->stats.trained_tokens,
                                        .crc = crc};
}

size_t ot_dataset_bytes(const struct ot_dataset *d) {
    size_t bytes = 0;
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        bytes += ot_grow_map_memory(&d->arrays[i]);
    return bytes;
}

const char *ot_dataset_cache_dir(const struct ot_dataset *d) {
    return d->cache_dir;
}

int64_t ot_dataset_cached_bytes(const struct ot_dataset *d) {
    int64_t bytes = 0;
    for (int i = 0; d->is_cached && i < OT_ROW_ARRAYS; i++)
        bytes += (int64_t)d->arrays[i].bytes;
    return bytes;
}

const char *ot_dataset_json(const struct ot_dataset *d, int64_t document, size_t *bytes) {
    const uint64_t *ends = (const uint64_t *)d->arrays[ENDS].data;
    if (!ends)
        return NULL;
    size_t begin = document > 0 ? ends[document - 1] : 0;
    *bytes = ends[document] - begin;
    return d->arrays[JSON].data + begin;
}
