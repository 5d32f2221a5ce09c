#include "src/data/preference.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* ---- the key of the answer ---- */

/* The keys of a prompt, and the key under which its format has the answer. */
static const struct prompt_keys {
    const char *keys[2];
    const char *answer;
} prompt_keys[] = {
    {{"conversations"}, "completion"},   {{"prompt"}, "completion"}, {{"instruction"}, "output"},
    {{"question", "context"}, "answer"}, {{"input"}, "target"},
};
enum { N_PROMPTS = sizeof prompt_keys / sizeof *prompt_keys };

static bool is_given(const struct ot_json *row, const char *key) {
    return ot_json_type(ot_json_get(row, key)) != OT_JSON_NULL;
}

static bool is_list(const struct ot_json *row, const char *key) {
    return ot_json_type(ot_json_get(row, key)) == OT_JSON_ARRAY;
}

/* True if both answers are whole conversations, though the row repeats the first question as a text. */
static bool is_repeated(const struct ot_json *row, const struct prompt_keys *prompt) {
    return !is_list(row, prompt->keys[0]) && is_list(row, "chosen") && is_list(row, "rejected");
}

static const struct prompt_keys *find_prompt(const struct ot_json *row) {
    for (int i = 0; i < N_PROMPTS; i++) {
        const struct prompt_keys *prompt = &prompt_keys[i];
        if (is_given(row, prompt->keys[0]) && (!prompt->keys[1] || is_given(row, prompt->keys[1])))
            return is_repeated(row, prompt) ? NULL : prompt;
    }
    return NULL;
}

/* ---- prompts that both answers repeat ---- */

/* Each answer keeps a turn, or a character. */
static size_t shared_turns(const struct ot_json *a, const struct ot_json *b) {
    size_t most = ot_min(ot_json_length(a), ot_json_length(b)), n = 0;
    while (n + 1 < most && ot_json_equal(ot_json_at(a, n), ot_json_at(b, n)))
        n++;
    return n;
}

/* Ends before a space, and at the border of a character: the answers begin there. */
static size_t shared_bytes(const struct ot_json *a, const struct ot_json *b) {
    size_t most_a, most_b, n = 0;
    const char *x = ot_json_string(a, &most_a), *y = ot_json_string(b, &most_b);
    size_t most = ot_min(most_a, most_b);
    while (n + 1 < most && x[n] == y[n])
        n++;
    while (n > 0 && ((unsigned char)x[n] & 0xc0) == 0x80)
        n--;
    return n > 0 && x[n - 1] == ' ' ? n - 1 : n;
}

/* Makes the prompt of what both answers begin with. ours: the answer of this row, which keeps the rest. */
static int split_prompt(struct ot_json *row, const char *ours, const char *other, const char *where) {
    struct ot_json *answer = ot_json_get(row, ours), *prompt = ot_json_get(row, other);
    enum ot_json_type type = ot_json_type(answer);
    if (type != ot_json_type(prompt) || (type != OT_JSON_ARRAY && type != OT_JSON_STRING))
        return ot_fail(
            OT_E_INPUT,
            "%s: keys 'chosen' and 'rejected' must both be texts or both be lists of turns, not %s "
            "and %s",
            where, ot_json_type_name(ot_json_type(ot_json_get(row, "chosen"))),
            ot_json_type_name(ot_json_type(ot_json_get(row, "rejected"))));
    size_t n = type == OT_JSON_ARRAY ? shared_turns(answer, prompt) : shared_bytes(answer, prompt);
    if (n == 0 || ot_json_equal(answer, prompt))
        return ot_fail(OT_E_INPUT, "%s: the row has no prompt: %s; give it in a key 'prompt'", where,
                       n == 0 ? "'chosen' and 'rejected' begin differently"
                              : "'chosen' and 'rejected' are equal");
    ot_json_keep(prompt, 0, n);
    ot_json_keep(answer, n, SIZE_MAX);
    ot_json_rename(row, (const struct ot_json_name[]){{ours, "completion"}, {other, "prompt"}}, 2);
    return 0;
}

/* ---- rows ---- */

static int need_answers(const struct ot_json *row, const char *where) {
    static const char *const keys[] = {"chosen", "rejected"};
    for (int i = 0; i < 2; i++)
        if (!is_given(row, keys[i]))
            return ot_fail(OT_E_INPUT,
                           "%s: key '%s' is missing; this objective compares two answers, 'chosen' and "
                           "'rejected'. Name other keys with --columns, or use --objective sft",
                           where, keys[i]);
    return 0;
}

/* Makes the row of one of two answers. */
static int take_answer(struct ot_json *row, const char *ours, const char *other, const char *where) {
    OT_TRY(need_answers(row, where));
    const struct prompt_keys *prompt = find_prompt(row);
    if (!prompt)
        return split_prompt(row, ours, other, where);
    const struct ot_json_name names[] = {
        {ours, prompt->answer}, {other, "other answer"}, {"conversations", "prompt"}};
    ot_json_rename(row, names, strcmp(prompt->keys[0], "conversations") == 0 ? 3 : 2);
    return 0;
}

static int take_label(struct ot_json *row, const char *where, bool *good) {
    if (ot_json_has(row, "chosen") || ot_json_has(row, "rejected"))
        return ot_fail(OT_E_INPUT,
                       "%s: the row has 'chosen' and 'rejected', but KTO learns from single answers with a "
                       "'label'; use --objective dpo",
                       where);
    const char *key = ot_json_has(row, "kto_tag") ? "kto_tag" : "label";
    if (ot_json_type(ot_json_get(row, key)) != OT_JSON_BOOL)
        return ot_fail(
            OT_E_INPUT, "%s: key 'label' must be true for a good answer or false for a bad one, but it is %s",
            where,
            ot_json_has(row, key) ? ot_json_type_name(ot_json_type(ot_json_get(row, key))) : "missing");
    *good = ot_json_bool(ot_json_get(row, key), false);
    ot_json_rename(row, &(struct ot_json_name){key, "label of the answer"}, 1);
    return 0;
}

int ot_preference_take_answer(struct ot_json *row, enum ot_objective_kind objective, int answer,
                              const char *where, bool *good) {
    static const char *const keys[] = {"chosen", "rejected"};
    *good = true;
    if (ot_json_type(row) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: a row must be an object {...}, not %s", where,
                       ot_json_type_name(ot_json_type(row)));
    if (objective == OT_OBJECTIVE_KTO)
        return take_label(row, where, good);
    return take_answer(row, keys[answer], keys[1 - answer], where);
}
