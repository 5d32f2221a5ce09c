/* Rotary embedding (Su et al., "RoFormer", 2021): how config.json describes it, and its tables. Private to
 * models/.
 *
 * Pair j of a head's rotary_dim elements turns by frequency(j) radians per position. Plain: theta^(-2j /
 * rotary_dim). The scalings stretch a model's context; the names are those of transformers
 * (modeling_rope_utils.py), and so are the numbers:
 *
 *     linear        all frequencies / factor
 *     llama3        long wavelengths / factor, short ones kept, a blend between (Llama 3.1)
 *     dynamic       theta grows with the length of the sequences beyond max_position (NTK)
 *     yarn          a blend of kept and divided frequencies along j; cos and sin are multiplied by
 *                   attention_factor (Peng et al., "YaRN", 2023)
 *     longrope      frequency(j) / short_factors[j], or / long_factors[j] if sequences are longer than
 *                   original_max_position; attention_factor as in yarn (Ding et al., "LongRoPE", 2024)
 *     proportional  the first `share` of all pairs turn by theta^(-2j / head_dim) / factor, the others not
 *
 * transformers looks at each batch for `dynamic` and `longrope`: the batch's own longest row decides. Here
 * the sequence length of the run decides for all batches, so that equal tokens have equal results whatever
 * they are packed with.
 */
#ifndef OT_MODELS_ROPE_H
#define OT_MODELS_ROPE_H

#include "models/family.h"

/* Reads rope_parameters, or rope_scaling and rope_theta; sets rotary_dim. When all other common keys are
 * read. Errors: OT_E_INPUT. */
int ot_rope_config_read(const struct ot_config_reader *reader);
void ot_rope_config_put(const struct ot_model_config *config, struct ot_json_writer *writer);
/* Errors: OT_E_INPUT; the message names `where` and the key. */
int ot_rope_config_check(const struct ot_model_config *config, const char *where);
/* Radians per position of pair j, for sequences of up to max_position tokens. local: of layers with a
 * window, if they have a rope of their own. */
double ot_rope_frequency(const struct ot_model_config *config, int64_t max_position, bool local, int64_t j);

#endif
