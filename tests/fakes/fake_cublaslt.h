/* A fake libcublasLt on the CPU for the emulated cuda device; kernels/cuda/cublaslt.c opens it under OT_EMU.
 *
 * It implements the functions of struct ot_cublaslt and nothing else, on the emulated streams. It refuses
 * what the real library refuses: combinations of types, shapes that do not fit, attributes of the wrong size,
 * a bias of another type than D, addresses with less alignment than the algorithm was chosen for, a workspace
 * that is too small. The rules are those of the cuBLAS documentation of cublasLtMatmul and of the comments in
 * cublasLt.h. If the real library would read or write past a matrix, the fake does too, and the emulator's
 * memory checks find it.
 *
 * Products are fp32 sums of exact products, in the order of k, rounded once. Algorithms that split k sum each
 * part first, so their bits differ, as on a GPU:
 *
 *     0  wide     16-byte accesses            2  split    k in two, parts in fp32 in the workspace
 *     1  narrow   any alignment; same bits    3  inplace  k in two, parts rounded to the type of D
 *     4  tall     16-byte accesses, another tile; same bits
 *
 * The test decides what fails and which algorithm the heuristic prefers. It writes to ot_fake_cublaslt while
 * no stream is running commands.
 */
#ifndef OT_KERNELS_EMU_FAKE_CUBLASLT_H
#define OT_KERNELS_EMU_FAKE_CUBLASLT_H

#include <stdbool.h>

enum ot_fake_algo {
    OT_FAKE_WIDE,
    OT_FAKE_NARROW,
    OT_FAKE_SPLIT,
    OT_FAKE_INPLACE,
    OT_FAKE_TALL,
    OT_FAKE_ALGOS,
};

/* A library that can be opened. */
struct ot_fake_library {
    const char *path; /* or its name; NULL: no library */
    int major, minor, patch, cudart_version;
    const char *missing_symbol; /* a function that the library lacks; NULL: it has all */
};

struct ot_fake_cublaslt {
    struct ot_fake_library libraries[3];
    /* statuses that these calls return; 0: the correct ones */
    int create_status, heuristic_status, matmul_status;
    bool finds_nothing; /* the heuristic succeeds but returns no algorithm */
    bool ignores_mask;  /* the heuristic also proposes forbidden reductions */
    /* the algorithms that the heuristic proposes, best first; -1 ends the list */
    int order[OT_FAKE_ALGOS];
    int delay_us[OT_FAKE_ALGOS]; /* extra time of each product of an algorithm */
    int unsteady_algo;           /* the bits of its products differ from call to call; -1: no algorithm */
    bool loses_bias;             /* its epilogue does not add the bias */
    bool loses_scale;            /* it takes every alpha for 1 */
    int unable_algo;             /* this algorithm is proposed but does not start; -1: no algorithm */
    /* Counts since ot_fake_cublaslt_reset: */
    int heuristics, matmuls, open_libraries, live_objects;
    int runs[OT_FAKE_ALGOS]; /* products by each algorithm */
    enum ot_fake_algo last_algo;
};
extern struct ot_fake_cublaslt ot_fake_cublaslt;

/* Restores a working library of version 13.1.0, with all algorithms in the order of their numbers. */
void ot_fake_cublaslt_reset(void);

/* Like dlopen, dlsym, dlclose and dlerror. */
void *ot_fake_cublaslt_dlopen(const char *path);
void *ot_fake_cublaslt_dlsym(void *library, const char *name);
int ot_fake_cublaslt_dlclose(void *library);
const char *ot_fake_cublaslt_dlerror(void);
/* The path of the library that was opened last. */
const char *ot_fake_cublaslt_path(const void *function);

#endif
