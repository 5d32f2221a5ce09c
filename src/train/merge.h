/* Adds adapters to the weights of their base (models/lora.h): W + scale B A; of DoRA m / |V| times that sum
 * V; of an embedding E + scale (B A)^T. Computed in fp32 from the exact values of both files. The writer
 * rounds once, to the dtype of the result. Values stream; of one module at a time, A and B are in memory. The
 * experts of a layer are two such modules (lora.h); the target is a tensor of one expert, or of all. */
#ifndef OT_TRAIN_MERGE_H
#define OT_TRAIN_MERGE_H

#include "models/lora_spec.h"
#include "src/session/open.h"

struct ot_merge {
    const struct ot_session *session; /* opened with files and adapters */
    struct ot_lora_spec lora;
    struct ot_model *adapted; /* with the adapters' tensors; session->model.built is the base alone */
    int64_t n_adapters;
    /* True: head and embedding of the base are one matrix, and one has an adapter. The result has two. */
    bool unties;
    /* The tensor that was asked for last, and its adapter. rank 0: it has none. */
    const struct ot_tensor *target;
    int64_t rank;
    /* a: [rank, cols], b: [rows, rank] of the target. Of experts: one of each for each expert, one after the
     * other. first_row: the row of b that is the target's first. part_rows: rows of b with one a. */
    float scale, *a, *b;
    int64_t first_row, part_rows;
    const struct ot_tensor *read; /* the tensor of B that b holds; NULL: none */
    float *factor;                /* [rows], of DoRA; NULL: 1 */
};

/* Opens session->model.built, the base, and checks that its files and the adapters fit. Errors: as
 * ot_model_open_selected and ot_model_dir_check. Call ot_merge_close also after an error. */
int ot_merge_open(struct ot_session *session, struct ot_merge *out);
void ot_merge_close(struct ot_merge *merge);
/* An ot_param_source of the merged values of session->model.built; context: a struct ot_merge. Errors: as
 * ot_model_dir_get; OT_E_INPUT: a value is not finite. */
int ot_merge_get(void *context, int slab, int64_t first, int64_t n, float *values);

#endif
