#include "src/train/result.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/files/adapter_config.h"
#include "src/session/chat_choice.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"
#include "src/train/out_name.h"

/* ---- model card ---- */

/* Makes README.md of a trained model: the base model and the options, in the form that model hubs read. */

enum ot_card {
    OT_CARD_MODEL,
    OT_CARD_ADAPTERS, /* the directory has adapters for PEFT instead of a model */
    OT_CARD_MERGED    /* adapters were added to a model's weights */
};

/* The last component of a path: people read the card on other machines. */
static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void put_option(struct ot_string_builder *b, const struct ot_json *run, const char *name) {
    const struct ot_json *value = ot_json_get(run, name);
    const char *text = ot_json_string(value, NULL);
    switch (ot_json_type(value)) {
    case OT_JSON_STRING:
        ot_string_append_format(b, "- %s: `%s`\n", name, last_part(text));
        break;
    case OT_JSON_INT:
        ot_string_append_format(b, "- %s: %lld\n", name, (long long)ot_json_int(value, 0));
        break;
    case OT_JSON_REAL:
        ot_string_append_format(b, "- %s: %g\n", name, ot_json_real(value, 0));
        break;
    case OT_JSON_ARRAY:
        ot_string_append_format(b, "- %s:", name);
        for (size_t i = 0; i < ot_json_length(value); i++)
            if ((text = ot_json_string(ot_json_at(value, i), NULL)))
                ot_string_append_format(b, "%s `%s`", i ? "," : "", last_part(text));
        ot_string_append_text(b, "\n");
        break;
    default:
        break;
    }
}

static void put_front(struct ot_string_builder *b, const char *base, bool adapters) {
    ot_string_append_format(b, "---\nlibrary_name: %s\npipeline_tag: text-generation\n",
                            adapters ? "peft" : "transformers");
    if (base)
        ot_string_append_format(b, "base_model: %s\nbase_model_relation: %s\n", base,
                                adapters ? "adapter" : "finetune");
    ot_string_append_format(b, "tags:\n- offload-train\n%s---\n\n", adapters ? "- lora\n" : "");
}

/* Says which function was trained, if frozen weights were quantised: the files have them before that. */
static void put_base(struct ot_string_builder *b, const char *type, enum ot_card kind) {
    if (!type || strcmp(type, "auto") == 0)
        return;
    ot_string_append_format(b, "\nThe frozen matrices of the layers were %s during training. ", type);
    if (kind == OT_CARD_MERGED)
        ot_string_append_text(b, "Here the adapters are merged into their exact values.\n");
    else if (kind == OT_CARD_ADAPTERS)
        ot_string_append_format(b, "A base that is loaded in %s computes what was trained.\n", type);
    else
        ot_string_append_format(b,
                                "The files here have their exact values: eval and generate with "
                                "`--base-type %s` compute what was trained.\n",
                                type);
}

/* The step of the weights, if it is not the run's last one. */
static void put_step(struct ot_string_builder *b, const struct ot_checkpoint_record *finished) {
    char best[OT_EVAL_TEXT_BYTES];
    if (!finished || finished->result_step == 0)
        return;
    double cost = ot_eval_cost(finished->evals.metric, &finished->evals.best);
    ot_string_append_format(b, "\nThe weights are those after step %lld of %lld, the best evaluation: %s.\n",
                            (long long)finished->result_step, (long long)finished->progress.step,
                            ot_eval_cost_text(finished->evals.metric, cost, best));
}

/* run: the effective options, as in run.json. out: the directory. base: the base model's name on the hub;
 * NULL: not known. finished: of the run, or NULL. The caller frees *text. Errors: OT_E_BUDGET. */
