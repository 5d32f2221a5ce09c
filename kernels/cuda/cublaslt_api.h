/* The parts of the libcublasLt API that this program uses: its constants, its structs, and a table of its
 * functions. Versions 12 and 13 of the library are known to match these declarations.
 *
 * Types and constants are declared here, so that a build needs no cuBLAS header. If the header exists,
 * cublaslt.c compares both at compile time.
 */
#ifndef OT_KERNELS_CUDA_CUBLASLT_API_H
#define OT_KERNELS_CUDA_CUBLASLT_API_H

#include <cuda_runtime_api.h>

#include <stddef.h>
#include <stdint.h>

/* cublasStatus_t: the values that this program tells apart. */
enum {
    OT_CUBLASLT_SUCCESS = 0,
    OT_CUBLASLT_NOT_INITIALIZED = 1,
    OT_CUBLASLT_ALLOC_FAILED = 3,
    OT_CUBLASLT_INVALID_VALUE = 7,
    OT_CUBLASLT_ARCH_MISMATCH = 8,
    OT_CUBLASLT_EXECUTION_FAILED = 13,
    OT_CUBLASLT_NOT_SUPPORTED = 15,
};

/* cudaDataType_t, cublasComputeType_t, cublasOperation_t, cublasLtEpilogue_t */
enum { OT_CUBLASLT_R_32F = 0, OT_CUBLASLT_R_16F = 2, OT_CUBLASLT_R_16BF = 14 };
enum { OT_CUBLASLT_COMPUTE_32F = 68, OT_CUBLASLT_COMPUTE_32F_PEDANTIC = 69 };
enum { OT_CUBLASLT_OP_N = 0, OT_CUBLASLT_OP_T = 1 };
enum { OT_CUBLASLT_EPILOGUE_DEFAULT = 1, OT_CUBLASLT_EPILOGUE_BIAS = 4 };

/* cublasLtReductionScheme_t: how the library adds the parts of a product that it split along k. */
enum {
    OT_CUBLASLT_REDUCTION_NONE = 0,
    OT_CUBLASLT_REDUCTION_INPLACE = 1,
    OT_CUBLASLT_REDUCTION_COMPUTE_TYPE = 2,
    OT_CUBLASLT_REDUCTION_OUTPUT_TYPE = 4,
};

/* Attributes of a product, of the search for algorithms (the preference), and of an algorithm. Each comment
 * gives the attribute's type. */
enum {
    OT_CUBLASLT_DESC_TRANSA = 3,          /* int32_t */
    OT_CUBLASLT_DESC_TRANSB = 4,          /* int32_t */
    OT_CUBLASLT_DESC_EPILOGUE = 7,        /* uint32_t */
    OT_CUBLASLT_DESC_BIAS_POINTER = 8,    /* const void * */
    OT_CUBLASLT_DESC_BIAS_DATA_TYPE = 26, /* int32_t */
};
enum {
    OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES = 1,   /* uint64_t */
    OT_CUBLASLT_PREF_REDUCTION_SCHEME_MASK = 3, /* uint32_t */
    OT_CUBLASLT_PREF_MIN_ALIGNMENT_A_BYTES = 5, /* uint32_t, like the next three */
    OT_CUBLASLT_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    OT_CUBLASLT_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    OT_CUBLASLT_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};
enum { OT_CUBLASLT_CONFIG_REDUCTION_SCHEME = 3 /* uint32_t */ };

/* A configured algorithm. The library's documentation allows to store it: "Can be trivially serialized and
 * later restored for use with the same version". */
struct ot_cublaslt_algo {
    uint64_t data[8];
};

struct ot_cublaslt_heuristic {
    struct ot_cublaslt_algo algo;
    size_t workspace_bytes;
    int state; /* the other members are valid only if this is OT_CUBLASLT_SUCCESS */
    float waves;
    int reserved[4];
};

/* Opaque structs of the library. */
struct ot_cublaslt_context;
struct ot_cublaslt_layout;
struct ot_cublaslt_desc;
struct ot_cublaslt_pref;

/* Functions that return int return a cublasStatus_t. */
struct ot_cublaslt {
    /* `which`: 0 is the major version, 1 the minor version, 2 the patch level */
    int (*get_property)(int which, int *value);
    size_t (*get_cudart_version)(void);
    const char *(*get_status_string)(int status);
    int (*create)(struct ot_cublaslt_context **out); /* for the current GPU of the calling thread */
    int (*destroy)(struct ot_cublaslt_context *context);

    int (*layout_create)(struct ot_cublaslt_layout **out, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(struct ot_cublaslt_layout *layout);
    int (*desc_create)(struct ot_cublaslt_desc **out, int compute_type, int scale_type);
    int (*desc_destroy)(struct ot_cublaslt_desc *desc);
    int (*desc_set)(struct ot_cublaslt_desc *desc, int attribute, const void *value, size_t bytes);
    int (*pref_create)(struct ot_cublaslt_pref **out);
    int (*pref_destroy)(struct ot_cublaslt_pref *pref);
    int (*pref_set)(struct ot_cublaslt_pref *pref, int attribute, const void *value, size_t bytes);

    /* Returns up to `wanted` algorithms, the fastest by the library's estimate first. Runs on the host
     * alone. */
    int (*get_heuristic)(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc,
                         struct ot_cublaslt_layout *a, struct ot_cublaslt_layout *b,
                         struct ot_cublaslt_layout *c, struct ot_cublaslt_layout *d,
                         struct ot_cublaslt_pref *pref, int wanted, struct ot_cublaslt_heuristic *results,
                         int *found);
    int (*algo_check)(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc,
                      struct ot_cublaslt_layout *a, struct ot_cublaslt_layout *b,
                      struct ot_cublaslt_layout *c, struct ot_cublaslt_layout *d,
                      const struct ot_cublaslt_algo *algo, struct ot_cublaslt_heuristic *result);
    int (*algo_config_get)(const struct ot_cublaslt_algo *algo, int attribute, void *value, size_t bytes,
                           size_t *written);
    /* D = alpha * op(A) op(B) + beta * C, column-major; enqueued. */
    int (*matmul)(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc, const void *alpha,
                  const void *a, struct ot_cublaslt_layout *a_layout, const void *b,
                  struct ot_cublaslt_layout *b_layout, const void *beta, const void *c,
                  struct ot_cublaslt_layout *c_layout, void *d, struct ot_cublaslt_layout *d_layout,
                  const struct ot_cublaslt_algo *algo, void *workspace, size_t workspace_bytes,
                  cudaStream_t stream);

    int major, minor, patch;
    char path[256]; /* the opened file; a longer path is cut */
};

#endif
