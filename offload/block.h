/* The interface between the engine and a model: a model is a chain of blocks. models/ implements it; tests
 * implement it with tiny models.
 *
 * A chain has n_blocks blocks. Block 0 turns tokens into a boundary activation. The last block turns a
 * boundary activation into a loss. Each block between them maps a boundary activation to the next one. A
 * boundary activation is [n_tokens, boundary_elems] in the compute dtype. Behind it there may be a TAIL of a
 * few bytes, in which blocks hand on what belongs to the micro-batch and not to a token. Each block writes
 * the tail of y. The last block writes that of the gradient, which the others leave as it is.
 *
 * Parameters live in slabs. A slab is contiguous. The engine moves, accumulates and updates a slab; it knows
 * only the groups of its contents. Most blocks use one slab of their own. Tied tensors are one slab with two
 * uses. Each use accumulates its gradient in its own buffer, and the engine adds the buffers in block order,
 * so the sum does not depend on the order in which micro-batches ran.
 *
 * FROZEN SLABS. A block may have its parameters in two slabs: those that are trained, and those that are not
 * (the base under adapters, for example). A frozen slab keeps its bytes through a whole run. It has no
 * gradient, no optimizer state and no update, is never written back, and is in no checkpoint. It may be
 * ENCODED: then its homes hold bytes (quantized weights), and the engine knows only how many. These bytes
 * cross the bus. Before each use the chain decodes them on the device, into a slot, as parameters in the
 * compute dtype. Blocks see only decoded weights.
 *
 * PARTS. A slab may have parts: ranges; a micro-batch may leave some unused, because its own tokens choose
 * those that it needs (the experts of a mixture). Everything outside of the parts is DENSE: always needed. A
 * block that has a slab with parts can run forward in two halves. CHOOSE computes all that comes before the
 * choice, and notes the parts that it has chosen; REST needs the chosen parts, and finishes the block.
 * Between the halves the engine may fetch the chosen parts alone (plan.fetch_used), and decode them alone if
 * the slab is encoded. Wherever weights of a part are that no micro-batch has chosen, there may be any bytes,
 * NaNs too.
 *
 * SHARED SLABS. A slab may be used by many blocks, and each has slabs of its own beside it (the position
 * biases that all layers of a T5 read). It is small: each use has a buffer for its gradient, as with tied
 * tensors, and these buffers wait until the first block that uses the slab has run backward. If the blocks
 * belong to several ranks, plan/stages.h says who has the slab.
 *
 * ROWS OF PAIRS. The rows of an encoder-decoder model have inputs and targets (ot_chain.has_pairs). The
 * inputs of all rows of a micro-batch come first, then the targets of all rows, in the same order. A boundary
 * activation has a place for every token of both: inputs carry the encoder's results, targets the decoder's.
 * So the engine sees one chain and one boundary.
 *
 * SECTIONS. A sequence may be cut into sections of equally many tokens. Each is a micro-batch of its own,
 * and all sections of a sequence pass through a block one after the other (plan/slabs.h, sections). Attention
 * of a section also reads the keys and values of the sections before it, which the calls of a block leave to
 * each other in run.row. So a block needs room for one section of everything but these. Forward takes the
 * sections in order: each adds its own keys and values. Backward takes them from the last to the first. Each
 * adds to the gradient sums of the keys and values before it; its own are complete then, because no section
 * before it reads them. `keys` prepares for that: it computes the keys and values of all sections but the
 * last again.
 *
 * KEY GROUPS. The keys and values of a long sequence may be too many for the device. Attention of a head of
 * keys does not depend on other heads of keys. So a chain with key_heads > 0 can work on a section in PHASES
 * (ot_phase), and then run.row has the keys and values of one GROUP of heads at a time. BEGIN computes q, k
 * and v of the section; ATTEND, once for each group, adds the section's keys of the group to run.row, and
 * computes attention of the query heads that use them; END finishes the block. Backward has two passes over
 * the groups, ATTEND and ATTEND_BACK, with MIDDLE between them. From BEGIN to END the engine preserves
 * `work`, `scratch` and `saved`. The engine keeps the keys of the other groups elsewhere, and the sums of
 * their gradients. The bits of every result are the same for any number of groups, because each head has the
 * same ops with the same order of sums.
 *
 * COMPARISONS. An objective may compare rows, of pairs too (ot_chain.compares; kernels/ops_compare.h). Then
 * the last block runs forward in training as well: it writes the losses of the tokens. The engine computes
 * their weights, and backward multiplies the gradients of the tokens' losses with them.
 *
 * forward and backward only enqueue ops on run->lane, and keep no state: `run` has everything that a call
 * needs. The engine may call them for any micro-batch in any order, but for sections, because it orders the
 * work itself. All data that `run` points to is in device memory.
 *
 * Backward needs the block's inner activations. Forward keeps some of them, and backward computes the others
 * again from the boundary activation and the kept ones. A level says how much is kept (ot_keep_level), which
 * the engine may choose for each block and micro-batch. Inner activations live in two buffers: `saved` has
 * those that the level keeps, `work` has the others. Between forward and backward the engine preserves
 * `saved`, which it may copy to another tier and back; `work` and `scratch` are shared by all calls. The bits
 * of every result are the same for all levels.
 */
