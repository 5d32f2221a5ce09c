/* A model in a Hugging Face directory, or in a GGUF file: opens it, streams its weights into an engine,
 * saves weights to a new directory.
 *
 * OPEN reads config.json, generation_config.json and tokenizer_config.json, and maps the weights:
 * model.safetensors, or the shards of model.safetensors.index.json; if there is neither, pytorch_model.bin or
 * the shards of its index (torch_file.h). A directory without weights can be opened too: its config and
 * tokenizer serve --init random. Loading from it is an error.
 *
 * A GGUF file (src/gguf/gguf.h) is opened as the directory that it was made from: config.json,
 * generation_config.json, tokenizer.json and the chat template are made from its keys, in memory, and its
 * tensors have the names of Hugging Face. So everything that works on a directory works on the file, and a
 * save writes a whole directory.
 *
 * A directory with a SentencePiece model (tokenizer.model, spiece.model), but no tokenizer.json, gets one in
 * memory too (model_dir_tokenizer.h). A save copies the SentencePiece model and the files beside it, so the
 * saved directory is read in the same way.
 *
 * LOAD finds every tensor of the model (models/model.h) in the files, with or without the prefixes that
 * transformers adds. A tensor that is missing, extra, of the wrong shape, or not finite is an error that
 * names it. The sink gets all values exactly, as fp32, slab by slab in ascending order, a chunk at a time.
 * Pages of the file are released from this process's memory after use, so that there is never a second copy
 * of the model.
 *
 * SAVE asks a source for the values in the same order and writes shards in the base's dtype, or the matrices
 * of the layers in a format of quantised checkpoints (quant_encode.h). It adds the base's config and
 * tokenizer files, licences, processor settings and code. It writes through an out_dir (out_dir.h), so the
 * result appears as a whole or not at all.
 *
 * ADAPTERS. A directory that PEFT wrote can be laid over an open base: its adapters are tensors of a model
 * that has them (models/lora.h), and its modules_to_save take the place of the base's tensors. A load
 * without such a directory leaves out the tensors of adapters, and a save may write them, and what else is
 * trained, as such a directory instead of a whole model.
 *
 * An open ot_model_dir never changes. Load and save use the calling thread and the pool.
 */
#ifndef OT_FILES_MODEL_DIR_H
#define OT_FILES_MODEL_DIR_H

#include "src/files/model_config.h"
#include "src/files/quant_encode.h"

struct ot_pool;
struct ot_io_calls;
struct ot_model_dir;

struct ot_model_facts {
    struct ot_model_config config;
    /* The dtype that most bytes of the stored weights have. Without weights, the config's dtype (default:
     * bf16). */
    enum ot_dtype dtype;
    /* From generation_config.json, else tokenizer_config.json, else config.json. eos[0] ends a trained row;
     * if there are several ids, it is the tokenizer's own eos token. */
    struct ot_token_ids ids;
    bool has_weights;
    const char *weights_missing; /* the reason, for an error message; NULL if there are weights */
    const char *tokenizer_path;  /* path of tokenizer.json; NULL: none */
    const char
        *tokenizer_file;    /* NULL, or the file of which tokenizer_path is a copy with more added tokens */
    bool tokenizer_is_made; /* tokenizer.json was made in memory, from a GGUF file */
    const char *sentencepiece;     /* path of the SentencePiece model in the directory; NULL: none */
    bool has_made_sentencepiece;   /* tokenizer.json was made in memory, from this model */
    const char *tokenizer_missing; /* a sentence with the path: why there is no tokenizer.json; or NULL */
    bool is_text_part; /* the model is the text part of one that also reads images; a save writes it alone */
    bool has_chat_template;
    const char *chat_template; /* Jinja text; NULL: no template, or not a text */
    size_t chat_template_bytes;
    const char *tool_template; /* the template for conversations with tools; NULL: the same */
    size_t tool_template_bytes;
    const struct ot_json *tokenizer_config; /* tokenizer_config.json; NULL: the directory has none */
    int n_shards;
    int64_t weight_bytes;
    const char *left_out; /* names of other files, which a save does not copy; NULL: none */
};

/* Errors: OT_E_INPUT (a file has invalid contents), OT_E_IO (cannot read). */
int ot_model_dir_open(const char *path, struct ot_model_dir **out);
void ot_model_dir_close(struct ot_model_dir *dir); /* NULL is fine */
/* Lays the adapters in the directory `path` over the model, before its other uses. Reads no data. If the
 * adapters have an embedding and a head with another number of tokens, the facts' config has that number.
 * Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_add_adapter(struct ot_model_dir *dir, const char *path);
/* Refuses adapters that hold another embedding or head than the model's as their base. Adapters that this
 * program writes hold none. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_check_base_layers(const struct ot_model_dir *dir);
/* True if the adapters' embedding and head have another number of tokens than the model's, or rows of their
 * own for some. */
bool ot_model_dir_is_resized(const struct ot_model_dir *dir);
/* True if that directory has the tensor of this name: one of an adapter, or of modules_to_save. */
bool ot_model_dir_is_adapted(const struct ot_model_dir *dir, const char *name);
/* True if the adapter's file has tensors of a whole module: "lm_head". */
bool ot_model_dir_adapts_module(const struct ot_model_dir *dir, const char *module);

