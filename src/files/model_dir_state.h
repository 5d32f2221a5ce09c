/* Declarations that the parts of model_dir share: open (model_dir.c, model_dir_gguf.c, model_dir_stored.c),
 * load (model_dir_load.c, model_dir_rows.c, model_dir_stored.c, model_dir_adapter.c), save
 * (model_dir_save.c). */
#ifndef OT_FILES_MODEL_DIR_STATE_H
#define OT_FILES_MODEL_DIR_STATE_H

#include <limits.h>

#include "src/files/model_dir.h"
#include "src/files/quant_decode.h"
#include "src/files/safetensors.h"

struct ot_arena;
struct ot_gguf;
struct ot_gguf_tensor;
struct ot_gguf_type;
struct ot_json;
struct ot_tensor;

/* A stored tensor and its file. Its name is the file's, except in a GGUF file and for a matrix that several
 * tensors hold (quant_decode.h): these have Hugging Face's name. */
struct ot_stored {
    const struct ot_safetensor *tensor;
    const struct ot_mapped_file *file;
    const struct ot_gguf_type *blocks; /* how a GGUF file stores the values; NULL: as tensor->dtype */
    int64_t head_rows; /* > 0: the rows of each head are in llama.cpp's order (src/gguf/writer.h) */
    /* Not NULL: a pair (src/gguf/names.h). The rows come alternately from `tensor` and from this tensor,
     * which has as many. */
    const struct ot_gguf_tensor *up;
    int64_t row_values; /* with head_rows or up: whole blocks */
    float addend;       /* the file has the value plus this: 1 for norms of Gemma in a GGUF file */
    const struct ot_quant_matrix *packed; /* not NULL: the tensors that hold the values */
};

/* A part of a stored tensor is a range [first, first + n) of values. first is a multiple of 256; first + n is
 * one too, or is the end. So a part begins and ends with a block. */

/* Reads a part, exactly, as fp32. *bad: the index in `values` of the first value that is not finite, or -1.
 * Errors: OT_E_IO, OT_E_INPUT. Any thread. */
int ot_stored_read(const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad);
/* Brings a whole tensor that is neither packed nor in blocks into memory, and then reads values from it,
 * exactly, as fp32. Errors: OT_E_IO. */
int ot_stored_fetch(const struct ot_stored *stored, int64_t first, int64_t n);
void ot_stored_convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values);
/* Starts to read ahead the bytes of a part. */
void ot_stored_prefetch(const struct ot_stored *stored, int64_t first, int64_t n);
/* Removes the bytes of a part from this process's memory. */
void ot_stored_release(const struct ot_stored *stored, int64_t first, int64_t n);
/* The bytes of a part in the files. Of rows that change places: of the heads that have them. */
size_t ot_stored_bytes(const struct ot_stored *stored, int64_t first, int64_t n);

/* The output projection, in the files of every family. */
#define OT_HEAD_WEIGHT "lm_head.weight"

/* Adapters laid over a model. */
struct ot_adapter {
    struct ot_safetensors *file; /* NULL: none */
    struct ot_stored *stored;    /* sorted by name */
    int64_t n_stored;
};

/* Rows for new tokens (model_dir_rows.c). */
struct ot_new_rows {
    int64_t vocab;          /* the tokens of the files; 0: no token was added */
    int64_t first, n;       /* the ids that have new rows */
    const float *tables[3]; /* [n, width]: the embedding; the head; its bias. NULL: the rows are zeros */
};

/* The small files that a save copies; the configs, which may change, come first. They are held open, so that
 * a save works even if the base is deleted during training. */
enum {
    OT_SMALL_CONFIG,
    OT_SMALL_GENERATION_CONFIG,
    OT_SMALL_COPIED,
    OT_SMALL_TOKENIZER = OT_SMALL_COPIED,
    OT_SMALL_CHAT_TEMPLATE = 9,
    OT_N_SMALL_FILES = 12
};
extern const char *const ot_small_files[OT_N_SMALL_FILES];

/* Another file that a save copies, also held open. */
enum { OT_MAX_COPIED_FILES = 64 };
struct ot_copied_file {
    const char *name;
    int fd;
};

struct ot_model_dir {
    char *path;
    int small_fds[OT_N_SMALL_FILES]; /* -1: absent */
    int made_fd;                     /* tokenizer.json in memory, made from a SentencePiece model; -1: none */
    struct ot_copied_file copied[OT_MAX_COPIED_FILES];
    int n_copied;
    struct ot_arena *arena;
    struct ot_model_facts facts;
    struct ot_quantization quantized;
    struct ot_json *config, *generation; /* generation NULL: the file is absent */
    struct ot_json *tokenizer_config;    /* NULL: the file is absent */
    struct ot_safetensors **files;       /* [facts.n_shards]; NULL: the model is a GGUF file */
    struct ot_gguf *gguf;                /* NULL: the model is a directory */
    struct ot_stored *stored;            /* sorted by name */
    int64_t n_stored;
    struct ot_adapter adapter;
    struct ot_new_rows new_rows;
    bool is_resized; /* the adapter's embedding and head have another number of tokens than the base's */
};

/* Writes "PATH/name" to `path` and returns it. Open has checked that a name of up to 255 bytes fits. */
const char *ot_model_dir_file(const struct ot_model_dir *dir, const char *name, char path[PATH_MAX]);
/* True if the directory has a regular file of that name. */
bool ot_model_dir_has(const struct ot_model_dir *dir, const char *name);

/* Path to small file i that stays valid while dir is open; NULL if open found no such file. */
const char *ot_model_dir_small_file(const struct ot_model_dir *dir, int i, char path[PATH_MAX]);

