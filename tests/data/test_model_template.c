/* A model's own chat template: the text of rows, what of it trains, and what rows may have beside their
 * turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/data/chat_render_state.h"
#include "tests/data/data_support.h"

/* A format like ChatML. White space behind the end of an answer is the template's. */
#define BEGIN   "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
#define END     "<|eos|>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
#define U(text) "{'role': 'user', 'content': '" text "'}"
#define A(text) "{'role': 'assistant', 'content': '" text "'}"

static const char plain[] = BEGIN END;

/* Rows and texts of this file have ' in place of ". The caller frees the copy. */
static char *requote(const char *text) {
    char *copy = strdup(text);
    assert_non_null(copy);
    for (char *c = copy; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return copy;
}

static struct ot_dataset *load_row(struct data_fixture *f, const char *row) {
    char *text = requote(row);
    struct ot_dataset *d = load_text(f, text);
    free(text);
    return d;
}

/* Loads one row and compares its text: [what trains]. */
static void check_row(struct data_fixture *f, const char *row, const char *want) {
    struct ot_dataset *d = load_row(f, row);
    char *text = requote(want);
    assert_int_equal(ot_dataset_rows(d), 1);
    assert_string_equal(row_text(d, 0), text);
    free(text);
    ot_dataset_close(d);
}

static void check_refused(struct data_fixture *f, const char *text, const char *words) {
    struct ot_dataset *d;
    char *row = requote(text);
    put_text(f, row);
    free(row);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_INPUT, words);
}

/* The tokens are those of the template's text: no BOS and no EOS is added. */
static void test_text_and_mask(void **state) {
    struct data_fixture *f = *state;
    use_template(f, plain);
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "<user>u<257>\n<assistant>[a<257>]");
    check_row(f, "{'messages': [" U("u") ", " A("a") ", " U("v") ", " A("b") "]}",
              "<user>u<257>\n<assistant>[a<257>]\n<user>v<257>\n<assistant>[b<257>]");
    check_row(f, "{'messages': [" U("u") ", " A("") ", " U("v") ", " A("b") "]}",
              "<user>u<257>\n<assistant><257>\n<user>v<257>\n<assistant>[b<257>]");
    f->config.train_prompt = true;
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "<[user>u<257>\n<assistant>a<257>\n]");
    f->config.train_prompt = false;
    use_template(f, "{{ bos_token }}" BEGIN END);
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "<256><user>u<257>\n<assistant>[a<257>]");
}

/* Many templates refuse a conversation without a turn: the first turn's place is found all the same. */
static void test_a_first_turn_of_the_assistant(void **state) {
    struct data_fixture *f = *state;
    static const char row[] = "{'messages': [" A("a") ", " U("v") ", " A("b") "]}",
                      want[] = "<assistant>[a<257>]\n<user>v<257>\n<assistant>[b<257>]";
    use_template(f, plain);
    check_row(f, row, want);
    use_template(f, "{{ raise_exception('No turn') if not messages }}" BEGIN END);
    check_row(f, row, want);
}

/* Without a mark of the prompt, a stand-in for the answer finds where it begins. */
static void test_templates_without_a_prompt(void **state) {
    struct data_fixture *f = *state;
    use_template(f, BEGIN "<|eos|>{% endfor %}");
    check_row(f, "{'messages': [" U("u") ", " A("a") ", " U("v") ", " A("b") "]}",
              "<user>u<257><assistant>[a<257>]<user>v<257><assistant>[b<257>]");
    /* A prompt that answers do not have: the turn begins where both part. */
    use_template(f, BEGIN "<|eos|>{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}");
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "<user>u<257><assistant>[a<257>]");
    check_row(f, "{'messages': [" U("u") ", " A("<t") "]}", "<user>u<257><assistant>[<t<257>]");
}

static void test_generation_blocks(void **state) {
    struct data_fixture *f = *state;
    static const char marked[] =
        "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|eos|>{% endgeneration %}{% else %}{{ m.content }}"
        "<|eos|>{% endif %}{{ '\n' }}{% endfor %}";
    use_template(f, marked);
    check_row(f, "{'messages': [" U("u") ", " A("a") ", " U("v") ", " A("b") "]}",
              "<user>u<257>\n<assistant>[a<257>]\n<user>v<257>\n<assistant>[b<257>]");
    check_row(f,
              "{'messages': [" U("u") ", {'role': 'assistant', 'content': 'a', 'weight': 0}, " U("v") ", " A(
                  "b") "]}",
              "<user>u<257>\n<assistant>a<257>\n<user>v<257>\n<assistant>[b<257>]");
    use_template(f, "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% "
                    "endfor %}");
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "u[a<257>]");
    check_refused(f, "{'messages': [" U("u") ", {'role': 'assistant', 'content': 'a', 'weight': 0}]}",
                  "marks 2 parts of 1 assistant turns");
    /* A token across the border trains, as in the mask of transformers. */
    use_template(f, "{% for m in messages %}{{ m.role }}{% if m.role == 'assistant' %}<|e{% generation %}os|>"
                    "{{ m.content }}{% endgeneration %}{% endif %}{% endfor %}");
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "userassistant[<257>a<257>]");
}

