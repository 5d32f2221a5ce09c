/* Declarations that the op_*.inc files share. These files are parts of one translation unit, ops_table.c,
 * which is compiled once for each instruction set (kernels/cpu/meson.build). So everything in them is static.
 *
 * An op has three layers. The entry in ot_ops pushes a command. run_*, on the lane's thread, chooses chunks
 * and runs the pool. The chunk function, on a pool thread, does the arithmetic. Chunk borders depend on the
 * shape alone.
 */
#ifndef OT_KERNELS_CPU_OP_SHARED_H
#define OT_KERNELS_CPU_OP_SHARED_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cpu_amx.h"
#include "kernels/cpu/cpu_blas.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/ops.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* Elements of a chunk of a row-wise or element-wise op: about 10 us of work, so that the pool's own cost is
 * small in comparison. */
enum { CHUNK_ELEMENTS = 16384 };

/* Calls an inlined function with the storage dtype as a compile-time constant. */
#define WITH_DTYPE(dtype, fn, ...)                                                                           \
    do {                                                                                                     \
        if ((dtype) == OT_F32)                                                                               \
            fn(OT_F32, __VA_ARGS__);                                                                         \
        else if ((dtype) == OT_BF16)                                                                         \
            fn(OT_BF16, __VA_ARGS__);                                                                        \
        else                                                                                                 \
            fn(OT_F16, __VA_ARGS__);                                                                         \
    } while (0)

static inline const void *at(enum ot_dtype dtype, const void *array, int64_t index) {
    return (const char *)array + index * (int64_t)ot_dtype_bytes(dtype);
}

static inline void *at_mut(enum ot_dtype dtype, void *array, int64_t index) {
    return (char *)array + index * (int64_t)ot_dtype_bytes(dtype);
}

/* Rows of a chunk if a row has `cols` elements. */
static inline int64_t rows_per_chunk(int64_t cols) {
    return ot_max(1, CHUNK_ELEMENTS / ot_max(cols, 1));
}

#endif