#ifndef OT_OFFLOAD_BLOCK_H
#define OT_OFFLOAD_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

/* A range of a slab whose parameters are updated in the same way. The groups cover the slab in order, without
 * gaps. */
struct ot_param_group {
    int64_t first, n; /* in parameters */
    bool decay;       /* weight decay applies (not on norms and biases) */
    bool trained;     /* frozen parameters keep their bits and do not count in the norm */
    float rate;       /* multiplies the learning rate; 0 means 1 */
};

/* An array of equal pieces, one of each part: the piece of part p is
 * [first + p * each, first + (p + 1) * each) of the slab, in parameters or in units of OT_ENCODED_UNIT
 * bytes. */
struct ot_piece_array {
    int64_t first, each;
};
enum { OT_MAX_PIECES = 2 }; /* per part */

struct ot_slab_spec {
    const char *name; /* "embed", "layer.3", "head" */
    int64_t n_params; /* a multiple of OT_SLAB_ALIGN_PARAMS: the model pads with frozen zeros */
    bool edge;        /* not one of the equal layers (embedding, head): has its own kind of slots */
    bool shared;      /* SHARED SLABS above: has its own kind of slots, whether it is frozen or not */
    bool frozen;
    /* Frozen and encoded: the bytes in its homes, a multiple of OT_ENCODED_ALIGN. 0: its homes hold
     * parameters in the chain's dtype. */
    int64_t encoded_bytes;
    int n_groups; /* 0 in a frozen slab */
    const struct ot_param_group *groups;
    /* Parts: n_pieces arrays in order, which do not overlap. n_parts 0: none. Only slabs of one middle block
     * have parts, and all of them that a block uses have equally many: part p of each is chosen together. */
    int n_parts, n_pieces;
    struct ot_piece_array pieces[OT_MAX_PIECES];  /* in parameters */
    struct ot_piece_array encoded[OT_MAX_PIECES]; /* encoded slab: the same pieces, in units */
};

/* Slabs are cut into tiles, and tiles into extents, at multiples of this number: 4 KiB of the narrowest
 * (2-byte) values. */
enum { OT_SLAB_ALIGN_PARAMS = 2048 };
/* The bytes of a unit in which encoded slabs are moved: the size of the narrowest values. */
enum { OT_ENCODED_UNIT = 2, OT_ENCODED_ALIGN = OT_SLAB_ALIGN_PARAMS * OT_ENCODED_UNIT };

enum { OT_MAX_USES = 4 };

struct ot_block_use {
    int slab;
    bool needed_in_backward; /* backward reads the weights (the backward of an embedding does not) */
};

struct ot_block_spec {
    const char *name;
    int n_uses;
    struct ot_block_use uses[OT_MAX_USES];
};

/* Activations that forward keeps for backward. Each level adds some to the previous one. */
enum ot_keep_level {
    OT_KEEP_NONE,      /* nothing: backward computes the whole block again from its boundary activation */
    OT_KEEP_ATTENTION, /* the result of attention; the model may add its inputs (q, k, v) */
    OT_KEEP_PRODUCTS,  /* all that a matrix product is needed to compute again */
    OT_KEEP_ALL,       /* everything: backward computes nothing again */
    OT_KEEP_LEVELS
};

