/* Finds and decodes the values of a stored tensor. */
#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/files/model_dir_state.h"
#include "src/gguf/gguf.h"
#include "src/gguf/writer.h"

/* Bytes of a file, and how they store values. */
struct place {
    const char *data;
    const struct ot_gguf_type *blocks; /* NULL: as numbers of the dtype */
    enum ot_dtype dtype;
};

static struct place place_of(const struct ot_stored *stored) {
    return (struct place){stored->tensor->data, stored->blocks, stored->tensor->dtype};
}

static struct place place_of_up(const struct ot_stored *stored) {
    return (struct place){stored->up->data, stored->up->type, stored->tensor->dtype};
}

static const char *block_at(struct place place, int64_t value) {
    if (!place.blocks)
        return place.data + value * (int64_t)ot_dtype_bytes(place.dtype);
    return place.data + value / place.blocks->block_values * place.blocks->block_bytes;
}

static struct ot_file_range range_of(const struct ot_stored *stored, struct place place, int64_t first,
                                     int64_t end) {
    const char *data = block_at(place, first);
    return (struct ot_file_range){stored->file, data, (size_t)(block_at(place, end) - data)};
}

/* The same rows of both tensors of a pair, those that a part has and perhaps one more of each. */
static int ranges_of_pair(const struct ot_stored *stored, int64_t first, int64_t end,
                          struct ot_file_range ranges[OT_QUANT_RANGES]) {
    int64_t two = 2 * stored->row_values;
    first = first / two * stored->row_values;
    end = (end + two - 1) / two * stored->row_values;
    ranges[0] = range_of(stored, place_of(stored), first, end);
    ranges[1] = range_of(stored, place_of_up(stored), first, end);
    return 2;
}

/* Finds the bytes of a part in the file. Returns the number of ranges. */
static int ranges_of(const struct ot_stored *stored, int64_t first, int64_t n,
                     struct ot_file_range ranges[OT_QUANT_RANGES]) {
    int64_t end = first + n;
    if (stored->packed)
        return ot_quant_ranges(stored->packed, first, n, ranges);
    if (stored->up)
        return ranges_of_pair(stored, first, end, ranges);
    if (stored->head_rows) {
        int64_t head = stored->head_rows * stored->row_values;
        first = first / head * head;
        end = (end + head - 1) / head * head;
    }
    ranges[0] = range_of(stored, place_of(stored), first, end);
    return 1;
}

size_t ot_stored_bytes(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    size_t bytes = 0;
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        bytes += ranges[i].bytes;
    return bytes;
}

void ot_stored_prefetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_prefetch(ranges[i].file, ranges[i].data, ranges[i].bytes);
}

void ot_stored_release(const struct ot_stored *stored, int64_t first, int64_t n) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        ot_mapped_file_release(ranges[i].data, ranges[i].bytes);
}

static void decode(struct place place, int64_t first, int64_t n, float *values) {
    place.blocks->decode((const unsigned char *)block_at(place, first), n / place.blocks->block_values,
                         values);
}

/* Values of one row, of those that change places. */
static void decode_moved(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    int64_t cols = stored->row_values, row = first / cols, head = stored->head_rows;
    struct place place = stored->up && row % 2 ? place_of_up(stored) : place_of(stored);
    row = stored->up ? row / 2 : row - row % head + ot_gguf_row_of_head(row % head, head);
    decode(place, row * cols + first % cols, n, values);
}

static int convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    bool moved = stored->head_rows || stored->up;
    if (stored->packed)
        return ot_quant_decode(stored->packed, first, n, values);
    if (!moved)
        decode(place_of(stored), first, n, values);
    for (int64_t at = first, some; moved && at < first + n; at += some) {
        int64_t rest = stored->row_values - at % stored->row_values, left = first + n - at;
        some = ot_min(rest, left);
        decode_moved(stored, at, some, values + (at - first));
    }
    for (int64_t i = 0; stored->addend != 0 && i < n; i++)
        values[i] -= stored->addend;
    return 0;
}

int ot_stored_read(const struct ot_stored *stored, int64_t first, int64_t n, float *values, int64_t *bad) {
    struct ot_file_range ranges[OT_QUANT_RANGES];
    for (int i = ranges_of(stored, first, n, ranges) - 1; i >= 0; i--)
        OT_TRY(ot_mapped_file_fetch(ranges[i].file, ranges[i].data, ranges[i].bytes));
    if (!stored->blocks && !stored->packed) {
        *bad = ot_safetensors_convert(stored->tensor->dtype, block_at(place_of(stored), first), n, values);
        return 0;
    }
    OT_TRY(convert(stored, first, n, values));
    *bad = ot_f32_first_not_finite(values, n);
    return 0;
}

int ot_stored_fetch(const struct ot_stored *stored, int64_t first, int64_t n) {
    return ot_mapped_file_fetch(stored->file, block_at(place_of(stored), first),
                                ot_stored_bytes(stored, first, n));
}

void ot_stored_convert(const struct ot_stored *stored, int64_t first, int64_t n, float *values) {
    (void)ot_safetensors_convert(stored->tensor->dtype, block_at(place_of(stored), first), n, values);
}
