#include "models/linear.h"

#include "models/decoder.h"

void ot_linear_forward(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                       enum ot_dtype y_dtype, void *y) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = y_dtype,
        .trans_b = true,
        .m = linear->rows,
        .n = linear->out,
        .k = linear->in,
        .a = x,
        .lda = linear->in,
        .b = linear->weight,
        .ldb = linear->in,
        .bias = linear->bias,
        .addend = linear->residual,
        .c = y,
        .ldc = linear->out,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}

void ot_linear_backward_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                               const void *dy, int64_t ld_dy) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = OT_F32,
        .trans_a = true,
        .addend = linear->adds ? linear->dweight : NULL,
        .m = linear->out,
        .n = linear->in,
        .k = linear->rows,
        .a = dy,
        .lda = ld_dy,
        .b = x,
        .ldb = linear->in,
        .c = linear->dweight,
        .ldc = linear->in,
    };
    if (linear->dweight)
        ot_run_ops(run)->gemm(run->lane, &gemm);
    if (!linear->dbias)
        return;
    const struct ot_bias_backward bias = {
        .dtype = run->dtype,
        .rows = linear->rows,
        .cols = linear->out,
        .ld = ld_dy,
        .dy = dy,
        .dbias = linear->dbias,
    };
    ot_run_ops(run)->bias_backward(run->lane, &bias);
}

void ot_linear_backward_input(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                              int64_t ld_dy, void *dx) {
    const struct ot_gemm gemm = {
        .dtype = run->dtype,
        .c_dtype = run->dtype,
        .m = linear->rows,
        .n = linear->in,
        .k = linear->out,
        .a = dy,
        .lda = ld_dy,
        .b = linear->weight,
        .ldb = linear->in,
        .c = dx,
        .ldc = linear->in,
    };
    ot_run_ops(run)->gemm(run->lane, &gemm);
}
