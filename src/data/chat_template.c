#include "src/data/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/data/chat_table.h"
#include "src/tokenizer/text.h"
#include "src/tokenizer/tokenizer.h"

#define QWEN_HEADS                                                                                           \
    .system_begin = "<|im_start|>system\n", .system_end = "<|im_end|>\n",                                    \
    .user_begin = "<|im_start|>user\n", .user_end = "<|im_end|>\n",                                          \
    .answer_head = "<|im_start|>assistant\n", .answer_end = "<|im_end|>", .answer_tail = "\n"
#define LLAMA_3_TURNS                                                                                        \
    .system_end = "<|eot_id|>", .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",                \
    .user_end = "<|eot_id|>", .answer_head = "<|start_header_id|>assistant<|end_header_id|>\n\n",            \
    .answer_end = "<|eot_id|>"
#define LLAMA_3_SYSTEM "<|start_header_id|>system<|end_header_id|>\n\n"
/* Llama 3.2's template writes the present day, or this day if it cannot know the present one. A run must have
 * the same rows on every day, so we always write this day. */
#define LLAMA_31_DATES "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static const struct ot_chat_template templates[] = {
    {
        .name = "llama-2",
        .trim_prompt = true,
        .trim_answer = true,
        .system_in_user = true,
        .alternates = true,
        .system_begin = "<<SYS>>\n",
        .system_end = "\n<</SYS>>\n\n",
        .user_begin = "{bos}[INST] ",
        .user_end = " [/INST]",
        .answer_begin = " ",
        .answer_end = " {eos}",
    },
    {
        .name = "llama-3",
        .own_token = "<|eot_id|>",
        .trim_prompt = true,
        .trim_answer = true,
        .start = "{bos}",
        .system_begin = LLAMA_3_SYSTEM,
        LLAMA_3_TURNS,
    },
    {
        .name = "llama-3.1", /* also of 3.2 and 3.3 */
        .trim_prompt = true,
        .trim_answer = true,
        .start = "{bos}",
        .preamble = LLAMA_3_SYSTEM LLAMA_31_DATES "<|eot_id|>",
        .preamble_input = LLAMA_3_SYSTEM LLAMA_31_DATES "<|eot_id|>",
        .system_begin = LLAMA_3_SYSTEM LLAMA_31_DATES,
        .system_again = LLAMA_3_SYSTEM,
        LLAMA_3_TURNS,
    },
    {.name = "chatml", .own_token = "<|im_end|>", QWEN_HEADS},
    {
        .name = "qwen2",
        .preamble = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
        .preamble_input = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
        QWEN_HEADS,
    },
    {
        .name = "qwen2.5",
        .preamble = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                    "assistant.<|im_end|>\n",
        .preamble_input = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
                          "assistant.<|im_end|>\n",
        QWEN_HEADS,
    },
    {.name = "qwen3", .thinks = true, QWEN_HEADS},
    {
        .name = "mistral", /* between the versions below; for models without a template */
        .trim_prompt = true,
        .trim_answer = true,
        .system_in_user = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = "[INST] ",
        .user_end = " [/INST]",
        .answer_begin = " ",
        .answer_end = "{eos}",
    },
    {
        .name = "mistral-v0", /* the first template of 7B-Instruct-v0.2 and Mixtral-8x7B-Instruct */
        .no_system = true,
        .alternates = true,
        .start = "{bos}",
        .user_begin = "[INST] ",
        .user_end = " [/INST]",
        .answer_end = "{eos}",
    },
    {
        .name = "mistral-v1", /* 7B-Instruct-v0.1 and v0.2, Mixtral-8x7B-Instruct */
        .system_in_user = true,
        .alternates = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = " [INST] ",
        .user_end = " [/INST]",
        .answer_begin = " ",
        .answer_end = "{eos}",
    },
    {
        .name = "mistral-v2", /* Mixtral-8x22B-Instruct */
        .system_in_user = true,
        .system_in_last = true,
        .alternates = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = "[INST] ",
        .user_end = "[/INST]",
        .answer_begin = " ",
        .answer_end = "{eos}",
    },
    {
        .name = "mistral-v3", /* 7B-Instruct-v0.3 */
        .trim_answer = true,
        .system_in_user = true,
        .system_in_last = true,
        .alternates = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = "[INST] ",
        .user_end = "[/INST]",
        .answer_begin = " ",
        .answer_end = "{eos}",
    },
    {
        .name = "mistral-tekken", /* v3 for the tokenizer of Nemo-Instruct-2407 */
        .system_in_user = true,
        .system_in_last = true,
        .alternates = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = "[INST]",
        .user_end = "[/INST]",
        .answer_end = "{eos}",
    },
    {
        .name = "zephyr",
        .system_begin = "<|system|>\n",
        .system_end = "{eos}\n",
        .user_begin = "<|user|>\n",
        .user_end = "{eos}\n",
        .answer_head = "<|assistant|>\n",
        .answer_end = "{eos}",
        .answer_tail = "\n",
    },
    {
        .name = "alpaca", /* texts of the Stanford project's train.py */
        .preamble =
            "Below is an instruction that describes a task. Write a response that appropriately completes "
            "the request.\n\n",
        .preamble_input =
            "Below is an instruction that describes a task, paired with an input that provides further "
            "context. Write a response that appropriately completes the request.\n\n",
        .system_end = "\n\n",
        .user_begin = "### Instruction:\n",
        .input_begin = "\n\n### Input:\n",
        .user_end = "\n\n",
        .answer_head = "### Response:",
        .answer_end = "{eos}",
        .answer_tail = "\n\n",
    },
};

enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const struct ot_chat_template *ot_chat_template_at(int index) {
    return index < N_TEMPLATES ? &templates[index] : NULL;
}

const struct ot_chat_template *ot_chat_template_find(const char *name) {
    for (int i = 0; i < N_TEMPLATES; i++)
        if (strcmp(templates[i].name, name) == 0)
            return &templates[i];
    return NULL;
}

const char *ot_chat_template_name(const struct ot_chat_template *t) {
    return t->name;
}

const char *ot_chat_template_names(void) {
    return "llama-2, llama-3, llama-3.1, chatml, qwen2, qwen2.5, qwen3, mistral, mistral-v0, mistral-v1, "
           "mistral-v2, mistral-v3, mistral-tekken, zephyr, alpaca";
}

const struct ot_chat_template *ot_chat_template_guess(const struct ot_tokenizer *tokenizer) {
    for (int i = 0; i < N_TEMPLATES; i++) {
        const char *own = templates[i].own_token;
        if (own && ot_tokenizer_find(tokenizer, own, strlen(own)) >= 0)
            return &templates[i];
    }
    return NULL;
}

/* ---- white space, by the definition of Python's str.strip and Jinja's trim ---- */

/* Length of the white space character at the front of text[0..n), n > 0; 0: not white space. */
static size_t space_at_front(const char *text, size_t n) {
    unsigned char lead = (unsigned char)text[0];
    size_t length = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : 0;
    if (length == 0 || length > n)
        return 0;
    uint32_t code_point = ot_utf8_decode(text, &length);
    return ot_unicode_is_space(code_point) || (code_point >= 0x1c && code_point <= 0x1f) ? length : 0;
}

static size_t space_at_back(const char *text, size_t n) {
    for (size_t length = 1; length <= 3 && length <= n; length++)
        if (space_at_front(text + n - length, length) == length)
            return length;
    return 0;
}

/* Drops white space from the end of the text, but nothing before `floor`. */
static void trim_back(struct ot_rendered *r, size_t floor) {
    size_t bytes = r->bytes, length;
    while (bytes > floor && (length = space_at_back(r->text + floor, bytes - floor)) > 0)
        bytes -= length;
    if (bytes < r->bytes)
        ot_rendered_cut(r, bytes);
}

static void append_content(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool trim) {
    size_t length;
    while (trim && bytes > 0 && (length = space_at_front(text, bytes)) > 0) {
        text += length;
        bytes -= length;
    }
    size_t floor = r->bytes;
    ot_rendered_append(r, text, bytes, trained, true);
    if (trim)
        trim_back(r, floor);
}

/* ---- turns ---- */