static int model_card_make(const struct ot_json *run, const char *out, const char *base, enum ot_card kind,
                           const struct ot_checkpoint_record *finished, char **text, size_t *bytes) {
    static const char *const options[] = {
        "data",    "template", "train",    "freeze", "lora", "epochs",       "steps", "tokens-per-step",
        "seq-len", "lr",       "schedule", "warmup", "clip", "weight-decay", "dtype", "seed"};
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    const char *init = ot_json_string(ot_json_get(run, "init"), NULL);
    bool random = init && strcmp(init, "random") == 0;
    bool all = !ot_json_get(run, "train") && !ot_json_get(run, "freeze");
    struct ot_string_builder b = {0};
    put_front(&b, random ? NULL : base, kind == OT_CARD_ADAPTERS);
    ot_string_append_format(&b, "# %s\n\n%s %s with offload-train " OT_VERSION ": %s, AdamW.\n\n",
                            last_part(out),
                            random ? "Trained from random weights, in the shape of" : "Fine-tuned from",
                            base && !random ? base
                            : model         ? last_part(model)
                                            : "a model",
                            kind == OT_CARD_ADAPTERS ? "adapters (LoRA)"
                            : kind == OT_CARD_MERGED ? "adapters (LoRA), merged into the weights"
                            : all                    ? "all parameters"
                                                     : "some parameters");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        put_option(&b, run, options[i]);
    put_base(&b, ot_json_string(ot_json_get(run, "base-type"), NULL), kind);
    put_step(&b, finished);
    ot_string_append_format(&b, "\n`run.json` has every option%s.\n",
                            kind == OT_CARD_MERGED ? " of the run that made the adapters"
                                                   : ", `log.jsonl` the record of the run");
    if (b.failed) {
        free(b.text);
        return ot_fail(OT_E_BUDGET, "no memory for a model card");
    }
    *text = b.text;
    *bytes = b.bytes;
    return 0;
}

/* ---- result ---- */

static void put_token(const struct ot_session *s, const char *key, int32_t id, struct ot_json_writer *w) {
    size_t bytes;
    const char *token = id >= 0 ? ot_tokenizer_token(s->text.tokenizer, id, &bytes) : NULL;
    if (token)
        ot_json_put_string(w, key, token, bytes);
}

/* Writes the least that transformers needs to load a tokenizer.json with its special tokens. */
static int write_tokenizer_config(const struct ot_session *s, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    put_token(s, "bos_token", s->text.specials.bos_id, &w);
    put_token(s, "eos_token", s->text.specials.n_eos ? s->text.specials.eos_ids[0] : -1, &w);
    ot_json_put_int(&w, "model_max_length", ot_model_longest_row(&s->model.config));
    ot_json_put_bool(&w, "clean_up_tokenization_spaces", false);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

/* Writes the added tokens of a tokenizer.json as tokenizer_config.json has them: by their ids. */
static void put_decoder(const struct ot_json *tokenizer, const char *key, struct ot_json_writer *w) {
    const struct ot_json *added = ot_json_get(tokenizer, "added_tokens");
    ot_json_begin_object(w, key);
    for (size_t i = 0; i < ot_json_length(added); i++) {
        const struct ot_json *token = ot_json_at(added, i);
        void *cursor = NULL;
        const char *name;
        struct ot_json *value;
        char id[24];
        snprintf(id, sizeof id, "%lld", (long long)ot_json_int(ot_json_get(token, "id"), 0));
        ot_json_begin_object(w, id);
        while (ot_json_next(token, &cursor, &name, &value))
            if (strcmp(name, "id") != 0)
                ot_json_put_value(w, name, value);
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
}

/* Writes the base's tokenizer_config.json with the tokens that the run added. The file lists the new tokens
 * only if it lists the base's tokens. */
static int extend_tokenizer_config(const struct ot_session *s, const struct ot_json *config, char **text,
                                   size_t *bytes) {
    static const char LIST[] = "added_tokens_decoder";
    struct ot_json_writer w = {.indent = 0};
    struct ot_json *tokenizer;
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    OT_TRY(ot_json_read_file(s->text.tokenizer_path, OT_TOKENIZER_MAX_FILE_BYTES, &tokenizer));
    ot_json_begin_object(&w, NULL);
    while (ot_json_next(config, &cursor, &key, &value))
        if (strcmp(key, LIST) == 0)
            put_decoder(tokenizer, key, &w);
        else
            ot_json_put_value(&w, key, value);
    ot_json_end_object(&w);
    ot_json_free(tokenizer);
    return ot_json_writer_take(&w, text, bytes);
}

static int hold_tokenizer(const struct ot_session *s, struct ot_result *out) {
    out->tokenizer_fd = open(s->text.tokenizer_path, O_RDONLY | O_CLOEXEC);
    if (out->tokenizer_fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open the tokenizer", s->text.tokenizer_path);
    snprintf(out->tokenizer_path, sizeof out->tokenizer_path, "/proc/self/fd/%d", out->tokenizer_fd);
    return 0;
}

/* The base model's name on the hub if --model is such a name or a preset, or a directory of adapters that
 * names it so; otherwise NULL. */
static const char *base_name(const struct ot_session *s, const char *model) {
    const struct ot_preset *preset = s->model.resolved.preset;
    model = s->model.resolved.base ? s->model.resolved.base : model;
    if (preset)
        return preset->hub_id;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
    const char *slash = model ? strchr(model, '/') : NULL;
    bool is_name = slash && slash > model && slash[1] && !strchr(slash + 1, '/') && model[0] != '.' &&
                   model[strspn(model, letters)] == '\0';
    return is_name && access(model, F_OK) != 0 ? model : NULL;
}

/* Makes the model card from the options in run.json. */
static int take_card(struct ot_result *result) {
    bool merges = result->session->options->command == OT_COMMAND_MERGE;
    enum ot_card card = merges                           ? OT_CARD_MERGED
                        : result->session->options->lora ? OT_CARD_ADAPTERS
                                                         : OT_CARD_MODEL;
    struct ot_json *run;
    size_t bytes = 0;
    OT_TRY(ot_json_parse(result->run_text, strlen(result->run_text), "run.json", &run));
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    const char *out = ot_json_string(ot_json_get(run, "out"), NULL);
    free(result->card_text);
    result->card_text = NULL;
    int rc = model_card_make(run, merges || !out ? result->files.out : out, base_name(result->session, model),
                             card, result->finished, &result->card_text, &bytes);
    ot_json_free(run);
    result->extra[1] = (struct ot_extra_file){.name = "README.md", .text = result->card_text, .bytes = bytes};
    return rc;
}

static void put_members(const struct ot_json *object, struct ot_json_writer *w) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &key, &value))
        ot_json_put_value(w, key, value);
}

