/* Low-rank adapters: LoRA (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021), with the
 * names, shapes and initial values of PEFT (huggingface/peft, tuners/lora).
 *
 * An adapter of rank r belongs to a linear map W [out, in] (its target) and has two matrices, A [r, in] and
 * B [out, r]:
 *
 *     y = W x + b + scale B A x,     scale = alpha / r,  or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023)
 *
 * A is drawn uniformly from (-1/sqrt(in), 1/sqrt(in)), which is PEFT's kaiming_uniform(a=sqrt(5)); B is
 * zero. So a run begins with the function of its base, and its first loss has the bits of the base's loss.
 *
 * A model with adapters trains them, and only those of its own tensors that ot_model_setup.trains names
 * (PEFT's modules_to_save). All others are frozen. The adapters' tensors lie in the trained slab of their
 * target's block. ot_model_tensor lists them like the others, with PEFT's names: "base_model.model." MODULE
 * ".lora_A.weight" and ".lora_B.weight". The optimizer has their fp32 masters, as for all trained tensors
 * (PEFT: fp32 adapters over a bf16 base).
 *
 * LORA+ (Hayou et al., "LoRA+: Efficient Low Rank Adaptation of Large Models", 2024). The learning rate of a
 * linear map's B is lr_ratio times the rate of all other tensors (ot_tensor.rate). The step of A hardly
 * changes y while B is small, so one rate is too small for B or too large for A; the authors take about 16.
 * PEFT's create_loraplus_optimizer does the same for B, and gives the higher rate to vectors too.
 *
 * ARITHMETIC. ax = scale A x is rounded once to the compute dtype, where it is stored. W x + b (and the
 * residual) is rounded as without adapters. Then B ax is added to it in fp32, and the sum is rounded: the
 * order of PEFT. Backward:
 *
 *     dax = scale B^T dy,   dB += dy ax^T,   dA += dax x^T,   dx = W^T dy + A^T dax
 *
 * Targets that read the same input (q, k, v; gate, up) have adjacent A, so that one product computes their
 * ax if they have one scale. So do dA and the part of dx. ax has rank elements for each token. Forward keeps
 * it from the level on that keeps its target's result (layer_memory.h).
 *
 * DROPOUT. In training, A multiplies dropout(x) in place of x (ot_dropout in kernels/ops.h): ax, dA and the
 * part of dx use the same elements. Targets that read the same input share the dropped elements; in PEFT
 * each draws its own. The random words of an element depend on the run's seed, the step, the micro-batch in
 * the step, the first weight of the unit, and the place of the element in the micro-batch: they are the same
 * in forward, in recomputation and in backward, with every plan and any number of ranks. With dropout,
 * dropout(x) is made once more in backward, in scratch of the size of x, and the part of dx is rounded
 * before it is added.
 *
 * EMBEDDING. The adapter of the embedding E [vocab, dim] has A [rank, vocab], zeros, and B [dim, rank],
 * drawn from normal(0, 1); in files ".lora_embedding_A" and ".lora_embedding_B". A token t becomes
 * E[t] + B ax, with ax = scale A[:, t]. The slab holds A transposed, [vocab, rank]: ax is a scaled row of
 * it, and dax is added to the rows of the tokens (ot_embed_backward). The gradient of B, and dax, are those
 * of a linear map. Backward looks ax up again. As in PEFT there is no dropout, and a tied head multiplies
 * with E without the adapter.
 *
 * TOKENS. Adapters may have rows of the embedding and of the head for n_new tokens with neighbouring ids
 * (trainable_token_indices of PEFT): ".token_adapter.trainable_tokens_delta" [n_new, dim] in files. They take
 * the place of the table's rows; a tied head uses those of the embedding. The frozen table has zeros there,
 * so that the product of the gradient of the logits with it needs no exception. In files it has the values
 * with which the rows began.
 *
 * EXPERTS. In transformers, all experts of a layer are two parameters: gate_up_proj and down_proj of
 * mlp.experts. Each may have an adapter (target_parameters of PEFT; ParamWrapper in tuners/lora/layer.py): an
 * A and a B for each expert, of one rank. Gate and up of an expert share its A. A packed row
 * (kernels/ops_experts.h) meets the A and the B of its expert alone. PEFT has neither dropout nor DoRA for
 * experts, and this program has neither.
 *
 * The slab holds the A of one expert after the other, [experts, rank, in], and so the B, [experts, out,
 * rank]. Files have A as [experts * rank, in], which is the same order, and B as [out, rank * experts]
 * (OT_FORM_EXPERT_COLUMNS). PEFT puts a module around mlp.experts for each adapter, first for gate_up_proj:
 * "mlp.experts.lora_A.weight" is that of down_proj, and "mlp.experts.base_layer.lora_A.weight" that of
 * gate_up_proj. If down_proj has no adapter, gate_up_proj has the shorter name.
 *
 * DORA (Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024; use_dora of PEFT). A target also
 * has a trained magnitude m [out], ".lora_magnitude_vector" in files. With V = W + scale B A, and |.| for
 * the Euclidean norm of each row:
 *
 *     y = f u + b,   u = V x = W x + scale B A x,   f = m / |V|,   and at the beginning m = |W|
 *
 * The slab holds m - |W|, so its values begin at zero and need no weights of the base; f is exactly 1 then.
 * On the device, a trained value has the compute dtype. m itself, rounded to bf16, would move each row by up
 * to 0.2 %, as much as DoRA trains in many steps; its change from |W| is small, and so is its rounding.
 * AdamW makes the same steps with both, because weight decay does not apply to vectors. Files have m:
 * ot_tensor.file_form says so.
 *
 * u is rounded to the compute dtype, where it is stored. y is computed from that, in fp32, and rounded. As
 * in PEFT, |V| is a constant to backward:
 *
 *     du = f dy,   dm += (the sum over tokens of dy u) / |V|
 *
 * du takes the place of dy in the formulas above. Forward keeps u in place of y (layer_memory.h). Each
 * forward computes |V| (ot_dora_factors in kernels/ops.h), which costs 2 rank FLOPs for each weight, and
 * reading the weights twice.
 *
 * DORA WITH DROPOUT. As in PEFT, training then changes what W gives for dropout(x), not what it gives for x:
 *
 *     y = W x + b + (f u - W d),   d = dropout(x),   u = V d = W d + scale B A d
 *
 * PEFT writes the same as W x + b + (f - 1) W d + f scale B A d. With du = f dy as above, and with dm from
 * this u, the part of dx is
 *
 *     dx = W^T dy + (W^T du - W^T dy + A^T dax) through dropout
 *
 * So W has two products forward, and one more backward: of the base, a step then computes twice the FLOPs.
 * Without dropout (evaluation, generation) d is x, and y is f u + b as above; a merge makes that y.
 */
