/* Finds the places on this machine where a libcublasLt may be.
 *
 * The dynamic loader's own search comes first (LD_LIBRARY_PATH, ldconfig): `libcublasLt.so.13`, `.12`, `.so`.
 * On rented machines the library is often elsewhere. So these folders follow; in each group version 13 comes
 * before version 12:
 *
 *   toolkits   $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, /usr/local/cuda-1[23]*: lib64, lib, targets/T/lib
 *   Python     the packages nvidia/NAME/lib in the site-packages (or dist-packages) of $VIRTUAL_ENV, of
 *              $CONDA_PREFIX, of the `python3` that $PATH finds, of $HOME/.local and of /usr/local and /usr
 *   conda      $CONDA_PREFIX/lib
 *
 * The order depends on the folders and the environment of the machine alone, so a machine always takes the
 * same library.
 */
#ifndef OT_KERNELS_CUDA_CUBLASLT_FIND_H
#define OT_KERNELS_CUDA_CUBLASLT_FIND_H

#include <stddef.h>

struct ot_cublaslt_places {
    char **paths; /* names for the loader first, then existing files */
    size_t n;
};

/* Errors: OT_E_BUDGET. The caller calls ot_cublaslt_places_free in either case. */
int ot_cublaslt_find_places(struct ot_cublaslt_places *out);
void ot_cublaslt_places_free(struct ot_cublaslt_places *places);

#endif
