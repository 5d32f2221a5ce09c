#include "src/data/dataset_state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/thread.h"
#include "src/data/pipeline.h"
#include "src/data/preference.h"
#include "src/data/row_set.h"
#include "src/data/source.h"

/* Rows are read in batches, tokenized in parallel, and appended in order. A batch is large enough to keep the
 * threads busy, and small compared with the tokens of a large file. While the threads make the rows of a
 * batch, one of them appends the batch before it and reads the one behind it. */
enum { BATCH_ROWS = 4096, BATCH_BYTES = 16 << 20, CHUNK_ROWS = 16 };

/* ---- one batch ---- */

enum outcome { ROW_KEPT, ROW_UNTRAINED, ROW_BAD };

struct item {
    size_t text, bytes; /* offset and length in the batch's text */
    int64_t line;
    enum outcome outcome;
    int worker;    /* that has made it: */
    size_t tokens; /* where its tokens are in those that the worker keeps */
    size_t n_tokens, piece_tokens, second;
    bool good;
    struct ot_row_hash hash; /* with config->dedup */
    bool truncated, straddles, left_out;
    int untrainable_turns;
    size_t whole_tokens; /* before truncation */
    int32_t first_special;
};

/* The tokens that a worker has made of one batch, row after row. */
struct kept {
    uint32_t *tokens;
    size_t n, capacity;
};

struct worker {
    struct ot_row_scratch scratch;
    struct kept kept[2];        /* by batch */
    int64_t bad_item;           /* first bad row of this batch that this worker saw; -1: none */
    struct ot_error bad, fatal; /* fatal: set if the cause is not a row, out of memory for example */
};

struct batch {
    char *text; /* the rows, one after the other */
    size_t text_bytes, text_capacity;
    struct item *items;
    int64_t n_items;
};

struct loader {
    const struct ot_dataset_config *config;
    struct ot_pipeline pipeline; /* of the present file */
    struct ot_source *source;
    size_t file;                       /* the present one, of dataset->files */
    int64_t bytes_before, bytes_total; /* of all files; bytes_total 0: unknown */
    struct ot_dataset *dataset;
    struct ot_grow_map *tokens; /* where tokens are appended: the dataset's, or `own` */
    struct ot_grow_map own;     /* KTO: the rows' own answers */
    struct ot_row_cache *cache; /* being made; NULL: the arrays are memory */
    int64_t kept_before;        /* rows of the sources before the present one */
    struct ot_row_set seen;     /* with config->dedup */
    struct batch batches[2];
    int present; /* the batch whose rows are made; the other is appended, and then read again */
    struct ot_error append, read; /* of the other; code 0: none */
    struct worker *workers;
    int n_workers;
    struct ot_error first_bad; /* first bad row of the file */
};

static int no_memory(const struct loader *l) {
    return ot_fail(OT_E_BUDGET, "%s: no memory for the data after %lld rows", l->config->path,
                   (long long)l->dataset->stats.rows);
}

/* The most rows that the present source may still give. */
static int64_t rows_left(const struct loader *l) {
    int64_t most = l->config->max_rows;
    return most > 0 ? most - (l->dataset->stats.kept - l->kept_before) : INT64_MAX;
}

/* Reads nothing at the end of the file or of --max-rows. A batch has no more rows than the source may give if
 * all rows that are not appended yet are kept, so a row behind the last one that counts is never read. */
static int read_batch(struct loader *l, struct batch *b, int64_t not_appended) {
    int64_t most = ot_min(rows_left(l) - not_appended, BATCH_ROWS);
    b->n_items = 0;
    b->text_bytes = 0;
    while (b->n_items < most && b->text_bytes < BATCH_BYTES) {
        const char *text;
        struct item item = {0};
        int rc = ot_source_next(l->source, &text, &item.bytes, &item.line);
        OT_TRY(rc);
        if (rc == 0)
            break;
        if (!ot_try_grow(&b->text, &b->text_capacity, b->text_bytes + item.bytes, 1))
            return no_memory(l);
        memcpy(b->text + b->text_bytes, text, item.bytes);
        item.text = b->text_bytes;
        b->text_bytes += item.bytes;
        b->items[b->n_items++] = item;
    }
    return 0;
}