/* Makes run.json. record NULL: from the present settings; of a merged model: it is the adapters'. */
static int take_run(struct ot_result *result, const struct ot_checkpoint_record *record) {
    const struct ot_session *s = result->session;
    struct ot_json_writer w = {.indent = 0};
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    if (record) {
        put_members(record->options, &w); /* as ot_options_put_run wrote them */
        if (record->sources)
            ot_json_put_value(&w, "sources", record->sources);
    } else if (s->options->command == OT_COMMAND_MERGE) {
        put_members(s->text.run, &w);
    } else {
        ot_options_put_run(s->options, &w);
        ot_session_ranks_put_json(s, OT_RUN_RANKS, &w);
    }
    const struct ot_json *history = record ? record->history : result->history;
    if (history)
        ot_json_put_value(&w, OT_RUN_HISTORY, history);
    ot_json_end_object(&w);
    free(result->run_text);
    OT_TRY(ot_json_writer_take(&w, &result->run_text, &bytes));
    result->extra[0] = (struct ot_extra_file){.name = "run.json", .text = result->run_text, .bytes = bytes};
    return take_card(result);
}

/* Adds the chat template of training, so that a server formats conversations in the same way. Increments
 * *n. */
static int add_chat_template(struct ot_result *result, int *n) {
    size_t bytes;
    OT_TRY(ot_chat_choice_write(result->session, &result->chat_text, &bytes));
    if (!result->chat_text)
        return 0;
    result->extra[(*n)++] =
        (struct ot_extra_file){.name = "chat_template.jinja", .text = result->chat_text, .bytes = bytes};
    return 0;
}

/* The base as adapter_config.json names it: by its name on the hub, else by its absolute path. */
static int make_adapter_config(struct ot_result *result) {
    const struct ot_session *s = result->session;
    const char *name = base_name(s, s->options->model);
    char *real = s->model.resolved.path ? realpath(s->model.resolved.path, NULL) : NULL;
    size_t bytes;
    int rc = ot_adapter_config_write(s->options->lora, s->model.built, name ? name : real,
                                     &result->adapter_text, &bytes);
    free(real);
    result->files.adapter_config = result->adapter_text;
    return rc;
}

