#include "tests/fakes/fake_cublaslt.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cublaslt_api.h"
#include "tests/fakes/fake_product.h"

#define WORKING                                                                                              \
    {                                                                                                        \
        .libraries = {{"libcublasLt.so.13", 13, 1, 0, 13000, NULL}},                                         \
        .order = {OT_FAKE_WIDE, OT_FAKE_NARROW, OT_FAKE_SPLIT, OT_FAKE_INPLACE, OT_FAKE_TALL},               \
        .unsteady_algo = -1, .unable_algo = -1                                                               \
    }
struct ot_fake_cublaslt ot_fake_cublaslt = WORKING;

void ot_fake_cublaslt_reset(void) {
    ot_fake_cublaslt = (struct ot_fake_cublaslt)WORKING;
}

/* ---- objects ---- */

enum { UNSET = -1, ALIGNMENT = 16, WORKSPACE_ALIGNMENT = 256 };

struct ot_cublaslt_context {
    int unused;
};
struct ot_cublaslt_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};
struct ot_cublaslt_desc {
    int compute_type, scale_type;
    int32_t transa, transb, bias_type;
    uint32_t epilogue;
    const void *bias;
};
struct ot_cublaslt_pref {
    uint64_t workspace_bytes;
    uint32_t reductions, alignments[4]; /* of A, B, C, D */
};

/* The properties of the problem that an algorithm was chosen for, stored in the algorithm. */
struct fake_algo {
    uint64_t id, reduction, alignment, types, shape[3];
};
_Static_assert(sizeof(struct fake_algo) <= sizeof(struct ot_cublaslt_algo), "fits");

static void *create(size_t bytes) {
    void *object = calloc(1, bytes);
    if (object)
        ot_fake_cublaslt.live_objects++;
    return object;
}

static int destroy(void *object) {
    if (!object)
        return OT_CUBLASLT_INVALID_VALUE;
    ot_fake_cublaslt.live_objects--;
    free(object);
    return OT_CUBLASLT_SUCCESS;
}

static int fake_create(struct ot_cublaslt_context **out) {
    if (ot_fake_cublaslt.create_status)
        return ot_fake_cublaslt.create_status;
    *out = create(sizeof **out);
    return *out ? OT_CUBLASLT_SUCCESS : OT_CUBLASLT_ALLOC_FAILED;
}

static int fake_destroy(struct ot_cublaslt_context *context) {
    return destroy(context);
}

static int fake_layout_create(struct ot_cublaslt_layout **out, int type, uint64_t rows, uint64_t cols,
                              int64_t ld) {
    *out = create(sizeof **out);
    if (!*out)
        return OT_CUBLASLT_ALLOC_FAILED;
    **out = (struct ot_cublaslt_layout){type, rows, cols, ld};
    return OT_CUBLASLT_SUCCESS;
}

static int fake_layout_destroy(struct ot_cublaslt_layout *layout) {
    return destroy(layout);
}

static int fake_desc_create(struct ot_cublaslt_desc **out, int compute_type, int scale_type) {
    *out = create(sizeof **out);
    if (!*out)
        return OT_CUBLASLT_ALLOC_FAILED;
    **out = (struct ot_cublaslt_desc){.compute_type = compute_type,
                                      .scale_type = scale_type,
                                      .bias_type = UNSET,
                                      .epilogue = OT_CUBLASLT_EPILOGUE_DEFAULT};
    return OT_CUBLASLT_SUCCESS;
}

static int fake_desc_destroy(struct ot_cublaslt_desc *desc) {
    return destroy(desc);
}

static int set_field(void *field, size_t field_bytes, const void *value, size_t bytes) {
    if (!value || bytes != field_bytes)
        return OT_CUBLASLT_INVALID_VALUE;
    memcpy(field, value, bytes);
    return OT_CUBLASLT_SUCCESS;
}