static int fix_or_skip(void) {
    return ot_fail(OT_E_INPUT, "%s. Fix the row, or use --skip-bad to skip and count bad rows",
                   ot_error_text());
}

/* The first row of a recognisable kind sets the kind for all rows. make_rows reports a broken row before
 * it. */
static int detect_kind(struct loader *l) {
    const struct batch *b = &l->batches[l->present];
    for (int64_t i = 0; i < b->n_items && ot_format_kind(l->pipeline.format) == OT_ROW_UNKNOWN; i++) {
        const struct item *item = &b->items[i];
        int rc = ot_pipeline_detect(&l->pipeline, b->text + item->text, item->bytes, item->line);
        if (rc == -OT_E_INPUT && !l->config->skip_bad)
            return fix_or_skip();
        if (rc == -OT_E_INPUT && l->first_bad.code == 0)
            ot_error_save(&l->first_bad, rc);
        if (rc < 0 && rc != -OT_E_INPUT)
            return rc;
    }
    return 0;
}

static int keep_tokens(const struct loader *l, struct worker *w, struct item *item) {
    const struct ot_sample *sample = &w->scratch.sample;
    struct kept *kept = &w->kept[l->present];
    if (!ot_try_grow(&kept->tokens, &kept->capacity, kept->n + sample->n_tokens, sizeof *kept->tokens))
        return no_memory(l);
    memcpy(kept->tokens + kept->n, sample->tokens, sample->n_tokens * sizeof *sample->tokens);
    item->worker = (int)(w - l->workers);
    item->tokens = kept->n;
    kept->n += sample->n_tokens;
    item->n_tokens = sample->n_tokens;
    item->piece_tokens = sample->piece_tokens;
    item->truncated = sample->truncated;
    item->whole_tokens = sample->whole_tokens;
    item->straddles = sample->straddles;
    item->first_special = sample->first_special;
    if (l->config->dedup)
        item->hash = ot_row_hash(sample->tokens, item->n_tokens, item->second, item->good);
    return 0;
}

static int make_row(const struct loader *l, struct worker *w, struct item *item) {
    const char *text = l->batches[l->present].text + item->text;
    OT_TRY(ot_pipeline_make(&l->pipeline, text, item->bytes, item->line, &w->scratch));
    item->outcome = w->scratch.sample.piece_tokens == 0 ? ROW_UNTRAINED : ROW_KEPT;
    item->good = w->scratch.good;
    if (item->outcome == ROW_KEPT && ot_preference_answers(l->config->objective) == 2) {
        item->second = w->scratch.sample.n_tokens;
        OT_TRY(ot_sample_append(&w->scratch.sample, &w->scratch.rejected, l->config->path));
    }
    if (item->outcome == ROW_KEPT)
        OT_TRY(keep_tokens(l, w, item));
    item->untrainable_turns = w->scratch.rendered.untrainable_turns;
    item->left_out = w->scratch.rendered.left_out;
    return 0;
}

static void make_rows(struct loader *l, int64_t begin, int64_t end, struct worker *w) {
    for (int64_t i = begin; i < end; i++) {
        struct item *item = &l->batches[l->present].items[i];
        int rc = ot_format_kind(l->pipeline.format) == OT_ROW_UNKNOWN
                     ? -OT_E_INPUT /* no good row in the whole batch: detect_kind has kept the error */
                     : make_row(l, w, item);
        if (rc == 0)
            continue;
        item->outcome = ROW_BAD;
        if (rc != -OT_E_INPUT && w->fatal.code == 0)
            ot_error_save(&w->fatal, rc);
        if (rc == -OT_E_INPUT && (w->bad_item < 0 || i < w->bad_item)) {
            w->bad_item = i;
            ot_error_save(&w->bad, rc);
        }
    }
}

/* Returns the error of the first bad row in the order of the file, whichever worker met it. */
static int collect_errors(struct loader *l) {
    const struct worker *first = NULL;
    for (int i = 0; i < l->n_workers; i++) {
        const struct worker *w = &l->workers[i];
        if (w->fatal.code != 0)
            return ot_error_load(&w->fatal);
        if (w->bad_item >= 0 && (!first || w->bad_item < first->bad_item))
            first = w;
    }
    if (!first)
        return 0;
    if (l->first_bad.code == 0)
        l->first_bad = first->bad;
    if (l->config->skip_bad)
        return 0;
    ot_error_load(&first->bad);
    return fix_or_skip();
}

