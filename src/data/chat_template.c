#include "src/data/chat_template.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/text.h"
#include "src/data/chat_texts.h"
#include "src/data/conversation.h"
#include "src/tokenizer/tokenizer.h"

/* chat_texts.h has the files of src/data/templates as strings. */
static const struct ot_chat_template templates[] = {
    {.name = "llama-2", .source = OT_CHAT_LLAMA_2, .moves_system = true, .alternates = true},
    {.name = "llama-3", .source = OT_CHAT_LLAMA_3, .stop = "<|eot_id|>", .has_stop_alone = true},
    /* Also of Llama 3.2 and 3.3. The template of 3.2 writes the present day, or a fixed day if it cannot know
     * the present one. A run must have the same rows on every day, so this text always has the fixed day. */
    {.name = "llama-3.1", .source = OT_CHAT_LLAMA_3_1, .stop = "<|eot_id|>"},
    {.name = "chatml", .source = OT_CHAT_CHATML, .stop = "<|im_end|>", .has_stop_alone = true},
    {.name = "qwen2", .source = OT_CHAT_QWEN2, .stop = "<|im_end|>"},
    {.name = "qwen2.5", .source = OT_CHAT_QWEN2_5, .stop = "<|im_end|>"},
    /* The last answer gets a block of thoughts, which is empty if the row has none. It trains all the same: a
     * server that lets the model think starts generation before the block. */
    {.name = "qwen3", .source = OT_CHAT_QWEN3, .stop = "<|im_end|>"},
    /* Between the versions below, for models without a template. */
    {.name = "mistral", .source = OT_CHAT_MISTRAL, .moves_system = true},
    /* The first template of 7B-Instruct-v0.2 and Mixtral-8x7B-Instruct. */
    {.name = "mistral-v0", .source = OT_CHAT_MISTRAL_V0, .no_system = true, .alternates = true},
    /* 7B-Instruct-v0.1 and v0.2, Mixtral-8x7B-Instruct. */
    {.name = "mistral-v1", .source = OT_CHAT_MISTRAL_V1, .moves_system = true, .alternates = true},
    /* Mixtral-8x22B-Instruct. */
    {.name = "mistral-v2", .source = OT_CHAT_MISTRAL_V2, .moves_system = true, .alternates = true},
    /* 7B-Instruct-v0.3. */
    {.name = "mistral-v3", .source = OT_CHAT_MISTRAL_V3, .moves_system = true, .alternates = true},
    /* v3 for the tokenizer of Nemo-Instruct-2407. */
    {.name = "mistral-tekken", .source = OT_CHAT_MISTRAL_TEKKEN, .moves_system = true, .alternates = true},
    {.name = "zephyr", .source = OT_CHAT_ZEPHYR},
    /* Texts of the Stanford project's train.py. */
    {.name = "alpaca", .source = OT_CHAT_ALPACA},
};

enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const struct ot_chat_template *ot_chat_template_at(int index) {
    return index < N_TEMPLATES ? &templates[index] : NULL;
}

static bool is_same_name(const char *a, const char *b) {
    for (; *a || *b; a++, b++) {
        a += strspn(a, "-_.");
        b += strspn(b, "-_.");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return false;
        if (!*a)
            return true;
    }
    return true;
}

const struct ot_chat_template *ot_chat_template_find(const char *name) {
    for (int i = 0; i < N_TEMPLATES; i++)
        if (is_same_name(templates[i].name, name))
            return &templates[i];
    return NULL;
}

const char *ot_chat_template_names(void) {
    return "llama-2, llama-3, llama-3.1, chatml, qwen2, qwen2.5, qwen3, mistral, mistral-v0, mistral-v1, "
           "mistral-v2, mistral-v3, mistral-tekken, zephyr, alpaca";
}

const struct ot_chat_template *ot_chat_template_guess(const struct ot_tokenizer *tokenizer) {
    for (int i = 0; i < N_TEMPLATES; i++) {
        const struct ot_chat_template *t = &templates[i];
        if (t->has_stop_alone && ot_tokenizer_find(tokenizer, t->stop, strlen(t->stop)) >= 0)
            return t;
    }
    return NULL;
}

