/* Opens libcublasLt at run time.
 *
 * The library is about 500 MB, so this program neither links nor ships it. The machine provides it: as part
 * of the CUDA toolkit, as a package of its own, or in a Python environment. If the user names a path (the
 * option, else $OFFLOAD_TRAIN_CUBLASLT), only that path is opened. Otherwise the first library that opens is
 * taken, in the order of cublaslt.c. A library made for a newer CUDA than the driver supports is
 * skipped, because it could not start. The library stays open until the process ends.
 *
 * OT_EMU: the library is tests/fakes/fake_cublaslt.h. Its symbols are looked up like those of the real one.
 */
#ifndef OT_KERNELS_CUDA_CUBLASLT_H
#define OT_KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/cublaslt_api.h"

/* given: the only path to try; NULL: all places of cublaslt.c. driver_version: the result of
 * cudaDriverGetVersion (13000 is 13.0). OT_E_DEVICE: no library was found, its version is unknown, or it is
 * too new for the driver; the text tells what to install or to set. OT_E_BUDGET: too little host memory. */
int ot_cublaslt_open(const char *given, int driver_version, struct ot_cublaslt *out);

#endif
