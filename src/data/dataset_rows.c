/* Answers questions about an open dataset, and closes it. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/minmax.h"
#include "src/data/dataset_state.h"

void ot_dataset_close(struct ot_dataset *d) {
    if (!d)
        return;
    ot_row_arrays_close(&d->arrays);
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

int ot_dataset_check_table(const struct ot_dataset *d, int64_t first, int64_t n) {
    const size_t each = sizeof(struct entry);
    return ot_row_arrays_check(&d->arrays, ROWS, (size_t)first * each, (size_t)n * each);
}

int ot_dataset_check_row(const struct ot_dataset *d, int64_t row) {
    if (!d->arrays.dir)
        return 0;
    OT_TRY(ot_dataset_check_table(d, row, 1));
    const struct entry *entry = ot_dataset_entry(d, (size_t)row);
    const uint32_t *tokens = ot_dataset_tokens(d, (size_t)row);
    return ot_crc32(0, tokens, entry->n_tokens * sizeof *tokens) == entry->crc
               ? 0
               : ot_fail(
                     OT_E_INPUT,
                     "%s: damaged at row %lld; remove the file and start again: the cache of rows is then "
                     "made again",
                     d->arrays.maps[TOKENS].path, (long long)row + 1);
}

int ot_dataset_check_json(const struct ot_dataset *d, int64_t document) {
    const size_t each = sizeof(uint64_t), first = (size_t)ot_max(document - 1, 0), end = (size_t)document + 1;
    size_t bytes;
    if (!d->arrays.maps[ENDS].data)
        return 0;
    OT_TRY(ot_row_arrays_check(&d->arrays, ENDS, first * each, (end - first) * each));
    const char *json = ot_dataset_json(d, document, &bytes);
    return ot_row_arrays_check(&d->arrays, JSON, (size_t)(json - d->arrays.maps[JSON].data), bytes);
}

struct ot_data_fingerprint ot_dataset_make_fingerprint(const struct ot_dataset *d) {
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

struct ot_data_fingerprint ot_dataset_fingerprint(const struct ot_dataset *d) {
    return d->head.print;
}

void ot_dataset_expect_order(const struct ot_dataset *d, bool in_order) {
    if (in_order)
        ot_grow_map_expect_order(&d->arrays.maps[ROWS]);
    else
        ot_grow_map_expect_random(&d->arrays.maps[ROWS]);
}

size_t ot_dataset_bytes(const struct ot_dataset *d) {
    return ot_row_arrays_memory(&d->arrays);
}

struct ot_row_cache_config ot_dataset_keeps(const struct ot_dataset *d) {
    return (struct ot_row_cache_config){.dir = d->arrays.dir,
                                        .may_make = d->may_keep,
                                        .is_optional = d->keeps_optionally,
                                        .scratch = d->arrays.dir};
}

const char *ot_dataset_cache_dir(const struct ot_dataset *d) {
    return d->cache_dir;
}

int64_t ot_dataset_cached_bytes(const struct ot_dataset *d) {
    int64_t bytes = 0;
    for (int i = 0; d->arrays.dir && i < OT_ROW_ARRAYS; i++)
        bytes += (int64_t)d->arrays.maps[i].bytes;
    return bytes;
}

const char *ot_dataset_json(const struct ot_dataset *d, int64_t document, size_t *bytes) {
    const uint64_t *ends = (const uint64_t *)d->arrays.maps[ENDS].data;
    if (!ends)
        return NULL;
    size_t begin = document > 0 ? ends[document - 1] : 0;
    *bytes = ends[document] - begin;
    return d->arrays.maps[JSON].data + begin;
}
