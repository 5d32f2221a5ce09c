/* Renders templates for scripts/golden/jinja_real.py, which compares the texts with those of jinja2.
 *
 * Each line of stdin is an object {"template": text, "variables": {..}}. Each line of stdout is an object:
 * {"text": text, "spans": [[begin, end], ..]} with offsets in bytes, or {"error": sentence}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/jinja/jinja.h"

enum { MOST_VARIABLES = 64 };

static size_t read_variables(const struct ot_json *object, struct ot_jinja_variable *out) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    size_t n = 0;
    while (n < MOST_VARIABLES && ot_json_next(object, &cursor, &name, &value))
        out[n++] = (struct ot_jinja_variable){.name = name, .value = value};
    return n;
}

static int render(const struct ot_json *job, struct ot_jinja_text *text) {
    struct ot_jinja_variable variables[MOST_VARIABLES];
    struct ot_jinja *jinja;
    size_t bytes = 0, n = read_variables(ot_json_get(job, "variables"), variables);
    const char *source = ot_json_string(ot_json_get(job, "template"), &bytes);
    OT_TRY(ot_jinja_open(source ? source : "", bytes, "template", &jinja));
    int rc = ot_jinja_render(jinja, variables, n, (struct ot_jinja_date){2024, 7, 26}, text);
    ot_jinja_close(jinja);
    return rc;
}

static void put_result(struct ot_json_writer *w, int rc, const struct ot_jinja_text *text) {
    ot_json_begin_object(w, NULL);
    if (rc < 0)
        ot_json_put_text(w, "error", ot_error_text());
    else
        ot_json_put_string(w, "text", text->text, text->bytes);
    ot_json_begin_array(w, "spans");
    for (size_t i = 0; rc == 0 && i < text->n_spans; i++) {
        ot_json_begin_array(w, NULL);
        ot_json_put_int(w, NULL, (int64_t)text->spans[i].begin);
        ot_json_put_int(w, NULL, (int64_t)text->spans[i].end);
        ot_json_end_array(w);
    }
    ot_json_end_array(w);
    ot_json_end_object(w);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    struct ot_jinja_text text = {0};
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        struct ot_json_writer w = {.indent = -1};
        struct ot_json *job = NULL;
        char *result;
        size_t bytes;
        int rc = ot_json_parse(line, (size_t)n, "stdin", &job);
        if (rc == 0)
            rc = render(job, &text);
        put_result(&w, rc, &text);
        ot_json_free(job);
        if (ot_json_writer_take(&w, &result, &bytes) < 0)
            return 1;
        puts(result);
        free(result);
    }
    ot_jinja_text_free(&text);
    free(line);
    return 0;
}