struct ot_batch_view { /* a micro-batch; all pointers are device memory */
    int64_t n_tokens;
    const int32_t *tokens, *targets, *position, *row_start; /* [n_tokens] each; see kernels/ops.h */
    float grad_scale;                                       /* 1 / trained tokens of the whole step */
    const float *loss_scale; /* fp16: one value that multiplies the gradients; else NULL */
    const float *weights;    /* backward of the last block: [n_tokens], multiply gradients; NULL: 1 */
    /* For a chain with pairs. Tokens [0, n_inputs) are inputs, the others are targets. row_start is where the
     * token's own part of the row begins. [input_first[i], input_end[i]) are the inputs of the token's row,
     * for inputs and targets alike. Attention over the token's own part sees [row_start[i], key_end[i]): all
     * inputs of the row, or its targets up to this one. In DECODE, n_inputs counts inputs of earlier calls
     * too: the first n_inputs tokens of the cache are inputs, and all ranges count from its begin. */
    int64_t n_inputs;
    const int32_t *input_first, *input_end, *key_end;
};

/* Keys and values of earlier tokens, for generation. A text's rows in the cache are [capacity, kv_elems] of k
 * and of v, one after the other; the first n_past of them are filled.
 *
 * Either all tokens of the run continue one text, whose first rows are k and v. Or each token continues a
 * text of its own (texts is not NULL): token i continues texts[i], whose rows begin `first` rows after k and
 * v. Then every token gets the bits that it would get in a run by itself. */
struct ot_kv_text {
    int64_t first, n_past;
};
struct ot_kv_cache {
    void *k, *v;
    int64_t n_past;                 /* of the one text */
    const struct ot_kv_text *texts; /* [n_tokens] on the host; read only during the call */
};

/* The data that the calls for the sections of one sequence hand on within a block. row_start counts from the
 * first token of the sequence. */
struct ot_run_row {
    void *k, *v;    /* [tokens of the sequence, kv_elems]; NULL: the micro-batch has whole sequences */
    float *dk, *dv; /* backward: gradient sums of the same shape; zeros before the last section */
    int64_t first;  /* the tokens of the sequence before this section: a multiple of chain.section_align */
    /* KEY GROUPS. The arrays above have kv_elems / n_groups elements a token: those of the group with this
     * number. n_groups 0 counts as 1. */
    int group, n_groups;
};

/* The phases of a section in KEY GROUPS. forward: BEGIN, ATTEND of each group, END. keys: BEGIN, ATTEND of
 * each group, which adds keys alone. backward: BEGIN, ATTEND of each group unless `saved` has the result of
 * attention, MIDDLE, ATTEND_BACK of each group, END. */
enum ot_phase {
    OT_PHASE_WHOLE,  /* all of them in one call: run.row has all keys */
    OT_PHASE_BEGIN,  /* reads x; up to q, k and v. backward: also clears `grads`, if the call is `first` */
    OT_PHASE_ATTEND, /* reads and writes run.row.k and v */
    OT_PHASE_MIDDLE, /* backward, from y's gradient to that of attention's result; reads x */
    OT_PHASE_ATTEND_BACK, /* backward of attention; like ATTEND, and reads and writes dk and dv */
    OT_PHASE_END          /* reads x; forward: writes y; backward: writes x's gradient */
};

enum ot_pass {
    OT_PASS_TRAIN, /* forward for training; the last block does nothing here, unless the chain compares */
    OT_PASS_EVAL,  /* forward only; the last block writes token_loss */
    /* forward with kv; the last block writes the logits of each text's last token in the run */
    OT_PASS_DECODE
};

/* The half of a block's forward to run. Two halves give the same bits as OT_HALF_BOTH. Both get the same run,
 * except for `half` and `used`. Between them the engine preserves y and `saved`. */
enum ot_half {
    OT_HALF_BOTH,
    OT_HALF_CHOOSE, /* reads no part of a slab; writes the inputs of REST to y and to `saved` */
    OT_HALF_REST
};

/* The source of a block's random numbers (dropout). stream: ot_random_stream(OT_RANDOM_DROPOUT, step,
 * micro-batch), with the step's number in the run, and the micro-batch's number in the step of all ranks. So
 * the numbers do not depend on the plan, and backward repeats forward's. */
struct ot_run_random {
    uint64_t seed, stream;
};

