/* The texts of the named chat templates, letter by letter, and prompt formats. The expected texts are what
 * the chat_template in the named models' tokenizer_config.json renders. Text in [brackets] trains, all other
 * text does not. */
#include <stdio.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/data/data_support.h"

static const struct ot_chat_marks marks = {{"<s>", 3, -1}, {"</s>", 4, -1}};

static const char *marked(const struct ot_rendered *r) {
    static char text[4096];
    size_t at = 0, begin = 0;
    for (size_t i = 0; i < r->n_spans; i++) {
        bool first = r->spans[i].trained && (i == 0 || !r->spans[i - 1].trained);
        bool last = r->spans[i].trained && (i + 1 == r->n_spans || !r->spans[i + 1].trained);
        if (first)
            text[at++] = '[';
        memcpy(text + at, r->text + begin, r->spans[i].end - begin);
        at += r->spans[i].end - begin;
        begin = r->spans[i].end;
        if (last)
            text[at++] = ']';
    }
    text[at] = '\0';
    assert_int_equal(begin, r->bytes);
    return text;
}

static struct ot_message turn(enum ot_role role, const char *text) {
    return (struct ot_message){.role = role, .text = text, .bytes = strlen(text)};
}

static void check_template(const char *name, struct ot_message *turns, size_t n, const char *want) {
    struct ot_rendered r = {0};
    check_ok(render_builtin(name, turns, n, &marks, &r));
    assert_string_equal(marked(&r), want);
    ot_rendered_free(&r);
}

static void test_conversations(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_SYSTEM, "S"), turn(OT_ROLE_USER, " A\n"),
                                turn(OT_ROLE_ASSISTANT, "B"), turn(OT_ROLE_USER, "C"),
                                turn(OT_ROLE_ASSISTANT, "D")};
    check_template("llama-2", talk, 5,
                   "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\n A [/INST][ B </s>]<s>[INST] C [/INST][ D </s>]");
    check_template("llama-3", talk, 5,
                   "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n[B<|eot_id|>]"
                   "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n[D<|eot_id|>]");
    check_template("chatml", talk, 5,
                   "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n "
                   "A\n<|im_end|>\n<|im_start|>assistant\n[B<|im_end|>]"
                   "\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n[D<|im_end|>]\n");
    check_template("mistral", talk, 5, "<s>[INST] S\n\n A [/INST][ B</s>][INST] C [/INST][ D</s>]");
    check_template("zephyr", talk, 5,
                   "<|system|>\nS</s>\n<|user|>\n "
                   "A\n</s>\n<|assistant|>\n[B</s>]\n<|user|>\nC</s>\n<|assistant|>\n[D</s>]\n");
    check_template(
        "alpaca", talk + 3, 2,
        "Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nC\n\n### Response:[D</s>]\n\n");
}

/* White space around turns, as transformers renders the published templates of these four models. */
static void test_spaces(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_SYSTEM, " S\n"), turn(OT_ROLE_USER, " A\n"),
                                turn(OT_ROLE_ASSISTANT, " B "), turn(OT_ROLE_USER, "\tC "),
                                turn(OT_ROLE_ASSISTANT, "D\n")};
    check_template("llama-2", talk, 5,
                   "<s>[INST] <<SYS>>\n S\n\n<</SYS>>\n\n A [/INST][ B </s>]<s>[INST] C [/INST][ D </s>]");
    check_template("llama-2", talk + 1, 4, "<s>[INST] A [/INST][ B </s>]<s>[INST] C [/INST][ D </s>]");
    check_template("llama-3", talk, 3,
                   "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
                   "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
                   "<|start_header_id|>assistant<|end_header_id|>\n\n[B<|eot_id|>]");
    check_template("chatml", talk, 3,
                   "<|im_start|>system\n S\n<|im_end|>\n<|im_start|>user\n A\n<|im_end|>\n"
                   "<|im_start|>assistant\n[ B <|im_end|>]\n");
    check_template("zephyr", talk, 3, "<|system|>\n S\n</s>\n<|user|>\n A\n</s>\n<|assistant|>\n[ B </s>]\n");
}

