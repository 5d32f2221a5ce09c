/* --show-sample: shows a person the text and tokens of a row. */
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/data/data_files.h"
#include "src/data/dataset.h"
#include "src/data/source.h"

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
    OT_TRY_GOTO(ot_source_open(config.path, config.text_by, &source), rc, out);
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
