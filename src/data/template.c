#include "src/data/template.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/tokenizer/tokenizer.h"

/* ---- rendered text ---- */

void ot_rendered_reset(struct ot_rendered *r) {
    r->bytes = 0;
    r->n_spans = 0;
    r->failed = false;
}

void ot_rendered_free(struct ot_rendered *r) {
    free(r->text);
    free(r->spans);
    memset(r, 0, sizeof *r);
}

int ot_rendered_check(const struct ot_rendered *r) {
    return r->failed ? ot_fail(OT_E_BUDGET, "no memory for the text of a row") : 0;
}

static bool reserve_text(struct ot_rendered *r, size_t bytes) {
    if (bytes <= r->capacity)
        return true;
    size_t capacity = bytes < 512 ? 1024 : 2 * bytes;
    char *text = realloc(r->text, capacity);
    if (!text)
        return false;
    r->text = text;
    r->capacity = capacity;
    return true;
}

static bool reserve_span(struct ot_rendered *r) {
    if (r->n_spans < r->span_capacity)
        return true;
    size_t capacity = r->span_capacity ? 2 * r->span_capacity : 16;
    struct ot_span *spans = realloc(r->spans, capacity * sizeof *spans);
    if (!spans)
        return false;
    r->spans = spans;
    r->span_capacity = capacity;
    return true;
}

void ot_rendered_append(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool user) {
    if (bytes == 0 || r->failed)
        return;
    struct ot_span *last = r->n_spans > 0 ? &r->spans[r->n_spans - 1] : NULL;
    bool same = last && last->trained == trained && last->user == user;
    if (!reserve_text(r, r->bytes + bytes) || (!same && !reserve_span(r))) {
        r->failed = true;
        return;
    }
    memcpy(r->text + r->bytes, text, bytes);
    r->bytes += bytes;
    if (same)
        last->end = r->bytes;
    else
        r->spans[r->n_spans++] = (struct ot_span){.end = r->bytes, .trained = trained, .user = user};
}

static bool is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

bool ot_text_is_blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!is_space(text[i]))
            return false;
    return true;
}

/* ---- prompt formats ---- */

struct part { /* a literal with its escapes resolved, or the name of a field */
    bool is_field;
    char *text;
    size_t bytes;
};

struct ot_prompt_format {
    struct part *parts;
    size_t n_parts, n_fields;
};

/* Reads a literal up to '{' of a placeholder or the end, into *text (as long as the rest of the format). */
static int parse_literal(const char **cursor, const char *format, struct part *part) {
    const char *c = *cursor;
    for (; *c; c++) {
        char byte = *c;
        if (byte == '{' || byte == '}') {
            if (c[1] != byte && byte == '{')
                break;
            if (c[1] != byte)
                return ot_fail(OT_E_USAGE, "prompt format '%s': a lone '}'; write }} for a brace", format);
            c++;
        } else if (byte == '\\') {
            static const char from[] = "nrt\\", to[] = "\n\r\t\\";
            const char *known = c[1] ? strchr(from, c[1]) : NULL;
            if (!known)
                return ot_fail(OT_E_USAGE,
                               "prompt format '%s': unknown escape '\\%c'; there are \\n \\r \\t \\\\",
                               format, c[1] ? c[1] : ' ');
            byte = to[known - from];
            c++;
        }
        part->text[part->bytes++] = byte;
    }
    *cursor = c;
    return 0;
}

static int parse_field(const char **cursor, const char *format, struct part *part) {
    const char *name = *cursor + 1;
    size_t bytes = strcspn(name, "{}");
    if (name[bytes] != '}' || bytes == 0)
        return ot_fail(
            OT_E_USAGE,
            "prompt format '%s': '{' begins a placeholder such as {question}; write {{ for a brace", format);
    memcpy(part->text, name, bytes);
    part->bytes = bytes;
    part->is_field = true;
    *cursor = name + bytes + 1;
    return 0;
}

static int parse_parts(struct ot_prompt_format *f, const char *format) {
    size_t most = strlen(format) + 1; /* a part takes at least one byte */
    f->parts = calloc(most, sizeof *f->parts);
    if (!f->parts)
        return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
    for (const char *c = format; *c;) {
        struct part *part = &f->parts[f->n_parts++];
        part->text = calloc(strlen(c) + 1, 1);
        if (!part->text)
            return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
        bool literal = c[0] != '{' || c[1] == '{';
        OT_TRY(literal ? parse_literal(&c, format, part) : parse_field(&c, format, part));
        f->n_fields += part->is_field;
    }
    return 0;
}

