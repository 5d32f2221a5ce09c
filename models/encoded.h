/* Frozen slabs of layers in a storage type (kernels/weight_format.h): the base under adapters, or under the
 * few tensors that a run trains. Their bytes lie encoded on every tier and cross the bus so; op `decode`
 * makes the device's dtype of them before each use (offload/block.h, ENCODED).
 *
 * ENCODED TENSORS. The base type applies to the matrices of linear maps in the layers' frozen slabs. As in
 * bitsandbytes, the embedding, the head, norms, biases and routers stay in the device's dtype. So does a
 * matrix that lies in a trained slab, because another matrix of its unit is trained (decoder.h). A frozen
 * slab without a matrix is plain, and so is every slab if the base has the device's dtype already. MXFP4
 * applies only to the experts of a model. Numbers that the files have in MXFP4 are kept (weight_format.h), so
 * a base of gpt-oss has the exact numbers of its files.
 *
 * LAYOUT. An encoded slab is a row of ENTRIES: each matrix in the base's type, a tensor of its own with
 * scales of its own, and then the rest of the slab, its vectors and its padding, as one vector in the
 * device's dtype. A tensor of all experts is one matrix of each expert. So the bytes of an expert are
 * adjacent, and no two experts share a scale: fetches may leave out experts that no token has chosen, and the
 * chain decodes only the requested ones (offload/plan/used_parts.h). Entries cover the slab's parameters in
 * order, without gaps. Each entry is an ot_weight, whose bytes are a multiple of OT_WEIGHT_EXTENT, and the
 * next entry begins behind them. So ot_encoded_entry says where every byte lies: the encoder writes by it,
 * and the chain decodes by it.
 *
 * ARITHMETIC. Encoding starts from the exact fp32 values of the model's files, whatever the numbers of
 * ranks and threads. A block computes with the decoded weights, rounded to the device's dtype (to nearest
 * even). So a run over an encoded base has the bits of a run whose frozen weights are these numbers.
 */
#ifndef OT_MODELS_ENCODED_H
#define OT_MODELS_ENCODED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/weight_format.h"
#include "models/model.h"

struct ot_pool;

/* The format of a base type. dtype: the device's, which OT_BASE_AUTO uses. */
enum ot_weight_format ot_base_format(enum ot_base_type base, enum ot_dtype dtype);

struct ot_encoded_entry {
    int64_t first; /* the first of its parameters, in the slab */
    struct ot_weight weight;
    int64_t at; /* bytes from the begin of the encoded slab */
    /* The tensor of the slab, and which of its matrices; the rest of the slab comes behind all matrices. */
    int64_t tensor, matrix;
};
/* Entry `index` of an encoded slab. False: the slab has fewer entries, or is not encoded. */
bool ot_encoded_entry(const struct ot_model *model, int slab, int index, struct ot_encoded_entry *out);
/* True if a slab of the model is encoded. */
bool ot_model_has_encoded(const struct ot_model *model);
/* The bytes of all encoded slabs. plain: their bytes in the device's dtype; NULL is fine. */
int64_t ot_model_encoded_bytes(const struct ot_model *model, int64_t *plain);

/* ---- encoding ---- */

/* Gets the bytes of a whole entry: units [first, first + n) of the encoded slab, as ot_engine_set_encoded
 * takes them. It may read them only during the call. An error stops the encoding and is returned. */
typedef int (*ot_encoded_sink)(void *context, int slab, int64_t first, int64_t n, const void *bytes);

/* Encodes slabs whose values come in ascending order, as files have them. One entry at a time is in memory.
 * One thread. */
struct ot_slab_encoder;
/* The memory that an encoder of this model allocates; 0 if no slab is encoded. */
size_t ot_slab_encoder_bytes(const struct ot_model *model);
/* pool: encodes. model, pool and sink's context outlive the encoder. Errors: OT_E_BUDGET. */
int ot_slab_encoder_open(const struct ot_model *model, struct ot_pool *pool, ot_encoded_sink sink,
                         void *context, struct ot_slab_encoder **out);
void ot_slab_encoder_close(struct ot_slab_encoder *encoder); /* NULL is fine */
/* Takes parameters [first, first + n) of an encoded slab. Each slab begins with parameter 0 and goes on
 * without a gap. Errors: OT_E_INPUT (a value of a matrix is not finite; the message says where),
 * OT_E_INTERNAL (the order), the sink's. */
int ot_slab_encoder_put(struct ot_slab_encoder *encoder, int slab, int64_t first, int64_t n,
                        const float *values);

#endif