static int fake_desc_set(struct ot_cublaslt_desc *desc, int attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case OT_CUBLASLT_DESC_TRANSA:
        return set_field(&desc->transa, sizeof desc->transa, value, bytes);
    case OT_CUBLASLT_DESC_TRANSB:
        return set_field(&desc->transb, sizeof desc->transb, value, bytes);
    case OT_CUBLASLT_DESC_EPILOGUE:
        return set_field(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case OT_CUBLASLT_DESC_BIAS_POINTER:
        return set_field(&desc->bias, sizeof desc->bias, value, bytes);
    case OT_CUBLASLT_DESC_BIAS_DATA_TYPE:
        return set_field(&desc->bias_type, sizeof desc->bias_type, value, bytes);
    default:
        return OT_CUBLASLT_INVALID_VALUE;
    }
}

static int fake_pref_create(struct ot_cublaslt_pref **out) {
    *out = create(sizeof **out);
    if (!*out)
        return OT_CUBLASLT_ALLOC_FAILED;
    **out = (struct ot_cublaslt_pref){.reductions = 7, .alignments = {256, 256, 256, 256}};
    return OT_CUBLASLT_SUCCESS;
}

static int fake_pref_destroy(struct ot_cublaslt_pref *pref) {
    return destroy(pref);
}

static int fake_pref_set(struct ot_cublaslt_pref *pref, int attribute, const void *value, size_t bytes) {
    int matrix = attribute - OT_CUBLASLT_PREF_MIN_ALIGNMENT_A_BYTES;
    if (attribute == OT_CUBLASLT_PREF_MAX_WORKSPACE_BYTES)
        return set_field(&pref->workspace_bytes, sizeof pref->workspace_bytes, value, bytes);
    if (attribute == OT_CUBLASLT_PREF_REDUCTION_SCHEME_MASK)
        return set_field(&pref->reductions, sizeof pref->reductions, value, bytes);
    if (matrix >= 0 && matrix < 4)
        return set_field(&pref->alignments[matrix], sizeof pref->alignments[matrix], value, bytes);
    return OT_CUBLASLT_INVALID_VALUE;
}

/* ---- what can be computed ---- */

static int type_bytes(int type) {
    return type == OT_CUBLASLT_R_32F ? 4 : 2;
}

/* D = op(A) op(B): the operands of one call, as far as the library checks them before the start. */
struct problem {
    const struct ot_cublaslt_desc *desc;
    const struct ot_cublaslt_layout *a, *b, *c, *d;
    uint64_t m, n, k;
};

/* The documentation's table of types, for fp32 scales: A and B equal; C and D equal, and either of A's type
 * or fp32; the bias of D's type. */
static int check_types(const struct problem *p) {
    const struct ot_cublaslt_desc *desc = p->desc;
    bool known = p->a->type == OT_CUBLASLT_R_32F || p->a->type == OT_CUBLASLT_R_16F ||
                 p->a->type == OT_CUBLASLT_R_16BF;
    bool computes = desc->compute_type == OT_CUBLASLT_COMPUTE_32F ||
                    desc->compute_type == OT_CUBLASLT_COMPUTE_32F_PEDANTIC;
    if (!known || !computes || desc->scale_type != OT_CUBLASLT_R_32F || p->b->type != p->a->type ||
        p->c->type != p->d->type || (p->d->type != p->a->type && p->d->type != OT_CUBLASLT_R_32F))
        return OT_CUBLASLT_NOT_SUPPORTED;
    if (desc->epilogue != OT_CUBLASLT_EPILOGUE_DEFAULT && desc->epilogue != OT_CUBLASLT_EPILOGUE_BIAS)
        return OT_CUBLASLT_NOT_SUPPORTED;
    if (desc->epilogue == OT_CUBLASLT_EPILOGUE_BIAS && desc->bias_type != UNSET &&
        desc->bias_type != p->d->type)
        return OT_CUBLASLT_NOT_SUPPORTED;
    return OT_CUBLASLT_SUCCESS;
}

static bool is_operation(int32_t op) {
    return op == OT_CUBLASLT_OP_N || op == OT_CUBLASLT_OP_T;
}

