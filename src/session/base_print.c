#include "src/session/base_print.h"

#include <string.h>

#include "models/selection.h"
#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/files/model_dir.h"

/* A part of a tensor begins at a multiple of UNIT. The number of pieces is limited, because each may be a
 * read of its own from a slow disk, and models of many experts have ten thousands of tensors. */
enum { UNIT = 256, PIECE = 4 * UNIT, MOST_PIECES = 4, ALL_PIECES = 4096 };

static int64_t count_pieces(const struct ot_model *model) {
    int64_t pieces = ALL_PIECES / ot_model_tensor_count(model);
    return ot_max(ot_min(pieces, MOST_PIECES), 1);
}

/* The first piece begins the tensor, and the last one ends it. A single piece lies in the middle. */
static int sample_tensor(const struct ot_model_dir *dir, const struct ot_tensor *tensor, int64_t pieces,
                         uint32_t *crc) {
    float values[PIECE + UNIT];
    int64_t count = tensor->rows * tensor->cols, last = count > PIECE ? (count - PIECE) / UNIT * UNIT : 0;
    *crc = ot_crc32(*crc, tensor->name, strlen(tensor->name) + 1);
    for (int64_t i = 0, end = 0; i < pieces && end < count; i++) {
        int64_t at = pieces == 1 ? last / 2 : last / (pieces - 1) * i;
        at = i > 0 && i == pieces - 1 ? last : at / UNIT * UNIT;
        int64_t n = count - at < PIECE + UNIT ? count - at : PIECE;
        OT_TRY(ot_model_dir_get(dir, tensor, at, n, values));
        *crc = ot_crc32(*crc, values, (size_t)n * sizeof *values);
        end = at + n;
    }
    return 0;
}

int ot_base_print_take(const struct ot_model_dir *dir, const struct ot_model_config *config,
                       struct ot_base_print *out) {
    static const struct ot_selection all = {0};
    struct ot_model *model;
    uint32_t crc = 0;
    int rc = 0;
    OT_TRY(ot_model_open_selected(config, OT_F32, 1, &all, &model));
    int64_t pieces = count_pieces(model);
    for (int64_t i = 0; i < ot_model_tensor_count(model) && rc == 0; i++)
        rc = sample_tensor(dir, ot_model_tensor(model, i), pieces, &crc);
    if (rc == -OT_E_INPUT) { /* the check says more: how many tensors do not fit */
        int checked = ot_model_dir_check(dir, model);
        rc = checked < 0 ? checked : rc;
    }
    ot_model_close(model);
    *out = (struct ot_base_print){.is_known = rc == 0, .sample = crc};
    return rc;
}