static void test_weights(void **state) {
    struct data_fixture *f = *state;
    static const char *const keys[] = {"'weight': 0", "'weight': 0.0", "'train': false"};
    f->config.seq_len = 512;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char row[400];
        snprintf(
            row, sizeof row,
            "{'messages': [" U("u") ", {'role': 'assistant', 'content': 'a', %s}, " U("v") ", " A("b") "]}",
            keys[i]);
        use_template(f, plain);
        check_row(f, row, "<user>u<257>\n<assistant>a<257>\n<user>v<257>\n<assistant>[b<257>]");
        f->config.chat.named = "chatml";
        check_row(f, row,
                  "<256><|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>us"
                  "er\nv<|im_end|>\n"
                  "<|im_start|>assistant\n[b<|im_end|><257>]");
        f->config.chat.named = NULL;
    }
    check_refused(f, "{'messages': [{'role': 'assistant', 'content': 'a', 'weight': 0}]}",
                  "none of its 1 rows has anything to train on");
}

/* Templates that leave out earlier thoughts. */
static const char thinks[] =
    "{% for m in messages %}<{{ m.role }}>{% set c = m.content %}{% if m.role == 'assistant' %}"
    "{% set t = c.split('</think>')[0].replace('<think>', '') if '</think>' in c else '' %}"
    "{% set c = c.split('</think>')[-1] %}"
    "{% if loop.last %}<think>{{ t }}</think>{% endif %}{% endif %}{{ c }}" END;

static void check_notes(struct data_fixture *f, const char *row, int64_t untrainable, int64_t left_out) {
    struct ot_dataset *d = load_row(f, row);
    assert_int_equal(ot_dataset_stats(d)->untrainable_turns, untrainable);
    assert_int_equal(ot_dataset_stats(d)->untrainable_rows, untrainable > 0);
    assert_int_equal(ot_dataset_stats(d)->left_out, left_out);
    assert_int_equal(ot_dataset_stats(d)->first_left_out.line, left_out);
    ot_dataset_close(d);
}

static void test_templates_that_drop_thoughts(void **state) {
    struct data_fixture *f = *state;
    static const char bare[] = "{'messages': [" U("u") ", " A("aa") ", " U("v") ", " A("b") "]}";
    static const char thoughts[] =
        "{'messages': [" U("u") ", " A("<think>hm</think>aa") ", " U("v") ", " A("<think>so</think>b") "]}";
    f->config.seq_len = 512;
    use_template(f, thinks);
    check_row(f, bare,
              "<user>u<257>\n<assistant>[aa<257>]\n<user>v<257>\n<assistant>[<think></think>b<257>]");
    check_notes(f, bare, 0, 0);
    check_row(f, thoughts,
              "<user>u<257>\n<assistant>aa<257>\n<user>v<257>\n<assistant>[<think>so</think>b<257>]");
    check_notes(f, thoughts, 1, 1);
    /* The template puts the system turn into the last turn of the user alone. */
    use_template(f, "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{% if loop.last and "
                    "m.role == 'user' %}"
                    "{{ messages[0].content }}{% endif %}{{ m.content }}<|eos|>\n{% endif %}{% endfor %}"
                    "{% if add_generation_prompt %}<assistant>{% endif %}");
    check_refused(
        f, "{'system': 's', 'messages': [" U("u") ", " A("a") "]}",
        "data.jsonl:1: cannot find the assistant's answers in the rendered conversation (turn 3: the "
        "generation prompt differs from the text before the answer); choose a format with "
        "--template");
    /* The answer is nowhere in the text, and nothing is written before it. */
    use_template(f, "{{ 'x' if messages | length > 1 }}");
    check_refused(f, "{'messages': [" U("u") ", " A("a") "]}", "cannot find the assistant's answers");
    use_template(
        f, "{% for m in messages %}{{ raise_exception('No system') if m.role == 'system' }}{% endfor %}");
    check_refused(f, "{'system': 's', 'messages': [" U("u") ", " A("a") "]}",
                  "data.jsonl:1: the template, line 1: the template refuses its input: No system");
}