/* ---- appending ---- */

static int append_piece(struct loader *l, const struct item *item, const uint32_t *tokens, size_t n) {
    struct ot_dataset *d = l->dataset;
    const size_t bytes = n * sizeof *tokens;
    struct entry row = {.at = l->tokens->bytes / sizeof *tokens,
                        .n_tokens = (uint32_t)n,
                        .document = (uint32_t)d->stats.kept,
                        .second = (uint32_t)item->second,
                        .good = item->good,
                        .crc = l->cache ? ot_crc32(0, tokens, bytes) : 0};
    for (size_t i = 0; i < n; i++)
        row.trained += ot_token_trained(tokens[i]);
    if (ot_dataset_n_rows(d) == UINT32_MAX)
        return no_memory(l);
    OT_TRY(ot_grow_map_add(l->tokens, tokens, bytes));
    OT_TRY(ot_grow_map_add(&d->arrays.maps[ROWS], &row, sizeof row));
    d->stats.trained_tokens += row.trained;
    d->stats.longest = ot_max(d->stats.longest, (int64_t)n);
    return 0;
}

static int keep_json(struct loader *l, const char *text, const struct item *item) {
    struct ot_grow_map *json = &l->dataset->arrays.maps[JSON];
    OT_TRY(ot_grow_map_add(json, text, item->bytes));
    const uint64_t end = json->bytes;
    return ot_grow_map_add(&l->dataset->arrays.maps[ENDS], &end, sizeof end);
}

static int append_kept(struct loader *l, int batch, const struct item *item) {
    struct ot_dataset *d = l->dataset;
    const uint32_t *tokens = l->workers[item->worker].kept[batch].tokens + item->tokens;
    if (l->config->keeps_json)
        OT_TRY(keep_json(l, l->batches[batch].text + item->text, item));
    for (size_t at = 0; at < item->n_tokens; at += item->piece_tokens)
        OT_TRY(append_piece(l, item, tokens + at, ot_min(item->n_tokens - at, item->piece_tokens)));
    d->stats.kept++;
    d->stats.good += item->good;
    d->stats.truncated += item->truncated;
    if (item->truncated && (int64_t)item->whole_tokens > d->stats.longest_whole)
        d->stats.longest_whole = (int64_t)item->whole_tokens;
    d->stats.split += item->n_tokens > item->piece_tokens;
    d->stats.straddling += item->straddles;
    d->stats.untrainable_turns += item->untrainable_turns;
    struct ot_row_place place = {l->file, item->line};
    if (item->untrainable_turns > 0 && d->stats.untrainable_rows++ == 0)
        d->stats.first_untrainable = place;
    if (item->left_out && d->stats.left_out++ == 0)
        d->stats.first_left_out = place;
    if (item->first_special >= 0 && d->stats.with_specials++ == 0) {
        d->stats.first_special = item->first_special;
        d->stats.first_special_at = place;
    }
    return 0;
}

static int append_row(struct loader *l, int batch, const struct item *item) {
    int is_new = l->config->dedup ? ot_row_set_add(&l->seen, &item->hash) : 1;
    if (is_new != 0)
        return is_new < 0 ? no_memory(l) : append_kept(l, batch, item);
    l->dataset->stats.duplicates++;
    return 0;
}

static int append_batch(struct loader *l, int batch) {
    struct ot_dataset *d = l->dataset;
    struct ot_data_stats *stats = &d->stats;
    struct batch *b = &l->batches[batch];
    const size_t before = l->tokens->bytes;
    for (int64_t i = 0; i < b->n_items; i++) {
        const struct item *item = &b->items[i];
        stats->rows++;
        if (item->outcome == ROW_BAD && stats->bad++ == 0)
            stats->first_bad = (struct ot_row_place){l->file, item->line};
        if (item->outcome == ROW_UNTRAINED)
            stats->untrained++;
        if (item->outcome == ROW_KEPT)
            OT_TRY(append_row(l, batch, item));
    }
    /* Of a whole batch, because the sum of many bytes takes a fraction of the time of many short sums. */
    const size_t bytes = l->tokens->bytes - before;
    if (bytes > 0)
        d->head.tokens_crc = ot_crc32(d->head.tokens_crc, l->tokens->data + before, bytes);
    for (int i = 0; i < l->n_workers; i++)
        l->workers[i].kept[batch].n = 0;
    b->n_items = 0;
    return 0;
}

