/* The fingerprint of a base: tells the weights of --model apart from those of another model of the same
 * shape.
 *
 * It is a CRC-32 of a sample of the values: of every tensor some pieces, from its first values to its last.
 * The sample takes a second at most, so a run has it before it reads the weights. Two revisions of a model
 * differ in nearly all values, so in the sample too. If only few values of a model were changed, the sample
 * may miss the change. Where all values are read anyway, a CRC-32 of all of them is compared as well
 * (weights.h): between the ranks at the start of a run, and of frozen weights whenever a run resumes.
 *
 * The fingerprint depends only on values and on the names of the model's tensors. It is the same for a copy,
 * for other shards, and for another dtype that holds the same values. */
#ifndef OT_SESSION_BASE_PRINT_H
#define OT_SESSION_BASE_PRINT_H

#include <stdbool.h>
#include <stdint.h>

struct ot_model_config;
struct ot_model_dir;

struct ot_base_print {
    bool is_known; /* false: the weights are random */
    uint32_t sample;
};

/* Reads the sample. dir: with weights, and without adapters. Errors: as ot_model_dir_check; OT_E_INPUT. */
int ot_base_print_take(const struct ot_model_dir *dir, const struct ot_model_config *config,
                       struct ot_base_print *out);

#endif