/* ---- rows ---- */

static const char tools[] =
    "{% if tools %}T{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}" END;

static void test_tools(void **state) {
    struct data_fixture *f = *state;
    static const char want[] =
        "T[{'name': 'f', 'x': 1.0}]<user>u<257>\n<assistant>[(f {'a': 1})<257>]\n<tool>3<257>\n"
        "<assistant>[b<257>]";
    f->config.seq_len = 512;
    use_template(f, tools);
#define CALLS "'tool_calls': [{'id': '1', 'function': {'name': 'f', 'arguments': {'a': 1}}}]"
#define REST  "{'role': 'tool', 'content': '3'}, " A("b") "]"
    check_row(f,
              "{'tools': [{'name': 'f', 'x': 1.0}], 'messages': [" U(
                  "u") ", {'role': 'assistant', 'content': '', " CALLS "}, " REST "}",
              want);
    check_row(f,
              "{'tools': '[{\\\"name\\\": \\\"f\\\", \\\"x\\\": 1.0}]', 'messages': [" U(
                  "u") ", {'role': 'assistant', 'content': null, " CALLS "}, " REST "}",
              want);
    check_row(f,
              "{'conversations': [{'from': 'human', 'value': 'u'}, {'from': 'function_call', 'value': "
              "'[{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}, {\\\"name\\\": \\\"g\\\", "
              "\\\"arguments\\\": {}}]'}]}",
              "<user>u<257>\n<assistant>[(f {})(g {})<257>]");
    check_row(f,
              "{'tools': [{'name': 'f', 'x': 1.0}], 'conversations': [{'from': 'human', 'value': 'u'}, "
              "{'from': 'function_call', 'value': '{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": "
              "{\\\"a\\\": 1}}'}, {'from': 'observation', 'value': '3'}, {'from': 'gpt', 'value': 'b'}]}",
              want);
    check_row(f,
              "{'tools': [{'name': 'f', 'x': 1.0}], 'messages': [" U(
                  "u") ", {'role': 'assistant', 'content': '', 'function_call': {'name': 'f', "
                       "'arguments': {'a': 1}}}, " REST "}",
              want);
    check_row(f, "{'functions': [{'name': 'f'}], 'messages': [" U("u") ", " A("b") "]}",
              "T[{'type': 'function', 'function': {'name': 'f'}}]<user>u<257>\n<assistant>[b<257>]");
    use_template(f, plain);
    check_refused(f, "{'tools': [{'name': 'f'}], 'messages': [" U("u") ", " A("b") "]}",
                  "has no place for tools");
    check_refused(f, "{'messages': [" U("u") ", {'role': 'assistant', 'content': 'x', " CALLS "}]}",
                  "has no place for tool calls");
}

static void test_contents(void **state) {
    struct data_fixture *f = *state;
    static const char parts[] =
        "{'conversation': [{'role': 'user', 'content': [{'type': 'text', 'text': 'x'}, {'type': "
        "'text', 'text': 'y'}]}, " A("a") "]}";
    use_template(f, plain);
    check_row(f, parts, "<user>xy<257>\n<assistant>[a<257>]");
    use_template(f, "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}"
                    "{% else %}{% for p in m.content %}|{{ p.text }}{% endfor %}{% endif %}" END);
    check_row(f, parts, "<user>|x|y<257>\n<assistant>[a<257>]");
    use_template(f, "{% for m in messages %}<{{ m.role }}{{ m.name }}>{{ m.reasoning_content }}"
                    "{{ m.thinking }}{{ m.content }}" END);
    check_row(f,
              "{'messages': [{'role': 'user', 'content': 'u', 'name': 'n'}, {'role': 'assistant', "
              "'content': 'a', 'reasoning': 'hm', 'name': null}]}",
              "<usern>u<257>\n<assistant>[hmhma<257>]");
    /* A role that the template does not know becomes one that it knows. */
    use_template(f, plain);
    check_row(f, "{'messages': [{'role': 'developer', 'content': 'd'}, " U("u") ", " A("a") "]}",
              "<system>d<257>\n<user>u<257>\n<assistant>[a<257>]");
    use_template(f, "{# developer #}" BEGIN END);
    check_row(f, "{'messages': [{'role': 'developer', 'content': 'd'}, " U("u") ", " A("a") "]}",
              "<developer>d<257>\n<user>u<257>\n<assistant>[a<257>]");
    use_template(f, "{{ mode }}" BEGIN END);
    check_row(f, "{'chat_template_kwargs': {'mode': 'M'}, 'messages': [" U("u") ", " A("a") "]}",
              "M<user>u<257>\n<assistant>[a<257>]");
}

