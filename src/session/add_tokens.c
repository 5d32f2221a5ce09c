#include "src/session/add_tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/files/model_dir_tokenizer.h"

/* Plain tokens get their ids first, as in LLaMA-Factory. */
static int read_tokens(const struct ot_options *o, struct ot_new_tokens *tokens) {
    if (o->add_tokens)
        OT_TRY(ot_new_tokens_read("add-tokens", o->add_tokens, false, tokens));
    return o->add_special_tokens
               ? ot_new_tokens_read("add-special-tokens", o->add_special_tokens, true, tokens)
               : 0;
}

static const char *option_of(const struct ot_new_token *token) {
    return token->special ? "add-special-tokens" : "add-tokens";
}

/* ---- pieces ---- */

/* The pieces of the tokens that have no id yet. */
struct pieces {
    const struct ot_new_token *first; /* NULL: all tokens have ids */
    int64_t n;
    int64_t *begins;
    struct ot_token_list ids, list; /* of all tokens; of one */
};

static int add_pieces(const struct ot_session *s, const struct ot_new_token *token, struct pieces *p) {
    OT_TRY(ot_tokenizer_encode(s->text.tokenizer, token->text, token->bytes, 0, &p->list));
    if (p->list.n == 0)
        return ot_fail(OT_E_INPUT,
                       "--%s: the tokenizer makes no piece of '%.100s', and a new token's row begins as the "
                       "mean of the rows of its pieces",
                       option_of(token), token->text);
    for (size_t i = 0; i < p->list.n; i++) {
        if (p->list.ids[i] >= s->model.config.vocab)
            return ot_fail(OT_E_INPUT,
                           "--%s: the tokenizer makes id %d of '%.100s', and the model has only "
                           "the ids below %lld",
                           option_of(token), p->list.ids[i], token->text, (long long)s->model.config.vocab);
        OT_TRY(ot_token_list_add(&p->ids, p->list.ids[i], 0));
    }
    p->first = p->first ? p->first : token;
    p->begins[++p->n] = (int64_t)p->ids.n;
    return 0;
}

static int find_pieces(const struct ot_session *s, struct pieces *p) {
    const struct ot_new_tokens *tokens = &s->text.new_tokens;
    p->begins = calloc(tokens->n + 1, sizeof *p->begins);
    if (!p->begins)
        return ot_fail(OT_E_BUDGET, "no memory for the pieces of new tokens");
    for (size_t i = 0; i < tokens->n; i++)
        if (ot_tokenizer_find(s->text.tokenizer, tokens->items[i].text, tokens->items[i].bytes) < 0)
            OT_TRY(add_pieces(s, &tokens->items[i], p));
    return 0;
}

/* ---- the tokenizer ---- */

/* Replaces the tokenizer's file by one in memory with the tokens, and opens it. */
static int replace_tokenizer(struct ot_session *s) {
    bool is_file = strncmp(s->text.tokenizer_path, "/proc/self/fd/", strlen("/proc/self/fd/")) != 0;
    int fd;
    OT_TRY(ot_tokenizer_extend(s->text.tokenizer_path, &s->text.new_tokens, &fd));
    if (fd < 0)
        return 0;
    if (s->text.tokenizer_is_in_memory)
        close(s->text.tokenizer_fd);
    s->text.tokenizer_is_in_memory = true;
    s->text.tokenizer_fd = fd;
    s->text.tokenizer_is_extended = true;
    char *path;
    OT_TRY(ot_string_format(&path, "/proc/self/fd/%d", fd));
    if (is_file && !s->text.tokenizer_file)
        s->text.tokenizer_file = s->text.tokenizer_path;
    else
        free(s->text.tokenizer_path);
    s->text.tokenizer_path = path;
    ot_tokenizer_close(s->text.tokenizer);
    s->text.tokenizer = NULL;
    int rc = ot_tokenizer_open(path, &s->text.tokenizer);
    return rc < 0 ? ot_fail_context(rc, "the tokenizer with the new tokens") : 0;
}

/* ---- the model ---- */

/* True if a run with adapters trains the rows of the new tokens alone, as PEFT's trainable_token_indices. For
 * a head with a bias PEFT has no such form. */
static bool trains_rows(const struct ot_options *options, const struct ot_model_config *config) {
    return options->lora && options->init == OT_CHOICE_INIT_FILES && (config->tied || !config->head_bias);
}

static int take_tokens(const struct ot_options *options, int64_t first, int64_t n,
                       struct ot_model_config *config) {
    config->vocab = ot_max(config->vocab, first + n);
    if (!trains_rows(options, config))
        return 0;
    if (ot_model_has_pairs(config))
        return ot_fail(OT_E_USAGE,
                       "--lora cannot train new tokens of an encoder-decoder: PEFT has no form of that; "
                       "train all parameters, without --lora");
    config->first_new = first;
    config->n_new = n;
    config->head_has_new = !config->tied;
    return 0;
}

