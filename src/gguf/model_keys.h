/* The keys that describe a model: from struct ot_model_config to a file, and from a file to the config.json
 * that a Hugging Face directory of the same model would have.
 *
 * general.architecture, general.type, general.name, general.file_type, general.quantization_version, and with
 * the architecture as prefix:
 *
 *     all                block_count, context_length, embedding_length, feed_forward_length, vocab_size,
 *                        attention.{head_count, head_count_kv, key_length, value_length}, and
 *                        attention.layer_norm_epsilon or attention.layer_norm_rms_epsilon
 *     with experts       expert_count, expert_used_count; qwen3moe, gpt-oss: expert_feed_forward_length
 *     with a window      attention.sliding_window (phi3: also 0), and where the layers that have it are not
 *                        the architecture's usual ones, attention.sliding_window_pattern, a list of bools
 *     with RoPE          rope.{dimension_count, freq_base}; gemma3: rope.freq_base_swa
 *     linear             rope.scaling.{type, factor}
 *     yarn               also rope.scaling.original_context_length; mistral3: rope.scaling.{yarn_beta_fast,
 *                        yarn_beta_slow, yarn_log_multiplier}
 *     longrope           rope.scaling.{type, original_context_length, attn_factor}
 *     gemma2, gemma3     attn_logit_softcapping, final_logit_softcapping
 *     mistral3           attention.temperature_scale, rope.scaling.original_context_length
 *     t5                 decoder_block_count, decoder_start_token_id, attention.relative_buckets_count;
 *                        block_count is that of the encoder
 *     granite            embedding_scale, residual_scale, attention.scale, logit_scale
 *
 * The scaling of Llama 3 has no keys: its factors are the tensor rope_freqs.weight. Those of longrope are
 * rope_factors_long.weight and rope_factors_short.weight. llama.cpp takes the long ones if its context is
 * longer than the original length, transformers if the sequence is.
 *
 * YaRN multiplies cos and sin by 0.1 ln(factor) + 1, divided by 0.1 log_multiplier ln(factor) + 1 if the key
 * yarn_log_multiplier has one. rope.scaling.attn_factor multiplies that: it is written where the config has
 * another magnitude. llama.cpp does not read yarn_attn_factor.
 *
 * NUMBERS. Keys have fp32 values. The config gets the decimal with the fewest digits that is that value to
 * fp32's precision: 0.22, not 0.219999998807907.
 */
#ifndef OT_GGUF_MODEL_KEYS_H
#define OT_GGUF_MODEL_KEYS_H

#include "src/gguf/names.h"

/* name: general.name. */
void ot_gguf_put_config(struct ot_gguf_keys *keys, const struct ot_model_config *config, const char *name,
                        const struct ot_gguf_mixture *mixture);

/* The keys of a file of adapters for a model. alpha: numerator of all their scales. */
void ot_gguf_put_adapter(struct ot_gguf_keys *keys, const struct ot_model_config *config, const char *name,
                         const struct ot_gguf_mixture *mixture, double alpha);

/* Makes the text of config.json; the caller frees it. bos and eos: -1: none. Facts that no key states are
 * read from the tensors: biases, tied embeddings, the size of the vocabulary, factors of RoPE, the two norms
 * of a Falcon. If an architecture has several families, the file's keys decide: llama with experts is
 * mixtral, and with a window mistral; mistral3 with attention.temperature_scale is ministral3 and else
 * mistral; olmo2 with a window is olmo3. Errors: OT_E_INPUT (a key is absent or wrong, the architecture or
 * its RoPE is not supported), OT_E_IO, OT_E_BUDGET.
 */
int ot_gguf_make_config(const struct ot_gguf *file, int64_t bos, int64_t eos, char **text, size_t *bytes);

/* The default dtype to compute and save the model in: the one with most bytes in the file; bf16 if that is a
 * quantised type. */
enum ot_dtype ot_gguf_dtype(const struct ot_gguf *file);

#endif