static void test_no_system(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_USER, "A"), turn(OT_ROLE_ASSISTANT, "B")};
    check_template("llama-2", talk, 2, "<s>[INST] A [/INST][ B </s>]");
    check_template("mistral", talk, 2, "<s>[INST] A [/INST][ B</s>]");
    check_template("zephyr", talk, 2, "<|user|>\nA</s>\n<|assistant|>\n[B</s>]\n");
}

static void test_alpaca_input(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_USER, "A"), turn(OT_ROLE_ASSISTANT, "B")};
    talk[0].input = "I";
    talk[0].input_bytes = 1;
    check_template(
        "alpaca", talk, 2,
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\nA\n\n### "
        "Input:\nI\n\n"
        "### Response:[B</s>]\n\n");
    check_template("zephyr", talk, 2, "<|user|>\nA\n\nI</s>\n<|assistant|>\n[B</s>]\n");
}

/* An empty answer does not train, and neither does its end mark: otherwise the model would learn to stop at
 * once. */
static void test_silent_turn(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_USER, "A"), turn(OT_ROLE_ASSISTANT, " \n"),
                                turn(OT_ROLE_USER, "C"), turn(OT_ROLE_ASSISTANT, "D")};
    check_template("mistral", talk, 4, "<s>[INST] A [/INST] </s>[INST] C [/INST][ D</s>]");
}

/* Compares the spans: {text the user wrote}, (trained), <id>. */
static void check_spans(const char *name, struct ot_message *turns, size_t n, const char *want) {
    static const struct ot_chat_marks tokens = {{"<s>", 3, 1}, {"</s>", 4, 2}};
    struct ot_rendered r = {0};
    char text[1024];
    size_t at = 0, begin = 0;
    check_ok(render_builtin(name, turns, n, &tokens, &r));
    for (size_t i = 0; i < r.n_spans; begin = r.spans[i++].end) {
        const struct ot_span *s = &r.spans[i];
        int bytes = (int)(s->end - begin);
        at += (size_t)(s->id >= 0 ? sprintf(text + at, "<%d>", s->id)
                                  : sprintf(text + at, "%s%.*s%s", s->user ? "{" : "", bytes, r.text + begin,
                                            s->user ? "}" : ""));
        if (s->trained)
            text[at++] = '*';
    }
    text[at] = '\0';
    assert_string_equal(text, want);
    ot_rendered_free(&r);
}

/* What the user wrote is known to the byte, even if the template's own text looks the same: it never becomes
 * BOS or EOS, and special tokens in it are the user's. */
static void test_what_the_user_wrote(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_USER, "</s>"), turn(OT_ROLE_ASSISTANT, "<s>"),
                                turn(OT_ROLE_USER, " </s>"), turn(OT_ROLE_ASSISTANT, "</s> ")};
    check_spans("mistral", talk, 4, "<1>[INST] {</s>} [/INST] *{<s>}*<2>*[INST] {</s>} [/INST] *{</s>}*<2>*");
    check_spans("zephyr", talk, 2, "<|user|>\n{</s>}<2>\n<|assistant|>\n{<s>}*<2>*\n");
    struct ot_message thinks[] = {turn(OT_ROLE_USER, "user"),
                                  turn(OT_ROLE_ASSISTANT, "<think>\nt\n</think>\n\na")};
    check_spans("qwen3", thinks, 2,
                "<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n*{t}*\n</think>\n\n*{a}*"
                "<|im_end|>*\n");
    struct ot_message pair[] = {turn(OT_ROLE_USER, " a "), turn(OT_ROLE_ASSISTANT, "b")};
    pair[0].input = " i ";
    pair[0].input_bytes = 3;
    check_spans("llama-2", pair, 2, "<1>[INST] {a}\n\n{i} [/INST] *{b}* *<2>*");
    check_spans("chatml", pair, 2,
                "<|im_start|>user\n{ a }\n\n{ i }<|im_end|>\n<|im_start|>assistant\n{b}*<|im_end|>*\n");
}

