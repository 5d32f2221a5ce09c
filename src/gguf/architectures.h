/* Describes how llama.cpp computes each family that it has, one row for each. A row has the family's name
 * there, the order of its stored rows, and the forms of the family that llama.cpp leaves out.
 *
 *     family                architecture  differences
 *     llama, mistral        llama         rows of q and k permuted; mistral is computed without its window
 *     ministral3            mistral3      rows of q and k permuted
 *     smollm3, granite      their own     rows of q and k permuted
 *     qwen2, qwen3          their own
 *     phi3                  phi3          gate and up are the tensor ffn_up; computed without a window
 *     gemma, gemma2, gemma3 their own     norms are stored as 1 + weight
 *     olmo2, olmo3          olmo2         olmo3 is an olmo2 with a window
 *     gpt2, bloom, falcon   their own     q, k and v are the tensor attn_qkv, whole one after the other
 *     mixtral               llama         with experts; rows of q and k permuted; computed without its window
 *     qwen3_moe             qwen3moe      all layers have experts; their weights have the sum 1
 *     gpt_oss               gpt-oss       gate and up are two tensors
 *     t5                    its own       relu without a gate, gelu with one; distances up to 128
 *
 * llama.cpp has neither codegen nor ministral.
 *
 * YARN OF GPT-OSS. Its config.json says truncate false, for which GGUF has no key. llama.cpp rounds the pairs
 * between which YaRN blends, so it turns some pairs of gpt-oss by slightly other angles than transformers and
 * this program. A gpt-oss that is read from a file has truncate false.
 *
 * 1 + WEIGHT. A file of a Gemma has 1 + w, computed in fp32. A model that is read from it has
 * w' = (1 + w) - 1. This subtraction is exact for 1 + w >= 0.5, so 1 + w' has the bits of 1 + w: the model
 * computes the same. w' itself equals w where 1 + w needed no rounding: for bf16 w with |w| >= 2^-16, for f16
 * w with |w| >= 2^-13, and for few fp32 w.
 *
 * GELU. llama.cpp computes the gelu of Falcon by the tanh approximation, from a table in f16.
 *
 * T5. The first T5s divide the logits by the root of the width, and share the embedding with the head.
 * llama.cpp does not divide. Its most probable token is the same; its probabilities are those of a
 * temperature of 1 / root. A file does not say whether a model divides. Here a model without output.weight
 * does: T5 v1.1 and flan-t5, which do not divide, have it.
 *
 * Sources: llama.cpp's src/models/FAMILY.cpp (tensors, keys, computation), llama-model.cpp (keys that all
 * share, kinds of RoPE), llama-context.cpp (YaRN), and conversion/FAMILY.py.
 */
#ifndef OT_GGUF_ARCHITECTURES_H
#define OT_GGUF_ARCHITECTURES_H

#include "models/config.h"

/* The sliding windows that llama.cpp computes for a family. */
enum ot_gguf_window {
    OT_GGUF_WINDOW_NONE,     /* it has none for the family: a model with a window is refused */
    OT_GGUF_WINDOW_IGNORED,  /* it ignores the key: the file has it for other programs */
    OT_GGUF_WINDOW_LAYERS,   /* in all layers but each period-th, or as the file's list says */
    OT_GGUF_WINDOW_REQUIRED, /* the same, and there must be one */
};

/* Tensors of factors that divide the frequencies of RoPE. */
enum ot_gguf_factors {
    OT_GGUF_FACTORS_NONE,
    OT_GGUF_FACTORS_LONGROPE, /* rope_factors_short and rope_factors_long */
    OT_GGUF_FACTORS_ALL,      /* also rope_freqs, for the scaling of Llama 3 */
};

enum ot_gguf_tied { OT_GGUF_TIED_OR_NOT, OT_GGUF_TIED_ALWAYS, OT_GGUF_TIED_NEVER };

struct ot_gguf_architecture {
    const char *name;        /* general.architecture, and the prefix of the model's keys; NULL: none */
    bool permuted;           /* the rows of q and k are stored in llama.cpp's order (writer.h) */
    bool narrow;             /* all heads together must be as wide as the model */
    bool out_bias, mlp_bias; /* o_proj, and the matrices of the MLP, may have biases */
    enum ot_gguf_window window;
    int64_t period;
    enum ot_gguf_factors factors;
    bool betas; /* it reads YaRN's beta_fast and beta_slow; otherwise they are 32 and 1 */
    enum ot_gguf_tied tied;
};

/* llama.cpp's constants of the activation of gpt-oss (struct ot_glu). */
#define OT_GGUF_GLU_LIMIT 7.0f
#define OT_GGUF_GLU_ALPHA 1.702f

/* The row of a family; its name is NULL if llama.cpp has no such family. */
const struct ot_gguf_architecture *ot_gguf_architecture(enum ot_family family);
/* The architectures, for error messages: "bloom, falcon, ...". */
extern const char ot_gguf_known_architectures[];

/* The family's factor of q k^T; 0: the file says it (Granite), or 1 / sqrt(head_dim). */
double ot_gguf_attention_scale(const struct ot_model_config *config);
/* The activation of a T5's MLP, and the divisor of its logits (0: none), by the form of the file. */
enum ot_activation ot_gguf_pair_act(bool plain_mlp);
double ot_gguf_logit_divisor(const struct ot_model_config *config);
enum { OT_GGUF_PAIR_DISTANCE = 128 };
/* The factor of YaRN's cos and sin if no key sets it. */
double ot_gguf_yarn_magnitude(double factor, double log_multiplier);

/* Refuses a model that llama.cpp does not know, would not load, or would compute otherwise. where: for the
 * message. Errors: OT_E_INPUT; the message names the missing feature. */
int ot_gguf_check_config(const struct ot_model_config *config, const char *where);

#endif
