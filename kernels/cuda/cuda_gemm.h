/* Matrix products on a GPU: cuBLASLt (cublaslt.h) computes the contract of struct ot_gemm (kernels/ops.h).
 *
 * THE PRODUCT. cuBLASLt is column-major, this program is row-major. Our row-major C[m,n] is a column-major
 * [n,m] for the library. So the call computes C^T = op(B)^T op(A)^T: the operands are swapped. Our bias over
 * n becomes its bias over rows. Its epilogue adds the bias in fp32 before the only rounding. The epilogue
 * needs the bias in the dtype of C and 16-byte aligned. Any other bias is first copied to the scratch
 * (converted to fp32 if C is fp32). An addend becomes its matrix C, with beta = 1.
 *
 * ARITHMETIC. Two-byte operands use COMPUTE_32F: exact products and fp32 sums. fp32 operands use
 * COMPUTE_32F_PEDANTIC, because the environment or a later library may turn plain COMPUTE_32F into TF32 or
 * into an emulation by bf16. A product that is split along k keeps its partial sums in fp32 and adds them in
 * a separate step (REDUCTION_COMPUTE_TYPE). The other two reduction schemes are forbidden. Both round the
 * partial sums to the dtype of C, although the contract allows one rounding only. INPLACE also adds them in
 * no defined order. A product with a bias may not be split at all, because cuBLASLt 13.1 then rounds before
 * it adds the bias. It does so too if the result has two bytes and the rows of a matrix are not 16-byte
 * aligned: the plain kernel computes such a product. The workspace is a fixed part of the device's scratch.
 * If it were the memory that happens to be free, the plan would change the bits.
 *
 * WHICH ALGORITHM (offload/README.md, rule 1: the same bits from run to run and from plan to plan). For each
 * shape, the first algorithm that the library's heuristic returns under the rules above defines the bits. The
 * heuristic depends on GPU, library and shape alone, so the bits do too; timing has no part. A shape is all
 * of struct ot_gemm, with addresses reduced to their alignment up to 16 bytes, because kernels require no
 * more, and without the addend, because the heuristic does not learn beta. So a product has one algorithm,
 * whether it adds or not, and the first micro-batch of a step (which overwrites the gradients) has that of
 * the others. The choice is made when a shape is first met, and kept.
 *
 * Speed comes second and cannot change bits. Between steps, ot_cuda_gemm_tune measures the heuristic's other
 * proposals for every shape met so far, on random operands in memory that the caller lends. A faster proposal
 * replaces the first algorithm only if its result has the same bits in every element. Kernels that differ in
 * tile, pipeline or schedule often add along k in the same order, and among those the clock may choose.
 *
 * How many equal elements prove an equal order of additions? Another order changes the last bit of about
 * every second fp32 sum, but after rounding to bf16 only one sum in about 2^16. So tuning compares 2^22
 * elements (2^12 in fp32), over several random operands if one result has fewer. A shape that would need more
 * than 16 operands keeps its first algorithm: it is too small to gain anything. So the numbers show neither
 * noise in the timing nor whether, when and with how much memory tuning ran. Tuning also runs the first
 * algorithm twice. If its two results differ, a warning reports it, and the shape keeps that algorithm: there
 * are no fixed bits to compare others with.
 *
 * The plain kernel (gemm_plain.h) computes a shape if the heuristic returns no algorithm, or if the library
 * refuses to start the first one. A warning reports it. This too depends on GPU, library and shape alone.
 *
 * A file per GPU, driver and library stores the results of tuning (cuda_gemm_cache.h) for the next run. The
 * file only saves time: a run works without it, and with a damaged or read-only one.
 *
 * Only tuning waits for the GPU. The calls on one struct ot_cuda_gemm must not overlap (they all belong to
 * the lane of the ops), and its GPU must be the current one of the calling thread.
 */
#ifndef OT_KERNELS_CUDA_GEMM_H
#define OT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/launchers.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* Scratch that one product uses: 32 MiB of workspace, which NVIDIA recommends for cuBLAS on Hopper, and a
 * bias. */
enum {
    OT_CUDA_GEMM_WORKSPACE_BYTES = 32 << 20,
    OT_CUDA_GEMM_BIAS_BYTES = 1 << 20,
    OT_CUDA_GEMM_SCRATCH_BYTES = OT_CUDA_GEMM_WORKSPACE_BYTES + OT_CUDA_GEMM_BIAS_BYTES,
};

struct ot_cuda_gemm;

struct ot_cuda_gemm_config {
    const char *library; /* path of the libcublasLt that the user gave; NULL: cublaslt.c looks for one */
    const char *gpu;     /* name of the GPU */
    int sm_count, arch;  /* as in struct ot_cuda_stream */
    int driver_version;  /* the result of cudaDriverGetVersion */
    /* Folder of the file that stores the choices; NULL: they are not stored. ot_cache_folder finds the usual
     * folder. */
    const char *cache_folder;
    int64_t proof_elems; /* for tests: this many equal elements prove equal bits; 0: as above */
};

/* Opens the library for the current GPU. Errors: OT_E_DEVICE (the library is missing or does not start),
 * OT_E_BUDGET (host memory). */
int ot_cuda_gemm_open(const struct ot_cuda_gemm_config *config, struct ot_cuda_gemm **out);
void ot_cuda_gemm_close(struct ot_cuda_gemm *gemm); /* its work must be done; NULL is allowed */
/* A text for the device's name: "cuBLASLt 13.1.0" */
const char *ot_cuda_gemm_name(const struct ot_cuda_gemm *gemm);

/* Enqueues the product. on->scratch_bytes must be at least OT_CUDA_GEMM_SCRATCH_BYTES; m, n, k >= 1.
 * OT_E_DEVICE: the library failed or could not start the product; the text names the shape. */
int ot_cuda_gemm(struct ot_cuda_gemm *gemm, const struct ot_gemm *op, const struct ot_cuda_stream *on);

/* memory [bytes]: 256-byte aligned device memory whose content may be overwritten. Waits for the stream, then
 * works for about `seconds`. May be called again. Errors: OT_E_DEVICE. */
int ot_cuda_gemm_tune(struct ot_cuda_gemm *gemm, const struct ot_cuda_stream *on, void *memory, size_t bytes,
                      double seconds, struct ot_device_tuning *out);

#endif