/* ---- all batches of a file ---- */

/* Appends the other batch, whose rows are made, and reads the rows behind the present batch into it. */
static void append_and_read(struct loader *l) {
    int other = !l->present;
    int rc = append_batch(l, other);
    ot_error_save(&l->append, rc);
    if (rc == 0)
        ot_error_save(&l->read, read_batch(l, &l->batches[other], l->batches[l->present].n_items));
}

/* The first chunk is not of rows: one thread is busy beside those that make them. */
static void work(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct loader *l = context;
    if (chunk == 0)
        append_and_read(l);
    else
        make_rows(l, begin - CHUNK_ROWS, end - CHUNK_ROWS, &l->workers[worker]);
}

static int make_batch(struct loader *l) {
    OT_TRY(detect_kind(l));
    for (int i = 0; i < l->n_workers; i++)
        l->workers[i].bad_item = -1;
    l->append = l->read = (struct ot_error){0};
    ot_pool_run(l->config->pool, CHUNK_ROWS + l->batches[l->present].n_items, CHUNK_ROWS, work, l);
    OT_TRY(l->append.code ? ot_error_load(&l->append) : 0);
    OT_TRY(collect_errors(l));
    return l->read.code ? ot_error_load(&l->read) : 0;
}

static int load_batches(struct loader *l) {
    const struct ot_dataset_config *config = l->config;
    struct batch *b = l->batches;
    OT_TRY(read_batch(l, &b[l->present], 0));
    while (b[l->present].n_items > 0) {
        OT_TRY(make_batch(l));
        if (b[!l->present].n_items == 0) { /* the end of the file, or near that of --max-rows */
            OT_TRY(append_batch(l, l->present));
            OT_TRY(read_batch(l, &b[!l->present], 0));
        }
        l->present = !l->present;
        if (config->progress)
            config->progress(config->progress_context, l->bytes_before + ot_source_bytes_read(l->source),
                             l->bytes_total);
    }
    return 0;
}

/* ---- a file ---- */

/* The kind of the dataset is that of the first file. Its chat template is that of the first file with
 * conversations, because the trained model keeps it. */
static void note_kind(struct loader *l) {
    struct ot_data_stats *stats = &l->dataset->stats;
    enum ot_row_kind kind = ot_format_kind(l->pipeline.format);
    if (l->file == 0)
        stats->kind = kind;
    stats->several_kinds = stats->several_kinds || kind != stats->kind;
    if (stats->template_name && stats->template_source != OT_TEMPLATE_BY_KIND)
        return;
    stats->template_name = ot_format_template(l->pipeline.format);
    stats->template_source = ot_format_template_source(l->pipeline.format);
}

/* Each file has a pipeline of its own, so its first good row sets the kind of its rows alone. */
static int load_file(struct loader *l) {
    struct ot_dataset_config config = *l->config;
    config.path = l->dataset->files.paths[l->file];
    OT_TRY(ot_pipeline_open(&l->pipeline, &config));
    OT_TRY(ot_source_open(config.path, config.text_by, &l->source));
    OT_TRY(load_batches(l));
    note_kind(l);
    l->dataset->stats.texts += ot_source_is_text(l->source);
    l->bytes_before += ot_source_bytes_total(l->source);
    return 0;
}

static void close_file(struct loader *l) {
    ot_source_close(l->source);
    ot_pipeline_close(&l->pipeline);
    l->source = NULL;
    l->pipeline = (struct ot_pipeline){0};
}

/* ---- all files ---- */

static int check_any(const struct loader *l) {
    const struct ot_data_stats *stats = &l->dataset->stats;
    if (stats->kept > 0)
        return 0;
    if (stats->rows == 0)
        return ot_fail(OT_E_INPUT, "%s: the file has no rows", l->config->path);
    if (stats->bad == stats->rows)
        return ot_fail(OT_E_INPUT, "all %lld rows are bad; the first error is: %s", (long long)stats->rows,
                       l->first_bad.text);
    return ot_fail(OT_E_INPUT,
                   "%s: none of its %lld rows has anything to train on: the answers are empty, or there are "
                   "no assistant turns",
                   l->config->path, (long long)stats->rows);
}