/* Refuses to write adapters, or a merged model, over their own inputs, which would be lost. */
static int check_inputs(const struct ot_session *s, const char *dir) {
    const struct ot_options *o = s->options;
    if (!o->lora)
        return 0;
    if (s->model.resolved.path && ot_path_is_same(dir, s->model.resolved.path))
        return ot_fail(OT_E_INPUT,
                       "--out %s is the base of the adapters, which would be lost; give another directory",
                       dir);
    if (o->command == OT_COMMAND_MERGE && ot_path_is_same(dir, s->model.resolved.adapter))
        return ot_fail(OT_E_INPUT, "--out %s is the directory of the adapters; give another directory", dir);
    return 0;
}

/* Adds tokenizer.json and tokenizer_config.json, unless those of the base are copied. Increments *n. */
static int add_tokenizer(struct ot_result *out, bool is_own, int *n) {
    const struct ot_session *s = out->session;
    const struct ot_json *config = is_own ? NULL : ot_model_dir_facts(s->model.dir)->tokenizer_config;
    size_t bytes;
    if (!is_own && !s->text.tokenizer_is_extended)
        return 0;
    OT_TRY(config ? extend_tokenizer_config(s, config, &out->tokenizer_text, &bytes)
                  : write_tokenizer_config(s, &out->tokenizer_text, &bytes));
    OT_TRY(hold_tokenizer(s, out));
    out->extra[(*n)++] = (struct ot_extra_file){.name = "tokenizer.json", .path = out->tokenizer_path};
    out->extra[(*n)++] =
        (struct ot_extra_file){.name = "tokenizer_config.json", .text = out->tokenizer_text, .bytes = bytes};
    return 0;
}

int ot_result_open(struct ot_session *s, const char *dir, struct ot_out_lock *lock,
                   const struct ot_json *history, struct ot_result *out) {
    bool own_tokenizer = !s->model.dir || s->options->tokenizer || s->text.tokenizer_is_of_adapter ||
                         ot_session_has_made_tokenizer(s);
    *out = (struct ot_result){.session = s, .files = {.out = dir}, .tokenizer_fd = -1, .history = history};
    OT_TRY(check_inputs(s, dir));
    OT_TRY(take_run(out, NULL));
    int n = 2;
    OT_TRY(add_tokenizer(out, own_tokenizer, &n));
    OT_TRY(add_chat_template(out, &n));
    out->files = (struct ot_model_save){.out = dir,
                                        .model = s->model.built,
                                        .base = s->model.dir,
                                        .dtype = s->model.stored,
                                        .extra = out->extra,
                                        .n_extra = n,
                                        .lock = lock,
                                        .shard_bytes = s->options->max_shard_size};
    if (own_tokenizer)
        out->files.ids = s->text.ids;
    if (s->options->lora && s->options->command != OT_COMMAND_MERGE)
        OT_TRY(make_adapter_config(out));
    return ot_model_dir_save_bytes(&out->files, &out->bytes);
}

void ot_result_close(struct ot_result *result) {
    free(result->run_text);
    free(result->tokenizer_text);
    free(result->finished_text);
    free(result->chat_text);
    free(result->card_text);
    free(result->adapter_text);
    if (result->session && result->tokenizer_fd >= 0) /* only after a successful open */
        close(result->tokenizer_fd);
    *result = (struct ot_result){0};
}

int ot_result_try(const struct ot_result *result) {
    return ot_model_dir_save_try(&result->files);
}

int ot_result_write_from(struct ot_result *result, const struct ot_checkpoint_record *record,
                         ot_param_source source, void *context) {
    OT_TRY(take_run(result, record));
    return ot_model_dir_save(&result->files, source, context);
}

static int add_record(struct ot_result *result, const struct ot_checkpoint_record *finished) {
    size_t bytes;
    result->finished = finished;
    OT_TRY(ot_checkpoint_record_encode(finished, &result->finished_text, &bytes));
    result->extra[result->files.n_extra++] =
        (struct ot_extra_file){.name = OT_FINISHED_NAME, .text = result->finished_text, .bytes = bytes};
    return 0;
}

int ot_result_write(struct ot_result *result, const struct ot_checkpoint_record *finished) {
    struct ot_slab_gather gather;
    ot_gather_open(result->session, &gather);
    int rc = finished ? add_record(result, finished) : 0;
    if (rc == 0)
        rc = ot_result_write_from(result, NULL, ot_gather_values, &gather);
    return ot_gather_close(&gather, rc);
}
