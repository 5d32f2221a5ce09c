#include "src/train/merge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/selection.h"
#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* ---- open ---- */

/* The model's own weight of a module outside of layers; NULL: it has none. */
static const struct ot_tensor *find_weight(const struct ot_model *model, enum ot_module module) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (t->module == module && t->dims == 2 && !ot_lora_has_tensor(t->name))
            return t;
    }
    return NULL;
}

static bool has_adapter(const struct ot_model *model, enum ot_module module) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (ot_model_tensor(model, i)->module == module &&
            ot_lora_has_tensor(ot_model_tensor(model, i)->name) &&
            !ot_lora_is_of_tokens(ot_model_tensor(model, i)->name))
            return true;
    return false;
}

static const struct ot_tensor *find_tensor(const struct ot_model *model, const char *name) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++)
        if (strcmp(ot_model_tensor(model, i)->name, name) == 0)
            return ot_model_tensor(model, i);
    return NULL;
}

int ot_merge_open(struct ot_session *s, struct ot_merge *out) {
    const struct ot_selection selection = {.lora = s->options->lora};
    *out = (struct ot_merge){.session = s};
    if (!s->options->lora)
        return ot_fail(OT_E_USAGE, "merge needs adapters: %s is a whole model; give their directory after it",
                       s->options->model);
    OT_TRY(ot_lora_spec_read(s->options->lora, &out->lora));
    OT_TRY(ot_model_open_selected(&s->model.config, OT_F32, 1, &selection, &out->adapted));
    for (int64_t i = 0; i < ot_model_tensor_count(out->adapted); i++)
        out->n_adapters += strstr(ot_model_tensor(out->adapted, i)->name, "_A") != NULL;
    struct ot_model_config base = s->model.config;
    out->unties = base.tied && (has_adapter(out->adapted, OT_MODULE_HEAD) ||
                                has_adapter(out->adapted, OT_MODULE_EMBEDDING));
    if (out->unties && ot_model_has_pairs(&base))
        return ot_fail(
            OT_E_INPUT,
            "%s: the adapter of a head that is the embedding cannot be merged: no config.json says "
            "of a T5 with a head of its own that its logits are divided; use the adapters unmerged",
            s->options->adapter ? s->options->adapter : s->options->model);
    base.tied = base.tied && !out->unties;
    OT_TRY(ot_model_open(&base, OT_F32, 1, &s->model.built));
    return ot_model_dir_check(s->model.dir, out->adapted);
}

void ot_merge_close(struct ot_merge *merge) {
    ot_model_close(merge->adapted);
    free(merge->a);
    free(merge->b);
    free(merge->factor);
    *merge = (struct ot_merge){0};
}

/* ---- one target ---- */

/* Reads a tensor of an adapter, in the order of slabs; a magnitude itself. */
static int read_tensor(const struct ot_merge *m, const struct ot_tensor *tensor, float **out) {
    int64_t count = tensor->rows * tensor->cols;
    free(*out);
    *out = malloc((size_t)count * sizeof **out + 1);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for %s", tensor->name);
    return ot_model_dir_get(m->session->model.dir, tensor, 0, count, *out);
}

/* The same by the names of the module and of the part. */
static int read_part(const struct ot_merge *m, const char *module, const char *part, float **out) {
    char name[OT_MODEL_NAME_BYTES];
    snprintf(name, sizeof name, OT_LORA_PREFIX "%.56s.%s", module, part);
    return read_tensor(m, find_tensor(m->adapted, name), out);
}

/* For the embedding [vocab, dim], slabs have A [vocab, rank] and B [dim, rank]: its update is A B^T. */
static int read_embedding(struct ot_merge *m, const char *module) {
    OT_TRY(read_part(m, module, "lora_embedding_A", &m->b));
    OT_TRY(read_part(m, module, "lora_embedding_B", &m->a));
    return ot_lora_transpose(m->a, m->target->cols, m->rank);
}

struct sum_job {
    const struct ot_merge *merge;
    int64_t first; /* in the target */
    float *values;
};

/* Adds columns [begin, end) of a row of scale B A. */
static void add_row(const struct ot_merge *m, int64_t row, int64_t begin, int64_t end, float *values) {
    enum { COLUMNS = 512 };
    float sum[COLUMNS];
    int64_t b_row = m->first_row + row;
    const float *part_a = m->a + b_row / m->part_rows * m->rank * m->target->cols;
    for (int64_t at = begin, n; at < end; at += n) {
        n = ot_min(end - at, COLUMNS);
        memset(sum, 0, sizeof sum);
        for (int64_t r = 0; r < m->rank; r++) {
            const float b = m->b[b_row * m->rank + r], *a = part_a + r * m->target->cols + at;
            for (int64_t i = 0; i < n; i++)
                sum[i] += b * a[i];
        }
        for (int64_t i = 0; i < n; i++)
            values[at - begin + i] += m->scale * sum[i];
        for (int64_t i = 0; m->factor && i < n; i++)
            values[at - begin + i] *= m->factor[row];
    }
}

static void add_values(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct sum_job *job = context;
    int64_t cols = job->merge->target->cols;
    (void)chunk, (void)worker;
    for (int64_t at = begin, n; at < end; at += n) {
        int64_t column = (job->first + at) % cols;
        n = ot_min(end - at, cols - column);
        add_row(job->merge, (job->first + at) / cols, column, column + n, job->values + at);
    }
}

/* Reads values [first, first + n) of the target and adds its adapter. */
static int get_sum(struct ot_merge *m, int64_t first, int64_t n, float *values) {
    enum { CHUNK = 1 << 15 };
    struct sum_job job = {m, first, values};
    bool is_tied = m->unties && m->target->module == OT_MODULE_HEAD;
    const struct ot_tensor *base = is_tied ? find_weight(m->adapted, OT_MODULE_EMBEDDING) : m->target;
    OT_TRY(ot_model_dir_get(m->session->model.dir, base, first, n, values));
    if (m->rank > 0)
        ot_pool_run(m->session->machine.pool, n, CHUNK, add_values, &job);
    return 0;
}

