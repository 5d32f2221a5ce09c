#include "src/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/thread.h"
#include "src/data/data_files.h"
#include "src/data/pipeline.h"
#include "src/data/source.h"

/* Rows are read in batches, tokenized in parallel, and appended in order. A batch is large enough to keep the
 * threads busy, and small compared with the tokens of a large file. */
enum { BATCH_ROWS = 4096, BATCH_BYTES = 16 << 20, CHUNK_ROWS = 16 };

struct entry {
    uint32_t *tokens; /* a document's pieces are adjacent in one allocation; the first piece owns it */
    uint32_t n_tokens, trained, document;
};

struct ot_dataset {
    struct ot_data_stats stats;
    struct entry *rows;
    size_t n_tokens, n_rows, row_capacity;
    struct ot_data_files files;
    bool pairs;
};

/* ---- one batch ---- */

enum outcome { ROW_KEPT, ROW_UNTRAINED, ROW_BAD };

struct item {
    size_t text, bytes; /* offset and length in the loader's text */
    int64_t line;
    enum outcome outcome;
    uint32_t *tokens; /* owned by the dataset once appended; NULL: none */
    size_t n_tokens, piece_tokens;
    bool truncated, straddles, left_out;
    int untrainable_turns;
    size_t whole_tokens; /* before truncation */
    int32_t first_special;
};

struct worker {
    struct ot_row_scratch scratch;
    int64_t bad_item;           /* first bad row of this batch that this worker saw; -1: none */
    struct ot_error bad, fatal; /* fatal: set if the cause is not a row, out of memory for example */
};

struct loader {
    const struct ot_dataset_config *config;
    struct ot_pipeline pipeline; /* of the present file */
    struct ot_source *source;
    size_t file;                       /* the present one, of dataset->files */
    int64_t bytes_before, bytes_total; /* of all files; bytes_total 0: unknown */
    struct ot_dataset *dataset;
    char *text; /* the rows of the batch, one after the other */
    size_t text_bytes, text_capacity;
    struct item *items;
    int64_t n_items;
    struct worker *workers;
    int n_workers;
    struct ot_error first_bad; /* first bad row of the file */
};

static int no_memory(const struct loader *l) {
    return ot_fail(OT_E_BUDGET, "%s: no memory for the data after %lld rows", l->config->path,
                   (long long)l->dataset->stats.rows);
}

/* Returns 1 if it has read rows, 0 at the end of the file. */
static int read_batch(struct loader *l) {
    l->n_items = 0;
    l->text_bytes = 0;
    while (l->n_items < BATCH_ROWS && l->text_bytes < BATCH_BYTES) {
        const char *text;
        struct item item = {0};
        int rc = ot_source_next(l->source, &text, &item.bytes, &item.line);
        OT_TRY(rc);
        if (rc == 0)
            break;
        if (!ot_try_grow(&l->text, &l->text_capacity, l->text_bytes + item.bytes, 1))
            return no_memory(l);
        memcpy(l->text + l->text_bytes, text, item.bytes);
        item.text = l->text_bytes;
        l->text_bytes += item.bytes;
        l->items[l->n_items++] = item;
    }
    return l->n_items > 0;
}

static int fix_or_skip(void) {
    return ot_fail(OT_E_INPUT, "%s. Fix the row, or use --skip-bad to skip and count bad rows",
                   ot_error_text());
}

/* The first row of a recognisable kind sets the kind for all rows. make_rows reports a broken row before
 * it. */
static int detect_kind(struct loader *l) {
    for (int64_t i = 0; i < l->n_items && ot_format_kind(l->pipeline.format) == OT_ROW_UNKNOWN; i++) {
        const struct item *item = &l->items[i];
        int rc = ot_pipeline_detect(&l->pipeline, l->text + item->text, item->bytes, item->line);
        if (rc == -OT_E_INPUT && !l->config->skip_bad)
            return fix_or_skip();
        if (rc == -OT_E_INPUT && l->first_bad.code == 0)
            ot_error_save(&l->first_bad, rc);
        if (rc < 0 && rc != -OT_E_INPUT)
            return rc;
    }
    return 0;
}

static void keep_tokens(struct ot_sample *sample, struct item *item) {
    item->n_tokens = sample->n_tokens;
    item->piece_tokens = sample->piece_tokens;
    item->truncated = sample->truncated;
    item->whole_tokens = sample->whole_tokens;
    item->straddles = sample->straddles;
    item->first_special = sample->first_special;
    item->tokens = ot_sample_take_tokens(sample);
}

