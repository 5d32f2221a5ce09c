/* Recognises which built-in template a Jinja text is. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/strings.h"
#include "src/data/chat_table.h"
#include "src/data/chat_template.h"

/* ---- published texts ---- */

/* Length and 64-bit FNV-1a hash of templates as models publish them. scripts/golden/chat.py computes them,
 * renders each template with Jinja and compares the results. */
static const struct {
    size_t bytes;
    uint64_t hash;
    const char *name;
} known[] = {
    {196, UINT64_C(0x88bf4138d5c826f0), "chatml"},          /* chatml */
    {815, UINT64_C(0xf344eecf1bd3a427), "llama-2"},         /* llama-2-chat */
    {4613, UINT64_C(0xcc0368e1ffb6b958), "llama-3.1"},      /* llama-3.1-instruct */
    {3826, UINT64_C(0x368f4c34b8554414), "llama-3.1"},      /* llama-3.2-instruct */
    {348, UINT64_C(0x74891e390e614ae2), "llama-3"},         /* llama-3-instruct-first */
    {389, UINT64_C(0x0e60067a5537498e), "llama-3"},         /* llama-3-instruct */
    {3777, UINT64_C(0xc134bf40d6f56d76), "mistral-tekken"}, /* nemo-2407-first */
    {3944, UINT64_C(0x20783e9d94168233), "mistral-tekken"}, /* nemo-2407 */
    {470, UINT64_C(0x8c734b90b4f8d84d), "mistral-v0"},      /* mixtral-8x7b-first */
    {1057, UINT64_C(0x46eac0bf5c765c47), "mistral-v1"},     /* mistral-7b-v0.1 */
    {1052, UINT64_C(0x2784b402c2ed128f), "mistral-v2"},     /* mixtral-8x22b */
    {3958, UINT64_C(0x2487e6e79d6345cf), "mistral-v3"},     /* mistral-7b-v0.3 */
    {2508, UINT64_C(0xadaa2a0bbac0305f), "qwen2.5"},        /* qwen2.5-0.5b-gguf */
    {2506, UINT64_C(0xe642ce246d7f2e3d), "qwen2.5"},        /* qwen2.5-instruct */
    {328, UINT64_C(0x8a87094e0e1e24c5), "qwen2"},           /* qwen2-instruct */
    {4116, UINT64_C(0x2bfdb7aa9754484e), "qwen3"},          /* qwen3-first */
    {4168, UINT64_C(0x959a4551391a6549), "qwen3"},          /* qwen3 */
    {410, UINT64_C(0xcd8b49000db02c2c), "zephyr"},          /* zephyr-7b-beta */
};

uint64_t ot_chat_hash_text(const char *text, size_t n, size_t *bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    *bytes = 0;
    if (n > 0 && text[n - 1] == '\n')
        n--;
    if (n > 0 && text[n - 1] == '\r')
        n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        hash = (hash ^ (unsigned char)(text[i] == '\r' ? '\n' : text[i])) * UINT64_C(0x100000001b3);
        ++*bytes;
    }
    return hash;
}

const char *ot_chat_known_name(size_t bytes, uint64_t hash) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].bytes == bytes && known[i].hash == hash)
            return known[i].name;
    return NULL;
}

/* ---- our own Jinja texts ---- */

/* Writes a template's text as a Jinja expression: 'text' + bos_token + 'text'. */
static void put_expression(struct ot_string_builder *b, const char *text) {
    ot_string_append_text(b, "'");
    for (; text && *text; text++) {
        bool is_bos = strncmp(text, "{bos}", 5) == 0, is_eos = strncmp(text, "{eos}", 5) == 0;
        if (is_bos || is_eos) {
            ot_string_append_format(b, "' + %s_token | default('', true) + '", is_bos ? "bos" : "eos");
            text += 4;
        } else if (*text == '\n') {
            ot_string_append_text(b, "\\n");
        } else {
            ot_string_append(b, text, 1);
        }
    }
    ot_string_append_text(b, "'");
}

static void put_text(struct ot_string_builder *b, const char *text) {
    if (!text || !*text)
        return;
    ot_string_append_text(b, "{{ ");
    put_expression(b, text);
    ot_string_append_text(b, " }}");
}

static void put_content(struct ot_string_builder *b, bool trim) {
    ot_string_append_text(b, trim ? "message['content'] | trim" : "message['content']");
}

static void put_system(struct ot_string_builder *b, const struct ot_chat_template *t) {
    ot_string_append_text(b, "{% if message['role'] == 'system' %}");
    if (t->no_system) {
        ot_string_append_text(b, "{{ raise_exception('no place for a system turn') }}");
    } else if (t->system_in_user) {
        ot_string_append_text(b, "{% set ns.system = ");
        put_expression(b, t->system_begin);
        ot_string_append_text(b, " + message['content'] + ");
        put_expression(b, t->system_end);
        ot_string_append_text(b, " %}");
    } else {
        ot_string_append_text(b, "{{ (");
        put_expression(b, t->system_begin);
        ot_string_append_text(b, " if loop.first else ");
        put_expression(b, t->system_again ? t->system_again : t->system_begin);
        ot_string_append_text(b, ") + ");
        put_content(b, t->trim_prompt);
        ot_string_append_text(b, " + ");
        put_expression(b, t->system_end);
        ot_string_append_text(b, " }}");
    }
}

