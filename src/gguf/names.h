/* How GGUF names the parts of a model: architectures, tensors, and the types of the tensors in a file.
 *
 * Sources: gguf-py's constants.py and tensor_mapping.py; llama.cpp's conversion of LlamaForCausalLM,
 * MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM; llama.cpp's llama-quant.cpp (the mixtures) and
 * convert_lora_to_gguf.py (adapters).
 */
#ifndef OT_GGUF_NAMES_H
#define OT_GGUF_NAMES_H

#include "models/model.h"
#include "src/gguf/writer.h"

/* ---- architectures ---- */

/* general.architecture, which is also the prefix of the model's keys: "llama" for llama and mistral. */
const char *ot_gguf_architecture(enum ot_family family);
/* True if the rows of q_proj and k_proj are stored in llama.cpp's order (writer.h). */
bool ot_gguf_has_permuted_heads(enum ot_family family);

/* ---- tensors ---- */

/* "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight", and back. False: the name is not known.
 */
bool ot_gguf_name_of(const char *tensor, char name[OT_GGUF_NAME_BYTES]);
/* "blk.3.attn_q.weight.lora_a" of "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; lora_b.
 * */
bool ot_gguf_name_of_adapter(const char *tensor, char name[OT_GGUF_NAME_BYTES]);
bool ot_gguf_name_back(const char *name, char tensor[96]);
/* Rows of a head, if the rows of this tensor of Hugging Face's name are permuted; else 0. */
int64_t ot_gguf_head_rows(const struct ot_model_config *config, const char *tensor);

/* The tensor that has the factors of llama3's RoPE scaling: fp32, one for each pair of a head. Frequencies
 * are divided by them. */
#define OT_GGUF_ROPE_FREQS "rope_freqs.weight"
float ot_gguf_rope_factor(const struct ot_model_config *config, int64_t pair);

/* ---- mixtures of types ---- */

/* What a file is called: "q4_k_m". */
struct ot_gguf_mixture {
    const char *name;   /* as the option says it */
    const char *label;  /* as file names have it: "Q4_K_M" */
    uint32_t file_type; /* general.file_type: llama.cpp's enum llama_ftype */
    enum ot_gguf_type_id type;
    /* True: like llama.cpp, the output matrix (or a tied embedding) gets Q6_K. */
    bool finer_output;
    /* True: also attn_v and ffn_down of the first and last eighth of the layers, and of each third layer
     * between. */
    bool finer_layers;
};
const struct ot_gguf_mixture *ot_gguf_mixture_at(int index); /* NULL past the last */

/* The type of a tensor in a file of the mixture. Vectors are F32. Where rows are not whole blocks: Q8_0 if
 * they are whole blocks of it, else F16. */
const struct ot_gguf_type *ot_gguf_type_of(const struct ot_gguf_mixture *mixture,
                                           const struct ot_model_config *config,
                                           const struct ot_tensor *tensor);

#endif
