/* Renders rows with templates of models, for scripts/golden/chat_masks.py, which compares what trains.
 *
 * Each line of stdin is an object {"template": text, "row": {"messages": ..}}. Each line of stdout is an
 * object: {"text": text, "trained": [[begin, end], ..], "untrainable": turns} with offsets in bytes, or
 * {"error": sentence}.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/data/chat_render.h"
#include "src/tokenizer/tokenizer.h"

static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"pad_token\": \"<pad>\"}";

static int render(const struct ot_json *job, const struct ot_tokenizer *tokenizer, struct ot_rendered *r) {
    struct ot_chat_renderer *own = NULL;
    struct ot_conversation talk = {0};
    struct ot_chat_marks marks = {{.id = -1}, {.id = -1}};
    struct ot_json *tokens;
    size_t bytes = 0;
    const char *source = ot_json_string(ot_json_get(job, "template"), &bytes);
    int rc = ot_json_parse(config, sizeof config - 1, "tokens", &tokens);
    if (rc == 0)
        rc = ot_chat_renderer_open(source ? source : "", bytes, "template", tokens, &own);
    if (rc == 0 && ot_chat_renderer_fault(own))
        rc = ot_fail(OT_E_INPUT, "%s", ot_chat_renderer_fault(own));
    if (rc == 0)
        rc = ot_conversation_read(&talk, ot_json_get(job, "row"), "messages", "row");
    if (rc == 0)
        rc = ot_chat_renderer_render(own, &talk, tokenizer, &marks, "row", r);
    ot_conversation_free(&talk);
    ot_chat_renderer_close(own);
    ot_json_free(tokens);
    return rc;
}

static void put_trained(struct ot_json_writer *w, const struct ot_rendered *r) {
    size_t begin = 0;
    ot_json_begin_array(w, "trained");
    for (size_t i = 0; i < r->n_spans; begin = r->spans[i++].end) {
        if (!r->spans[i].trained)
            continue;
        ot_json_begin_array(w, NULL);
        ot_json_put_int(w, NULL, (int64_t)begin);
        ot_json_put_int(w, NULL, (int64_t)r->spans[i].end);
        ot_json_end_array(w);
    }
    ot_json_end_array(w);
}

static void put_result(struct ot_json_writer *w, int rc, const struct ot_rendered *r) {
    ot_json_begin_object(w, NULL);
    if (rc < 0)
        ot_json_put_text(w, "error", ot_error_text());
    else
        ot_json_put_string(w, "text", r->text ? r->text : "", r->bytes);
    put_trained(w, r);
    ot_json_put_int(w, "untrainable", r->untrainable_turns);
    ot_json_put_bool(w, "left_out", r->left_out);
    ot_json_end_object(w);
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    struct ot_rendered rendered = {0};
    struct ot_tokenizer *tokenizer;
    if (argc != 2 || ot_tokenizer_open(argv[1], &tokenizer) < 0) {
        fprintf(stderr, "usage: render_rows TOKENIZER.json < JOBS\n");
        return 2;
    }
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        struct ot_json_writer w = {.indent = -1};
        struct ot_json *job = NULL;
        char *result;
        size_t bytes;
        ot_rendered_reset(&rendered);
        int rc = ot_json_parse(line, (size_t)n, "stdin", &job);
        if (rc == 0)
            rc = render(job, tokenizer, &rendered);
        put_result(&w, rc, &rendered);
        ot_json_free(job);
        if (ot_json_writer_take(&w, &result, &bytes) < 0)
            return 1;
        puts(result);
        free(result);
    }
    ot_rendered_free(&rendered);
    ot_tokenizer_close(tokenizer);
    free(line);
    return 0;
}