int ot_prompt_format_open(const char *format, struct ot_prompt_format **out) {
    *out = NULL;
    struct ot_prompt_format *f = calloc(1, sizeof *f);
    if (!f)
        return ot_fail(OT_E_BUDGET, "no memory for the prompt format");
    int rc;
    OT_TRY_GOTO(parse_parts(f, format), rc, out);
    *out = f;
    f = NULL;
out:
    ot_prompt_format_close(f);
    return rc;
}

void ot_prompt_format_close(struct ot_prompt_format *f) {
    if (!f)
        return;
    for (size_t i = 0; i < f->n_parts; i++)
        free(f->parts[i].text);
    free(f->parts);
    free(f);
}

size_t ot_prompt_format_fields(const struct ot_prompt_format *f) {
    return f->n_fields;
}

const char *ot_prompt_format_field(const struct ot_prompt_format *f, size_t index) {
    for (size_t i = 0; i < f->n_parts; i++)
        if (f->parts[i].is_field && index-- == 0)
            return f->parts[i].text;
    return NULL;
}

void ot_prompt_format_render(const struct ot_prompt_format *f, const struct ot_json *row,
                             struct ot_rendered *r) {
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct part *part = &f->parts[i];
        size_t bytes = part->bytes;
        const char *text = part->text;
        if (part->is_field)
            text = ot_json_string(ot_json_get(row, part->text), &bytes);
        if (text)
            ot_rendered_append(r, text, bytes, false, part->is_field);
    }
}

/* ---- chat templates ---- */

/* The texts around turns, with {bos} and {eos} for the tokenizer's own. llama-2, llama-3, chatml and zephyr
 * equal what the chat_template of those models' tokenizer_config.json on the Hub renders, to the last space.
 * The templates of the Mistral models differ from one another in spaces; this one has the answer begin with
 * one, as their own tokenizer does. alpaca has the texts of that project. */
struct ot_chat_template {
    const char *name;
    const char *own_token; /* a special token that only tokenizers made for this template have; NULL: none */
    bool trim;             /* white space around what a turn says is dropped */
    bool system_in_user;   /* a system turn becomes the beginning of what the user's says */
    const char *start;     /* before everything */
    const char *preamble,
        *preamble_input; /* where there is no system turn; the second, where there is an input */
    const char *system_begin, *system_end;
    const char *user_begin, *user_end;
    const char *input_begin;               /* between an instruction and its input */
    const char *answer_head;               /* what generation starts from */
    const char *answer_begin, *answer_end; /* around the answer; these train */
    const char *answer_tail;               /* not trained */
};

static const struct ot_chat_template templates[] = {
    {
        .name = "llama-2",
        .trim = true,
        .system_in_user = true,
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
        .trim = true,
        .start = "{bos}",
        .system_begin = "<|start_header_id|>system<|end_header_id|>\n\n",
        .system_end = "<|eot_id|>",
        .user_begin = "<|start_header_id|>user<|end_header_id|>\n\n",
        .user_end = "<|eot_id|>",
        .answer_head = "<|start_header_id|>assistant<|end_header_id|>\n\n",
        .answer_end = "<|eot_id|>",
    },
    {
        .name = "chatml",
        .own_token = "<|im_end|>",
        .system_begin = "<|im_start|>system\n",
        .system_end = "<|im_end|>\n",
        .user_begin = "<|im_start|>user\n",
        .user_end = "<|im_end|>\n",
        .answer_head = "<|im_start|>assistant\n",
        .answer_end = "<|im_end|>",
        .answer_tail = "\n",
    },
    {
        .name = "mistral",
        .trim = true,
        .system_in_user = true,
        .start = "{bos}",
        .system_end = "\n\n",
        .user_begin = "[INST] ",
        .user_end = " [/INST]",
        .answer_begin = " ",
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
        .name = "alpaca",
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
        .answer_head = "### Response:\n",
        .answer_end = "{eos}",
        .answer_tail = "\n\n",
    },
};

enum { N_TEMPLATES = sizeof templates / sizeof *templates };

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
    return "llama-2, llama-3, chatml, mistral, zephyr, alpaca";
}

