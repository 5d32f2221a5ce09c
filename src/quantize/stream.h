/* Runs a model block by block: one block's weights are on the device at a time, and all sequences pass
 * through it before the next block is loaded. The boundary activations of the sequences wait in host memory.
 * So a model of any size runs in the memory of its largest block. All arithmetic is the device's ops.
 *
 * The caller may replace weights of the present block between two passes, and may look at the input of a
 * linear map: the stream adds up its Hessian, the sum of x x^T over the tokens x of all rows, in fp32 on the
 * device. An expert has a Hessian of its own, of the tokens that the router sends to it. A pass adds up those
 * of as many experts as there is room for: the Hessians of experts take no more memory than the largest
 * block, unless one alone does. Their bits do not depend on the number of passes.
 *
 * One thread. Calls return when their work is done.
 */
#ifndef OT_QUANTIZE_STREAM_H
#define OT_QUANTIZE_STREAM_H

#include <stdint.h>

#include "kernels/device.h"
#include "models/linear_inputs.h"
#include "src/files/model_dir.h"

/* ---- batches ---- */

/* Micro-batches of one sequence each, in host memory, that a quantization passes through every layer: rows of
 * calibration, or held-out rows. They are padded as the engine pads them (offload/engine/engine.h); a pad
 * token is a row of its own. Of an encoder-decoder, it is a target of the first row.
 */

struct ot_dataset;
struct ot_packing;

struct ot_sequence {
    int64_t n_tokens;      /* with padding */
    int64_t n_rows;        /* tokens of rows: what calibration counts */
    int64_t first;         /* tokens of the sequences before it, with padding */
    int64_t n_inputs;      /* of an encoder-decoder (offload/block.h, ROWS OF PAIRS); else 0 */
    const int32_t *arrays; /* the token arrays (ot_chain_token_arrays), one every `stride` elements */
    int64_t stride;
};

struct ot_sequences {
    int64_t n, tokens, row_tokens, most_tokens; /* sums, and the longest */
    struct ot_sequence *list;
    int32_t *memory;
};

/* The first `most` sequences of the packing's first epoch. multiple: of tokens, for the padding. Errors:
 * OT_E_BUDGET. Call ot_sequences_free also after an error. */
int ot_sequences_open(struct ot_packing *packing, const struct ot_dataset *dataset, int64_t seq_len,
                      int64_t most, int64_t multiple, struct ot_sequences *out);
void ot_sequences_free(struct ot_sequences *sequences);

/* ---- stream ---- */

struct ot_pool;
struct ot_stream;

struct ot_stream_config {
    struct ot_device *device;
    const struct ot_model *model; /* opened in the dtype of the device's arithmetic */
    const struct ot_model_dir *dir;
    struct ot_pool *pool;
    int64_t most_tokens; /* of a sequence */
    bool hessian;        /* there is room for Hessians */
};

/* A layer's own slab: the last that its block uses. A slab that all layers share may come before it. */
int ot_stream_layer_slab(const struct ot_chain *chain, int block);

/* Allocates device memory: the largest block, a sequence, and Hessians. Errors: OT_E_BUDGET,
 * OT_E_DEVICE. */
int ot_stream_open(const struct ot_stream_config *config, struct ot_stream **out);
void ot_stream_close(struct ot_stream *stream); /* NULL is fine */
/* Host memory that the stream holds, without activations. */
int64_t ot_stream_host_bytes(const struct ot_stream_config *config);
/* Device memory of the Hessians. */
int64_t ot_stream_hessian_bytes(const struct ot_stream_config *config);
/* Bytes of the boundary activations of some tokens. */
int64_t ot_stream_boundary_bytes(const struct ot_model *model, int64_t tokens);

/* Loads a block's weights, exactly. values: NULL, or [n_params] of the layer's own slab, which gets them in
 * fp32 too. Errors: OT_E_INPUT (a weight is not finite), OT_E_IO, OT_E_DEVICE. */
int ot_stream_load(struct ot_stream *stream, int block, float *values);
/* Replaces parameters [first, first + n) of the layer's own slab, rounded to the device's dtype. */
int ot_stream_set(struct ot_stream *stream, int64_t first, int64_t n, const float *values);

/* The forward of the present block. x: the activations of all sequences in the order of the list; they are
 * read (not by block 0) and overwritten. Not for the last block. stopped: asked before each sequence; true
 * ends the pass with OT_E_INTERRUPT. */
int ot_stream_forward(struct ot_stream *stream, const struct ot_sequences *sequences, bool (*stopped)(void),
                      void *x);
/* The forward of the last block: the sum of the losses of the trained tokens, and their number. */
int ot_stream_losses(struct ot_stream *stream, const struct ot_sequences *sequences, const void *x,
                     double *sum, int64_t *trained);
/* The number of experts' Hessians that a pass can add up. width: of their input. */
int64_t ot_stream_hessian_room(const struct ot_stream *stream, int64_t width);
/* Adds up Hessians of an input of the present layer: for experts, those of the n experts from `first` on;
 * else first is 0, and n is 1. `seconds` gets only the time of the products. */
int ot_stream_hessians(struct ot_stream *stream, const struct ot_sequences *sequences,
                       enum ot_layer_input input, int64_t first, int64_t n, bool (*stopped)(void),
                       const void *x, double *seconds);
/* The number of tokens in Hessian i of the last pass: of expert first + i. */
int64_t ot_stream_hessian_rows(const struct ot_stream *stream, int64_t i);
/* Copies Hessian i to the host, divided by this number, which is not 0: [width, width]. */
int ot_stream_get_hessian(struct ot_stream *stream, int64_t i, float *hessian);

#endif
