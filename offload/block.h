/* What the engine knows of a model: a chain of blocks. models/ implements it; tests implement it with
 * something tiny.
 *
 * A chain has n_blocks blocks. Block 0 turns tokens into a boundary activation, the last turns a boundary
 * activation into a loss, those between map boundary to boundary. A boundary activation is [n_tokens,
 * boundary_elems] in the compute dtype.
 *
 * Parameters live in slabs. A slab is contiguous; the engine moves, accumulates and updates it without
 * knowing what is inside but for its groups. Most blocks use one slab of their own. Tied tensors are one slab
 * with two uses: each use accumulates its gradient in a buffer of its own, and the engine adds them in block
 * order, so that the sum does not depend on the order in which micro-batches ran.
 *
 * Both functions only enqueue ops on run->lane and keep no state: whatever a call needs is in `run`. They may
 * be called for any micro-batch in any order; the engine orders the work. All pointers in `run` but `batch`
 * itself are device memory.
 */
#ifndef OT_OFFLOAD_BLOCK_H
#define OT_OFFLOAD_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/* A range of a slab with one treatment. Groups cover the slab in order, without gaps. */
struct ot_param_group {
    int64_t first, n; /* in parameters */
    bool decay;       /* weight decay applies (not on norms and biases) */
    bool trained;     /* frozen parameters keep their bits and have no part in the norm */
};

struct ot_slab_spec {
    const char *name; /* "embed", "layer.3", "head" */
    int64_t n_params; /* a multiple of OT_SLAB_ALIGN_PARAMS: the model pads, with frozen zeros */
    bool edge;        /* not one of the many equal layers: staged in slots of its own kind */
    int n_groups;
    const struct ot_param_group *groups;
};

/* Slabs are cut into tiles and, later, extents at these borders: 4 KiB for the narrowest (2-byte) kind. */
enum { OT_SLAB_ALIGN_PARAMS = 2048 };

enum { OT_MAX_USES = 2 };

struct ot_block_use {
    int slab;
    bool needed_in_backward; /* whether backward reads the weights (an embedding's does not) */
};

struct ot_block_spec {
    const char *name;
    int n_uses;
    struct ot_block_use uses[OT_MAX_USES];
};

struct ot_batch_view { /* a micro-batch; device memory but for the counts */
    int64_t n_tokens;
    const int32_t *tokens, *targets, *position, *row_start; /* [n_tokens] each; see kernels/ops.h */
    float grad_scale;                                       /* 1 / trained tokens of the whole step */
    const float *loss_scale; /* fp16: 1 value that gradients are multiplied by; else NULL */
};

/* Keys and values of earlier tokens, for generation: [capacity, kv_elems] each, n_past of them filled. */
struct ot_kv_cache {
    void *k, *v;
    int64_t n_past, capacity;
};

enum ot_pass {
    OT_PASS_TRAIN, /* forward for training; the last block does nothing here */
    OT_PASS_EVAL,  /* forward alone; the last block writes token_loss */
    OT_PASS_DECODE /* forward with kv; the last block writes logits of the last token */
};

struct ot_block_run {
    struct ot_lane *lane;
    enum ot_dtype dtype;
    enum ot_pass pass;
    struct ot_batch_view batch;
    const void *constants;            /* what fill_constants wrote */
    const void *weights[OT_MAX_USES]; /* per use */
    float *grads[OT_MAX_USES];        /* backward: per use, accumulated into */
    const void *x;                    /* boundary in; NULL for block 0 */
    void *y;                          /* forward: boundary out; NULL for the last block */
    void *dxy;             /* backward: gradient of y on entry, of x on return, in place; the last block
                              only writes it, block 0 only reads it */
    void *saved;           /* saved_bytes; what forward keeps for backward. Every pass works in it, so it is
                              always given; backward may overwrite it */
    bool saved_valid;      /* backward: saved holds this micro-batch's forward; else recompute into it */
    void *scratch;         /* scratch_bytes; garbage between calls */
    float *token_loss;     /* last block, EVAL forward and backward: [n_tokens] fp32 */
    float *logits;         /* last block, DECODE: [vocab] fp32 */
    struct ot_kv_cache kv; /* DECODE, middle blocks */
};

/* What one call must do, for predictions: multiplications and additions of matrix products and of causal
 * attention (what is not masked), and bytes that everything else reads and writes in device memory. */
struct ot_block_work {
    double product_flops, attention_flops, moved_bytes;
};

enum ot_work_part {
    OT_WORK_FORWARD,  /* for the last block what evaluation does: in training its forward does nothing */
    OT_WORK_BACKWARD, /* with what forward kept */
    OT_WORK_RECOMPUTE /* what comes on top of that where nothing was kept */
};

struct ot_chain {
    const void *context; /* the model's own; outlives the engine */
    enum ot_dtype dtype; /* of weights and activations on the device */
    int n_blocks, n_slabs;
    const struct ot_block_spec *blocks;
    const struct ot_slab_spec *slabs;
    int64_t boundary_elems; /* per token */
    int64_t kv_elems;       /* per token and middle block, each of k and v */
    int64_t vocab;          /* tokens and targets must be below */
    int64_t max_position;   /* positions must be below */
    size_t constant_bytes;  /* small read-only tables that every block may read */
    void (*fill_constants)(const void *context, void *host_memory);
    /* Bytes needed by one call of block b with n tokens. saved_bytes 0: the block has nothing to keep. */
    size_t (*saved_bytes)(const void *context, int block, int64_t n_tokens);
    size_t (*scratch_bytes)(const void *context, int block, int64_t n_tokens);
    /* Of n tokens in rows of row_tokens. NULL: unknown. */
    void (*work)(const void *context, int block, enum ot_work_part part, int64_t n_tokens, int64_t row_tokens,
                 struct ot_block_work *out);
    void (*forward)(const void *context, int block, const struct ot_block_run *run);
    void (*backward)(const void *context, int block, const struct ot_block_run *run);
};

#endif
