/* The file of what tuning found (cuda_gemm.h), one for each GPU, driver, library and workspace.
 *
 * Little-endian: "OTGEMM1\n"; u32 length of the identity, u32 number of choices; the identity's text; the
 * choices, each a shape (six i64, nine bytes, seven zero bytes) and an algorithm (eight u64); u32 CRC-32 of
 * all before. Whatever does not read so, whole and of this identity, counts as no file.
 */
#ifndef OT_KERNELS_CUDA_GEMM_CACHE_H
#define OT_KERNELS_CUDA_GEMM_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cublaslt_api.h"

/* Everything that an algorithm may be chosen by. No padding: compared and hashed as bytes. */
struct ot_gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t dtype, c_dtype, trans_a, trans_b, accumulate, bias;
    uint8_t align_a, align_b, align_c; /* bytes, at most OT_GEMM_ALIGNMENT */
    uint8_t zero[7];
};

struct ot_gemm_choice {
    struct ot_gemm_key key;
    struct ot_cublaslt_algo algo;
};

/* The choices in the file, sorted by shape; none if it does not do. The caller frees them.
 * Errors: OT_E_BUDGET. */
int ot_gemm_cache_read(const char *path, const char *identity, struct ot_gemm_choice **out, size_t *n);
/* Errors: OT_E_IO, OT_E_BUDGET. */
int ot_gemm_cache_write(const char *path, const char *identity, const struct ot_gemm_choice *choices,
                        size_t n);
/* The choice for a shape, or NULL. */
const struct ot_gemm_choice *ot_gemm_cache_find(const struct ot_gemm_choice *choices, size_t n,
                                                const struct ot_gemm_key *key);
/* folder/gemm-<checksum of the identity>. *out is freed by the caller. Errors: OT_E_BUDGET. */
int ot_gemm_cache_path(const char *folder, const char *identity, char **out);

#endif
