/* Where a libcublasLt may be on this machine.
 *
 * The loader's own search comes first (LD_LIBRARY_PATH, ldconfig): `libcublasLt.so.13`, `.12`, `.so`. A
 * rented machine often has the library elsewhere, so these folders follow, version 13 before version 12 in
 * all of them:
 *
 *   toolkits   $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /usr/local/cuda-1[23]*: lib64, lib, targets/T/lib
 *   Python     the packages nvidia/NAME/lib in the site-packages (or dist-packages) of $VIRTUAL_ENV, of
 *              $CONDA_PREFIX, of the `python3` that $PATH finds, of $HOME/.local and of /usr/local and /usr
 *   conda      $CONDA_PREFIX/lib
 *
 * The order depends on the machine's folders and environment alone, so a machine takes the same library each
 * time.
 */
#ifndef OT_KERNELS_CUDA_CUBLASLT_FIND_H
#define OT_KERNELS_CUDA_CUBLASLT_FIND_H

#include <stddef.h>

struct ot_cublaslt_places {
    char **paths; /* names for the loader first, then files that exist */
    size_t n;
};

/* Errors: OT_E_BUDGET. `out` needs ot_cublaslt_places_free in either case. */
int ot_cublaslt_find_places(struct ot_cublaslt_places *out);
void ot_cublaslt_places_free(struct ot_cublaslt_places *places);

#endif
