/* Where the values of a stored tensor are, and what they are. */
#include "src/base/dtype.h"
#include "src/files/model_dir_state.h"
#include "src/gguf/writer.h"

static int64_t block_values(const struct ot_stored *stored) {
    return stored->blocks ? stored->blocks->block_values : 1;
}

static int64_t block_bytes(const struct ot_stored *stored) {
    return stored->blocks ? stored->blocks->block_bytes : (int64_t)ot_dtype_bytes(stored->tensor->dtype);
}

static const char *block_at(const struct ot_stored *stored, int64_t value) {
    return (const char *)stored->tensor->data + value / block_values(stored) * block_bytes(stored);
}

/* A vector with rows that change places has rows of one value. */
static int64_t row_values(const struct ot_stored *stored) {
    return stored->tensor->dims == 2 ? stored->tensor->shape[1] : 1;
}

void ot_stored_bytes(const struct ot_stored *stored, int64_t first, int64_t n, const char **data,
                     size_t *bytes) {
    int64_t end = first + n;
    if (stored->head_rows) {
        int64_t head = stored->head_rows * row_values(stored);
        first = first / head * head;
        end = (end + head - 1) / head * head;
    }
    *data = block_at(stored, first);
    *bytes = (size_t)(block_at(stored, end) - *data);
}

/* Where value `at` is in the file, counted in values. */
static int64_t place_of(const struct ot_stored *stored, int64_t at) {
    int64_t cols = row_values(stored), row = at / cols, head = stored->head_rows;
    return (row - row % head + ot_gguf_row_of_head(row % head, head)) * cols + at % cols;
}

static void decode(const struct ot_stored *stored, int64_t place, int64_t n, float *values) {
    stored->blocks->decode((const unsigned char *)block_at(stored, place), n / block_values(stored), values);
}

int64_t ot_stored_convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    if (!stored->blocks)
        return ot_safetensors_convert(stored->tensor->dtype, block_at(stored, first), n, values);
    if (!stored->head_rows)
        decode(stored, first, n, values);
    for (int64_t at = first, some; stored->head_rows && at < first + n; at += some) {
        int64_t cols = row_values(stored), rest = cols - at % cols, left = first + n - at;
        some = rest < left ? rest : left;
        decode(stored, place_of(stored, at), some, values + (at - first));
    }
    return ot_f32_first_not_finite(values, n);
}
