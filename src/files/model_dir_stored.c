/* Where the values of a stored tensor are, and what they are. */
#include "src/base/dtype.h"
#include "src/base/error.h"
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

/* Where the bytes of a part are. Returns the number of ranges. */
static int ranges_of(const struct ot_stored *stored, int64_t first, int64_t n,
                     struct ot_file_range ranges[OT_PACKED_RANGES]) {
    int64_t end = first + n;
    if (stored->packed)
        return ot_packed_ranges(stored->packed, first, n, ranges);
    if (stored->head_rows) {
        int64_t head = stored->head_rows * row_values(stored);
        first = first / head * head;
        end = (end + head - 1) / head * head;
    }
    ranges[0] = (struct ot_file_range){stored->file, block_at(stored, first),
                                       (size_t)(block_at(stored, end) - block_at(stored, first))};
    return 1;
}

size_t ot_stored_bytes(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_PACKED_RANGES];
    size_t bytes = 0;
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        bytes += ranges[i].bytes;
    return bytes;
}

void ot_stored_prefetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_PACKED_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_prefetch(ranges[i].file, ranges[i].data, ranges[i].bytes);
}

void ot_stored_release(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_PACKED_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_release(ranges[i].data, ranges[i].bytes);
}

/* Where value `at` is in the file, counted in values. */
static int64_t place_of(const struct ot_stored *stored, int64_t at) {
    int64_t cols = row_values(stored), row = at / cols, head = stored->head_rows;
    return (row - row % head + ot_gguf_row_of_head(row % head, head)) * cols + at % cols;
}

static void decode(const struct ot_stored *stored, int64_t place, int64_t n, float *values) {
    stored->blocks->decode((const unsigned char *)block_at(stored, place), n / block_values(stored), values);
}

static int convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    if (stored->packed)
        return ot_packed_decode(stored->packed, first, n, values);
    if (!stored->head_rows)
        decode(stored, first, n, values);
    for (int64_t at = first, some; stored->head_rows && at < first + n; at += some) {
        int64_t cols = row_values(stored), rest = cols - at % cols, left = first + n - at;
        some = rest < left ? rest : left;
        decode(stored, place_of(stored, at), some, values + (at - first));
    }
    for (int64_t i = 0; stored->addend != 0 && i < n; i++)
        values[i] -= stored->addend;
    return 0;
}

int ot_stored_read(const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad) {
    struct ot_file_range ranges[OT_PACKED_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        OT_TRY(ot_mapped_file_fetch(ranges[i].file, ranges[i].data, ranges[i].bytes));
    if (!stored->blocks && !stored->packed) {
        *bad = ot_safetensors_convert(stored->tensor->dtype, block_at(stored, first), n, values);
        return 0;
    }
    OT_TRY(convert(stored, first, n, values));
    *bad = ot_f32_first_not_finite(values, n);
    return 0;
}

int ot_stored_fetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    return ot_mapped_file_fetch(stored->file, block_at(stored, first), ot_stored_bytes(stored, first, n));
}

void ot_stored_convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    (void)ot_safetensors_convert(stored->tensor->dtype, block_at(stored, first), n, values);
}