static bool is_matrix(const struct ot_cublaslt_layout *layout, uint64_t rows, uint64_t cols) {
    return layout->rows == rows && layout->cols == cols && layout->ld >= (int64_t)rows && rows > 0 &&
           cols > 0;
}

static int check_problem(struct problem *p) {
    if (!p->desc || !p->a || !p->b || !p->c || !p->d || !is_operation(p->desc->transa) ||
        !is_operation(p->desc->transb))
        return OT_CUBLASLT_INVALID_VALUE;
    bool ta = p->desc->transa == OT_CUBLASLT_OP_T, tb = p->desc->transb == OT_CUBLASLT_OP_T;
    p->m = p->d->rows;
    p->n = p->d->cols;
    p->k = ta ? p->a->rows : p->a->cols;
    if (!is_matrix(p->a, ta ? p->k : p->m, ta ? p->m : p->k) ||
        !is_matrix(p->b, tb ? p->n : p->k, tb ? p->k : p->n) || !is_matrix(p->c, p->m, p->n) ||
        !is_matrix(p->d, p->m, p->n))
        return OT_CUBLASLT_INVALID_VALUE;
    return check_types(p);
}

static struct fake_algo configure(const struct problem *p, int id) {
    static const struct fake_algo algos[OT_FAKE_ALGOS] = {
        [OT_FAKE_WIDE] = {.alignment = ALIGNMENT},
        [OT_FAKE_NARROW] = {.alignment = 1},
        [OT_FAKE_SPLIT] = {.alignment = 1, .reduction = OT_CUBLASLT_REDUCTION_COMPUTE_TYPE},
        [OT_FAKE_INPLACE] = {.alignment = 1, .reduction = OT_CUBLASLT_REDUCTION_INPLACE},
        [OT_FAKE_TALL] = {.alignment = ALIGNMENT},
    };
    struct fake_algo algo = algos[id];
    algo.id = (uint64_t)id;
    algo.types = (uint64_t)(p->a->type | p->d->type << 8 | p->desc->transa << 16 | p->desc->transb << 17 |
                            p->desc->compute_type << 18 | (int)p->desc->epilogue << 26);
    memcpy(algo.shape, (const uint64_t[]){p->m, p->n, p->k}, sizeof algo.shape);
    return algo;
}

static size_t workspace_of(const struct problem *p, int id) {
    return id == OT_FAKE_SPLIT ? p->m * p->n * sizeof(float) : 0;
}

/* Rows of a matrix begin ld elements apart, so ld must have the alignment of the matrix. */
static bool is_aligned(const struct ot_cublaslt_layout *layout, uint64_t address, uint64_t alignment) {
    return (address | (uint64_t)layout->ld * (uint64_t)type_bytes(layout->type)) % alignment == 0;
}

static bool fits_alignments(const struct problem *p, const uint64_t addresses[4], uint64_t alignment) {
    uint64_t bias = p->desc->epilogue == OT_CUBLASLT_EPILOGUE_BIAS ? (uint64_t)(uintptr_t)p->desc->bias : 0;
    return is_aligned(p->a, addresses[0], alignment) && is_aligned(p->b, addresses[1], alignment) &&
           is_aligned(p->c, addresses[2], alignment) && is_aligned(p->d, addresses[3], alignment) &&
           bias % alignment == 0;
}

