/* The file that stores the results of tuning (cuda_gemm.h): one file for each GPU, driver, library and
 * workspace.
 *
 * Format, little-endian: "OTGEMM2\n"; u32 length of the identity; u32 number of choices; the text of the
 * identity; the choices, each a shape (six i64, eight bytes, eight zero bytes) and an algorithm (eight u64);
 * u32 CRC-32 of everything before. A file that is damaged or has another identity counts as no file.
 */
#ifndef OT_KERNELS_CUDA_GEMM_CACHE_H
#define OT_KERNELS_CUDA_GEMM_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cublaslt_api.h"

/* Everything that the choice of an algorithm depends on. It has no padding: keys are compared and hashed as
 * bytes. */
struct ot_gemm_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t dtype, c_dtype, trans_a, trans_b, bias;
    uint8_t align_a, align_b, align_c; /* alignment in bytes, at most OT_GEMM_ALIGNMENT */
    uint8_t zero[8];
};

struct ot_gemm_choice {
    struct ot_gemm_key key;
    struct ot_cublaslt_algo algo;
};

/* Reads the choices of the file, sorted by shape. A missing or invalid file gives none (*n = 0). The caller
 * frees *out. Errors: OT_E_BUDGET. */
int ot_gemm_cache_read(const char *path, const char *identity, struct ot_gemm_choice **out, size_t *n);
/* Errors: OT_E_IO, OT_E_BUDGET. */
int ot_gemm_cache_write(const char *path, const char *identity, const struct ot_gemm_choice *choices,
                        size_t n);
/* Returns the choice for a shape, or NULL. */
const struct ot_gemm_choice *ot_gemm_cache_find(const struct ot_gemm_choice *choices, size_t n,
                                                const struct ot_gemm_key *key);
/* Writes folder/gemm-<checksum of the identity> to *out. The caller frees *out. Errors: OT_E_BUDGET. */
int ot_gemm_cache_path(const char *folder, const char *identity, char **out);

#endif