/* ---- answers to other prompts (KTO) ---- */

static struct ot_row own_row(const struct loader *l, size_t row) {
    const struct entry *entry = ot_dataset_entry(l->dataset, row);
    return (struct ot_row){.tokens = (const uint32_t *)l->own.data + entry->at, .n = entry->second};
}

/* Appends a row's own answer with its prompt, and then its prompt with the next row's answer. `second` of the
 * entries has the tokens of the own answer until then, and afterwards too. */
static int append_both_answers(struct loader *l, size_t row, int64_t limit) {
    struct ot_dataset *d = l->dataset;
    struct ot_grow_map *tokens = &d->arrays.maps[TOKENS];
    const struct ot_row mine = own_row(l, row), other = own_row(l, (row + 1) % ot_dataset_n_rows(d));
    int64_t prompt = ot_row_prompt_tokens(&mine), from = ot_row_prompt_tokens(&other);
    int64_t n = ot_min(other.n - from, limit - prompt);
    const size_t begin = tokens->bytes, each = sizeof *mine.tokens;
    OT_TRY(ot_grow_map_add(tokens, mine.tokens, (size_t)mine.n * each));
    OT_TRY(ot_grow_map_add(tokens, mine.tokens, (size_t)prompt * each));
    OT_TRY(ot_grow_map_add(tokens, other.tokens + from, (size_t)n * each));
    struct entry *entry = ot_dataset_entry(d, row);
    const size_t bytes = tokens->bytes - begin;
    entry->n_tokens = (uint32_t)(bytes / each);
    d->head.tokens_crc = ot_crc32(d->head.tokens_crc, tokens->data + begin, bytes);
    entry->crc = l->cache ? ot_crc32(0, tokens->data + begin, bytes) : 0;
    d->stats.longest = ot_max(d->stats.longest, (int64_t)entry->n_tokens);
    return 0;
}

static int add_other_answers(struct loader *l) {
    struct ot_dataset *d = l->dataset;
    const size_t n = ot_dataset_n_rows(d);
    if (n < 2)
        return ot_fail(OT_E_INPUT, "%s: KTO compares the answers of rows, so it needs two rows or more",
                       l->config->path);
    for (size_t i = 0; i < n; i++)
        ot_dataset_entry(d, i)->second = ot_dataset_entry(d, i)->n_tokens;
    d->head.tokens_crc = 0;
    for (size_t i = 0; i < n; i++)
        OT_TRY(append_both_answers(l, i, l->config->seq_len / 2));
    for (size_t i = 0, at = 0; i < n; at += ot_dataset_entry(d, i++)->n_tokens)
        ot_dataset_entry(d, i)->at = at;
    return 0;
}

static int open_loader(struct loader *l) {
    l->n_workers = ot_pool_threads(l->config->pool);
    l->workers = calloc((size_t)l->n_workers, sizeof *l->workers);
    for (int i = 0; i < 2; i++)
        l->batches[i].items = calloc(BATCH_ROWS, sizeof *l->batches[i].items);
    if (!l->workers || !l->batches[0].items || !l->batches[1].items)
        return no_memory(l);
    l->bytes_total = ot_data_files_bytes(&l->dataset->files);
    return 0;
}

static void close_loader(struct loader *l) {
    for (int i = 0; l->workers && i < l->n_workers; i++) {
        ot_row_scratch_free(&l->workers[i].scratch);
        free(l->workers[i].kept[0].tokens);
        free(l->workers[i].kept[1].tokens);
    }
    for (int i = 0; i < 2; i++) {
        free(l->batches[i].items);
        free(l->batches[i].text);
    }
    close_file(l);
    ot_row_set_free(&l->seen);
    ot_row_cache_close(l->cache);
    ot_grow_map_close(&l->own);
    free(l->workers);
}

static int find_files(struct ot_dataset *d, const char *const *paths, int n) {
    assert(n <= OT_DATASET_MAX_SOURCES);
    for (d->n_sources = 0; d->n_sources < n; d->n_sources++) {
        d->first_file[d->n_sources] = d->files.n;
        OT_TRY(ot_data_files_open(paths[d->n_sources], &d->files));
    }
    return 0;
}

/* ---- the cache ---- */