static int fake_get_heuristic(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc,
                              struct ot_cublaslt_layout *a, struct ot_cublaslt_layout *b,
                              struct ot_cublaslt_layout *c, struct ot_cublaslt_layout *d,
                              struct ot_cublaslt_pref *pref, int wanted,
                              struct ot_cublaslt_heuristic *results, int *found) {
    struct problem p = {.desc = desc, .a = a, .b = b, .c = c, .d = d};
    ot_fake_cublaslt.heuristics++;
    *found = 0;
    if (ot_fake_cublaslt.heuristic_status)
        return ot_fake_cublaslt.heuristic_status;
    if (!context || !pref || wanted <= 0)
        return OT_CUBLASLT_INVALID_VALUE;
    int status = check_problem(&p);
    if (status != OT_CUBLASLT_SUCCESS)
        return status;
    uint64_t alignments[4];
    for (int i = 0; i < 4; i++)
        alignments[i] = pref->alignments[i];
    for (int i = 0; i < OT_FAKE_ALGOS && !ot_fake_cublaslt.finds_nothing && *found < wanted; i++) {
        int id = ot_fake_cublaslt.order[i];
        if (id < 0)
            break;
        struct fake_algo algo = configure(&p, id);
        if (!fits_alignments(&p, alignments, algo.alignment) ||
            workspace_of(&p, id) > pref->workspace_bytes ||
            (algo.reduction & ~(uint64_t)pref->reductions && !ot_fake_cublaslt.ignores_mask))
            continue;
        struct ot_cublaslt_heuristic *result = &results[(*found)++];
        *result = (struct ot_cublaslt_heuristic){.workspace_bytes = workspace_of(&p, id), .waves = 1};
        memcpy(&result->algo, &algo, sizeof algo);
    }
    return OT_CUBLASLT_SUCCESS;
}

static int fake_algo_check(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc,
                           struct ot_cublaslt_layout *a, struct ot_cublaslt_layout *b,
                           struct ot_cublaslt_layout *c, struct ot_cublaslt_layout *d,
                           const struct ot_cublaslt_algo *algo, struct ot_cublaslt_heuristic *result) {
    struct problem p = {.desc = desc, .a = a, .b = b, .c = c, .d = d};
    struct fake_algo given, right;
    if (!context || !algo || !result)
        return OT_CUBLASLT_INVALID_VALUE;
    int status = check_problem(&p);
    if (status != OT_CUBLASLT_SUCCESS)
        return status;
    memcpy(&given, algo, sizeof given);
    if (given.id >= OT_FAKE_ALGOS)
        return OT_CUBLASLT_INVALID_VALUE;
    right = configure(&p, (int)given.id);
    if (memcmp(&given, &right, sizeof given) != 0)
        return OT_CUBLASLT_INVALID_VALUE;
    result->workspace_bytes = workspace_of(&p, (int)given.id);
    result->state = OT_CUBLASLT_SUCCESS;
    return OT_CUBLASLT_SUCCESS;
}

static int fake_algo_config_get(const struct ot_cublaslt_algo *algo, int attribute, void *value, size_t bytes,
                                size_t *written) {
    struct fake_algo given;
    memcpy(&given, algo, sizeof given);
    uint32_t reduction = (uint32_t)given.reduction;
    if (attribute != OT_CUBLASLT_CONFIG_REDUCTION_SCHEME || bytes != sizeof reduction)
        return OT_CUBLASLT_INVALID_VALUE;
    memcpy(value, &reduction, sizeof reduction);
    *written = sizeof reduction;
    return OT_CUBLASLT_SUCCESS;
}

/* ---- products ---- */

static bool overlap(const void *x, const struct ot_cublaslt_layout *layout, const void *d,
                    const struct ot_cublaslt_layout *d_layout) {
    uintptr_t x_begin = (uintptr_t)x, d_begin = (uintptr_t)d;
    uint64_t x_elems = (layout->cols - 1) * (uint64_t)layout->ld + layout->rows;
    uint64_t d_elems = (d_layout->cols - 1) * (uint64_t)d_layout->ld + d_layout->rows;
    return x_begin < d_begin + d_elems * (uint64_t)type_bytes(d_layout->type) &&
           d_begin < x_begin + x_elems * (uint64_t)type_bytes(layout->type);
}

