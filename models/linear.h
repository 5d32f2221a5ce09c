/* A linear layer, y = x W^T + b: one GEMM forward and two backward, enqueued on run->lane. W is [out, in]. x
 * and dx are [rows, in], y and dy are [rows, out]; rows are contiguous unless ld_dy says otherwise. The layer
 * may have adapters (lora.h): then there are two small GEMMs more forward, and four backward, for each
 * adapter, or fewer. With DoRA, its product's result is u, of which y is made; backward needs u.
 *
 * With DoRA and dropout (lora.h), a training pass multiplies W with x and with d = dropout(x). Forward:
 *
 *     y = W d,   u = y + scale B ax,   y = f u - y + residual,   y = W x + b + y
 *
 * The change f u - W d comes first, so that the last product rounds y as the base does. B = 0 and f = 1 make
 * the change exactly zero. Outputs without an adapter take part in both products, and their change is y - y.
 * Backward, with du = f dy, computes
 *
 *     dx = W^T dy,   h = W^T du + A^T dax,   dx = dx + (h - dx through dropout)
 *
 * W^T dy and W^T du are over all outputs of the unit. In those without an adapter du is dy, so their parts of
 * the difference cancel. W is frozen, and backward has no gradient for it. Private to models/.
 */
#ifndef OT_MODELS_LINEAR_H
#define OT_MODELS_LINEAR_H

#include "models/decoder.h"

struct ot_linear {
    int64_t rows, in, out;
    const void *weight, *bias; /* bias NULL: the layer has no bias */
    const void *residual;   /* [rows, out] of y's dtype, which forward adds before it rounds y; may be NULL */
    float *dweight, *dbias; /* fp32; backward adds to dbias; NULL: not wanted */
    bool adds;              /* backward adds to dweight; false: it overwrites dweight */
    /* y = residual + scale (x W^T + ...); 0: 1. Another scale excludes bias and DoRA (config.c). */
    float scale;
    const struct ot_lora_unit *lora; /* NULL or n 0: the layer has no adapters */
    /* [rows, lora->rank] of the run's dtype. Forward writes ax, which backward_params reads. backward_params
     * writes dax, which backward_input reads. */
    void *ax, *dax;
    /* With dropout: memory for one x, and the place of its first row in the micro-batch. Forward and
     * backward_params write dropout(x) to it, backward_input the gradient of dropout(x). */
    void *dropped;
    int64_t first_row;
    /* With DoRA: u [rows, out] of y's dtype. backward_params reads it and overwrites it with its gradient,
     * which backward_input reads. NULL in backward: dy is the gradient of u. */
    void *u;
    /* With DoRA: the factors of the rows of W, fp32 [out], and behind them their inverses [out]. Forward
     * computes them, unless has_factors says that they are there. products: scratch for that. */
    float *factors, *products;
    bool has_factors;
};

/* Memory for the adapters of a unit. A layer keeps it in `saved` from the level on that keeps the result of
 * the unit's product. */
struct ot_unit_memory {
    void *ax, *u;
    float *factors;
};

/* Bytes of ot_linear.products 0 if the unit has no DoRA. */
size_t ot_linear_products_bytes(const struct ot_lora_unit *lora);

/* y_dtype: the run's dtype, or OT_F32 (logits). */
void ot_linear_forward(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                       enum ot_dtype y_dtype, void *y);
/* Computes the results of forward that backward reads, without y: ax, and with DoRA u (of y_dtype) and the
 * factors. */
void ot_linear_forward_inside(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                              enum ot_dtype y_dtype);
/* With DoRA: compute only the factors; compute only y, from u and the factors. */
void ot_linear_factors(const struct ot_block_run *run, const struct ot_linear *linear);
void ot_linear_forward_from_u(const struct ot_block_run *run, const struct ot_linear *linear,
                              enum ot_dtype y_dtype, void *y);
/* True if W multiplies x and dropout(x) in this pass. */
bool ot_linear_doubles(const struct ot_block_run *run, const struct ot_linear *linear);
/* With DoRA: writes the gradient of u to du, without gaps, as u, and adds to the gradients of the
 * magnitudes. u_dtype: of u. du may be dy, or u if that has the run's dtype, or NULL: not wanted. Where
 * linear->u is NULL, the gradients of the magnitudes are not wanted. */
void ot_linear_backward_u(const struct ot_block_run *run, const struct ot_linear *linear,
                          enum ot_dtype u_dtype, const void *dy, int64_t ld_dy, void *du);
/* Computes the gradients of weight, bias and adapters from dy and x. ld_dy: elements from one row of dy to
 * the next. */
void ot_linear_backward_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                               const void *dy, int64_t ld_dy);
/* y += B ax, of all adapters. */
void ot_linear_add_adapters(const struct ot_block_run *run, const struct ot_linear *linear,
                            enum ot_dtype y_dtype, void *y);
/* dax = scale B^T dy, and the gradients of B, of all adapters. */
void ot_linear_backward_b(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                          int64_t ld_dy);
/* If the pass doubles: dx = W^T dy. */
void ot_linear_backward_base(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                             int64_t ld_dy, void *dx);
/* Overwrites dx. With adapters: after backward_params. If the pass doubles and linear->u is NULL, dy is the
 * gradient of u, and backward_base has made dx before. */
void ot_linear_backward_input(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                              int64_t ld_dy, void *dx);

#endif