static void check_system_is_of_user(const char *name, struct ot_rendered *r) {
    struct ot_message talk[] = {turn(OT_ROLE_SYSTEM, "Zq"), turn(OT_ROLE_USER, "u"),
                                turn(OT_ROLE_ASSISTANT, "a")};
    ot_rendered_reset(r);
    if (strcmp(name, "mistral-v0") == 0)
        return; /* it refuses a system turn */
    check_ok(render_builtin(name, talk, 3, &marks, r));
    const char *found = memmem(r->text, r->bytes, "Zq", 2);
    assert_non_null(found);
    size_t i = 0;
    while (r->spans[i].end <= (size_t)(found - r->text))
        i++;
    assert_true(r->spans[i].user);
}

#define LLAMA(role)  "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define CHATML(role) "<|im_start|>" role "\n"
#define LLAMA_TALK                                                                                           \
    LLAMA("user")                                                                                            \
    "{u}<|eot_id|>" LLAMA("assistant") "{a}*<|eot_id|>*" LLAMA("user") "{v}<|eot_id|>" LLAMA(                \
        "assistant") "{b}*<|eot_id|>*"
#define CHATML_TALK(thought)                                                                                 \
    CHATML("user")                                                                                           \
    "{u}<|im_end|>\n" CHATML("assistant") "{a}*<|im_end|>*\n" CHATML("user") "{v}<|im_end|>\n" CHATML(       \
        "assistant") thought "{b}*<|im_end|>*\n"

/* Of each template: what trains, what the user wrote, and what is BOS and EOS. */
static void test_every_template(void **state) {
    (void)state;
    struct ot_message talk[] = {turn(OT_ROLE_USER, "u"), turn(OT_ROLE_ASSISTANT, "a"),
                                turn(OT_ROLE_USER, "v"), turn(OT_ROLE_ASSISTANT, "b")};
    struct ot_message lonely[] = {turn(OT_ROLE_SYSTEM, "S")};
    static const struct {
        const char *name, *want;
    } cases[] = {
        {"llama-2", "<1>[INST] {u} [/INST] *{a}* *<2>*<1>[INST] {v} [/INST] *{b}* *<2>*"},
        {"llama-3", "<1>" LLAMA_TALK},
        {"llama-3.1", "<1>" LLAMA("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul "
                                            "2024\n\n<|eot_id|>" LLAMA_TALK},
        {"chatml", CHATML_TALK("")},
        {"qwen2", CHATML("system") "You are a helpful assistant.<|im_end|>\n" CHATML_TALK("")},
        {"qwen2.5", CHATML("system") "You are Qwen, created by Alibaba Cloud. You are a helpful "
                                     "assistant.<|im_end|>\n" CHATML_TALK("")},
        {"qwen3", CHATML_TALK("<think>\n\n</think>\n\n*")},
        {"mistral", "<1>[INST] {u} [/INST] *{a}*<2>*[INST] {v} [/INST] *{b}*<2>*"},
        {"mistral-v0", "<1>[INST] {u} [/INST]{a}*<2>*[INST] {v} [/INST]{b}*<2>*"},
        {"mistral-v1", "<1> [INST] {u} [/INST] *{a}*<2>* [INST] {v} [/INST] *{b}*<2>*"},
        {"mistral-v2", "<1>[INST] {u}[/INST] *{a}*<2>*[INST] {v}[/INST] *{b}*<2>*"},
        {"mistral-v3", "<1>[INST] {u}[/INST] *{a}*<2>*[INST] {v}[/INST] *{b}*<2>*"},
        {"mistral-tekken", "<1>[INST]{u}[/INST]{a}*<2>*[INST]{v}[/INST]{b}*<2>*"},
        {"zephyr", "<|user|>\n{u}<2>\n<|assistant|>\n{a}*<2>*\n<|user|>\n{v}<2>\n<|assistant|>\n{b}*<2>*\n"},
        {"alpaca", "Below is an instruction that describes a task. Write a response that appropriately "
                   "completes the request.\n\n### Instruction:\n{u}\n\n### Response:{a}*<2>*\n\n"
                   "### Instruction:\n{v}\n\n### Response:{b}*<2>*\n\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_rendered r = {0};
        const struct ot_chat_template *t = ot_chat_template_at((int)i);
        assert_string_equal(t->name, cases[i].name);
        check_spans(t->name, talk, 4, cases[i].want);
        int rc = render_builtin(t->name, lonely, 1, &marks, &r);
        bool refused = strstr(t->name, "mistral") || strcmp(t->name, "llama-2") == 0;
        assert_int_equal(rc, refused ? -OT_E_INPUT : 0);
        check_system_is_of_user(t->name, &r);
        ot_rendered_free(&r);
    }
    assert_null(ot_chat_template_at(sizeof cases / sizeof *cases));
}

static void test_lonely_system(void **state) {
    (void)state;
    struct ot_rendered r = {0};
    struct ot_message talk[] = {turn(OT_ROLE_SYSTEM, "S"), turn(OT_ROLE_ASSISTANT, "B")};
    check_fails(render_builtin("llama-2", talk, 2, &marks, &r), OT_E_INPUT,
                "f:1: turn 2 has the role assistant");
    ot_rendered_reset(&r);
    check_fails(render_builtin("mistral", talk, 1, &marks, &r), OT_E_INPUT,
                "f:1: template mistral puts a system turn");
    check_fails(render_builtin("mistral", talk, 2, &marks, &r), OT_E_INPUT,
                "f:1: template mistral puts a system turn");
    check_fails(render_builtin("mistral-v0", talk, 2, &marks, &r), OT_E_INPUT,
                "f:1: template mistral-v0 does not allow a system turn");
    ot_rendered_free(&r);
}

static void test_names(void **state) {
    (void)state;
    char names[256];
    strcpy(names, ot_chat_template_names());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", "))
        assert_string_equal(ot_chat_template_find(name)->name, name);
    assert_null(ot_chat_template_find("llama"));
}

