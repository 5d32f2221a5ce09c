/* Templates of models: the input is a template. It is rendered with a conversation. A text has whole
 * characters and spans inside of it, in order, and the same template renders the same text again. */
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/utf8.h"
#include "src/jinja/jinja.h"
#include "tests/fuzz/target.h"

/* Few enough that a loop without an end takes some milliseconds. */
enum { MOST_STEPS = 20000 };

static const char inputs[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a \\u00e4\\ud83d\\ude00 '\\\" "
    "<think>b</think>c\"}, "
    "{\"role\": \"assistant\", \"content\": \" d\\n\", \"tool_calls\": [{\"function\": {\"name\": "
    "\"f\", \"arguments\": "
    "{\"x\": [1, 2.5, null, true]}}}]}, {\"role\": \"tool\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"e\"}]}], "
    "\"tools\": [{\"name\": \"f\"}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";

static struct ot_json *tree;

static size_t take_variables(struct ot_jinja_variable variables[8]) {
    void *cursor = NULL;
    const char *name;
    struct ot_json *value;
    size_t n = 0;
    if (!tree)
        FUZZ_CHECK(ot_json_parse(inputs, sizeof inputs - 1, "inputs", &tree) == 0);
    while (ot_json_next(tree, &cursor, &name, &value))
        variables[n++] = (struct ot_jinja_variable){.name = name, .value = value};
    return n;
}

static void check_text(const struct ot_jinja_text *text) {
    size_t last = 0;
    for (size_t i = 0, n; i < text->bytes; i += n) {
        n = ot_utf8_character(text->text + i, text->bytes - i);
        FUZZ_CHECK(n > 0);
    }
    for (size_t i = 0; i < text->n_spans; i++) {
        FUZZ_CHECK(text->spans[i].begin <= text->spans[i].end && text->spans[i].end <= text->bytes);
        FUZZ_CHECK(text->spans[i].end >= last);
        last = text->spans[i].end;
    }
}

static int render(const struct ot_jinja *jinja, struct ot_jinja_text *text) {
    struct ot_jinja_variable variables[8];
    size_t n = take_variables(variables);
    return ot_jinja_render_within(jinja, variables, n, (struct ot_jinja_date){2024, 7, 26}, MOST_STEPS, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_jinja *jinja;
    struct ot_jinja_text one = {0}, two = {0};
    int rc = ot_jinja_open((const char *)data, size, "input", &jinja);
    if (rc < 0) {
        FUZZ_CHECK(!jinja);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    rc = render(jinja, &one);
    FUZZ_CHECK(render(jinja, &two) == rc);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
    } else {
        check_text(&one);
        FUZZ_CHECK(one.bytes == two.bytes && (one.bytes == 0 || memcmp(one.text, two.text, one.bytes) == 0));
    }
    ot_jinja_text_free(&one);
    ot_jinja_text_free(&two);
    ot_jinja_close(jinja);
    return 0;
}
