#include "src/saving/save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/io_calls.h"
#include "src/base/path.h"
#include "src/saving/finished.h"
#include "src/saving/model_card.h"

static void put_token(const struct ot_session *s, const char *key, int32_t id, struct ot_json_writer *w) {
    size_t bytes;
    const char *token = id >= 0 ? ot_tokenizer_token(s->tokenizer, id, &bytes) : NULL;
    if (token)
        ot_json_put_string(w, key, token, bytes);
}

/* The least that transformers needs to load a tokenizer.json with its special tokens. */
static int write_tokenizer_config(const struct ot_session *s, char **text, size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    put_token(s, "bos_token", s->specials.bos_id, &w);
    put_token(s, "eos_token", s->specials.n_eos ? s->specials.eos_ids[0] : -1, &w);
    ot_json_put_int(&w, "model_max_length", s->config.max_position);
    ot_json_put_bool(&w, "clean_up_tokenization_spaces", false);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

static int hold_tokenizer(const struct ot_session *s, struct ot_save *out) {
    out->tokenizer_fd = open(s->tokenizer_path, O_RDONLY | O_CLOEXEC);
    if (out->tokenizer_fd < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot open it", s->tokenizer_path);
    snprintf(out->tokenizer_path, sizeof out->tokenizer_path, "/proc/self/fd/%d", out->tokenizer_fd);
    return 0;
}

/* The name on the hub of the model that training begins with, where --model is that, or a preset. */
static const char *base_name(const struct ot_session *s, const char *model) {
    const struct ot_preset *preset = s->resolved.preset;
    if (preset)
        return preset->hub_id;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
    const char *slash = model ? strchr(model, '/') : NULL;
    bool is_name = slash && slash > model && slash[1] && !strchr(slash + 1, '/') && model[0] != '.' &&
                   model[strspn(model, letters)] == '\0';
    return is_name && access(model, F_OK) != 0 ? model : NULL;
}

/* The card says what run.json says. */
static int take_card(struct ot_save *save) {
    struct ot_json *run;
    size_t bytes;
    OT_TRY(ot_json_parse(save->run_text, strlen(save->run_text), "run.json", &run));
    const char *model = ot_json_string(ot_json_get(run, "model"), NULL);
    free(save->card_text);
    save->card_text = NULL;
    int rc = ot_model_card_make(run, base_name(save->session, model), &save->card_text, &bytes);
    ot_json_free(run);
    save->extra[1] = (struct ot_extra_file){.name = "README.md", .text = save->card_text, .bytes = bytes};
    return rc;
}

/* What ot_options_put_run wrote when the record was made. */
static void put_recorded(const struct ot_checkpoint_record *record, struct ot_json_writer *w) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    ot_json_begin_object(w, NULL);
    while (ot_json_next(record->options, &cursor, &key, &value))
        ot_json_put_value(w, key, value);
    if (record->sources)
        ot_json_put_value(w, "sources", record->sources);
    ot_json_end_object(w);
}

/* record NULL: the settings as they are now. */
static int take_run(struct ot_save *save, const struct ot_checkpoint_record *record) {
    struct ot_json_writer w = {.indent = 0};
    size_t bytes;
    if (record)
        put_recorded(record, &w);
    else
        ot_options_put_run(save->session->options, &w);
    free(save->run_text);
    OT_TRY(ot_json_writer_take(&w, &save->run_text, &bytes));
    save->extra[0] = (struct ot_extra_file){.name = "run.json", .text = save->run_text, .bytes = bytes};
    return take_card(save);
}

/* A server writes conversations as training did. *n grows by the file. */
static int add_chat_template(struct ot_save *save, int *n) {
    const struct ot_session *s = save->session;
    const char *name = s->options->template_name;
    const struct ot_chat_template *template = name ? ot_chat_template_find(name) : NULL;
    size_t bytes;
    if (!template || (s->dir && ot_model_dir_facts(s->dir)->has_chat_template))
        return 0;
    OT_TRY(ot_chat_template_write(template, &save->chat_text, &bytes));
    save->extra[(*n)++] =
        (struct ot_extra_file){.name = "chat_template.jinja", .text = save->chat_text, .bytes = bytes};
    return 0;
}

int ot_save_open(struct ot_session *s, const char *dir, struct ot_out_lock *lock, struct ot_save *out) {
    bool own_tokenizer = !s->dir || s->options->tokenizer;
    size_t tokenizer_bytes;
    *out = (struct ot_save){.session = s, .tokenizer_fd = -1};
    OT_TRY(take_run(out, NULL));
    int n = 2;
    if (own_tokenizer) {
        OT_TRY(write_tokenizer_config(s, &out->tokenizer_text, &tokenizer_bytes));
        OT_TRY(hold_tokenizer(s, out));
        out->extra[n++] = (struct ot_extra_file){.name = "tokenizer.json", .path = out->tokenizer_path};
        out->extra[n++] = (struct ot_extra_file){
            .name = "tokenizer_config.json", .text = out->tokenizer_text, .bytes = tokenizer_bytes};
    }
    OT_TRY(add_chat_template(out, &n));
    out->files = (struct ot_model_save){.out = dir,
                                        .model = s->model,
                                        .base = s->dir,
                                        .dtype = s->stored,
                                        .extra = out->extra,
                                        .n_extra = n,
                                        .lock = lock,
                                        .shard_bytes = s->options->max_shard_size};
    if (own_tokenizer)
        out->files.ids = s->ids;
    return ot_model_dir_save_bytes(&out->files, &out->bytes);
}

void ot_save_close(struct ot_save *save) {
    free(save->run_text);
    free(save->tokenizer_text);
    free(save->finished_text);
    free(save->chat_text);
    free(save->card_text);
    if (save->session && save->tokenizer_fd >= 0) /* opened at all */
        close(save->tokenizer_fd);
    *save = (struct ot_save){0};
}

int ot_save_probe(const struct ot_save *save) {
    return ot_model_dir_save_probe(&save->files);
}

static int get_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    return ot_engine_get(context, OT_SLAB_MASTER, slab, first, n, values);
}

int ot_save_write_from(struct ot_save *save, const struct ot_checkpoint_record *record,
                       ot_param_source source, void *context) {
    OT_TRY(take_run(save, record));
    return ot_model_dir_save(&save->files, source, context);
}

int ot_save_write(struct ot_save *save, const struct ot_checkpoint_record *finished) {
    size_t bytes;
    if (finished) {
        OT_TRY(ot_checkpoint_record_encode(finished, &save->finished_text, &bytes));
        save->extra[save->files.n_extra++] =
            (struct ot_extra_file){.name = OT_FINISHED_NAME, .text = save->finished_text, .bytes = bytes};
    }
    return ot_save_write_from(save, NULL, get_values, save->session->engine);
}

int64_t ot_save_disk_free(const char *dir) {
    char nearest[PATH_MAX];
    return ot_path_find_nearest(dir, nearest) ? ot_io_system.free_bytes(NULL, nearest) : -1;
}
