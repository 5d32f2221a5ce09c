#include "src/train/gguf_export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/lora_spec.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/data/chat_template.h"
#include "src/files/out_dir.h"
#include "src/gguf/model_keys.h"
#include "src/gguf/vocab.h"
#include "src/session/chat_choice.h"
#include "src/tokenizer/sentencepiece.h"

enum { NAME_MOST_BYTES = 128, MOST_ROPE_TENSORS = 2 };

struct writing {
    struct ot_gguf_export *job;
    const struct ot_model *model;
    struct ot_gguf_keys keys;
    struct ot_gguf_entry *entries;
    struct ot_gguf_piece *pieces;   /* one for each tensor that is written; of some, more */
    struct ot_gguf_tensors tensors; /* the two lists */
    int64_t of_experts[OT_MODULES]; /* the entry of the present layer's experts, by module */
    struct ot_gguf_mixture mixture; /* the job's, with the file type that the file gets */
    struct ot_gguf_writer *writer;
    struct ot_out_dir *dir;
    int64_t next; /* the tensor of the model that the next value belongs to, or that follows the padding */
    /* For adapters: */
    bool adapters;
    struct ot_lora_spec lora;
    double alpha; /* of the whole file; 0: not known yet */
};

/* ---- adapters ---- */

static bool is_written(const struct writing *w, const struct ot_tensor *tensor) {
    return !w->adapters || ot_lora_has_tensor(tensor->name);
}

/* The adapter that a tensor belongs to. */
static int find_rank(const struct writing *w, const struct ot_tensor *tensor, struct ot_lora_rank *rank) {
    char target[OT_MODEL_NAME_BYTES];
    const char *module = tensor->name + strlen(OT_LORA_PREFIX);
    bool down = tensor->module == OT_MODULE_EXPERT_DOWN || tensor->module == OT_MODULE_EXPERTS_DOWN;
    if (ot_module_is_expert(tensor->module))
        ot_model_experts_parameter(&w->job->session->model.config,
                                   down ? OT_MODULE_EXPERTS_DOWN : OT_MODULE_EXPERTS_GATE_UP, tensor->layer,
                                   target, sizeof target);
    else
        snprintf(target, sizeof target, "%.*s", (int)(strstr(module, ".lora_") - module), module);
    return ot_lora_find(&w->lora.lora, target, rank);
}

/* The factor of an adapter's B: llama.cpp's scale is alpha of the file / rank. */
static int find_factor(const struct writing *w, const struct ot_tensor *tensor, float *factor) {
    struct ot_lora_rank rank;
    *factor = 1;
    if (!w->adapters || tensor->init == OT_INIT_LORA_A)
        return 0;
    OT_TRY(find_rank(w, tensor, &rank));
    *factor = (float)((double)ot_lora_scale(&w->lora.lora, rank) * (double)rank.rank / w->alpha);
    return 0;
}

static int check_adapters(struct writing *w) {
    const struct ot_gguf_export *job = w->job;
    const char *const types = "f32 f16 bf16 q8_0";
    OT_TRY(ot_lora_spec_read(job->session->options->lora, &w->lora));
    if (job->modelfile)
        return ot_fail(OT_E_USAGE,
                       "%s: a Modelfile of adapters would have to name their base in Ollama; merge "
                       "them first (offload-train merge), and export the result",
                       job->source);
    if (w->lora.lora.dora)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp has no DoRA; merge these adapters first (offload-train merge), "
                       "and export the result",
                       job->source);
    if (!strstr(types, job->mixture->name))
        return ot_fail(OT_E_USAGE, "%s: adapters can be f32, f16, bf16 or q8_0", job->source);
    for (int64_t i = 0; i < ot_model_tensor_count(w->model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(w->model, i);
        if (tensor->trained &&
            (!ot_lora_has_tensor(tensor->name) || strstr(tensor->name, ".lora_embedding_") ||
             ot_lora_is_of_tokens(tensor->name)))
            return ot_fail(
                OT_E_INPUT,
                "%s: %s is trained too, and llama.cpp has no adapters of that kind; merge them first "
                "(offload-train merge), and export the result",
                job->source, tensor->name);
        if (tensor->trained && tensor->module == OT_MODULE_HEAD && job->session->model.config.tied)
            return ot_fail(
                OT_E_INPUT,
                "%s: %s adapts the output, which llama.cpp takes from the embedding in this model; "
                "merge the adapters first (offload-train merge), and export the result",
                job->source, tensor->name);
    }
    return 0;
}