/* m / |V| of each row; V streams once more for that. */
static int find_factors(struct ot_merge *m, const char *module) {
    enum { PIECE = 1 << 20 };
    int64_t rows = m->target->rows, cols = m->target->cols, count = rows * cols;
    double *sums = calloc((size_t)rows, sizeof *sums);
    float *piece = malloc(PIECE * sizeof *piece), *factor = NULL;
    int rc = sums && piece ? 0 : ot_fail(OT_E_BUDGET, "no memory for the norms of %s", m->target->name);
    for (int64_t at = 0, n; at < count && rc == 0; at += n) {
        n = ot_min(count - at, PIECE);
        rc = get_sum(m, at, n, piece);
        for (int64_t i = 0; i < n && rc == 0; i++)
            sums[(at + i) / cols] += (double)piece[i] * piece[i];
    }
    if (rc == 0)
        rc = read_part(m, module, "lora_magnitude_vector", &factor);
    for (int64_t row = 0; row < rows && rc == 0; row++)
        factor[row] = (float)(factor[row] / sqrt(sums[row]));
    m->factor = factor;
    free(piece);
    free(sums);
    return rc;
}

/* ---- experts ---- */

/* The A or the B of the adapters of a layer's experts. module: of the first tensor that they adapt. */
static const struct ot_tensor *find_of_experts(const struct ot_model *model, enum ot_module module,
                                               int64_t layer, const char *matrix) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        if (t->module == module && t->layer == layer && ot_lora_has_tensor(t->name) &&
            strstr(t->name, matrix))
            return t;
    }
    return NULL;
}

/* Reads A and B for a tensor of one expert or of all. A and B of all experts stay in memory until
 * another tensor's are wanted. */
static int take_experts(struct ot_merge *m, const struct ot_tensor *target) {
    bool down = target->module == OT_MODULE_EXPERT_DOWN || target->module == OT_MODULE_EXPERTS_DOWN;
    bool up = target->module == OT_MODULE_EXPERT_UP;
    struct ot_lora_rank rank;
    char module[OT_MODEL_NAME_BYTES];
    ot_model_experts_parameter(&m->session->model.config,
                               down ? OT_MODULE_EXPERTS_DOWN : OT_MODULE_EXPERTS_GATE_UP, target->layer,
                               module, sizeof module);
    OT_TRY(ot_lora_find(&m->lora.lora, module, &rank));
    if (rank.rank == 0)
        return 0;
    enum ot_module first = up ? OT_MODULE_EXPERT_GATE : target->module;
    bool is_read = m->read && m->read->module == first && m->read->layer == target->layer;
    const struct ot_tensor *b =
        is_read ? m->read : find_of_experts(m->adapted, first, target->layer, ".lora_B.");
    m->rank = rank.rank;
    m->scale = ot_lora_scale(&m->lora.lora, rank);
    m->part_rows = b->rows / b->parts;
    m->first_row = target->expert < 0 ? 0 : target->expert * m->part_rows + (up ? target->rows : 0);
    if (is_read)
        return 0;
    m->read = NULL;
    OT_TRY(read_tensor(m, find_of_experts(m->adapted, first, target->layer, ".lora_A."), &m->a));
    OT_TRY(read_tensor(m, b, &m->b));
    m->read = b;
    return 0;
}

/* Reads the adapter of a tensor. */
static int take_target(struct ot_merge *m, const struct ot_tensor *target) {
    char module[OT_MODEL_NAME_BYTES];
    struct ot_lora_rank rank = {0};
    size_t bytes = strlen(target->name) - strlen(".weight");
    free(m->factor);
    m->factor = NULL;
    m->rank = 0;
    m->target = target;
    m->first_row = 0;
    m->part_rows = target->rows;
    if (target->dims == 2 && ot_module_is_expert(target->module))
        return take_experts(m, target);
    bool can_have = ot_model_can_adapt(&m->session->model.config, target->module);
    if (target->dims == 2 && can_have) {
        snprintf(module, sizeof module, "%.*s", (int)bytes, target->name);
        OT_TRY(ot_lora_find(&m->lora.lora, module, &rank));
    }
    if (rank.rank == 0)
        return 0;
    m->scale = ot_lora_scale(&m->lora.lora, rank);
    m->rank = rank.rank;
    m->read = NULL;
    if (target->module == OT_MODULE_EMBEDDING)
        return read_embedding(m, module);
    OT_TRY(read_part(m, module, "lora_A.weight", &m->a));
    OT_TRY(read_part(m, module, "lora_B.weight", &m->b));
    return m->lora.lora.dora ? find_factors(m, module) : 0;
}

int ot_merge_get(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct ot_merge *m = context;
    const struct ot_model *model = m->session->model.built;
    const struct ot_tensor *tensor;
    int64_t i = 0;
    do
        tensor = ot_model_tensor(model, i++);
    while (tensor->slab != slab || first >= tensor->first + tensor->rows * tensor->cols);
    if (tensor != m->target)
        OT_TRY(take_target(m, tensor));
    OT_TRY(get_sum(m, first - tensor->first, n, values));
    int64_t bad = ot_f32_first_not_finite(values, n);
    return bad < 0 ? 0
                   : ot_fail(OT_E_INPUT, "%s: tensor %s becomes %g at element %lld; the weights are damaged",
                             m->session->options->adapter, tensor->name, (double)values[bad],
                             (long long)(first - tensor->first + bad));
}
