/* Matrix products on a GPU: the contract of struct ot_gemm (kernels/ops.h) by cuBLASLt (cublaslt.h).
 *
 * THE PRODUCT. cuBLASLt counts columns first, we count rows first: our row-major C[m,n] is its column-major
 * [n,m], so it is asked for C^T = op(B)^T op(A)^T with the operands swapped. Our bias over n is then its bias
 * over rows, which its epilogue adds in fp32 before the one rounding. That epilogue wants the bias in the
 * dtype of C and 16-byte aligned; another bias is first copied, as fp32 where C is, into the scratch.
 * accumulate is beta = 1.
 *
 * ARITHMETIC. Two-byte operands: exact products, fp32 sums (COMPUTE_32F). fp32 operands:
 * COMPUTE_32F_PEDANTIC; plain COMPUTE_32F may become TF32 or an emulation by bf16 where the environment or a
 * later library says so. A product that is split along k keeps its parts in fp32 and adds them in a step of
 * its own (REDUCTION_COMPUTE_TYPE). The other two schemes stay forbidden: both round the parts to the dtype
 * of C, which is more than the one rounding of the contract, and INPLACE promises that blocks take turns, not
 * in which order. The workspace is a fixed part of the device's scratch: were it what memory happens to be
 * left, the plan would choose the bits.
 *
 * WHICH ALGORITHM (offload/README.md, rule 1: the same bits from run to run and from plan to plan). The bits
 * of a shape are those of the first algorithm that the library's heuristic names under the rules above. The
 * heuristic is a function of GPU, library and shape, and so are the bits; no clock is asked. A shape is
 * everything in struct ot_gemm, with the addresses only as far as they are divisible by 16: all that a kernel
 * ever asks for. The choice is made when the shape is first met and kept.
 *
 * Speed comes second, and cannot cost bits. Between steps, ot_cuda_gemm_tune times the heuristic's other
 * proposals for every shape met so far, on random operands in memory that the caller lends. One that is
 * faster replaces the first only if its result has the same bits in every element: kernels that differ in
 * tile, pipeline or schedule add up k in the same order, and these the clock may choose among. Equal results
 * prove that only where another order could not have hidden: it changes the last bit of about every second
 * fp32 sum, but of sums rounded to bf16 only one in some 2^16, so that 2^22 of those are compared (2^12 in
 * fp32), over several random operands where one result is smaller. A shape that would take more than 16 of
 * them keeps its first algorithm: it is too small to gain anything. So neither
 * noise in the timing, nor whether, when and with how much memory it is done, can be seen in the numbers. It
 * also runs the first algorithm twice. If that does not repeat its own bits, a warning says so, and the shape
 * keeps it: no other algorithm could be held against it.
 *
 * A shape for which the heuristic names no algorithm, or whose first algorithm the library refuses to start,
 * is computed by the plain kernel (gemm_plain.h), and a warning says so. This too depends on GPU, library and
 * shape alone.
 *
 * What tuning found is kept in a file per GPU, driver and library (cuda_gemm_cache.h), so that the next run
 * starts with it. The file saves time and nothing else: gone, damaged or not writable, it is not missed.
 *
 * Tuning waits for the GPU; nothing else here does. The calls of one struct ot_cuda_gemm follow each other
 * (they all belong to the lane of the ops), and the GPU it was opened on is current.
 */
#ifndef OT_KERNELS_CUDA_GEMM_H
#define OT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/launchers.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* What a product takes of the scratch: 32 MiB are what NVIDIA recommends for cuBLAS on Hopper, and a bias. */
enum {
    OT_CUDA_GEMM_WORKSPACE_BYTES = 32 << 20,
    OT_CUDA_GEMM_BIAS_BYTES = 1 << 20,
    OT_CUDA_GEMM_SCRATCH_BYTES = OT_CUDA_GEMM_WORKSPACE_BYTES + OT_CUDA_GEMM_BIAS_BYTES,
};

struct ot_cuda_gemm;

struct ot_cuda_gemm_config {
    const char *library; /* path of the libcublasLt that the user gave; NULL: cublaslt_find.h looks for one */
    const char *gpu;     /* its name */
    int sm_count, arch;  /* as in struct ot_cuda_stream */
    int driver_version;  /* cudaDriverGetVersion */
    /* Where choices are kept between runs; NULL: nowhere. ot_cache_folder finds the usual one. */
    const char *cache_folder;
    int64_t proof_elems; /* test seam: so many equal results prove equal bits; 0: as above */
};

/* Opens the library for the current GPU. Errors: OT_E_DEVICE (the library is missing or does not start),
 * OT_E_BUDGET (host memory). */
int ot_cuda_gemm_open(const struct ot_cuda_gemm_config *config, struct ot_cuda_gemm **out);
void ot_cuda_gemm_close(struct ot_cuda_gemm *gemm); /* its work is done; NULL is fine */
/* For the device's name: "cuBLASLt 13.1.0" */
const char *ot_cuda_gemm_name(const struct ot_cuda_gemm *gemm);

/* Enqueues; on->scratch_bytes is at least OT_CUDA_GEMM_SCRATCH_BYTES. m, n, k >= 1. Errors: OT_E_DEVICE,
 * naming the shape: the library failed, or could not start the product. */
int ot_cuda_gemm(struct ot_cuda_gemm *gemm, const struct ot_gemm *op, const struct ot_cuda_stream *on);

/* memory [bytes]: device memory, 256-byte aligned, whose content nobody needs any more. Waits for the stream,
 * then works for about `seconds` at most; may be called again. Errors: OT_E_DEVICE. */
int ot_cuda_gemm_tune(struct ot_cuda_gemm *gemm, const struct ot_cuda_stream *on, void *memory, size_t bytes,
                      double seconds, struct ot_device_tuning *out);

#endif