struct ot_block_run {
    struct ot_lane *lane;
    enum ot_dtype dtype;
    enum ot_pass pass;
    struct ot_batch_view batch;
    struct ot_run_random random;      /* TRAIN */
    const void *constants;            /* written by fill_constants */
    const void *weights[OT_MAX_USES]; /* one per use */
    enum ot_half half;                /* forward; BOTH for a block without parts */
    enum ot_phase phase;              /* of a section; else WHOLE */
    /* CHOOSE: [n_parts]. Forward sets the elements of the parts that this micro-batch needs to 1, and leaves
     * the others as they are: they have the choices of earlier micro-batches. Else NULL. */
    int32_t *used;
    /* backward adds to these; one per use; NULL: the slab is frozen. The gradient of a part that the
     * micro-batch has not chosen is zero. */
    float *grads[OT_MAX_USES];
    /* backward: the first of a sum. It overwrites the content of `grads`: products overwrite the matrices,
     * and the rest is cleared first. That saves a fill (4 bytes a parameter) and a read of the old sums (4
     * more): 4 bytes a parameter instead of 12. The bits are those of adding to zeros, but a product of -0
     * stays -0, which is the same number. */
    bool first;
    const void *x; /* boundary in; NULL for block 0 */
    void *y;       /* forward: boundary out; NULL for the last block */
    /* backward: on entry the gradient of y, on return the gradient of x, in place. The last block only writes
     * it, block 0 only reads it */
    void *dxy;
    /* [saved_bytes(saved_level)] inner activations that the level keeps: forward writes them, backward reads
     * them and may overwrite them. NULL if the level keeps nothing. EVAL and DECODE have the level of TRAIN,
     * because `work` has no room for what it keeps. */
    void *saved;
    enum ot_keep_level saved_level; /* the same in forward and backward of a micro-batch */
    void *work;                     /* [work_bytes(saved_level)] the others; undefined between calls */
    void *scratch;                  /* [scratch_bytes]; undefined between calls */
    bool scores;                    /* last block, TRAIN forward: writes token_loss, as in EVAL */
    /* last block, EVAL forward, `scores`, and backward: [n_tokens] fp32. marks_hits, EVAL: negative, or -0,
     * where no token has a larger logit than the target. */
    float *token_loss;
    bool marks_hits;
    float *logits;         /* last block, DECODE: [texts of the run, vocab] fp32 */
    struct ot_kv_cache kv; /* DECODE */
    struct ot_run_row row; /* TRAIN and EVAL, middle blocks */
};

/* The work of one call, for predictions. product_flops: multiplications and additions of matrix products.
 * group_flops: the part of product_flops in products by groups (kernels/ops_experts.h), which have another
 * rate. attention_flops: FLOPs of causal attention, as struct ot_attention_rates counts them. moved_bytes:
 * bytes that all other operations read and write in device memory. */
struct ot_block_work {
    double product_flops, group_flops, attention_flops, moved_bytes;
};

enum ot_work_kind {
    OT_WORK_FORWARD,   /* last block: the forward of evaluation, or of a chain that compares */
    OT_WORK_BACKWARD,  /* with all inner activations kept */
    OT_WORK_RECOMPUTE, /* the extra work of backward at a level; none at OT_KEEP_ALL */
    OT_WORK_KEYS,      /* of `keys` */
    OT_WORK_CLEAR      /* the extra work of a backward with `first`; it does not depend on the tokens */
};

/* A decoding of an encoded slab: its dense rest, some or all of its parts, or both. encoded: [encoded_bytes];
 * weights: [n_params] of the chain's dtype; both in device memory, aligned to 256 bytes. */
struct ot_slab_decoding {
    const void *encoded;
    void *weights;
    bool dense, parts;
    const int32_t *used; /* with parts: [n_parts], on the host; 0: not this part. NULL: all parts */
};

