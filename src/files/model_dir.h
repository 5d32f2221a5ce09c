/* A model in a Hugging Face directory: opened, streamed into an engine, streamed out into a new directory.
 *
 * OPEN reads config.json, generation_config.json and tokenizer_config.json, and maps the weights:
 * model.safetensors, or the shards of model.safetensors.index.json. A directory without weights opens too
 * (its config and tokenizer serve --init random); loading from it is the error then.
 *
 * LOAD finds every tensor of the model (models/model.h) in the files, with and without the prefixes that
 * transformers adds, and refuses missing, extra, misshaped and non-finite ones by name before or as it meets
 * them. Values go to the sink as fp32, exactly, slab by slab in ascending order, a chunk at a time; the
 * file's pages leave this process's memory behind it, so that there is never a second copy of the model.
 *
 * SAVE asks a source for the values in the same order and writes shards in the base dtype, with the base's
 * config and tokenizer files, its licences, a processor's settings and its code, through an out_dir
 * (out_dir.h): the result appears whole or not at all.
 *
 * An ot_model_dir is immutable once open; load and save use the calling thread and the pool.
 */
#ifndef OT_FILES_MODEL_DIR_H
#define OT_FILES_MODEL_DIR_H

#include "src/files/model_config.h"

struct ot_pool;
struct ot_io_calls;
struct ot_model_dir;

struct ot_model_facts {
    struct ot_model_config config;
    /* Of the stored weights: what most of their bytes are; without weights, what the config says (default
     * bf16). */
    enum ot_dtype dtype;
    /* From generation_config.json, else tokenizer_config.json, else config.json. eos[0] is the one that ends
     * a trained row: the tokenizer's own where it is among several. */
    struct ot_token_ids ids;
    bool has_weights;
    const char *weights_missing; /* why not, for a sentence; NULL with weights */
    const char *tokenizer_path;  /* tokenizer.json, or NULL */
    double attention_dropout;    /* that the config asks for and that is not applied */
    bool has_chat_template;
    const char *chat_template; /* its Jinja text; NULL: there is none, or it is no text */
    size_t chat_template_bytes;
    int n_shards;
    int64_t weight_bytes;
    const char *left_out; /* names of other files, which a save does not copy; NULL: none */
};

/* Errors: OT_E_INPUT (a file says something wrong), OT_E_IO (cannot read). */
int ot_model_dir_open(const char *path, struct ot_model_dir **out);
void ot_model_dir_close(struct ot_model_dir *dir); /* NULL is fine */
const struct ot_model_facts *ot_model_dir_facts(const struct ot_model_dir *dir);
const char *ot_model_dir_path(const struct ot_model_dir *dir);

/* values[n] are parameters [first, first + n) of a slab; they are valid during the call. */
typedef int (*ot_param_sink)(void *context, int slab, int64_t first, int64_t n, const float *values);
typedef int (*ot_param_source)(void *context, int slab, int64_t first, int64_t n, float *values);

/* Whether the files hold exactly the model's tensors, each in its shape and a dtype that we read. Reads no
 * data but two tensors that the config ties and the files hold both: they must be equal. Errors: OT_E_INPUT,
 * OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_check(const struct ot_model_dir *dir, const struct ot_model *model);
/* Every parameter of every slab once, ascending, padding as zeros; starts with ot_model_dir_check. A sink's
 * error stops it and is returned. pool: converts; NULL for the calling thread alone. Errors: OT_E_INPUT,
 * OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_load(const struct ot_model_dir *dir, const struct ot_model *model, struct ot_pool *pool,
                      ot_param_sink sink, void *context);

/* A file to put beside the weights: copied from `path`, or `text` where path is NULL. It replaces the base's
 * of that name. */
struct ot_extra_file {
    const char *name, *path, *text;
    size_t bytes;
};

struct ot_model_save {
    const char *out; /* see out_dir.h: absent, empty, or an earlier output of ours */
    const struct ot_model *model;
    const struct ot_model_dir *base; /* config and tokenizer are copied; NULL: written from the model */
    enum ot_dtype dtype;             /* usually the base's */
    struct ot_token_ids ids;         /* n_eos 0: the base's stay */
    const struct ot_extra_file *extra;
    int n_extra;
    int64_t shard_bytes;             /* 0: OT_SHARD_BYTES */
    const struct ot_io_calls *calls; /* NULL: the system's */
    struct ot_out_lock *lock;        /* of `out`, held by the caller (out_dir.h); NULL: taken for the save */
};

/* Bytes that a save will write: the weights to the byte, and a margin over the small files. Errors:
 * OT_E_IO (a file of the base), OT_E_BUDGET. */
int ot_model_dir_save_bytes(const struct ot_model_save *save, int64_t *bytes);
/* Tries it before step 1: the directory can be made and written, and has room for all of it; leaves nothing
 * behind. Errors: OT_E_INPUT, OT_E_IO. */
int ot_model_dir_save_probe(const struct ot_model_save *save);
/* Errors: those, and the source's. OUT is then what it was. */
int ot_model_dir_save(const struct ot_model_save *save, ot_param_source source, void *context);

#endif