/* Fills the facts about chat templates, and dir->tokenizer_config. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET.
 */
int ot_model_dir_find_chat_template(struct ot_model_dir *dir);

/* Sorts dir->stored by name. */
void ot_model_dir_sort(struct ot_model_dir *dir);
/* The stored tensor with exactly this name; NULL: none. */
const struct ot_stored *ot_model_dir_find(const struct ot_model_dir *dir, const char *name);

/* In dir->stored, replaces the tensors of quantised matrices by one for each matrix. Errors: OT_E_INPUT (a
 * tensor is missing, or has another shape), OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_unpack(struct ot_model_dir *dir);
/* AutoGPTQ adds a bias of zeros to matrices without one. Returns true if the stored tensor is such a bias.
 * Errors: OT_E_IO. */
int ot_model_dir_is_zero_bias(const struct ot_model_dir *dir, const struct ot_stored *stored, bool *out);

/* Opens a GGUF file instead of a directory: makes the small files that a directory would have, in memory,
 * and fills in facts and stored. Errors: as ot_model_dir_open. */
int ot_model_dir_open_gguf(struct ot_model_dir *dir);

/* Finds tokenizer.json, or makes it from a SentencePiece model: fills in what facts says of the tokenizer. A
 * SentencePiece model that cannot be used is no error: facts.tokenizer_missing says why. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_model_dir_find_tokenizer(struct ot_model_dir *dir);
/* Ids of bos and eos by the tokenizer's own files; -1: not given there. Errors: OT_E_INPUT, OT_E_IO,
 * OT_E_BUDGET. */
int ot_model_dir_read_tokenizer_ids(const struct ot_model_dir *dir, int64_t *bos, int64_t *eos);

/* Fills in `kept` and facts.left_out. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_model_dir_hold_others(struct ot_model_dir *dir);

/* The adapter's tensor with this name of the model; NULL: it has none, or there is no adapter. */
const struct ot_stored *ot_adapter_find(const struct ot_adapter *adapter, const char *name);
/* The base layer of an adapted embedding or head, which PEFT stores too; NULL: none. */
const struct ot_stored *ot_adapter_find_base(const struct ot_adapter *adapter, const char *name);

/* Writes the name of the weight of the embedding or of the head, and returns it. */
enum { OT_TABLE_NAME_BYTES = 160 };
const char *ot_model_dir_table_name(const struct ot_model_dir *dir, enum ot_module module,
                                    char name[OT_TABLE_NAME_BYTES]);

/* The stored tensor that has the values of a tensor of the model; NULL: none. */
const struct ot_stored *ot_model_dir_find_tensor(const struct ot_model_dir *dir,
                                                 const struct ot_tensor *tensor);

/* ---- new rows (model_dir_rows.c) ---- */

/* True if the stored tensor has as many rows as the base has tokens, and the model may have more. */
bool ot_new_rows_are_of(const struct ot_model_dir *dir, const struct ot_tensor *tensor,
                        const struct ot_stored *stored);
/* The values of [first, first + n) that the file has: fewer than n where new rows follow. */
int64_t ot_new_rows_in_file(const struct ot_stored *stored, int64_t first, int64_t n);
/* As ot_tensor_read, with the new rows. */
int ot_model_dir_read(const struct ot_model_dir *dir, const struct ot_model_config *config,
                      const struct ot_tensor *tensor, const struct ot_stored *stored, int64_t first,
                      int64_t n, float *values, int64_t *bad);

/* Writes the name of the rows of new tokens that adapters have of the embedding or the head. Returns it. */
const char *ot_new_rows_name(const struct ot_model_dir *dir, enum ot_module module,
                             char name[OT_TABLE_NAME_BYTES]);

/* ---- tensor layout (model_dir_stored.c) ---- */

/* The shape that a stored tensor must have; stored NULL: that a save writes. Returns the number of its
 * dimensions. */
int ot_tensor_file_shape(const struct ot_tensor *tensor, const struct ot_stored *stored, int64_t shape[3]);
/* Reads a part of a tensor (as ot_stored_read) as the slab has it; a magnitude of DoRA as the file has it.
 * Errors: OT_E_IO, OT_E_INPUT (the form of a quantized tensor cannot be read), OT_E_BUDGET. Any thread. */
int ot_tensor_read(const struct ot_model_config *config, const struct ot_tensor *tensor,
                   const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad);
/* Brings the tensor's values into the file's order, in place. values: the whole tensor. Errors:
 * OT_E_BUDGET. */
int ot_tensor_to_file(const struct ot_model_config *config, const struct ot_tensor *tensor, float *values);

/* Converts all values of a tensor from the slab's form to the file's (models/model.h, OT_FORM_*), in place.
 * source: gives the model's values in slab form. Errors: OT_E_BUDGET, and those of source. */
int ot_adapter_to_file(const struct ot_model *model, const struct ot_tensor *tensor, ot_param_source source,
                       void *context, float *values);
/* Reads a whole tensor of the adapter in slab form. The caller frees *values. Errors: OT_E_INPUT (a value is
 * not finite), OT_E_IO, OT_E_BUDGET. */
int ot_adapter_load(const struct ot_model_dir *dir, const struct ot_model *model,
                    const struct ot_tensor *tensor, float **values);

/* Finds the stored tensor for each tensor of the model; NULL for one of an adapter, if none was added. The
 * caller frees *map. Errors: as ot_model_dir_check. */
int ot_model_dir_map(const struct ot_model_dir *dir, const struct ot_model *model,
                     const struct ot_stored ***map);

#endif