static int grow_model(struct ot_session *s, const struct pieces *p) {
    int64_t first = ot_tokenizer_vocab_size(s->text.tokenizer) - p->n;
    if (ot_tokenizer_find(s->text.tokenizer, p->first->text, p->first->bytes) != first)
        return ot_fail(OT_E_INPUT,
                       "%s: ids are missing in its vocabulary, so new tokens would get ids of others; "
                       "--add-tokens needs a vocabulary without gaps",
                       s->text.tokenizer_file ? s->text.tokenizer_file : s->options->model);
    const struct ot_token_pieces pieces = {first, p->n, p->ids.ids, p->begins};
    bool has_values = s->model.dir && s->options->init == OT_CHOICE_INIT_FILES;
    s->text.first_new = first;
    s->text.n_new = p->n;
    if (s->model.dir)
        OT_TRY(ot_model_dir_add_tokens(s->model.dir, &pieces, has_values));
    return take_tokens(s->options, first, p->n, &s->model.config);
}

/* If adapters cannot have the rows alone, the run trains the whole tables, as PEFT's modules_to_save. Frozen
 * rows would stay the means. */
static int train_tables(struct ot_session *s) {
    const struct ot_model_config *config = &s->model.config;
    char table[OT_MODEL_NAME_BYTES], head[OT_MODEL_NAME_BYTES];
    if (!s->options->lora || s->options->train || config->n_new > 0 ||
        s->options->command != OT_COMMAND_TRAIN)
        return 0;
    ot_model_module_name(config, OT_MODULE_EMBEDDING, -1, table, sizeof table);
    ot_model_module_name(config, OT_MODULE_HEAD, -1, head, sizeof head);
    OT_TRY(config->tied ? ot_string_format(&s->model.train, "%s.weight", table)
                        : ot_string_format(&s->model.train, "%s.weight,%s.*", table, head));
    ot_settings_choose_text(s->settings, "train", s->model.train);
    return 0;
}

int ot_session_add_tokens(struct ot_session *s) {
    struct pieces p = {0};
    int rc = 0;
    OT_TRY(read_tokens(s->options, &s->text.new_tokens));
    if (s->text.new_tokens.n == 0)
        return 0;
    if (s->options->adapter)
        OT_TRY_GOTO(
            ot_fail(OT_E_USAGE,
                    "new tokens cannot be added to a model with adapters (%s); merge the adapters first "
                    "(offload-train merge), and train the result",
                    s->options->adapter),
            rc, out);
    OT_TRY_GOTO(find_pieces(s, &p), rc, out);
    OT_TRY_GOTO(replace_tokenizer(s), rc, out);
    if (p.n > 0)
        OT_TRY_GOTO(grow_model(s, &p), rc, out);
    if (p.n > 0)
        rc = train_tables(s);
out:
    free(p.begins);
    ot_token_list_free(&p.ids);
    ot_token_list_free(&p.list);
    return rc;
}

/* ---- the shape, and the record ---- */

static int count_new(const char *path, const struct ot_new_tokens *tokens, int64_t *first, int64_t *n) {
    struct ot_tokenizer *tokenizer;
    OT_TRY(ot_tokenizer_open(path, &tokenizer));
    *n = 0;
    for (size_t i = 0; i < tokens->n; i++)
        *n += ot_tokenizer_find(tokenizer, tokens->items[i].text, tokens->items[i].bytes) < 0;
    *first = ot_tokenizer_vocab_size(tokenizer);
    ot_tokenizer_close(tokenizer);
    return 0;
}

int ot_added_tokens_count(const struct ot_options *options, const char *tokenizer,
                          struct ot_model_config *config) {
    struct ot_new_tokens tokens = {0};
    int64_t first = config->vocab;
    int rc = read_tokens(options, &tokens);
    int64_t n = (int64_t)tokens.n;
    if (rc == 0 && n > 0 && tokenizer)
        rc = count_new(tokenizer, &tokens, &first, &n);
    if (rc == 0 && n > 0)
        rc = take_tokens(options, first, n, config);
    ot_new_tokens_free(&tokens);
    return rc;
}

const char *ot_added_tokens_text(const struct ot_session *s, char text[OT_ADDED_TEXT_BYTES]) {
    long long n = (long long)s->text.n_new, known = (long long)s->text.new_tokens.n - n;
    int end = n > 0 ? snprintf(text, OT_ADDED_TEXT_BYTES, "%lld new token%s, from id %lld on", n,
                               ot_plural(n), (long long)s->text.first_new)
                    : snprintf(text, OT_ADDED_TEXT_BYTES, "no new token");
    if (known > 0)
        snprintf(text + end, OT_ADDED_TEXT_BYTES - (size_t)end,
                 " · %lld of the given ones in the vocabulary already", known);
    if (n > 0 && s->options->lora)
        snprintf(text + strlen(text), OT_ADDED_TEXT_BYTES - strlen(text), " · %s trained with the adapters",
                 s->model.config.n_new > 0 ? "their rows are" : "embedding and head are");
    return text;
}

void ot_added_tokens_put(const struct ot_session *s, struct ot_json_writer *w) {
    static const char *const keys[] = {"added_tokens", "added_special_tokens"};
    const bool given[] = {s->options->add_tokens, s->options->add_special_tokens};
    for (int special = 0; special < 2; special++) {
        if (!given[special])
            continue;
        ot_json_begin_array(w, keys[special]);
        for (size_t i = 0; i < s->text.new_tokens.n; i++)
            if (s->text.new_tokens.items[i].special == special)
                ot_json_put_string(w, NULL, s->text.new_tokens.items[i].text,
                                   s->text.new_tokens.items[i].bytes);
        ot_json_end_array(w);
    }
}