/* Appends a text of a template (NULL: nothing) with {bos} and {eos} replaced by the tokens. */
static void append_mark(struct ot_rendered *r, const char *text, const struct ot_chat_marks *marks,
                        bool trained) {
    while (text && *text) {
        const char *brace = strchr(text, '{');
        size_t bytes = brace ? (size_t)(brace - text) : strlen(text);
        ot_rendered_append(r, text, bytes, trained, false);
        if (!brace)
            return;
        const struct ot_chat_mark *mark = strncmp(brace, "{bos}", 5) == 0 ? &marks->bos : &marks->eos;
        ot_rendered_append_token(r, mark->text, mark->bytes, mark->id, trained);
        text = brace + 5;
    }
}

static void render_system(const struct ot_chat_template *t, const struct ot_turn *turn, bool first,
                          const struct ot_chat_marks *marks, struct ot_rendered *r) {
    bool again = !first && t->system_again;
    append_mark(r, again ? t->system_again : t->system_begin, marks, false);
    append_content(r, turn->text, turn->bytes, false, t->trim_prompt && !t->system_in_user);
    append_mark(r, t->system_end, marks, false);
}

/* system: the system turn to put in front, or NULL. Both texts are then trimmed as one text. */
static void render_user(const struct ot_chat_template *t, const struct ot_turn *system,
                        const struct ot_turn *turn, const struct ot_chat_marks *marks,
                        struct ot_rendered *r) {
    append_mark(r, t->user_begin, marks, false);
    size_t floor = r->bytes;
    if (system)
        render_system(t, system, true, marks, r);
    append_content(r, turn->text, turn->bytes, false, t->trim_prompt && !system);
    if (system && t->trim_prompt)
        trim_back(r, floor);
    if (turn->input) {
        append_mark(r, t->input_begin ? t->input_begin : "\n\n", marks, false);
        append_content(r, turn->input, turn->input_bytes, false, t->trim_prompt);
    }
    append_mark(r, t->user_end, marks, false);
}

struct part {
    const char *text;
    size_t bytes;
};

static struct part strip_lines(struct part p, bool front, bool back) {
    for (; front && p.bytes > 0 && *p.text == '\n'; p.bytes--)
        p.text++;
    for (; back && p.bytes > 0 && p.text[p.bytes - 1] == '\n'; p.bytes--)
        ;
    return p;
}

/* Pointer to the last `mark` in a text, or NULL. */
static const char *find_last(struct part p, const char *mark) {
    size_t n = strlen(mark);
    for (size_t at = p.bytes >= n ? p.bytes - n + 1 : 0; at-- > 0;)
        if (memcmp(p.text + at, mark, n) == 0)
            return p.text + at;
    return NULL;
}

static const char *find_first(struct part p, const char *mark) {
    size_t n = strlen(mark);
    for (size_t at = 0; at + n <= p.bytes; at++)
        if (memcmp(p.text + at, mark, n) == 0)
            return p.text + at;
    return NULL;
}

/* An answer may begin with a thought: <think> ... </think>. Removes the thought from *answer, as Qwen3's
 * template does: the thought ends at the first end mark, the answer begins after the last one. Returns the
 * thought. */
static struct part take_thought(struct part *answer) {
    static const char begin[] = "<think>", end[] = "</think>";
    struct part thought = *answer;
    const char *first = find_first(*answer, end), *last = find_last(*answer, end);
    if (!first)
        return (struct part){"", 0};
    thought.bytes = (size_t)(first - thought.text);
    thought = strip_lines(thought, false, true);
    const char *opened = find_last(thought, begin);
    if (opened) {
        opened += strlen(begin);
        thought.bytes -= (size_t)(opened - thought.text);
        thought.text = opened;
    }
    last += strlen(end);
    *answer = strip_lines((struct part){last, answer->bytes - (size_t)(last - answer->text)}, true, false);
    return strip_lines(thought, true, true);
}

/* Appends the answer with its thought. in_reply: no user's question follows; last: no turn follows. The
 * <think> block trains even if it is empty: a server that lets the model think starts generation before the
 * block. */
static void append_thinking(struct ot_rendered *r, struct part answer, bool in_reply, bool last,
                            bool trained) {
    struct part thought = take_thought(&answer);
    if (in_reply && (last || thought.bytes > 0)) {
        ot_rendered_append(r, "<think>\n", 8, trained, false);
        ot_rendered_append(r, thought.text, thought.bytes, trained, true);
        ot_rendered_append(r, "\n</think>\n\n", 11, trained, false);
        answer = strip_lines(answer, true, false);
    }
    ot_rendered_append(r, answer.text, answer.bytes, trained, true);
}

