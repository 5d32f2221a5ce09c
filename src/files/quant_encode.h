/* Writing the matrices of a quantised checkpoint: which tensors a matrix becomes, their bytes, and what
 * config.json says about them. quant_decode.h describes the formats, and reads them.
 *
 * transformers and GPTQModel load the result of OT_QUANT_KIND_GPTQ. Symmetric weights are written in
 * checkpoint_format "gptq", which every program reads. Others are in "gptq_v2": in "gptq" a zero point of 0
 * is stored as -1, which programs decode in different ways.
 *
 * EXPERTS. GPTQ stores the matrices of an expert like all others, under the names of the plain checkpoint
 * (model.layers.0.mlp.experts.3.gate_proj.qweight), and leaves the router plain. vLLM reads both. GPTQModel
 * 7.7 writes qwen3_moe so; a mixtral has the names there that transformers 5 uses inside
 * (mlp.experts.3.gate_proj in place of block_sparse_moe.experts.3.w1). MXFP4 is the form of gpt-oss: the
 * matrices of all experts of a layer, and nothing else.
 */
#ifndef OT_FILES_QUANT_ENCODE_H
#define OT_FILES_QUANT_ENCODE_H

#include "models/linear_inputs.h"
#include "src/files/quant_decode.h"

struct ot_json_writer;

/* The storage format of the layers' matrices. */
struct ot_quant_format {
    enum ot_quant_kind kind;
    /* GPTQ; the last three are for the record */
    int bits;
    int64_t group_size; /* -1: all columns */
    bool symmetric, act_order;
    double damping;
    double least_share; /* of the rows of calibration, for an expert that is calibrated; 0: no experts */
    /* 4 bits: the scales are quantised too */
    bool nested;
    /* bitsandbytes: the maps "down" stay plain. transformers expects it of a T5, whose class says that its
     * maps "wo" are kept (_keep_in_fp32_modules) */
    bool plain_down;
    enum ot_dtype dtype; /* of the model that is quantised */
};

enum { OT_QUANT_DIMS = 4 };

/* One tensor of a matrix. */
struct ot_quant_tensor {
    const char *suffix; /* of its name, in place of ".weight"; names of all experts have no ".weight" */
    const char *dtype;  /* "I32" */
    int item_bytes, dims;
    int64_t shape[OT_QUANT_DIMS];
};
enum { OT_QUANT_TENSORS = 6, OT_QUANT_STATE_BYTES = 256 };

/* True if a checkpoint has this tensor in the format; *input: as ot_tensor_reads_input. */
bool ot_quant_encode_takes(const struct ot_quant_format *format, const struct ot_tensor *tensor,
                           enum ot_layer_input *input);
/* Fills in the tensors of a matrix, in the order in which they are written, and returns their number. */
int ot_quant_encode_tensors(const struct ot_quant_format *format, const struct ot_tensor *tensor,
                            struct ot_quant_tensor tensors[OT_QUANT_TENSORS]);
int64_t ot_quant_tensor_bytes(const struct ot_quant_tensor *stored);
/* Writes the name of a stored tensor. */
void ot_quant_tensor_name(const struct ot_tensor *tensor, const struct ot_quant_tensor *stored, char *name,
                          size_t bytes);
/* Error OT_E_INPUT: the format cannot store such a matrix. */
int ot_quant_encode_check(const struct ot_quant_format *format, const struct ot_tensor *tensor);

/* The codes of a GPTQ matrix [rows, cols], and its zero points [groups, rows], as words. */
void ot_quant_encode_codes(const struct ot_quant_format *format, int64_t rows, int64_t cols,
                           const uint8_t *codes, uint32_t *words);
void ot_quant_encode_zeros(const struct ot_quant_format *format, int64_t rows, int64_t groups,
                           const uint8_t *zeros, uint32_t *words);
/* The state of a matrix of 4 bits: JSON, with spaces behind it. */
void ot_quant_encode_state(const struct ot_quant_format *format, int64_t rows, int64_t cols, float offset,
                           char text[OT_QUANT_STATE_BYTES]);

/* Writes the object quantization_config; of GPTQ it is also the text of quantize_config.json. key NULL: as
 * the root. */
void ot_quant_encode_config(const struct ot_quant_format *format, const char *key, struct ot_json_writer *w);

#endif