/* ---- names ---- */

/* The last component of the path without ".gguf", in letters that every file system and Ollama take. */
static void choose_name(struct ot_gguf_export *job) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    char *real = realpath(job->source, NULL);
    const char *path = real ? real : job->source, *slash = strrchr(path, '/');
    char base[NAME_MOST_BYTES + 1];
    snprintf(base, sizeof base, "%s", slash ? slash + 1 : path);
    free(real);
    if (ot_path_has_extension(base, ".gguf"))
        base[strlen(base) - strlen(".gguf")] = '\0';
    for (char *c = base; *c; c++)
        *c = strchr(plain, *c) ? *c : '-';
    snprintf(job->name, sizeof job->name, "%s-%s.gguf", base[0] && base[0] != '.' ? base : "model",
             job->mixture->label);
}

/* ---- the header ---- */

/* The chat template of the run's rows if the model does not have it, else the model's. The caller frees
 * *made. */
static int find_chat_template(const struct ot_session *s, struct ot_gguf_vocab *vocab, char **made) {
    const struct ot_model_facts *facts = s->model.dir ? ot_model_dir_facts(s->model.dir) : NULL;
    OT_TRY(ot_chat_choice_write(s, made, &vocab->chat_template_bytes));
    vocab->chat_template = *made;
    if (!*made && facts && facts->has_chat_template) {
        vocab->chat_template = facts->chat_template;
        vocab->chat_template_bytes = facts->chat_template_bytes;
    }
    return 0;
}

/* True if a text ends with a special token. */
static int find_add_eos(const struct ot_session *s, bool *out) {
    struct ot_token_list bare = {0}, framed = {0};
    int rc;
    OT_TRY_GOTO(ot_tokenizer_encode(s->text.tokenizer, "a", 1, 0, &bare), rc, out);
    OT_TRY_GOTO(ot_tokenizer_encode(s->text.tokenizer, "a", 1, OT_TOKENIZER_ADD_SPECIAL, &framed), rc, out);
    *out = s->text.ids.n_eos > 0 && framed.n > bare.n + s->text.specials.add_bos &&
           framed.ids[framed.n - 1] == s->text.ids.eos[0];
out:
    ot_token_list_free(&bare);
    ot_token_list_free(&framed);
    return rc;
}

/* Opens the SentencePiece model for its scores. *out stays NULL if there is none, or if it cannot be read: a
 * file of another kind beside tokenizer.json is no error. */
static int find_sentencepiece(const struct ot_session *s, struct ot_sentencepiece **out) {
    const char *path = ot_session_sentencepiece(s);
    int rc = path ? ot_sentencepiece_open(path, out) : 0;
    return rc == -OT_E_INPUT ? 0 : rc;
}

static int put_vocab(struct writing *w) {
    const struct ot_session *s = w->job->session;
    struct ot_sentencepiece *sentencepiece = NULL;
    struct ot_json *tokenizer = NULL;
    char *made = NULL;
    int rc;
    OT_TRY(ot_json_read_file(s->text.tokenizer_path, OT_TOKENIZER_MAX_FILE_BYTES, &tokenizer));
    struct ot_gguf_vocab vocab = {.tokenizer = tokenizer,
                                  .where = ot_session_is_of_sentencepiece(s) ? ot_session_sentencepiece(s)
                                           : s->text.tokenizer_file          ? s->text.tokenizer_file
                                                                             : s->text.tokenizer_path,
                                  .size = s->model.config.vocab,
                                  .bos = s->text.specials.bos_id,
                                  .eos = s->text.ids.n_eos > 0 ? s->text.ids.eos[0] : -1,
                                  .add_bos = s->text.specials.add_bos};
    OT_TRY_GOTO(find_sentencepiece(s, &sentencepiece), rc, out);
    vocab.sentencepiece = sentencepiece;
    OT_TRY_GOTO(find_add_eos(s, &vocab.add_eos), rc, out);
    OT_TRY_GOTO(find_chat_template(s, &vocab, &made), rc, out);
    rc = ot_gguf_put_vocab(&w->keys, &vocab);
out:
    ot_sentencepiece_close(sentencepiece);
    free(made);
    ot_json_free(tokenizer);
    return rc;
}