struct ot_chain {
    const void *context;        /* owned by the model; outlives the engine */
    enum ot_dtype dtype;        /* type of weights and activations on the device */
    enum ot_state_format state; /* format of the optimizer's moments */
    enum ot_masters masters;    /* OT_MASTERS_NONE: OT_BF16 only */
    int n_blocks, n_slabs;
    const struct ot_block_spec *blocks;
    const struct ot_slab_spec *slabs;
    int64_t boundary_elems;     /* per token */
    size_t boundary_tail_bytes; /* 0: there is no tail */
    int64_t kv_elems;           /* per token and middle block, each of k and v */
    bool has_pairs;             /* rows have inputs and targets (ROWS OF PAIRS above) */
    bool compares;              /* COMPARISONS above */
    int64_t section_align;      /* sections have a multiple of this number of tokens; 0: there are none */
    int64_t key_heads;          /* heads of keys and values, which may come in groups; 0: no KEY GROUPS */
    int64_t head_dim;           /* elements of a head of attention; 0: unknown. Only predictions read it */
    int64_t vocab;              /* tokens and targets are less than this */
    int64_t max_position;       /* positions are less than this */
    size_t constant_bytes;      /* small read-only tables that every block may read */
    void (*fill_constants)(const void *context, void *host_memory);
    /* Bytes of run.saved: the inner activations that a level keeps. They are a prefix of those of the next
     * level, so the bytes never decrease. OT_KEEP_NONE: 0. A block that has no inner activations: 0 at every
     * level. */
    size_t (*saved_bytes)(const void *context, int block, enum ot_keep_level level, int64_t n_tokens);
    /* Bytes of run.work: the inner activations that a level does not keep and that scratch has no room for.
     * They never increase from a level to the next. OT_KEEP_ALL: 0. */
    size_t (*work_bytes)(const void *context, int block, enum ot_keep_level level, int64_t n_tokens);
    size_t (*scratch_bytes)(const void *context, int block, int64_t n_tokens); /* size of run.scratch */
    /* Fills in the work of a block for n_tokens tokens in rows of row_tokens. level: read for
     * OT_WORK_RECOMPUTE only. NULL: the model cannot tell. */
    void (*work)(const void *context, int block, enum ot_work_kind kind, enum ot_keep_level level,
                 int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
    /* The number of parts that n_tokens tokens are expected to choose in a block that has parts. Only
     * predictions ask. NULL: all of them. */
    double (*used_parts)(const void *context, int block, int64_t n_tokens);
    void (*forward)(const void *context, int block, const struct ot_block_run *run);
    /* Not called for the blocks before the first one that uses a trained slab. */
    void (*backward)(const void *context, int block, const struct ot_block_run *run);
    /* Computes k and v of a section's tokens from x, into run.row; middle blocks. `work` is that of
     * OT_KEEP_NONE. For a chain that has sections. */
    void (*keys)(const void *context, int block, const struct ot_block_run *run);
    /* Enqueues the decoding of an encoded slab. Reads `what` only during the call. NULL if no slab is
     * encoded. */
    void (*decode)(const void *context, int slab, struct ot_lane *lane, const struct ot_slab_decoding *what);
};

/* The offset of the tail of a boundary activation, and the bytes of the whole. */
static inline size_t ot_chain_boundary_tail(const struct ot_chain *chain, int64_t n_tokens) {
    size_t bytes = (size_t)(n_tokens * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    return chain->boundary_tail_bytes > 0 ? (bytes + 255) & ~(size_t)255 : bytes;
}
static inline size_t ot_chain_boundary_bytes(const struct ot_chain *chain, int64_t n_tokens) {
    return ot_chain_boundary_tail(chain, n_tokens) + chain->boundary_tail_bytes;
}

/* The token arrays of a micro-batch, in their order in memory. Only a chain with pairs has the last three. A
 * chain that compares has room for comparisons behind its arrays, in OT_COMPARISON_ARRAYS arrays: each has
 * four tokens or more, two of each answer. */
enum ot_token_array {
    OT_ARRAY_TOKENS,
    OT_ARRAY_TARGETS,
    OT_ARRAY_POSITION,
    OT_ARRAY_ROW_START,
    OT_ARRAY_INPUT_FIRST,
    OT_ARRAY_INPUT_END,
    OT_ARRAY_KEY_END,
    OT_MOST_TOKEN_ARRAYS
};
enum {
    OT_COMPARISON_TOKENS = 4, /* the fewest */
    OT_COMPARISON_ARRAYS = sizeof(struct ot_comparison) / (OT_COMPARISON_TOKENS * sizeof(int32_t))
};
static inline int ot_token_arrays(bool has_pairs) {
    return has_pairs ? OT_MOST_TOKEN_ARRAYS : OT_ARRAY_INPUT_FIRST;
}
static inline int ot_chain_token_arrays(const struct ot_chain *chain) {
    return ot_token_arrays(chain->has_pairs) + (chain->compares ? OT_COMPARISON_ARRAYS : 0);
}

/* The arguments that all runs of one caller share. */
struct ot_block_caller {
    const struct ot_chain *chain;
    struct ot_lane *lane;
    enum ot_pass pass;
    const void *constants;
    void *x, *y; /* the boundaries; the runs of block 0 and of the last block leave out theirs */
    void *work, *scratch;
    float *token_loss, *logits;
};
/* The run of a block, without what differs from caller to caller: weights, gradients, scales, random numbers
 * and what is saved are zero. token_arrays: device memory, one array every `stride` elements. */
struct ot_block_run ot_block_run_make(const struct ot_block_caller *caller, int block,
                                      const int32_t *token_arrays, int64_t stride, int64_t n_tokens,
                                      int64_t n_inputs);

#endif
