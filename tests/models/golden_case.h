/* One golden model, loaded into a runner: tests/golden/model_CASE.bin, which scripts/golden/models.py
 * describes, or such a model with adapters: a case of tests/golden/lora.bin, or over a quantised base of
 * tests/golden/qlora.bin, which scripts/golden/lora.py and qlora.py describe. Or such a model with
 * regularisers, as scripts/golden/regular.py says. Or 20 steps of such a model:
 * tests/golden/steps.bin, which scripts/golden/steps.py describes. Or such a model on a row of 3,000 tokens:
 * tests/golden/long_rows.bin, which scripts/golden/long_rows.py describes. */
#ifndef OT_TESTS_GOLDEN_CASE_H
#define OT_TESTS_GOLDEN_CASE_H

#include "tests/models/chain_runner.h"
#include "tests/support/golden.h"

/* Each ends with NULL. */
extern const char *const golden_case_names[];
extern const char *const golden_pair_names[];    /* encoder-decoders (scripts/golden/t5.py) */
extern const char *const golden_lora_names[];    /* with adapters: "BASE-WORD" */
extern const char *const golden_regular_names[]; /* with regularisers: "BASE-regular" */
extern const char *const golden_step_names[];    /* 20 steps without adapters: "BASE-steps" */
extern const char *const golden_long_names[];    /* "BASE-long" */

struct golden_case {
    struct ot_golden *base, *lora_file; /* lora_file: of adapters or steps; NULL: neither */
    const struct ot_golden *golden;     /* the file of the results, one of both */
    const char *name;
    struct ot_model_config config;
    struct ot_lora lora;
    struct ot_model_setup parts; /* refers to this struct */
    bool has_regular;
    struct ot_regular regular;
    struct runner_batch batch;        /* points into the golden file; grad_scale = 1 / trained tokens */
    const float *token_loss, *logits; /* NULL: of steps */
};

/* name: outlives the case. */
void golden_case_open(const char *name, struct golden_case *out);
void golden_case_close(struct golden_case *golden_case);
/* The name in the file of the results of what models.py calls `name`. Valid until the second next call. */
const char *golden_case_key(const struct golden_case *golden_case, const char *name);
/* The values of the array KIND.TENSOR of such a file; as a slab has them (enum ot_file_form). Valid until
 * the next call. */
const float *golden_case_tensor(const struct golden_case *golden_case, const char *kind,
                                const struct ot_tensor *tensor);
/* The values of a tensor with which the case begins. As golden_case_tensor. */
const float *golden_case_weight(const struct golden_case *golden_case, const struct ot_tensor *tensor);
/* The values of a slab's tensors with which the case begins; 0 elsewhere. To be freed with free. */
float *golden_case_slab(const struct golden_case *golden_case, const struct ot_model *model, int slab);
/* Opens a runner with the case's weights; those of encoded slabs as they are decoded. */
struct runner *golden_case_runner(const struct golden_case *golden_case, enum ot_dtype dtype, int threads);

#endif