/* The tensors in front of the model's own; NULL past the last. */
static const char *rope_tensor(const struct writing *w, int index) {
    return w->adapters ? NULL : ot_gguf_rope_tensor(&w->job->session->model.config, index);
}

/* Experts that the base's files have in MXFP4 stay so: no other type has their values in fewer bytes. */
static bool keeps_mxfp4(const struct writing *w, const struct ot_tensor *tensor) {
    const struct ot_session *s = w->job->session;
    bool is_of_base = s->model.dir && !w->adapters && !(w->job->of_run && tensor->trained);
    return is_of_base && ot_module_is_expert(tensor->module) && tensor->dims == 2 &&
           ot_model_dir_has_mxfp4(s->model.dir, tensor);
}

/* True if a tensor has values of gate and of up, which are two tensors of the file. All experts of a layer
 * have one adapter for both. */
static bool is_of_two(const struct writing *w, const struct ot_tensor *tensor) {
    return ot_gguf_is_pair(tensor->module) || (w->adapters && tensor->module == OT_MODULE_EXPERT_GATE);
}

/* Adds the file's tensor that has a tensor of the model, or all of its kind in its layer. */
static int add_entry(struct writing *w, const struct ot_tensor *tensor) {
    const struct ot_model_config *config = &w->job->session->model.config;
    struct ot_gguf_entry *entry = &w->entries[w->tensors.n_entries++];
    bool mxfp4 = keeps_mxfp4(w, tensor), two = is_of_two(w, tensor);
    *entry = (struct ot_gguf_entry){
        .type = mxfp4 ? ot_gguf_type(OT_GGUF_MXFP4) : ot_gguf_type_of(&w->mixture, config, tensor),
        .dims = tensor->dims,
        .rows = tensor->expert >= 0 ? tensor->rows * config->n_experts : tensor->rows,
        .cols = tensor->cols,
        .parts = ot_module_is_expert(tensor->module) ? config->n_experts : 0};
    if (mxfp4 && ot_gguf_type(w->mixture.type)->block_values == 1)
        w->mixture.file_type = OT_GGUF_FILE_MXFP4_MOE;
    if (tensor->init != OT_INIT_LORA_A) /* whose rows are those of the rank */
        entry->head_rows = ot_gguf_head_rows(config, tensor->module);
    if ((entry->head_rows || two) && tensor->dims == 1) { /* a bias whose values change places */
        entry->rows = tensor->cols;
        entry->cols = 1;
    }
    entry->rows /= two && tensor->init != OT_INIT_LORA_A ? 2 : 1;
    if (!ot_gguf_name_of(config, tensor, entry->name))
        return ot_fail(OT_E_INTERNAL, "GGUF has no name for tensor %s", tensor->name);
    if (!two)
        return 0;
    w->entries[w->tensors.n_entries] = *entry;
    ot_gguf_name_up(w->entries[w->tensors.n_entries++].name);
    return 0;
}

/* Adds the pieces of a B that has, for each expert, all rows of gate and then those of up. */
static void add_halves(struct writing *w, int64_t entry) {
    const struct ot_model_config *config = &w->job->session->model.config;
    for (int64_t half = 0; half < 2 * config->n_experts; half++)
        w->pieces[w->tensors.n_pieces++] = (struct ot_gguf_piece){.entry = entry + half % 2,
                                                                  .first_row = half / 2 * config->expert_ffn,
                                                                  .rows = config->expert_ffn};
}

/* Adds a tensor of the model: its pieces, and an entry if it is the first of an entry. */
static int add_tensor(struct writing *w, const struct ot_tensor *tensor) {
    int64_t *of_experts = &w->of_experts[tensor->module], entry = w->tensors.n_entries,
            expert = tensor->expert;
    if (expert > 0)
        entry = *of_experts;
    else
        OT_TRY(add_entry(w, tensor));
    bool two = is_of_two(w, tensor), by_value = w->entries[entry].cols == 1 && tensor->dims == 1;
    bool twice = two && tensor->init == OT_INIT_LORA_A,
         alternates = ot_gguf_is_pair(tensor->module) && !twice;
    *of_experts = entry;
    if (two && !twice && !alternates)
        add_halves(w, entry);
    else
        w->pieces[w->tensors.n_pieces++] =
            (struct ot_gguf_piece){.entry = entry,
                                   .first_row = expert > 0 ? expert * tensor->rows : 0,
                                   .rows = by_value ? tensor->cols : tensor->rows,
                                   .alternates = alternates,
                                   .twice = twice};
    return 0;
}

