#include "models/row_norms.h"

#include <stdlib.h>

#include "models/encoded.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

enum { ROWS = 256 }; /* in a piece: whole units of every format, and of every file */

struct norms {
    const struct ot_tensor *weight;
    ot_weight_source source;
    void *context;
    float *piece;         /* ROWS rows */
    struct ot_weight as;  /* how the run stores it */
    char *encoded;        /* NULL: as it is */
    float *scales;        /* of NF4_DOUBLE */
    struct ot_pool *pool; /* of one thread: the norms of a few rows are soon computed */
};

/* The matrix as an entry of its slab; not a tensor of all experts. False: it is not encoded. */
static bool find_part(const struct ot_model *model, const struct ot_tensor *weight, struct ot_weight *as) {
    struct ot_encoded_entry entry;
    for (int i = 0; ot_encoded_entry(model, weight->slab, i, &entry); i++)
        if (entry.first == weight->first) {
            *as = entry.weight;
            return true;
        }
    return false;
}

static int64_t rows_at(const struct norms *n, int64_t row) {
    int64_t left = n->weight->rows - row;
    return ot_min(left, ROWS);
}

static int get_rows(const struct norms *n, int64_t row) {
    int64_t cols = n->weight->cols;
    return n->source(n->context, n->weight, row * cols, rows_at(n, row) * cols, n->piece);
}

static int encode(struct norms *n) {
    struct ot_weight_layout l = ot_weight_layout(&n->as);
    bool nested = n->as.format == OT_WEIGHT_NF4_DOUBLE;
    n->encoded = malloc((size_t)l.bytes);
    n->scales = nested ? malloc((size_t)l.n_scales * sizeof *n->scales) : NULL;
    if (!n->encoded || (nested && !n->scales))
        return ot_fail(OT_E_BUDGET, "no memory to encode %s", n->weight->name);
    OT_TRY(ot_pool_open(1, "norms", &n->pool));
    ot_weight_begin(&n->as, n->encoded);
    for (int64_t row = 0; row < n->weight->rows; row += ROWS) {
        OT_TRY(get_rows(n, row));
        const struct ot_weight_range range = {OT_F32, row * n->weight->cols,
                                              rows_at(n, row) * n->weight->cols, n->piece};
        OT_TRY(ot_weight_encode(n->pool, &n->as, &range, n->encoded, n->scales));
    }
    ot_weight_end(n->pool, &n->as, n->scales, n->encoded);
    return 0;
}

static int sum(struct norms *n, float *norms) {
    int64_t cols = n->weight->cols;
    for (int64_t row = 0; row < n->weight->rows; row += ROWS) {
        if (n->encoded)
            ot_weight_decode(&n->as, n->encoded, OT_F32, row * cols, rows_at(n, row) * cols, n->piece);
        else
            OT_TRY(get_rows(n, row));
        ot_lora_row_norms(n->piece, rows_at(n, row), cols, norms + row);
    }
    return 0;
}

int ot_model_row_norms(const struct ot_model *model, const struct ot_tensor *weight, ot_weight_source source,
                       void *context, float *norms) {
    struct norms n = {.weight = weight, .source = source, .context = context};
    int rc;
    n.piece = malloc((size_t)ROWS * (size_t)weight->cols * sizeof *n.piece);
    if (!n.piece)
        return ot_fail(OT_E_BUDGET, "no memory for rows of %s", weight->name);
    if (find_part(model, weight, &n.as))
        OT_TRY_GOTO(encode(&n), rc, out);
    rc = sum(&n, norms);
out:
    ot_pool_close(n.pool);
    free(n.encoded);
    free(n.scales);
    free(n.piece);
    return rc;
}
