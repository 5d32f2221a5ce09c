/* A libcublasLt on the CPU, for the emulated cuda device: what kernels/cuda/cublaslt.c opens under OT_EMU.
 *
 * It implements the functions of struct ot_cublaslt and nothing else, on the emulated streams. What the real
 * library refuses, it refuses: combinations of types, shapes that do not fit, attributes of the wrong size, a
 * bias that is not of D's type, addresses that are less aligned than what the algorithm was chosen for, a
 * workspace that is too small. The rules are those of the cuBLAS documentation of cublasLtMatmul and of the
 * comments in cublasLt.h. Where the real library would read or write past a matrix, so does this one, and the
 * emulator's memory finds it.
 *
 * Products are exact sums in fp32, in the order of k, rounded once; the algorithms that split k add up each
 * part first, so that their bits differ, as they do on a GPU:
 *
 *     0  wide     16-byte accesses            2  split    k in two, parts in fp32 in the workspace
 *     1  narrow   any alignment; same bits    3  inplace  k in two, parts rounded to the type of D
 *     4  tall     16-byte accesses, another tile; same bits
 *
 * What goes wrong, and which algorithm the heuristic prefers, is up to the test: it writes to
 * ot_fake_cublaslt while no stream is at work.
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
    const char *path; /* or name; NULL: none */
    int major, minor, patch, cudart_version;
    const char *missing_symbol; /* a function that it lacks; NULL: none */
};

struct ot_fake_cublaslt {
    struct ot_fake_library libraries[3];
    int create_status, heuristic_status, matmul_status; /* what these calls return; 0: what they should */
    bool finds_nothing;                                 /* the heuristic succeeds with no algorithm */
    bool ignores_mask;                                  /* the heuristic proposes forbidden reductions too */
    int order[OT_FAKE_ALGOS];    /* which algorithms it proposes, the best first; -1 ends them */
    int delay_us[OT_FAKE_ALGOS]; /* what each product by an algorithm takes besides */
    int unsteady_algo;           /* its bits change from product to product; -1: none does */
    bool loses_bias;             /* its epilogue adds none */
    int unable_algo;             /* it is proposed and does not start; -1: none */
    /* What was done since ot_fake_cublaslt_reset: */
    int heuristics, matmuls, open_libraries, live_objects;
    int runs[OT_FAKE_ALGOS]; /* products by each algorithm */
    enum ot_fake_algo last_algo;
};
extern struct ot_fake_cublaslt ot_fake_cublaslt;

/* A library of version 13.1.0 that works, all algorithms in the order of their numbers. */
void ot_fake_cublaslt_reset(void);

/* As dlopen and its kin. */
void *ot_fake_cublaslt_dlopen(const char *path);
void *ot_fake_cublaslt_dlsym(void *library, const char *name);
int ot_fake_cublaslt_dlclose(void *library);
const char *ot_fake_cublaslt_dlerror(void);
/* The path of the library that was opened last. */
const char *ot_fake_cublaslt_path(const void *function);

#endif