/* New tokens with the ids [first, first + n), and the pieces that the tokenizer made of their texts before.
 * The pieces of token i are ids[begins[i]..begins[i + 1]): one at least, each below vocab_size. */
struct ot_token_pieces {
    int64_t first, n;
    const int32_t *ids;
    const int64_t *begins; /* [n + 1] */
};
/* Gives the new tokens rows in the embedding and the head, before other uses and without adapters: their
 * rows are the means of the pieces' rows. The facts' config gets as many tokens as there are then; it keeps
 * the unused ones that it has. has_values: the weights are read from the files. Errors: as ot_model_dir_get;
 * OT_E_BUDGET. */
int ot_model_dir_add_tokens(struct ot_model_dir *dir, const struct ot_token_pieces *pieces, bool has_values);

/* The values [first, first + n) of a tensor of adapters that has the rows of new tokens. */
void ot_model_dir_get_new_rows(const struct ot_model_dir *dir, const struct ot_tensor *rows, int64_t first,
                               int64_t n, float *values);
/* Takes the tokens whose rows the adapters in the directory `path` have; ot_model_dir_add_adapter does it
 * too. Without that, their values come from elsewhere. Errors: as ot_adapter_config_tokens. */
int ot_model_dir_add_adapter_tokens(struct ot_model_dir *dir, const char *path);

const struct ot_model_facts *ot_model_dir_facts(const struct ot_model_dir *dir);
const char *ot_model_dir_path(const struct ot_model_dir *dir);

/* values[n] are parameters [first, first + n) of a slab. A sink may read them only during the call; a source
 * writes them. */
typedef int (*ot_param_sink)(void *context, int slab, int64_t first, int64_t n, const float *values);
typedef int (*ot_param_source)(void *context, int slab, int64_t first, int64_t n, float *values);

/* Checks that the files hold exactly the model's tensors, each with its shape and a dtype that we can read.
 * It reads no data, except when the config ties two tensors and the files hold both: these must be equal.
 * Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_check(const struct ot_model_dir *dir, const struct ot_model *model);
/* Calls ot_model_dir_check, then passes every parameter of every slab to the sink once, in ascending order;
 * padding is zeros. Tensors of adapters are left out unless adapters were added. An error of the sink stops
 * the load and is returned. pool: converts values; NULL: the calling thread does. Errors: OT_E_INPUT,
 * OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_load(const struct ot_model_dir *dir, const struct ot_model *model, struct ot_pool *pool,
                      ot_param_sink sink, void *context);
/* The same for frozen slabs only: for a run whose other slabs come from a checkpoint. */
int ot_model_dir_load_frozen(const struct ot_model_dir *dir, const struct ot_model *model,
                             struct ot_pool *pool, ot_param_sink sink, void *context);

/* The values [first, first + n) of one tensor of the model, exactly, in the order of its slab; a magnitude
 * of DoRA as the file has it. first is a multiple of 256, and so is n, or the values go to the end. Errors:
 * OT_E_INPUT (the files lack the tensor, or it has another shape), OT_E_IO. */
int ot_model_dir_get(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t first, int64_t n,
                     float *values);

/* True if the files have the tensor's values in MXFP4. */
bool ot_model_dir_has_mxfp4(const struct ot_model_dir *dir, const struct ot_tensor *tensor);

/* A file to save beside the weights: copied from `path`, or `text` if path is NULL. It replaces the base's
 * file of the same name. */
struct ot_extra_file {
    const char *name, *path, *text;
    size_t bytes;
};

/* Points parts[i] to the bytes of part i of the tensor (quant_encode.h), valid until the next call. */
typedef int (*ot_quant_source)(void *context, const struct ot_tensor *tensor,
                               const void *parts[OT_QUANT_TENSORS]);

struct ot_model_save {
    const char *out; /* absent, empty, or an earlier output of ours (out_dir.h) */
    const struct ot_model *model;
    const struct ot_model_dir *base; /* config and tokenizer are copied; NULL: made from the model */
    enum ot_dtype dtype;             /* usually the base's */
    struct ot_token_ids ids;         /* n_eos 0: the base's ids stay */
    const struct ot_extra_file *extra;
    int n_extra;
    /* The text of adapter_config.json: writes a directory for PEFT, with all trained tensors in fp32. NULL:
     * writes the whole model. */
    const char *adapter_config;
    /* NULL: all tensors are plain. Else the matrices of the layers are stored in this format, and
     * quant_source has their bytes; it gets the context of the source. The tensors come in the order of the
     * model. */
    const struct ot_quant_format *pack;
    ot_quant_source quant_source;
    int64_t shard_bytes;             /* 0: OT_SHARD_BYTES */
    const struct ot_io_calls *calls; /* NULL: the system's */
    struct ot_out_lock *lock;        /* of `out`, held by the caller (out_dir.h); NULL: the save takes it */
};

/* Bytes that a save will write: exact for the weights, with a margin for the small files. Errors: OT_E_IO (a
 * file of the base), OT_E_BUDGET. */
int ot_model_dir_save_bytes(const struct ot_model_save *save, int64_t *bytes);
/* Tries a save before step 1: checks that the directory can be made and written and has enough space. Leaves
 * nothing behind. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_save_try(const struct ot_model_save *save);
/* Saves the model. Errors: as ot_model_dir_save_try, and the source's. After an error OUT is unchanged. */
int ot_model_dir_save(const struct ot_model_save *save, ot_param_source source, void *context);

#endif