static void put_user(struct ot_string_builder *b, const struct ot_chat_template *t) {
    ot_string_append_text(b, "{% elif message['role'] == 'user' %}");
    if (t->system_in_last)
        ot_string_append_text(b, "{% set system = ns.system if loop.index0 == ns.question else '' %}");
    else if (t->system_in_user)
        ot_string_append_text(b, "{% set system = ns.system %}{% set ns.system = '' %}");
    ot_string_append_text(b, "{{ ");
    put_expression(b, t->user_begin);
    ot_string_append_text(b, " + ");
    if (!t->system_in_user)
        put_content(b, t->trim_prompt);
    else if (t->trim_prompt)
        ot_string_append_text(
            b, "((system + message['content']).rstrip() if system else message['content'] | trim)");
    else
        ot_string_append_text(b, "system + message['content']");
    ot_string_append_text(b, " + ");
    put_expression(b, t->user_end);
    ot_string_append_text(b, " }}");
}

/* Qwen3's treatment of thoughts, as take_thought and append_thinking in chat_template.c do it. */
static const char thinking[] =
    "{% set answer = message['content'] %}{% set thought = '' %}{% if '</think>' in answer %}"
    "{% set thought = answer.split('</think>')[0].rstrip('\\n').split('<think>')[-1].strip('\\n') %}"
    "{% set answer = answer.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    "{% if loop.index0 > ns.question and (loop.last or thought) %}"
    "{% set answer = '<think>\\n' + thought + '\\n</think>\\n\\n' + answer.lstrip('\\n') %}{% endif %}";

static void put_answer(struct ot_string_builder *b, const struct ot_chat_template *t) {
    ot_string_append_text(b, "{% elif message['role'] == 'assistant' %}");
    if (t->thinks)
        ot_string_append_text(b, thinking);
    put_text(b, t->answer_head);
    put_text(b, t->answer_begin);
    ot_string_append_text(b, "{{ ");
    if (t->thinks)
        ot_string_append_text(b, "answer");
    else
        put_content(b, t->trim_answer);
    ot_string_append_text(b, " }}");
    put_text(b, t->answer_end);
    put_text(b, t->answer_tail);
    ot_string_append_text(
        b, "{% else %}{{ raise_exception('roles are system, user and assistant') }}{% endif %}");
}

/* Writes code that finds the index of the user's last turn. If the template thinks, results of tools do not
 * count. */
static void put_question(struct ot_string_builder *b, const struct ot_chat_template *t) {
    ot_string_append_text(b, "{% set ns = namespace(system='', question=messages | length) %}");
    if (!t->thinks && !t->system_in_last)
        return;
    ot_string_append_format(
        b,
        "{%% for message in messages %%}{%% if message['role'] == 'user'%s %%}{%% set ns.question = "
        "loop.index0 %%}{%% endif %%}{%% endfor %%}",
        t->thinks ? " and not (message['content'].startswith('<tool_response>') and "
                    "message['content'].endswith('</tool_response>'))"
                  : "");
}

bool ot_chat_template_begins(const struct ot_chat_template *t) {
    return t->start && strncmp(t->start, "{bos}", 5) == 0;
}

const char *ot_chat_template_stop(const struct ot_chat_template *t) {
    return t->answer_end && strncmp(t->answer_end, "<|", 2) == 0 ? t->answer_end : NULL;
}

int ot_chat_template_write(const struct ot_chat_template *t, bool bos, char **jinja, size_t *bytes) {
    struct ot_string_builder b = {0};
    put_question(&b, t);
    if (bos && !ot_chat_template_begins(t))
        put_text(&b, "{bos}");
    put_text(&b, t->start);
    if (t->preamble) {
        ot_string_append_text(&b, "{% if messages and messages[0]['role'] != 'system' %}");
        put_text(&b, t->preamble);
        ot_string_append_text(&b, "{% endif %}");
    }
    ot_string_append_text(&b, "{% for message in messages %}");
    put_system(&b, t);
    put_user(&b, t);
    put_answer(&b, t);
    ot_string_append_text(&b, "{% endfor %}");
    if (t->answer_head) {
        ot_string_append_text(&b, "{% if add_generation_prompt %}");
        put_text(&b, t->answer_head);
        ot_string_append_text(&b, "{% endif %}");
    }
    if (b.failed) {
        free(b.text);
        return ot_fail(OT_E_BUDGET, "no memory for a chat template");
    }
    *jinja = b.text;
    *bytes = b.bytes;
    return 0;
}

/* ---- recognising a text ---- */

/* With BOS and without. */
static int is_own_text(const struct ot_chat_template *t, size_t bytes, uint64_t hash, bool *same) {
    *same = false;
    for (int bos = 0; bos < 2 && !*same; bos++) {
        char *text;
        size_t own_bytes, n;
        OT_TRY(ot_chat_template_write(t, bos, &text, &own_bytes));
        *same = ot_chat_hash_text(text, own_bytes, &n) == hash && n == bytes;
        free(text);
    }
    return 0;
}

int ot_chat_template_recognize(const char *jinja, size_t bytes, const struct ot_chat_template **out) {
    size_t n;
    uint64_t hash = ot_chat_hash_text(jinja, bytes, &n);
    *out = NULL;
    const char *name = ot_chat_known_name(n, hash);
    const struct ot_chat_template *t;
    if (name)
        *out = ot_chat_template_find(name);
    for (int i = 0; !*out && (t = ot_chat_template_at(i)); i++) {
        bool same;
        OT_TRY(is_own_text(t, n, hash, &same));
        if (same)
            *out = t;
    }
    return 0;
}