static void render_answer(const struct ot_chat_template *t, const struct ot_turn *turn, bool in_reply,
                          bool last, const struct ot_chat_marks *marks, struct ot_rendered *r) {
    bool trained = !turn->untrained && !ot_text_is_blank(turn->text, turn->bytes);
    append_mark(r, t->answer_head, marks, false);
    append_mark(r, t->answer_begin, marks, trained);
    if (t->thinks)
        append_thinking(r, (struct part){turn->text, turn->bytes}, in_reply, last, trained);
    else
        append_content(r, turn->text, turn->bytes, trained, t->trim_answer);
    append_mark(r, t->answer_end, marks, trained);
    append_mark(r, t->answer_tail, marks, false);
}

/* ---- conversations ---- */

static const char *role_name(enum ot_role role) {
    return role == OT_ROLE_SYSTEM ? "system" : role == OT_ROLE_USER ? "user" : "assistant";
}

/* Refuses conversations that the model's own template refuses, or of which it silently drops parts. */
static int check_order(const struct ot_chat_template *t, const struct ot_turn *turns, size_t n,
                       const char *where) {
    size_t first = n > 0 && turns[0].role == OT_ROLE_SYSTEM ? 1 : 0;
    if (first && t->no_system)
        return ot_fail(
            OT_E_INPUT,
            "%s: template %s does not allow a system turn; remove the turn or choose another --template",
            where, t->name);
    for (size_t i = first; t->alternates && i < n; i++) {
        enum ot_role wanted = (i - first) % 2 == 0 ? OT_ROLE_USER : OT_ROLE_ASSISTANT;
        if (turns[i].role != wanted)
            return ot_fail(OT_E_INPUT,
                           "%s: turn %zu has the role %s, but template %s needs alternating user and "
                           "assistant turns, after at most one system turn",
                           where, i + 1, role_name(turns[i].role), t->name);
    }
    return 0;
}

static bool is_tool_response(const struct ot_turn *turn) {
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    size_t before = strlen(begin), after = strlen(end);
    return turn->bytes >= after && memcmp(turn->text, begin, before) == 0 &&
           memcmp(turn->text + turn->bytes - after, end, after) == 0;
}

/* Index of the user's last turn that is not the result of a tool; n if there is none. */
static size_t find_question(const struct ot_turn *turns, size_t n, bool any) {
    for (size_t i = n; i-- > 0;)
        if (turns[i].role == OT_ROLE_USER && (any || !is_tool_response(&turns[i])))
            return i;
    return n;
}

int ot_chat_template_render(const struct ot_chat_template *t, const struct ot_turn *turns, size_t n_turns,
                            const struct ot_chat_marks *marks, const char *where, struct ot_rendered *r) {
    size_t question = find_question(turns, n_turns, !t->thinks);
    const struct ot_turn *system = NULL;
    OT_TRY(check_order(t, turns, n_turns, where));
    append_mark(r, t->start, marks, false);
    if (n_turns > 0 && turns[0].role != OT_ROLE_SYSTEM)
        append_mark(r, turns[0].input ? t->preamble_input : t->preamble, marks, false);
    for (size_t i = 0; i < n_turns; i++) {
        const struct ot_turn *turn = &turns[i];
        bool takes_system = turn->role == OT_ROLE_USER && (!t->system_in_last || i == question);
        if (system && turn->role != OT_ROLE_USER && !t->system_in_last)
            break;
        if (turn->role == OT_ROLE_SYSTEM && t->system_in_user)
            system = turn;
        else if (turn->role == OT_ROLE_SYSTEM)
            render_system(t, turn, i == 0, marks, r);
        else if (turn->role == OT_ROLE_USER)
            render_user(t, takes_system ? system : NULL, turn, marks, r);
        else
            render_answer(t, turn, i > question, i + 1 == n_turns, marks, r);
        if (takes_system)
            system = NULL;
    }
    if (system)
        return ot_fail(
            OT_E_INPUT,
            "%s: template %s puts a system turn into the user's turn after it, but no user's turn follows",
            where, t->name);
    return ot_rendered_check(r);
}
