/* offload-train tokenize: turns text into ids, and ids into text. Prints one line for each text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/text.h"
#include "src/base/thread.h"
#include "src/cli/command.h"
#include "src/session/open.h"

/* ---- texts of the user ---- */

enum { MOST_LINE_BYTES = 1 << 28 };

int ot_lines_add(struct ot_lines *lines, const char *text, size_t bytes) {
    size_t same = lines->capacity;
    OT_TRY(ot_grow(&lines->text, &same, lines->n + 1, sizeof *lines->text, "texts"));
    OT_TRY(ot_grow(&lines->bytes, &lines->capacity, lines->n + 1, sizeof *lines->bytes, "texts"));
    char *copy = ot_string_copy(text, bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a text of %zu bytes", bytes);
    lines->text[lines->n] = copy;
    lines->bytes[lines->n++] = bytes;
    return 0;
}

void ot_lines_invite(void) {
    if (isatty(STDIN_FILENO))
        ot_log(OT_LOG_INFO, "enter one text on each line; Ctrl-D ends the input");
}

int ot_lines_read_stdin(struct ot_lines *lines, int most) {
    char *line = NULL;
    size_t capacity = 0;
    int rc = 0, n = 0;
    while (n < most && rc == 0) {
        errno = 0;
        ssize_t bytes = getline(&line, &capacity, stdin);
        if (bytes < 0) {
            rc = feof(stdin) ? 0 : ot_fail_errno(OT_E_IO, errno, "stdin: cannot read");
            break;
        }
        if (bytes > MOST_LINE_BYTES)
            rc = ot_fail(OT_E_BUDGET, "stdin: a line of %zd bytes is longer than %d MiB", bytes,
                         MOST_LINE_BYTES >> 20);
        else
            rc = ot_lines_add(lines, line, (size_t)bytes - (line[bytes - 1] == '\n'));
        n++;
    }
    free(line);
    return rc < 0 ? rc : n;
}

void ot_lines_clear(struct ot_lines *lines) {
    for (size_t i = 0; i < lines->n; i++)
        free(lines->text[i]);
    free(lines->text);
    free(lines->bytes);
    *lines = (struct ot_lines){0};
}

/* ---- the command ---- */

enum { BATCH_LINES = 4096 }; /* tokenized in parallel, printed in order */

struct id_list {
    int32_t *ids;
    size_t n, capacity;
};

struct batch {
    const struct ot_tokenizer *tokenizer;
    unsigned flags;
    int64_t before; /* texts of earlier batches */
    struct ot_lines lines;
    struct ot_token_list lists[BATCH_LINES];
    struct ot_error errors[BATCH_LINES];
};

static void encode_lines(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct batch *batch = context;
    (void)chunk, (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int rc = ot_tokenizer_encode(batch->tokenizer, batch->lines.text[i], batch->lines.bytes[i],
                                     batch->flags, &batch->lists[i]);
        ot_error_save(&batch->errors[i], rc);
    }
}

static void print_ids(const struct ot_token_list *list, bool json) {
    fputs(json ? "[" : "", stdout);
    for (size_t i = 0; i < list->n; i++)
        printf(i ? (json ? ", %d" : " %d") : "%d", list->ids[i]);
    fputs(json ? "]\n" : "\n", stdout);
}

static int encode_batch(struct ot_session *s, struct batch *batch) {
    ot_pool_run(s->machine.pool, (int64_t)batch->lines.n, 16, encode_lines, batch);
    for (size_t i = 0; i < batch->lines.n; i++) {
        if (batch->errors[i].code)
            return ot_fail_context(ot_error_load(&batch->errors[i]), "text %lld",
                                   (long long)batch->before + (long long)i + 1);
        print_ids(&batch->lists[i], s->options->json);
    }
    return 0;
}

/* "1 15043 3186", "1, 15043" or "[1, 15043]" */
static int parse_ids(const char *text, struct id_list *list) {
    list->n = 0;
    for (const char *at = text;;) {
        at += strspn(at, " \t\r\n,[]");
        if (!*at)
            return 0;
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id > INT32_MAX || !strchr(" \t\r\n,]", *end))
            return ot_fail(OT_E_INPUT,
                           "'%.40s' is not a token id; --decode needs numbers separated by spaces or commas",
                           at);
        OT_TRY(ot_grow(&list->ids, &list->capacity, list->n + 1, sizeof *list->ids, "ids"));
        list->ids[list->n++] = (int32_t)id;
        at = end;
    }
}

static int print_text(const char *text, size_t bytes, bool json) {
    if (!json) {
        fwrite(text, 1, bytes, stdout);
        putchar('\n');
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_put_string(&w, NULL, text, bytes);
    return ot_json_print(&w);
}

static int decode_batch(struct ot_session *s, const struct batch *batch) {
    struct id_list list = {0};
    int rc = 0;
    for (size_t i = 0; i < batch->lines.n && rc == 0; i++) {
        char *text = NULL;
        size_t bytes;
        rc = parse_ids(batch->lines.text[i], &list);
        if (rc < 0)
            ot_fail_context(rc, "text %lld", (long long)batch->before + (long long)i + 1);
        if (rc == 0)
            rc = ot_tokenizer_decode(s->text.tokenizer, list.ids, list.n, s->options->no_special, &text,
                                     &bytes);
        if (rc == 0)
            rc = print_text(text, bytes, s->options->json);
        free(text);
    }
    free(list.ids);
    return rc;
}

static int run_batch(struct ot_session *s, struct batch *batch) {
    return s->options->decode ? decode_batch(s, batch) : encode_batch(s, batch);
}

static int run(struct ot_session *s, struct batch *batch) {
    const struct ot_options *o = s->options;
    batch->tokenizer = s->text.tokenizer;
    batch->flags = o->no_special ? 0 : OT_TOKENIZER_ADD_SPECIAL;
    if (o->prompt) {
        OT_TRY(ot_lines_add(&batch->lines, o->prompt, strlen(o->prompt)));
        return run_batch(s, batch);
    }
    ot_lines_invite();
    for (;;) {
        int n = ot_lines_read_stdin(&batch->lines, BATCH_LINES);
        if (n <= 0)
            return n;
        OT_TRY(run_batch(s, batch));
        batch->before += n;
        ot_lines_clear(&batch->lines);
    }
}

int ot_command_tokenize(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct ot_session session;
    struct batch *batch = calloc(1, sizeof *batch);
    int rc = ot_session_open_tokenizer(&settings, &session);
    if (rc == 0 && !batch)
        rc = ot_fail(OT_E_BUDGET, "no memory for a batch of texts");
    if (rc == 0)
        rc = run(&session, batch);
    if (batch) {
        for (int i = 0; i < BATCH_LINES; i++)
            ot_token_list_free(&batch->lists[i]);
        ot_lines_clear(&batch->lines);
    }
    free(batch);
    ot_session_close(&session);
    return rc;
}
