/* Names the tensors of a model as GGUF does, and chooses their types in a file.
 *
 * A tensor is named by its module (models/family.h), in the same way for all architectures:
 *
 *     embedding, positions, its norm   token_embd, position_embd, token_embd_norm
 *     in layer N: blk.N.               attn_q, attn_k, attn_v, or attn_qkv; attn_output
 *                                      attn_q_norm, attn_k_norm
 *                                      ffn_gate, ffn_up, ffn_down; gate and up as one matrix: ffn_up
 *                                      attn_norm, ffn_norm; behind: post_attention_norm, post_ffw_norm
 *       of experts                     ffn_gate_inp (the router), ffn_gate_exps, ffn_up_exps, ffn_down_exps
 *       of gpt-oss also                attn_sinks
 *     last norm, head                  output_norm, output
 *
 * Layers of a T5 are enc.blk.N and dec.blk.N. It has attn_o for attn_output, cross_attn_{q, k, v, o} and
 * cross_attn_norm, {enc, dec}.blk.0.attn_rel_b, and the last norms enc.output_norm and dec.output_norm.
 *
 * Exceptions: Falcon's norm before attention is attn_norm_2 and that before the MLP is attn_norm, if it has
 * both. The norm before the MLP of gpt-oss is post_attention_norm. Matrices are [out, in], and a fused
 * matrix has all rows of q, then of k, then of v: both as in slabs. So no tensor is turned; only the rows
 * of q and k change places (architectures.h, permuted).
 *
 * EXPERTS. A tensor of experts has the matrices of all of them, [experts, rows, cols], and a bias is
 * [experts, rows]. Where Hugging Face has a tensor for each expert (mixtral, qwen3_moe), it is a slice of
 * the file's. gpt-oss has one tensor of gate and up, whose rows are alternately those of gate and of up: a
 * PAIR of tensors of the file. An adapter's tensors have the name of gate, of all experts.
 *
 * Sources: gguf-py's constants.py and tensor_mapping.py; llama.cpp's llama-quant.cpp (the mixtures) and
 * convert_lora_to_gguf.py (adapters).
 */
#ifndef OT_GGUF_NAMES_H
#define OT_GGUF_NAMES_H

#include "models/model.h"
#include "src/gguf/architectures.h"
#include "src/gguf/writer.h"

/* ---- tensors ---- */

/* True if the module's tensors are pairs. */
static inline bool ot_gguf_is_pair(enum ot_module module) {
    return module == OT_MODULE_EXPERTS_GATE_UP;
}
/* The name of a tensor of the model, "blk.3.attn_q.weight", or of an adapter, "blk.3.attn_q.weight.lora_a".
 * One expert's tensor has the name of all experts; a pair has gate's. False: GGUF has no name for it. */
bool ot_gguf_name_of(const struct ot_model_config *config, const struct ot_tensor *tensor,
                     char name[OT_GGUF_NAME_BYTES]);

/* Turns the name of a pair's gate into the name of its up. */
void ot_gguf_name_up(char name[OT_GGUF_NAME_BYTES]);

/* The meaning of a tensor's name in a file. */
struct ot_gguf_place {
    enum ot_module module;
    int64_t layer;      /* -1: none */
    const char *ending; /* ".weight" or ".bias"; static */
    bool is_up;         /* of a pair */
};
/* False: no tensor of such a model has this name. */
bool ot_gguf_find_place(const struct ot_model_config *config, const char *name, struct ot_gguf_place *place);
/* Hugging Face's name for the tensor. expert: its index, if each expert has separate tensors. */
void ot_gguf_name_back(const struct ot_model_config *config, const struct ot_gguf_place *place,
                       int64_t expert, char tensor[OT_MODEL_NAME_BYTES]);
/* The shape in a file of a tensor of experts. Returns the number of dimensions; 0: of no expert. */
int ot_gguf_expert_shape(const struct ot_model_config *config, const struct ot_gguf_place *place,
                         int64_t shape[3]);

/* Rows of a head, if the rows of this module's tensors change places; else 0. */
int64_t ot_gguf_head_rows(const struct ot_model_config *config, enum ot_module module);
/* The number that the file adds to this module's weights: 1 for norms of Gemma, else 0. */
float ot_gguf_addend(const struct ot_model_config *config, enum ot_module module);

/* ---- tensors that only a file has: factors that divide the frequencies of RoPE ---- */

#define OT_GGUF_ROPE_FREQS    "rope_freqs.weight"         /* Llama 3's scaling */
#define OT_GGUF_FACTORS_LONG  "rope_factors_long.weight"  /* longrope, beyond the original length */
#define OT_GGUF_FACTORS_SHORT "rope_factors_short.weight" /* longrope, up to it */

bool ot_gguf_is_rope_tensor(const char *name);
/* The tensors of a model, by index; NULL past the last. Each has one fp32 value for each pair that rotates.
 */
const char *ot_gguf_rope_tensor(const struct ot_model_config *config, int index);
float ot_gguf_rope_factor(const struct ot_model_config *config, const char *name, int64_t pair);

/* ---- mixtures of types ---- */

/* general.file_type of files whose experts are MXFP4. */
enum { OT_GGUF_FILE_MXFP4_MOE = 38 };

/* A mixture of tensor types, as llama.cpp names it: "q4_k_m". */
struct ot_gguf_mixture {
    const char *name;   /* as the option says it */
    const char *label;  /* as file names have it: "Q4_K_M" */
    uint32_t file_type; /* general.file_type: llama.cpp's enum llama_ftype */
    enum ot_gguf_type_id type;
    /* True: like llama.cpp, the output matrix (or a tied embedding) gets Q6_K. */
    bool finer_output;
    /* True: also attn_v, ffn_down and ffn_down_exps of the first and last eighth of the layers, and of each
     * third layer between. */
    bool finer_layers;
};
const struct ot_gguf_mixture *ot_gguf_mixture_at(int index); /* NULL past the last */

/* The type of a tensor in a file of the mixture. Vectors, learned positions, the position biases of a T5 and
 * routers are F32. Where rows are not whole blocks: Q5_0 for Q4_K and Q8_0 for Q6_K, if they are whole blocks
 * of it, else F16. attn_qkv and cross_attn_v are treated as attn_v. The output of a quantised Falcon is Q8_0,
 * and so are attn_k and attn_v of 8 experts. Where llama.cpp has Q5_K (ffn_down of some layers of Falcon,
 * attn_output of 8 experts), it is Q6_K. */
const struct ot_gguf_type *ot_gguf_type_of(const struct ot_gguf_mixture *mixture,
                                           const struct ot_model_config *config,
                                           const struct ot_tensor *tensor);

#endif