/* A template that does not write a turn is no reason to stop, but the program says so. */
static void test_left_out(void **state) {
    struct data_fixture *f = *state;
    use_template(f, "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content "
                    "}}<|eos|>\n{% endif %}{% endfor %}"
                    "{% if add_generation_prompt %}<assistant>{% endif %}");
    check_notes(f, "{'system': 'Be brief', 'messages': [" U("u") ", " A("a") "]}", 0, 1);
    check_notes(f, "{'messages': [" U("u") ", " A("a") "]}", 0, 0);
    use_template(f, "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}" END);
    check_notes(f, "{'messages': [" U("u\\\"v") ", " A("a") "]}", 0, 0);
}

/* Where a built-in template writes the same, tools are the own template's work. */
static void test_known_templates(void **state) {
    struct data_fixture *f = *state;
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}",
              "<256><|user|>\nu<257>\n<|assistant|>\n["
              "a<257>]");
    check_refused(f, "{'tools': [{}], 'messages': [" U("u") ", " A("a") "]}", "has no place for tools");
    struct ot_chat_renderer *both;
    check_ok(ot_chat_renderer_open(plain, strlen(plain), "the template", NULL, &both));
    check_ok(ot_chat_renderer_add_tools(both, tools, strlen(tools), "the template"));
    f->config.chat.of_model = both;
    check_row(f, "{'messages': [" U("u") ", " A("a") "]}", "<user>u<257>\n<assistant>[a<257>]");
    check_row(f, "{'tools': [{'name': 'f'}], 'messages': [" U("u") ", " A("a") "]}",
              "T[{'name': 'f'}]<user>u<257>\n<assistant>[a<257>]");
    ot_chat_renderer_close(both);
}

/* A NUL does not end the template's text, and is refused by name. The text is read to its length, and the
 * address sanitizer finds a copy that is shorter. */
static void test_nul(void **state) {
    (void)state;
    static const char *const heads[] = {"{{ messages }}", "", "{% raw %}"};
    for (size_t i = 0; i < 3; i++) {
        char text[4096];
        size_t head = strlen(heads[i]);
        struct ot_chat_renderer *own;
        memset(text, 'x', sizeof text);
        memcpy(text, heads[i], head);
        text[head] = '\0';
        check_ok(ot_chat_renderer_open(text, sizeof text, "the template", NULL, &own));
        assert_non_null(ot_chat_renderer_fault(own));
        char want[64];
        snprintf(want, sizeof want, "the template has a NUL (byte %zu)", head);
        assert_non_null(strstr(ot_chat_renderer_fault(own), want));
        ot_chat_renderer_close(own);
    }
}

/* A turn without a special token at its end: the model has to stop at the token that follows, so that token
 * trains. */
static void test_stop_token_of_the_next_turn(void **state) {
    struct data_fixture *f = *state;
    f->config.seq_len = 256;
    use_template(f, "{% for m in messages %}"
                    "{% if m.role == 'user' and not loop.first %}{{ eos_token }}{% endif %}"
                    "<{{ m.role }}>{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}<assistant>{% endif %}");
    check_row(f, "{'messages': [" U("u") ", " A("a") ", " U("v") ", " A("b") "]}",
              "<user>u<assistant>[a<257>]<user>v<assistant>[b<257>]");
}

/* A template that is slow, and not too slow in any one conversation, is refused after some of them. */
static void test_work(void **state) {
    struct data_fixture *f = *state;
    struct ot_dataset *d;
    static const char row[] = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n"
                              "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    use_template(f, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    f->config.chat.of_model = f->own;
    d = load_text(f, row);
    ot_dataset_close(d);
    struct ot_chat_work *work = f->own->work;
    assert_int_equal(work->conversations, 2);
    assert_in_range(work->steps, 10, 10000);
    work->steps = OT_CHAT_FREE_STEPS + 2 * (size_t)OT_CHAT_STEPS_EACH;
    d = load_text(f, row); /* now there are four conversations */
    ot_dataset_close(d);
    work->steps = OT_CHAT_FREE_STEPS + 8 * (size_t)OT_CHAT_STEPS_EACH;
    f->config.skip_bad = true; /* not row by row */
    put_text(f, row);
    check_fails(ot_dataset_open(&f->config, &d), OT_E_USAGE,
                "the model's chat template is too slow: it has taken 41");
}