static int make_entries(struct writing *w) {
    const struct ot_model_config *config = &w->job->session->model.config;
    size_t n = (size_t)ot_model_tensor_count(w->model);
    size_t halves = w->adapters ? (size_t)(2 * config->n_experts * config->n_layers) : 0;
    w->entries = calloc(2 * n + MOST_ROPE_TENSORS, sizeof *w->entries);
    w->pieces = calloc(n + halves + MOST_ROPE_TENSORS, sizeof *w->pieces);
    w->tensors = (struct ot_gguf_tensors){.entries = w->entries, .pieces = w->pieces};
    if (!w->entries || !w->pieces)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a table of tensors", w->job->out);
    for (const char *name; (name = rope_tensor(w, (int)w->tensors.n_entries));) {
        struct ot_gguf_entry *entry = &w->entries[w->tensors.n_entries];
        *entry = (struct ot_gguf_entry){
            .type = ot_gguf_type(OT_GGUF_F32), .dims = 1, .rows = 1, .cols = config->rotary_dim / 2};
        snprintf(entry->name, sizeof entry->name, "%s", name);
        w->pieces[w->tensors.n_pieces++] = (struct ot_gguf_piece){.entry = w->tensors.n_entries++, .rows = 1};
    }
    for (int64_t i = 0; i < ot_model_tensor_count(w->model); i++)
        if (is_written(w, ot_model_tensor(w->model, i)))
            OT_TRY(add_tensor(w, ot_model_tensor(w->model, i)));
    return 0;
}

/* The alpha of the first adapter, which most models share. */
static int find_alpha(struct writing *w) {
    struct ot_lora_rank rank;
    int64_t i = 0;
    while (!ot_lora_has_tensor(ot_model_tensor(w->model, i)->name))
        i++;
    OT_TRY(find_rank(w, ot_model_tensor(w->model, i), &rank));
    w->alpha = (double)(float)rank.alpha;
    return 0;
}

static int put_bytes(void *context, int64_t at, const void *data, size_t bytes) {
    struct writing *w = context;
    return ot_out_dir_write_at(w->dir, at, data, bytes);
}

/* Warns that llama.cpp does not divide the logits (architectures.h). */
static void warn_of_logits(const struct ot_model_config *c) {
    if (ot_model_has_pairs(c) && c->logit_divisor != 0)
        ot_log(
            OT_LOG_WARN,
            "llama.cpp does not divide the logits of a T5 whose embedding is its head by %.4g, the root of "
            "its width: its greedy answers are the same; --temp %.4g gives it the model's probabilities",
            c->logit_divisor, c->logit_divisor);
}

/* llama.cpp reads "phi3" and "phi-3" in the name of a model as its tokenizer: the special tokens swallow
 * spaces behind them, and the file is refused if the vocabulary lacks some. "ph_3" keeps it from that. */
static void avoid_phi3(const struct ot_session *s, char *name) {
    static const char *const marks[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};
    bool is_phi3 = s->model.config.family == OT_FAMILY_PHI3;
    for (size_t i = 0; i < sizeof marks / sizeof *marks && is_phi3; i++)
        is_phi3 = ot_tokenizer_find(s->text.tokenizer, marks[i], strlen(marks[i])) >= 0;
    for (char *at = name; !is_phi3 && (at = strcasestr(at, "phi")); at += 3)
        if (at[3] == '3' || (at[3] == '-' && at[4] == '3'))
            at[2] = '_';
}

static int make_header(struct writing *w) {
    struct ot_gguf_export *job = w->job;
    const struct ot_session *s = job->session;
    char name[NAME_MAX + 1];
    OT_TRY(ot_gguf_check_config(&s->model.config, job->source));
    warn_of_logits(&s->model.config);
    OT_TRY(make_entries(w));
    snprintf(name, sizeof name, "%.*s", (int)(strlen(job->name) - strlen(job->mixture->label) - 6),
             job->name);
    avoid_phi3(s, name);
    if (w->adapters) {
        OT_TRY(find_alpha(w));
        ot_gguf_put_adapter(&w->keys, &s->model.config, name, &w->mixture, w->alpha);
    } else {
        ot_gguf_put_config(&w->keys, &s->model.config, name, &w->mixture);
        OT_TRY(put_vocab(w));
    }
    OT_TRY(ot_gguf_writer_open(&w->keys, &w->tensors, s->machine.pool, put_bytes, w, &w->writer));
    job->bytes = ot_gguf_writer_bytes(w->writer);
    return 0;
}