/* Checks the documentation's requirements on a product's arguments that the heuristic did not see. */
static int check_arguments(const struct problem *p, const struct fake_algo *algo, const void *a,
                           const void *b, const void *c, const void *d, const void *workspace,
                           size_t workspace_bytes) {
    const uint64_t addresses[4] = {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c, (uintptr_t)d};
    if (!a || !b || !c || !d || (c == d && memcmp(p->c, p->d, sizeof *p->c) != 0))
        return OT_CUBLASLT_INVALID_VALUE;
    if (p->desc->epilogue == OT_CUBLASLT_EPILOGUE_BIAS && !p->desc->bias)
        return OT_CUBLASLT_INVALID_VALUE;
    if (overlap(a, p->a, d, p->d) || overlap(b, p->b, d, p->d))
        return OT_CUBLASLT_INVALID_VALUE;
    if (workspace_bytes < workspace_of(p, (int)algo->id) || (uintptr_t)workspace % WORKSPACE_ALIGNMENT != 0)
        return OT_CUBLASLT_INVALID_VALUE;
    return fits_alignments(p, addresses, algo->alignment) ? OT_CUBLASLT_SUCCESS : OT_CUBLASLT_NOT_SUPPORTED;
}

static int fake_matmul(struct ot_cublaslt_context *context, struct ot_cublaslt_desc *desc, const void *alpha,
                       const void *a, struct ot_cublaslt_layout *a_layout, const void *b,
                       struct ot_cublaslt_layout *b_layout, const void *beta, const void *c,
                       struct ot_cublaslt_layout *c_layout, void *d, struct ot_cublaslt_layout *d_layout,
                       const struct ot_cublaslt_algo *algo, void *workspace, size_t workspace_bytes,
                       cudaStream_t stream) {
    struct problem p = {.desc = desc, .a = a_layout, .b = b_layout, .c = c_layout, .d = d_layout};
    struct ot_cublaslt_heuristic checked;
    struct fake_algo chosen;
    int count = ot_fake_cublaslt.matmuls++;
    if (ot_fake_cublaslt.matmul_status)
        return ot_fake_cublaslt.matmul_status;
    int status = fake_algo_check(context, desc, a_layout, b_layout, c_layout, d_layout, algo, &checked);
    if (status != OT_CUBLASLT_SUCCESS)
        return status;
    memcpy(&chosen, algo, sizeof chosen);
    int id = (int)chosen.id;
    check_problem(&p);
    status = check_arguments(&p, &chosen, a, b, c, d, workspace, workspace_bytes);
    if (status != OT_CUBLASLT_SUCCESS || id == ot_fake_cublaslt.unable_algo)
        return status != OT_CUBLASLT_SUCCESS ? status : OT_CUBLASLT_NOT_SUPPORTED;
    ot_fake_cublaslt.last_algo = (enum ot_fake_algo)id;
    ot_fake_cublaslt.runs[id]++;
    const struct fake_product product = {
        .type = a_layout->type,
        .d_type = d_layout->type,
        .trans_a = desc->transa == OT_CUBLASLT_OP_T,
        .trans_b = desc->transb == OT_CUBLASLT_OP_T,
        .m = (int64_t)p.m,
        .n = (int64_t)p.n,
        .k = (int64_t)p.k,
        .lda = a_layout->ld,
        .ldb = b_layout->ld,
        .ldc = c_layout->ld,
        .ldd = d_layout->ld,
        .a = a,
        .b = b,
        .c = c,
        .bias =
            desc->epilogue == OT_CUBLASLT_EPILOGUE_BIAS && !ot_fake_cublaslt.loses_bias ? desc->bias : NULL,
        .d = d,
        .alpha = ot_fake_cublaslt.loses_scale ? 1 : *(const float *)alpha,
        .beta = *(const float *)beta,
        .workspace = workspace,
        .workspace_bytes = workspace_bytes,
        .split = id == OT_FAKE_SPLIT || id == OT_FAKE_INPLACE ? (int64_t)p.k / 2 : 0,
        .rounds_parts = id == OT_FAKE_INPLACE,
        .delay_us = ot_fake_cublaslt.delay_us[id],
        .flips = id == ot_fake_cublaslt.unsteady_algo && count % 2 == 1};
    return fake_product_enqueue(&product, stream) == cudaSuccess ? OT_CUBLASLT_SUCCESS
                                                                 : OT_CUBLASLT_EXECUTION_FAILED;
}