/* ---- against the built-in templates ---- */

/* True for each byte that trains. White space at the end of a stretch does not count. */
static void find_trained(const struct ot_rendered *r, bool *trained) {
    size_t begin = 0;
    for (size_t i = 0; i < r->n_spans; begin = r->spans[i++].end)
        for (size_t k = begin; k < r->spans[i].end; k++)
            trained[k] = r->spans[i].trained;
    for (size_t k = r->bytes; k-- > 0;)
        if (trained[k] && !trained[k + 1] && strchr(" \n", r->text[k]))
            trained[k] = false;
}

static void check_same(const struct ot_rendered *own, const struct ot_rendered *builtin) {
    bool *a = calloc(own->bytes + 1, 1), *b = calloc(own->bytes + 1, 1);
    assert_int_equal(own->bytes, builtin->bytes);
    assert_memory_equal(own->text, builtin->text, own->bytes);
    find_trained(own, a);
    find_trained(builtin, b);
    assert_memory_equal(a, b, own->bytes);
    free(a);
    free(b);
}

/* Renders a conversation by a built-in template and by its Jinja text. Returns 1 if both render it. */
static int compare(struct data_fixture *f, const struct ot_chat_template *t, const struct ot_json *row,
                   const struct ot_chat_marks *marks) {
    struct ot_conversation talk = {0};
    struct ot_rendered own = {0}, builtin = {0};
    check_ok(ot_conversation_read(&talk, row, "messages", "f:1"));
    int rc = render_builtin(t->name, talk.messages, talk.n, marks, &builtin);
    int own_rc = ot_chat_renderer_render(f->own, &talk, f->tokenizer, marks, "f:1", &own);
    bool same = rc == 0 && own_rc == 0 && own.untrainable_turns == 0;
    if (same)
        check_same(&own, &builtin);
    ot_conversation_free(&talk);
    ot_rendered_free(&own);
    ot_rendered_free(&builtin);
    return same;
}

/* Where both find the turns, they are the same. Templates that move system turns or drop thoughts are known
 * by name because the engine alone cannot find all of their turns. */
static void test_same_as_built_in(void **state) {
    struct data_fixture *f = *state;
    static const char *const names[] = {"chatml",    "qwen2",  "qwen2.5",   "llama-3",
                                        "llama-3.1", "zephyr", "mistral-v0"};
    struct ot_chat_marks marks = {{"<s>", 3, -1}, {"</s>", 4, -1}};
    struct ot_json *golden;
    int same = 0;
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/chat/templates.json", 1 << 20, &golden));
    const struct ot_json *talks = ot_json_get(golden, "conversations");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct ot_chat_template *t = ot_chat_template_find(names[i]);
        char *jinja;
        size_t bytes;
        check_ok(ot_chat_template_write(t, false, &jinja, &bytes));
        use_template(f, jinja);
        free(jinja);
        for (size_t k = 0; k < ot_json_length(talks); k++) {
            struct ot_json_writer w = {.indent = -1};
            struct ot_json *row;
            char *text;
            ot_json_begin_object(&w, NULL);
            ot_json_put_value(&w, "messages", ot_json_at(talks, k));
            ot_json_end_object(&w);
            check_ok(ot_json_writer_take(&w, &text, &bytes));
            check_ok(ot_json_parse(text, bytes, "row", &row));
            same += compare(f, t, row, &marks);
            ot_json_free(row);
            free(text);
        }
    }
    assert_in_range(same, 150, 7 * 28);
    ot_json_free(golden);
}

int main(void) {
#define row_test(test) cmocka_unit_test_setup_teardown(test, open_data_fixture, close_data_fixture)
    const struct CMUnitTest tests[] = {
        row_test(test_text_and_mask),
        row_test(test_a_first_turn_of_the_assistant),
        row_test(test_templates_without_a_prompt),
        row_test(test_generation_blocks),
        row_test(test_weights),
        row_test(test_templates_that_drop_thoughts),
        row_test(test_tools),
        row_test(test_contents),
        row_test(test_left_out),
        row_test(test_known_templates),
        row_test(test_nul),
        row_test(test_work),
        row_test(test_stop_token_of_the_next_turn),
        row_test(test_same_as_built_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