/* Returns 1 if the cache has the dataset. */
static int find_cached(struct loader *l) {
    struct ot_dataset *d = l->dataset;
    char *key = NULL;
    size_t bytes = 0;
    if (!l->config->cache.dir)
        return 0;
    OT_TRY(ot_dataset_key(l->config, &d->files, d->first_file, d->n_sources, &key, &bytes));
    if (!key)
        return 0;
    int rc = ot_row_cache_open(&l->config->cache, OT_ROW_CACHE_ROWS, key, bytes, &d->head, sizeof d->head,
                               &d->arrays, &l->cache);
    free(key);
    if (rc > 0 || l->cache)
        OT_TRY(ot_string_format(&d->cache_dir, "%s", l->config->cache.dir));
    if (rc > 0) {
        d->stats = d->head.stats;
        d->stats.template_name = *d->head.template_name ? d->head.template_name : NULL;
    }
    return rc;
}

static int keep(struct loader *l) {
    struct ot_dataset *d = l->dataset;
    const char *name = d->stats.template_name;
    d->head.stats = d->stats;
    d->head.stats.template_name = NULL;
    d->head.print = ot_dataset_make_fingerprint(d);
    snprintf(d->head.template_name, sizeof d->head.template_name, "%s", name ? name : "");
    return l->cache ? ot_row_cache_finish(l->cache, &d->head, sizeof d->head, &d->arrays) : 0;
}

static int load_all(struct loader *l) {
    struct ot_dataset *d = l->dataset;
    OT_TRY(open_loader(l));
    for (int source = 0; l->file < d->files.n; l->file++) {
        for (; source < d->n_sources && d->first_file[source] == l->file; source++) {
            d->head.first_row[source] = (int64_t)ot_dataset_n_rows(d);
            l->kept_before = d->stats.kept;
        }
        if (rows_left(l) > 0)
            OT_TRY(load_file(l));
        close_file(l);
        d->stats.reached_max = d->stats.reached_max || rows_left(l) == 0;
    }
    OT_TRY(check_any(l));
    if (l->config->objective == OT_OBJECTIVE_KTO)
        OT_TRY(add_other_answers(l));
    d->stats.files = (int64_t)d->files.n;
    d->stats.pieces = (int64_t)ot_dataset_n_rows(d);
    d->stats.tokens = (int64_t)(d->arrays.maps[TOKENS].bytes / sizeof(uint32_t));
    return keep(l);
}

int ot_dataset_open(const struct ot_dataset_config *config, struct ot_dataset **out) {
    return ot_dataset_open_sources(config, &config->path, 1, out);
}

/* *is_full: set if the disk had no room for an optional cache. */
static int open_sources(const struct ot_dataset_config *config, const char *const *paths, int n,
                        bool *is_full, struct ot_dataset **out) {
    *out = NULL;
    struct ot_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the data", config->path);
    struct loader l = {.config = config, .dataset = d, .tokens = &d->arrays.maps[TOKENS]};
    d->pairs = config->pairs;
    d->objective = config->objective;
    d->may_keep = config->cache.may_make;
    d->keeps_optionally = config->cache.is_optional;
    if (config->objective == OT_OBJECTIVE_KTO)
        l.tokens = &l.own;
    int rc;
    OT_TRY_GOTO(find_files(d, paths, n), rc, out);
    rc = find_cached(&l);
    if (rc == 0) {
        rc = load_all(&l);
        *is_full = rc == -OT_E_IO && l.cache && config->cache.is_optional;
    }
    if (rc < 0)
        goto out;
    rc = 0;
    ot_grow_map_expect_random(&d->arrays.maps[TOKENS]); /* rows are used in the order of their packing */
    ot_dataset_expect_order(d, false);
    *out = d;
    d = NULL;
out:
    close_loader(&l);
    ot_dataset_close(d);
    return rc;
}

int ot_dataset_open_sources(const struct ot_dataset_config *config, const char *const *paths, int n,
                            struct ot_dataset **out) {
    bool is_full = false;
    int rc = open_sources(config, paths, n, &is_full, out);
    if (!is_full)
        return rc;
    ot_log(OT_LOG_WARN, "%s; the rows are read again and kept in memory (--cache DIR: another place)",
           ot_error_text());
    struct ot_dataset_config without = *config;
    without.cache = (struct ot_row_cache_config){0};
    return open_sources(&without, paths, n, &is_full, out);
}