/* ---- the library ---- */

static const struct ot_fake_library *current; /* the library that was opened last; functions use no other */

static int fake_get_property(int which, int *value) {
    const int version[] = {current->major, current->minor, current->patch};
    if (which < 0 || which > 2)
        return OT_CUBLASLT_INVALID_VALUE;
    *value = version[which];
    return OT_CUBLASLT_SUCCESS;
}

static size_t fake_get_cudart_version(void) {
    return (size_t)current->cudart_version;
}

static const char *fake_get_status_string(int status) {
    static const struct {
        int status;
        const char *text;
    } texts[] = {{OT_CUBLASLT_NOT_INITIALIZED, "the library was not initialized"},
                 {OT_CUBLASLT_ALLOC_FAILED, "the resource allocation failed"},
                 {OT_CUBLASLT_INVALID_VALUE, "an invalid value was used as a parameter"},
                 {OT_CUBLASLT_ARCH_MISMATCH, "an absent device architectural feature is required"},
                 {OT_CUBLASLT_EXECUTION_FAILED, "the function failed to launch on the GPU"},
                 {OT_CUBLASLT_NOT_SUPPORTED, "the functionality is not supported"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "unknown error";
}

static const struct {
    const char *name;
    void (*function)(void);
} symbols[] = {
#define SYMBOL(name, function)                                                                               \
    { name, (void (*)(void))(function) }
    SYMBOL("cublasLtGetProperty", fake_get_property),
    SYMBOL("cublasLtGetCudartVersion", fake_get_cudart_version),
    SYMBOL("cublasLtGetStatusString", fake_get_status_string),
    SYMBOL("cublasLtCreate", fake_create),
    SYMBOL("cublasLtDestroy", fake_destroy),
    SYMBOL("cublasLtMatrixLayoutCreate", fake_layout_create),
    SYMBOL("cublasLtMatrixLayoutDestroy", fake_layout_destroy),
    SYMBOL("cublasLtMatmulDescCreate", fake_desc_create),
    SYMBOL("cublasLtMatmulDescDestroy", fake_desc_destroy),
    SYMBOL("cublasLtMatmulDescSetAttribute", fake_desc_set),
    SYMBOL("cublasLtMatmulPreferenceCreate", fake_pref_create),
    SYMBOL("cublasLtMatmulPreferenceDestroy", fake_pref_destroy),
    SYMBOL("cublasLtMatmulPreferenceSetAttribute", fake_pref_set),
    SYMBOL("cublasLtMatmulAlgoGetHeuristic", fake_get_heuristic),
    SYMBOL("cublasLtMatmulAlgoCheck", fake_algo_check),
    SYMBOL("cublasLtMatmulAlgoConfigGetAttribute", fake_algo_config_get),
    SYMBOL("cublasLtMatmul", fake_matmul),
#undef SYMBOL
};

void *ot_fake_cublaslt_dlopen(const char *path) {
    for (int i = 0; i < 3; i++) {
        struct ot_fake_library *library = &ot_fake_cublaslt.libraries[i];
        if (library->path && strcmp(path, library->path) == 0) {
            ot_fake_cublaslt.open_libraries++;
            current = library;
            return library;
        }
    }
    return NULL;
}

void *ot_fake_cublaslt_dlsym(void *library, const char *name) {
    const char *missing = ((struct ot_fake_library *)library)->missing_symbol;
    void *function = NULL;
    if (missing && strcmp(name, missing) == 0)
        return NULL;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (strcmp(symbols[i].name, name) == 0)
            memcpy(&function, &symbols[i].function, sizeof function);
    return function;
}

int ot_fake_cublaslt_dlclose(void *library) {
    (void)library;
    ot_fake_cublaslt.open_libraries--;
    return 0;
}

const char *ot_fake_cublaslt_dlerror(void) {
    return "cannot open shared object file: No such file or directory";
}

const char *ot_fake_cublaslt_path(const void *function) {
    (void)function;
    return current->path;
}
