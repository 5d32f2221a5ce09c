/* libcublasLt, opened at run time.
 *
 * The library is some 500 MB, so it is never linked and never shipped: the machine has it, as part of the
 * CUDA toolkit, of a package of its own or of a Python environment. A path that the user gives (the option,
 * else $OFFLOAD_TRAIN_CUBLASLT) is opened, and nothing else. Without one, the first library that can be
 * opened is taken, in the order of cublaslt_find.h; a library that was made for a newer CUDA than the driver
 * knows is passed over, because it could not start. The library stays open to the end of the process.
 *
 * OT_EMU: the library is kernels/emu/fake_cublaslt.h, asked by name like the real one.
 */
#ifndef OT_KERNELS_CUDA_CUBLASLT_H
#define OT_KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/cublaslt_api.h"

/* given: a path, which alone is tried; NULL: the places above. driver_version: as cudaDriverGetVersion
 * tells it (13000 is 13.0). Errors: OT_E_DEVICE: nothing found, not a version that we know, too new for
 * the driver; each says what to install or to set. OT_E_BUDGET (host memory). */
int ot_cublaslt_open(const char *given, int driver_version, struct ot_cublaslt *out);

#endif