static int make_row(const struct loader *l, struct worker *w, struct item *item) {
    OT_TRY(ot_pipeline_make(&l->pipeline, l->text + item->text, item->bytes, item->line, &w->scratch));
    item->outcome = w->scratch.sample.piece_tokens == 0 ? ROW_UNTRAINED : ROW_KEPT;
    if (item->outcome == ROW_KEPT)
        keep_tokens(&w->scratch.sample, item);
    item->untrainable_turns = w->scratch.rendered.untrainable_turns;
    item->left_out = w->scratch.rendered.left_out;
    return 0;
}

static void make_rows(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct loader *l = context;
    struct worker *w = &l->workers[worker];
    (void)chunk;
    for (int64_t i = begin; i < end; i++) {
        struct item *item = &l->items[i];
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

static void append_piece(struct ot_dataset *d, uint32_t *tokens, size_t n) {
    struct entry row = {.tokens = tokens, .n_tokens = (uint32_t)n, .document = (uint32_t)d->stats.kept};
    for (size_t i = 0; i < n; i++)
        row.trained += ot_token_trained(tokens[i]);
    d->n_tokens += n;
    d->rows[d->n_rows++] = row;
    d->stats.trained_tokens += row.trained;
    if ((int64_t)n > d->stats.longest)
        d->stats.longest = (int64_t)n;
}

static int append_kept(struct loader *l, struct item *item) {
    struct ot_dataset *d = l->dataset;
    size_t n_rows = d->n_rows + (item->n_tokens + item->piece_tokens - 1) / item->piece_tokens;
    if (n_rows > UINT32_MAX || !ot_try_grow(&d->rows, &d->row_capacity, n_rows, sizeof *d->rows))
        return no_memory(l);
    for (size_t at = 0; at < item->n_tokens; at += item->piece_tokens) {
        size_t left = item->n_tokens - at;
        append_piece(d, item->tokens + at, ot_min(left, item->piece_tokens));
    }
    item->tokens = NULL;
    d->stats.kept++;
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

static int append_batch(struct loader *l) {
    struct ot_data_stats *stats = &l->dataset->stats;
    for (int64_t i = 0; i < l->n_items; i++) {
        struct item *item = &l->items[i];
        stats->rows++;
        if (item->outcome == ROW_BAD && stats->bad++ == 0)
            stats->first_bad = (struct ot_row_place){l->file, item->line};
        if (item->outcome == ROW_UNTRAINED)
            stats->untrained++;
        if (item->outcome == ROW_KEPT)
            OT_TRY(append_kept(l, item));
    }
    return 0;
}

static int load_batches(struct loader *l) {
    const struct ot_dataset_config *config = l->config;
    for (;;) {
        int more = read_batch(l);
        OT_TRY(more);
        if (!more)
            return 0;
        OT_TRY(detect_kind(l));
        for (int i = 0; i < l->n_workers; i++)
            l->workers[i].bad_item = -1;
        ot_pool_run(config->pool, l->n_items, CHUNK_ROWS, make_rows, l);
        OT_TRY(collect_errors(l));
        OT_TRY(append_batch(l));
        if (config->progress)
            config->progress(config->progress_context, l->bytes_before + ot_source_bytes_read(l->source),
                             l->bytes_total);
    }
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
    OT_TRY(ot_source_open(config.path, &l->source));
    OT_TRY(load_batches(l));
    note_kind(l);
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

static void shrink(struct ot_dataset *d) {
    struct entry *rows = realloc(d->rows, d->n_rows * sizeof *rows);
    if (rows) {
        d->rows = rows;
        d->row_capacity = d->n_rows;
    }
}

static int64_t total_bytes(const struct ot_data_files *files) {
    int64_t total = 0;
    struct stat info;
    for (size_t i = 0; i < files->n; i++) {
        if (stat(files->paths[i], &info) < 0 || !S_ISREG(info.st_mode))
            return 0;
        total += (int64_t)info.st_size;
    }
    return total;
}

static int open_loader(struct loader *l) {
    l->n_workers = ot_pool_threads(l->config->pool);
    l->items = calloc(BATCH_ROWS, sizeof *l->items);
    l->workers = calloc((size_t)l->n_workers, sizeof *l->workers);
    if (!l->items || !l->workers)
        return no_memory(l);
    OT_TRY(ot_data_files_open(l->config->path, &l->dataset->files));
    l->bytes_total = total_bytes(&l->dataset->files);
    return 0;
}

static void close_loader(struct loader *l) {
    for (int i = 0; l->workers && i < l->n_workers; i++)
        ot_row_scratch_free(&l->workers[i].scratch);
    for (int64_t i = 0; i < l->n_items; i++) /* items left by a batch that failed */
        free(l->items[i].tokens);
    close_file(l);
    free(l->workers);
    free(l->items);
    free(l->text);
}

int ot_dataset_open(const struct ot_dataset_config *config, struct ot_dataset **out) {
    *out = NULL;
    struct ot_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return ot_fail(OT_E_BUDGET, "%s: no memory for the data", config->path);
    struct loader l = {.config = config, .dataset = d};
    d->pairs = config->pairs;
    int rc;
    OT_TRY_GOTO(open_loader(&l), rc, out);
    for (; l.file < d->files.n; l.file++) {
        OT_TRY_GOTO(load_file(&l), rc, out);
        close_file(&l);
    }
    OT_TRY_GOTO(check_any(&l), rc, out);
    d->stats.files = (int64_t)d->files.n;
    d->stats.pieces = (int64_t)d->n_rows;
    d->stats.tokens = (int64_t)d->n_tokens;
    shrink(d);
    *out = d;
    d = NULL;
out:
    close_loader(&l);
    ot_dataset_close(d);
    return rc;
}

void ot_dataset_close(struct ot_dataset *d) {
    if (!d)
        return;
    for (size_t i = 0; i < d->n_rows; i++)
        if (i == 0 || d->rows[i].document != d->rows[i - 1].document)
            free(d->rows[i].tokens);
    ot_data_files_close(&d->files);
    free(d->rows);
    free(d);
}

const struct ot_data_stats *ot_dataset_stats(const struct ot_dataset *d) {
    return &d->stats;
}

const char *ot_dataset_file(const struct ot_dataset *d, size_t file) {
    return d->files.paths[file];
}

bool ot_dataset_has_pairs(const struct ot_dataset *d) {
    return d->pairs;
}

int64_t ot_dataset_rows(const struct ot_dataset *d) {
    return (int64_t)d->n_rows;
}

int64_t ot_dataset_documents(const struct ot_dataset *d) {
    return d->stats.kept;
}

struct ot_row ot_dataset_row(const struct ot_dataset *d, int64_t row) {
    const struct entry *entry = &d->rows[row];
    return (struct ot_row){.tokens = entry->tokens,
                           .n = entry->n_tokens,
                           .trained = entry->trained,
                           .document = entry->document};
}

int64_t ot_row_prompt_tokens(const struct ot_row *row) {
    int64_t n = 0;
    while (n < row->n && !ot_token_trained(row->tokens[n]))
        n++;
    return n;
}

struct ot_data_fingerprint ot_dataset_fingerprint(const struct ot_dataset *d) {
    uLong crc = 0;
    for (size_t i = 0; i < d->n_rows; i++)
        crc = crc32_z(crc, (const unsigned char *)d->rows[i].tokens, d->rows[i].n_tokens * sizeof(uint32_t));
    for (size_t i = 0; i < d->n_rows; i++) {
        const uint32_t piece[] = {d->rows[i].n_tokens, d->rows[i].document};
        crc = crc32_z(crc, (const unsigned char *)piece, sizeof piece);
    }
    return (struct ot_data_fingerprint){.rows = d->stats.kept,
                                        .tokens = d->stats.tokens,
                                        .trained_tokens = d->stats.trained_tokens,
                                        .crc = (uint32_t)crc};
}

size_t ot_dataset_bytes(const struct ot_dataset *d) {
    return d->n_tokens * sizeof(uint32_t) + d->row_capacity * sizeof *d->rows;
}

/* ---- showing a person the text and tokens of a row (--show-sample) ---- */

/* Appends text of a file. Control characters become escapes, so that they cannot steer the terminal; line
 * ends only if `one_line`. */
static void put_plain(struct ot_string_builder *page, const char *text, size_t bytes, bool one_line) {
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\n' && one_line)
            ot_string_append(page, "\\n", 2);
        else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            ot_string_append_format(page, "\\x%02x", c);
        else
            ot_string_append(page, text + i, 1);
    }
}

/* Appends the text that token i covers. A token that is not in the text (BOS, EOS) gets its spelling. */
static void put_token_text(struct ot_string_builder *page, const struct ot_pipeline *p,
                           const struct ot_row_scratch *scratch, size_t i) {
    const struct ot_sample *s = &scratch->sample;
    const struct ot_rendered *r = &scratch->rendered;
    size_t next = (i + 1) % s->piece_tokens == 0 ? i + 2 : i + 1; /* a piece begins with a repeated token */
    size_t begin = s->start[i], end = next < s->n_tokens ? s->start[next] : r->bytes;
    int32_t id = ot_token_id(s->tokens[i]);
    bool outside = (i == 0 && id == p->sample.specials.bos_id && end == begin) || begin >= r->bytes;
    if (outside) {
        size_t bytes = 0;
        const char *spelling = ot_tokenizer_token(p->sample.tokenizer, id, &bytes);
        put_plain(page, spelling, spelling ? bytes : 0, true);
    } else if (end > begin) {
        put_plain(page, r->text + begin, end - begin, false);
    }
}

static void put_marked_text(struct ot_string_builder *page, const struct ot_pipeline *p,
                            const struct ot_row_scratch *scratch, bool ansi) {
    const struct ot_sample *s = &scratch->sample;
    bool open = false;
    for (size_t i = 0; i < s->n_tokens; i++) {
        bool trained = ot_token_trained(s->tokens[i]);
        if (i > 0 && i % s->piece_tokens == 0)
            ot_string_append_format(page, "%s\n---- next piece ----\n", open ? (ansi ? "\x1b[0m" : "]") : "");
        if (i > 0 && i % s->piece_tokens == 0)
            open = false;
        if (trained != open)
            ot_string_append_format(page, "%s",
                                    trained ? (ansi ? "\x1b[4;32m" : "[") : (ansi ? "\x1b[0m" : "]"));
        open = trained;
        put_token_text(page, p, scratch, i);
    }
    ot_string_append_format(page, "%s\n", open ? (ansi ? "\x1b[0m" : "]") : "");
}

static void put_table(struct ot_string_builder *page, const struct ot_pipeline *p,
                      const struct ot_sample *s) {
    ot_string_append_format(page, "%6s %8s %7s  %s\n", "token", "id", "trained", "piece");
    for (size_t i = 0; i < s->n_tokens; i++) {
        int32_t id = ot_token_id(s->tokens[i]);
        size_t bytes = 0;
        const char *spelling = ot_tokenizer_token(p->sample.tokenizer, id, &bytes);
        ot_string_append_format(page, "%6zu %8d %7s  ", i, id, ot_token_trained(s->tokens[i]) ? "yes" : "-");
        put_plain(page, spelling, spelling ? bytes : 0, true);
        ot_string_append(page, "\n", 1);
    }
}

static void put_sample(struct ot_string_builder *page, const struct ot_pipeline *p,
                       const struct ot_row_scratch *scratch, int64_t line, bool ansi) {
    const struct ot_sample *s = &scratch->sample;
    const char *template = ot_format_template(p->format);
    ot_string_append_format(page, "%.400s:%lld: kind %s%s%s, ", p->path, (long long)line,
                            ot_row_kind_name(ot_format_kind(p->format)), template ? ", template " : "",
                            template ? template : "");
    if (s->piece_tokens == 0) {
        ot_string_append_format(page, "dropped: nothing in this row trains\n");
        return;
    }
    ot_string_append_format(page, "%zu tokens, %lld trained (%s)%s\n\n", s->n_tokens, (long long)s->trained,
                            ansi ? "underlined" : "in brackets",
                            s->truncated ? ", truncated to --seq-len" : "");
    put_marked_text(page, p, scratch, ansi);
    ot_string_append(page, "\n", 1);
    put_table(page, p, s);
}

/* Reads up to row `index`. The first row sets the kind, as in training. */
static int find_row(struct ot_pipeline *p, struct ot_source *source, const struct ot_dataset_config *config,
                    int64_t index, struct ot_row_scratch *scratch, int64_t *line) {
    for (int64_t i = 0;; i++) {
        const char *text;
        size_t bytes;
        int rc = ot_source_next(source, &text, &bytes, line);
        OT_TRY(rc);
        if (rc == 0)
            return ot_fail(OT_E_USAGE, "%s: there is no row %lld: the file has %lld rows", config->path,
                           (long long)index + 1, (long long)i);
        rc = ot_pipeline_detect(p, text, bytes, *line);
        if (rc < 0 && !(config->skip_bad && rc == -OT_E_INPUT && i < index))
            return rc;
        if (i == index)
            return ot_pipeline_make(p, text, bytes, *line, scratch);
    }
}

int ot_dataset_show_sample(const struct ot_dataset_config *given, int64_t index, bool ansi, char **text) {
    struct ot_dataset_config config = *given;
    struct ot_data_files files = {0};
    struct ot_pipeline pipeline = {0};
    struct ot_row_scratch scratch = {0};
    struct ot_source *source = NULL;
    struct ot_string_builder page = {0};
    int64_t line = 0;
    int rc;
    *text = NULL;
    OT_TRY_GOTO(ot_data_files_open(given->path, &files), rc, out);
    config.path = files.paths[0];
    OT_TRY_GOTO(ot_pipeline_open(&pipeline, &config), rc, out);
    OT_TRY_GOTO(ot_source_open(config.path, &source), rc, out);
    OT_TRY_GOTO(find_row(&pipeline, source, &config, index, &scratch, &line), rc, out);
    put_sample(&page, &pipeline, &scratch, line, ansi);
    if (page.failed) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to show a row", config.path);
        goto out;
    }
    *text = page.text;
    page.text = NULL;
out:
    free(page.text);
    ot_row_scratch_free(&scratch);
    ot_source_close(source);
    ot_pipeline_close(&pipeline);
    ot_data_files_close(&files);
    return rc;
}