/* ---- the values ---- */

static int put_rope_factors(struct writing *w) {
    const struct ot_model_config *config = &w->job->session->model.config;
    for (int t = 0; rope_tensor(w, t); t++)
        for (int64_t i = 0; i < config->rotary_dim / 2; i++) {
            float factor = ot_gguf_rope_factor(config, rope_tensor(w, t), i);
            OT_TRY(ot_gguf_writer_put(w->writer, &factor, 1));
        }
    return 0;
}

static int put_values(struct writing *w, const struct ot_tensor *tensor, const float *values, int64_t n) {
    enum { SOME = 1024 };
    const struct ot_model_config *config = &w->job->session->model.config;
    float factor, changed[SOME], addend = w->adapters ? 0 : ot_gguf_addend(config, tensor->module);
    OT_TRY(find_factor(w, tensor, &factor));
    if (factor == 1 && addend == 0)
        return ot_gguf_writer_put(w->writer, values, n);
    for (int64_t at = 0, some; at < n; at += some) {
        some = ot_min(n - at, SOME);
        for (int64_t i = 0; i < some; i++)
            changed[i] = factor * values[at + i] + addend;
        OT_TRY(ot_gguf_writer_put(w->writer, changed, some));
    }
    return 0;
}

/* Passes the values of tensors on and drops padding. */
static int take_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct writing *w = context;
    while (n > 0 && w->next < ot_model_tensor_count(w->model)) {
        const struct ot_tensor *tensor = ot_model_tensor(w->model, w->next);
        if (!is_written(w, tensor)) {
            w->next++;
            continue;
        }
        int64_t end = tensor->first + tensor->rows * tensor->cols, some = n;
        if (tensor->slab != slab)
            return 0;
        if (first < tensor->first) {
            some = ot_min(tensor->first - first, n);
        } else {
            some = ot_min(end - first, n);
            OT_TRY(put_values(w, tensor, values, some));
            w->next += first + some == end;
        }
        first += some;
        values += some;
        n -= some;
    }
    return 0;
}

static int put_modelfile(struct writing *w) {
    char *text;
    if (!w->job->modelfile)
        return 0;
    OT_TRY(ot_string_format(&text, "FROM ./%s\n", w->job->name));
    int rc = ot_out_dir_put(w->dir, "Modelfile", text, strlen(text));
    free(text);
    return rc;
}

static int write_all(struct writing *w, ot_param_feed feed, void *context) {
    struct ot_gguf_export *job = w->job;
    OT_TRY(ot_out_dir_open(job->out, NULL, job->lock, &w->dir));
    OT_TRY(ot_out_dir_need_space(w->dir, job->bytes));
    OT_TRY(ot_out_dir_create(w->dir, job->name, job->bytes));
    OT_TRY(put_rope_factors(w));
    OT_TRY(feed(context, take_values, w));
    OT_TRY(ot_gguf_writer_finish(w->writer));
    OT_TRY(ot_out_dir_finish(w->dir));
    OT_TRY(put_modelfile(w));
    return ot_out_dir_commit(w->dir);
}

int ot_gguf_export(struct ot_gguf_export *job, ot_param_feed feed, void *context) {
    struct writing w = {.job = job,
                        .model = job->session->model.built,
                        .mixture = *job->mixture,
                        .adapters = job->session->options->lora != NULL};
    int rc;
    choose_name(job);
    if (w.adapters)
        OT_TRY_GOTO(check_adapters(&w), rc, out);
    OT_TRY_GOTO(make_header(&w), rc, out);
    rc = write_all(&w, feed, context);
out:
    ot_out_dir_close(w.dir);
    ot_gguf_writer_close(w.writer);
    ot_gguf_keys_free(&w.keys);
    free(w.entries);
    free(w.pieces);
    return rc;
}