#ifndef OT_MODELS_LORA_H
#define OT_MODELS_LORA_H

#include <stdbool.h>
#include <stdint.h>

struct ot_lora_rank {
    int64_t rank; /* from 1 to OT_LORA_MAX_RANK; 0: the module has no adapter */
    double alpha; /* finite, and not 0 */
};

enum { OT_LORA_MAX_RANK = 1 << 16 };

struct ot_lora {
    /* Returns the adapter that a module has. It is asked for each linear map of the layers, as the family
     * names it ("model.layers.3.self_attn.q_proj"), for the parameters of experts
     * (ot_model_experts_parameter), for the head (also a tied one, whose adapter is its own and not the
     * embedding's), and for the embedding. NULL: all maps of the layers have `all`. */
    struct ot_lora_rank (*choose)(const void *context, const char *module);
    const void *context;
    struct ot_lora_rank all;
    bool rslora, dora;
    float dropout;  /* in [0, 1); 0: none */
    float lr_ratio; /* LoRA+: above 0; 0 means 1 */
};

/* The scale of an adapter. */
float ot_lora_scale(const struct ot_lora *lora, struct ot_lora_rank rank);
/* norms[rows]: the Euclidean norms of the rows of weight [rows, cols], summed in double. */
void ot_lora_row_norms(const float *weight, int64_t rows, int64_t cols, float *norms);
/* Transposes [rows, cols] in place: between the slab's form of an embedding's A and the files' form. Errors:
 * OT_E_BUDGET. */
int ot_lora_transpose(float *values, int64_t rows, int64_t cols);
/* Finds the adapter of a module. rank 0: it has none. Errors: OT_E_INPUT (a rank or an alpha outside of its
 * range, a wrong dropout, dropout or DoRA of experts); the message names the module. */
int ot_lora_find(const struct ot_lora *lora, const char *module, struct ot_lora_rank *out);
/* The layer of a module: the first part of its name that is a number; -1: it has none, and is in no layer.
 * */
int64_t ot_lora_layer_of(const char *module);
/* True if a module is a parameter of experts; a linear map of a layer. */
bool ot_lora_is_of_experts(const char *module);
bool ot_lora_is_linear(const char *module);
/* The tensors of adapters have names that begin so. PEFT names the trained tensors of the model itself so
 * too. */
#define OT_LORA_PREFIX "base_model.model."
/* True if a tensor of the model belongs to an adapter. */
bool ot_lora_has_tensor(const char *name);
/* The end of the names of the rows of tokens, after the module's name; true if a tensor has it. */
#define OT_LORA_TOKENS "token_adapter.trainable_tokens_delta"
bool ot_lora_is_of_tokens(const char *name);

#endif