const struct ot_chat_template *ot_chat_template_guess(const struct ot_tokenizer *tokenizer) {
    for (int i = 0; i < N_TEMPLATES; i++) {
        const char *own = templates[i].own_token;
        if (own && ot_tokenizer_find(tokenizer, own, strlen(own)) >= 0)
            return &templates[i];
    }
    return ot_chat_template_find("zephyr");
}

/* Appends a text of a template (NULL: nothing), its {bos} and {eos} filled in. */
static void append_mark(struct ot_rendered *r, const char *text, const struct ot_chat_marks *marks,
                        bool trained) {
    while (text && *text) {
        const char *brace = strchr(text, '{');
        size_t bytes = brace ? (size_t)(brace - text) : strlen(text);
        ot_rendered_append(r, text, bytes, trained, false);
        if (!brace)
            return;
        bool is_bos = strncmp(brace, "{bos}", 5) == 0;
        ot_rendered_append(r, is_bos ? marks->bos : marks->eos, is_bos ? marks->bos_bytes : marks->eos_bytes,
                           trained, false);
        text = brace + 5;
    }
}

/* front, back: white space there is dropped. */
static void append_content(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool front,
                           bool back) {
    for (; back && bytes > 0 && is_space(text[bytes - 1]); bytes--)
        ;
    for (; front && bytes > 0 && is_space(*text); bytes--)
        text++;
    ot_rendered_append(r, text, bytes, trained, true);
}

static void render_system(const struct ot_chat_template *t, const struct ot_turn *turn,
                          const struct ot_chat_marks *marks, struct ot_rendered *r) {
    bool trim = t->trim && !t->system_in_user;
    append_mark(r, t->system_begin, marks, false);
    append_content(r, turn->text, turn->bytes, false, trim, trim);
    append_mark(r, t->system_end, marks, false);
}

/* system: the turn that goes into this one, or NULL. */
static void render_user(const struct ot_chat_template *t, const struct ot_turn *system,
                        const struct ot_turn *turn, const struct ot_chat_marks *marks,
                        struct ot_rendered *r) {
    append_mark(r, t->user_begin, marks, false);
    if (system)
        render_system(t, system, marks, r);
    append_content(r, turn->text, turn->bytes, false, t->trim && !system, t->trim);
    if (turn->input) {
        append_mark(r, t->input_begin ? t->input_begin : "\n\n", marks, false);
        append_content(r, turn->input, turn->input_bytes, false, t->trim, t->trim);
    }
    append_mark(r, t->user_end, marks, false);
}

static void render_answer(const struct ot_chat_template *t, const struct ot_turn *turn,
                          const struct ot_chat_marks *marks, struct ot_rendered *r) {
    bool trained = !ot_text_is_blank(turn->text, turn->bytes);
    append_mark(r, t->answer_head, marks, false);
    append_mark(r, t->answer_begin, marks, trained);
    append_content(r, turn->text, turn->bytes, trained, t->trim, t->trim);
    append_mark(r, t->answer_end, marks, trained);
    append_mark(r, t->answer_tail, marks, false);
}

int ot_chat_template_render(const struct ot_chat_template *t, const struct ot_turn *turns, size_t n_turns,
                            const struct ot_chat_marks *marks, const char *where, struct ot_rendered *r) {
    append_mark(r, t->start, marks, false);
    if (n_turns > 0 && turns[0].role != OT_ROLE_SYSTEM)
        append_mark(r, turns[0].input ? t->preamble_input : t->preamble, marks, false);
    const struct ot_turn *system = NULL;
    for (size_t i = 0; i < n_turns; i++) {
        const struct ot_turn *turn = &turns[i];
        if (system && turn->role != OT_ROLE_USER)
            break;
        if (turn->role == OT_ROLE_SYSTEM && t->system_in_user)
            system = turn;
        else if (turn->role == OT_ROLE_SYSTEM)
            render_system(t, turn, marks, r);
        else if (turn->role == OT_ROLE_USER)
            render_user(t, system, turn, marks, r);
        else
            render_answer(t, turn, marks, r);
        if (turn->role == OT_ROLE_USER)
            system = NULL;
    }
    if (system)
        return ot_fail(OT_E_INPUT,
                       "%s: a system turn without a user's turn after it, which template %s puts it into",
                       where, t->name);
    return ot_rendered_check(r);
}