static void check_format(const char *format, const char *row, const char *want) {
    struct ot_prompt_format *f;
    struct ot_json *json;
    struct ot_rendered r = {0};
    check_ok(ot_prompt_format_open(format, &f));
    check_ok(ot_json_parse(row, strlen(row), "row", &json));
    ot_prompt_format_render(f, json, &r);
    assert_string_equal(marked(&r), want);
    ot_rendered_free(&r);
    ot_json_free(json);
    ot_prompt_format_close(f);
}

static void test_prompt_format(void **state) {
    (void)state;
    check_format("{a}\\n{b}\\t{{x}}\\\\", "{\"a\": \"1\", \"b\": \"{2}\"}", "1\n{2}\t{x}\\");
    check_format("{a}{a}", "{\"a\": \"1\"}", "11");
    check_format("plain", "{}", "plain");
    check_format("{long name}{{{a}}}", "{\"a\": \"x\", \"long name\": \"y\"}", "y{x}");
    check_format("{a}|{gone}|{null}", "{\"a\": \"\", \"null\": null}", "||");
}

static void test_bad_prompt_format(void **state) {
    (void)state;
    struct ot_prompt_format *f;
    check_fails(ot_prompt_format_open("{a", &f), OT_E_USAGE, "must begin a placeholder");
    check_fails(ot_prompt_format_open("{}", &f), OT_E_USAGE, "must begin a placeholder");
    check_fails(ot_prompt_format_open("{a{b}}", &f), OT_E_USAGE, "must begin a placeholder");
    check_fails(ot_prompt_format_open("a}", &f), OT_E_USAGE, "single '}'");
    check_fails(ot_prompt_format_open("a\\q", &f), OT_E_USAGE, "unknown escape '\\q'");
    check_fails(ot_prompt_format_open("a\\", &f), OT_E_USAGE, "unknown escape");
    assert_null(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_no_system),
        cmocka_unit_test(test_alpaca_input),
        cmocka_unit_test(test_silent_turn),
        cmocka_unit_test(test_what_the_user_wrote),
        cmocka_unit_test(test_every_template),
        cmocka_unit_test(test_lonely_system),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_prompt_format),
        cmocka_unit_test(test_bad_prompt_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
