/* The keys that describe a model: from struct ot_model_config to a file, and from a file to the config.json
 * that a Hugging Face directory of the same model would have.
 *
 * general.architecture, general.type, general.name, general.file_type, general.quantization_version, and with
 * the architecture as prefix block_count, context_length, embedding_length, feed_forward_length, vocab_size,
 * attention.{head_count, head_count_kv, key_length, value_length, layer_norm_rms_epsilon, sliding_window},
 * rope.{dimension_count, freq_base, scaling.type, scaling.factor}. The scaling of Llama 3 has no keys: its
 * factors are the tensor rope_freqs.weight.
 */
#ifndef OT_GGUF_MODEL_KEYS_H
#define OT_GGUF_MODEL_KEYS_H

#include "src/gguf/names.h"

/* Refuses what llama.cpp would compute otherwise, or would not load: an activation that is not silu, a
 * sliding window or a bias of o_proj in a family that has none there. where: for the message. Errors:
 * OT_E_INPUT. */
int ot_gguf_check_config(const struct ot_model_config *config, const char *where);
/* name: general.name. */
void ot_gguf_put_config(struct ot_gguf_keys *keys, const struct ot_model_config *config, const char *name,
                        const struct ot_gguf_mixture *mixture);

/* The keys of a file of adapters for a model. alpha: numerator of all their scales. */
void ot_gguf_put_adapter(struct ot_gguf_keys *keys, const struct ot_model_config *config, const char *name,
                         const struct ot_gguf_mixture *mixture, double alpha);

/* Makes the text of config.json; the caller frees it. bos and eos: -1: none. Values that only tensors tell
 * are taken from them: biases, tied embeddings, the size of the vocabulary, rope_freqs.weight. Errors:
 * OT_E_INPUT (a key is absent or wrong, the architecture or its RoPE is not supported), OT_E_IO, OT_E_BUDGET.
 */
int ot_gguf_make_config(const struct ot_gguf *file, int64_t bos, int64_t eos, char **text, size_t *bytes);

/* The dtype in which the model is computed and saved by default: that of most bytes, and bf16 where these are
 * quantised. */
enum ot_dtype ot_gguf_dtype(const struct ot_gguf *file);

#endif