/* ---- texts ---- */

/* Copies a file of src/data/templates: with the lines only for rows, or with `bos` at its mark. */
static int write_text(const char *source, bool for_rows, const char *bos, char **jinja, size_t *bytes) {
    struct ot_string_builder b = {0};
    const char *mark;
    for (; (mark = strpbrk(source, "{+")); source = mark) {
        ot_string_append(&b, source, (size_t)(mark - source));
        if (strncmp(mark, "{bos}", 5) == 0) {
            ot_string_append_text(&b, bos);
            mark += 5;
        } else if (strncmp(mark, "{+", 2) == 0) {
            mark = for_rows ? mark + 2 : strstr(mark, "+}") + 2;
        } else if (strncmp(mark, "+}", 2) == 0) {
            mark += 2;
        } else {
            ot_string_append(&b, mark++, 1);
        }
    }
    ot_string_append_text(&b, source);
    if (b.failed) {
        free(b.text);
        return ot_fail(OT_E_BUDGET, "no memory for a chat template");
    }
    *jinja = b.text;
    *bytes = b.bytes;
    return 0;
}

#define BOS "{{ '' + bos_token | default('', true) + '' }}"

int ot_chat_template_write(const struct ot_chat_template *t, bool bos, char **jinja, size_t *bytes) {
    return write_text(t->source, false, bos && !ot_chat_template_begins(t) ? BOS : "", jinja, bytes);
}

int ot_chat_template_write_for_rows(const struct ot_chat_template *t, char **jinja, size_t *bytes) {
    return write_text(t->source, true, "", jinja, bytes);
}

bool ot_chat_template_begins(const struct ot_chat_template *t) {
    return strstr(t->source, "bos_token") != NULL;
}

/* ---- recognising a text ---- */

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
    uint64_t hash = OT_FNV64;
    *bytes = 0;
    if (n > 0 && text[n - 1] == '\n')
        n--;
    if (n > 0 && text[n - 1] == '\r')
        n--;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        hash = ot_fnv64(hash, text[i] == '\r' ? "\n" : text + i, 1);
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

/* Compares with BOS and without. Llama 2's template was once saved with its own BOS and the tokenizer's. */
static int is_own_text(const struct ot_chat_template *t, size_t bytes, uint64_t hash, bool *same) {
    *same = false;
    for (int bos = 0; bos < 2 && !*same; bos++) {
        char *text;
        size_t own_bytes, n;
        OT_TRY(write_text(t->source, false, bos ? BOS : "", &text, &own_bytes));
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

/* ---- conversations ---- */

static int check_order(const struct ot_chat_template *t, const struct ot_conversation *c, size_t first,
                       const char *where) {
    for (size_t i = first; i < c->n; i++) {
        enum ot_role role = c->messages[i].role;
        if (role != ((i - first) % 2 == 0 ? OT_ROLE_USER : OT_ROLE_ASSISTANT))
            return ot_fail(OT_E_INPUT,
                           "%s: turn %zu has the role %s, but template %s needs alternating user and "
                           "assistant turns, after at most one system turn",
                           where, i + 1, ot_role_name(role), t->name);
    }
    return 0;
}

int ot_chat_template_check(const struct ot_chat_template *t, const struct ot_conversation *c,
                           const char *where) {
    size_t first = c->n > 0 && c->messages[0].role == OT_ROLE_SYSTEM ? 1 : 0;
    if (first && t->no_system)
        return ot_fail(
            OT_E_INPUT,
            "%s: template %s does not allow a system turn; remove the turn or choose another --template",
            where, t->name);
    if (t->alternates)
        OT_TRY(check_order(t, c, first, where));
    for (size_t i = 0; t->moves_system && i < c->n; i++)
        if (c->messages[i].role == OT_ROLE_SYSTEM &&
            (i + 1 == c->n || c->messages[i + 1].role != OT_ROLE_USER))
            return ot_fail(OT_E_INPUT,
                           "%s: template %s puts a system turn into the user's turn after it, but no user's "
                           "turn follows",
                           where, t->name);
    return 0;
}
