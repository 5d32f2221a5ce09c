/* The probe of the device: memory, timing and copies. probe/ops.c has the ops. */
#include "offload/probe/probe.h"

#include <stdlib.h>
#include <string.h>

#include "offload/probe/probe_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

/* ---- memory ---- */

/* Fills in small numbers of both signs in the storage dtype. bf16 numbers read as fp32 are such numbers too,
 * since a bf16 is the upper half of an fp32. */
static void fill_signed(uint16_t *to, size_t n, enum ot_dtype dtype) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 0, 0);
    float normals[256];
    for (size_t i = 0; i < n; i++) {
        if (i % 256 == 0)
            ot_random_normals(1, stream, i, 256, normals);
        float value = 0.05f * normals[i % 256];
        to[i] = dtype == OT_F16 ? ot_f16_from_f32(value) : ot_bf16_from_f32(value);
    }
}

enum { PATTERN_BYTES = 1 << 20 };

/* Fills the pinned buffer with copies of one random MiB, and copies it to the device buffers. */
static void fill_buffers(struct ot_probe *p) {
    const struct ot_probe_config *c = p->config;
    char *pinned = p->pinned;
    size_t pattern = ot_min(c->buffer_bytes, PATTERN_BYTES);
    fill_signed(p->pinned, pattern / 2, c->dtype == OT_F32 ? OT_BF16 : c->dtype);
    for (size_t at = pattern; at < c->buffer_bytes; at += pattern)
        memcpy(pinned + at, pinned, ot_min(c->buffer_bytes - at, pattern));
    for (int i = 0; i < OT_PROBE_BUFFERS; i++)
        ot_lane_copy(p->compute, OT_COPY_H2D, p->buffers[i], pinned, c->buffer_bytes);
}

static size_t ids_bytes(const struct ot_probe *p) {
    return (3 * (size_t)p->rows + OT_PROBE_EXPERTS + 1) * sizeof(int32_t);
}

/* Token ids, positions and row starts of one long row, and the offsets of groups. */
static int upload_ids(struct ot_probe *p) {
    int64_t n = p->rows;
    int32_t *ids = p->pinned;
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)ot_random_below(2, ot_random_stream(OT_RANDOM_TEST, 1, 0), (uint64_t)i,
                                          (uint64_t)p->vocab);
        ids[n + i] = (int32_t)(i % p->config->tokens);
        ids[2 * n + i] = 0;
    }
    for (int64_t e = 0; e <= OT_PROBE_EXPERTS; e++)
        ids[3 * n + e] = (int32_t)(e * p->config->tokens / OT_PROBE_EXPERTS);
    ot_lane_copy(p->compute, OT_COPY_H2D, p->ids, ids, ids_bytes(p));
    return ot_lane_sync(p->compute);
}

size_t ot_probe_buffer_bytes(int64_t hidden, int64_t tokens) {
    size_t weight_grads = (size_t)(2 * ot_probe_inter(hidden)) * (size_t)hidden * sizeof(float);
    size_t activations = (size_t)(2 * ot_probe_inter(hidden)) * (size_t)tokens * sizeof(float);
    return ot_max(weight_grads, activations);
}

static int open_memory(struct ot_probe *p) {
    const struct ot_probe_config *c = p->config;
    size_t bytes = c->buffer_bytes;
    if (bytes < ot_probe_buffer_bytes(c->hidden, c->tokens) || c->hidden % 128 != 0)
        return ot_fail(OT_E_USAGE, "a probe of hidden size %lld needs buffers of %zu bytes",
                       (long long)c->hidden, ot_probe_buffer_bytes(c->hidden, c->tokens));
    OT_TRY(ot_device_alloc(c->device, OT_PROBE_BUFFERS * bytes, "the probe", &p->memory));
    for (size_t i = 0; i < OT_PROBE_BUFFERS; i++)
        p->buffers[i] = (char *)p->memory + i * bytes;
    OT_TRY(ot_device_alloc_pinned(c->device, bytes, "the probe", &p->pinned));
    void *ids;
    OT_TRY(ot_device_alloc(c->device, ids_bytes(p), "the probe", &ids));
    p->ids = ids;
    return 0;
}

/* Ids come first, because both steps write the pinned buffer: the copies that are timed later must move
 * random data. */
static int fill_memory(struct ot_probe *p) {
    OT_TRY(upload_ids(p));
    fill_buffers(p);
    return ot_lane_sync(p->compute);
}

static int open_lanes(struct ot_probe *p) {
    struct ot_device *device = p->config->device;
    OT_TRY(ot_lane_open(device, "h2d", &p->h2d));
    OT_TRY(ot_lane_open(device, "compute", &p->compute));
    OT_TRY(ot_lane_open(device, "d2h", &p->d2h));
    for (int i = 0; i < 4; i++)
        OT_TRY(ot_event_create_timed(device, &p->events[i]));
    return 0;
}

static void close_probe(struct ot_probe *p) {
    ot_lane_close(p->h2d);
    ot_lane_close(p->compute);
    ot_lane_close(p->d2h);
    for (int i = 0; i < 4; i++)
        ot_event_destroy(p->events[i]);
    ot_device_free(p->config->device, p->memory);
    ot_device_free(p->config->device, p->ids);
    if (p->pinned)
        ot_device_free_pinned(p->config->device, p->pinned, p->config->buffer_bytes);
}

/* ---- timing ---- */

struct series {
    struct ot_probe *probe;
    const struct ot_probe_call *calls;
};

static int time_calls(void *context, int number, int count, double *seconds) {
    const struct series *series = context;
    const struct ot_probe_call *call = &series->calls[number];
    struct ot_probe *p = series->probe;
    double begin, end;
    ot_lane_record(p->compute, p->events[0]);
    for (int i = 0; i < count; i++)
        call->enqueue(p, call->op);
    ot_lane_record(p->compute, p->events[1]);
    OT_TRY(ot_lane_sync(p->compute));
    OT_TRY(ot_event_seconds(p->events[0], &begin));
    OT_TRY(ot_event_seconds(p->events[1], &end));
    *seconds = (end - begin) / count;
    return 0;
}

int ot_probe_measure(struct ot_probe *p, const struct ot_probe_call *calls, int n, struct ot_repeats *times) {
    struct series series = {p, calls};
    return ot_repeats_take(&(struct ot_timed_calls){n, time_calls, &series, p->config->seconds}, times);
}

/* ---- copies ---- */

enum { COPY_PIECE = 16 << 20 }; /* about the size of a slab's tile */

static void copy_all(struct ot_probe *p, struct ot_lane *lane, enum ot_copy_kind kind, char *device,
                     char *host, size_t bytes) {
    for (size_t at = 0; at < bytes; at += COPY_PIECE) {
        size_t piece = ot_min(bytes - at, COPY_PIECE);
        if (kind == OT_COPY_H2D)
            ot_lane_copy(lane, kind, device + at, host + at, piece);
        else
            ot_lane_copy(lane, kind, host + at, device + at, piece);
    }
    (void)p;
}

static const struct way {
    const char *name;
    bool in, out;
    enum ot_probe_use use;
} ways[] = {{"host to device", true, false, OT_PROBE_H2D},
            {"device to host", false, true, OT_PROBE_D2H},
            {"both at once", true, true, OT_PROBE_BOTH}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Both lanes begin together and repeat their copies. The time is that of the slower lane. */
static int time_copies(void *context, int number, int count, double *seconds) {
    struct ot_probe *p = context;
    bool in = ways[number].in, out = ways[number].out;
    size_t half = p->config->buffer_bytes / 2;
    double begin[2] = {0}, end[2] = {0};
    char *host = p->pinned;
    if (in)
        ot_lane_record(p->h2d, p->events[0]);
    if (out)
        ot_lane_record(p->d2h, p->events[2]);
    for (int i = 0; i < count; i++) {
        if (in)
            copy_all(p, p->h2d, OT_COPY_H2D, p->buffers[0], host, half);
        if (out)
            copy_all(p, p->d2h, OT_COPY_D2H, p->buffers[1], host + half, half);
    }
    if (in)
        ot_lane_record(p->h2d, p->events[1]);
    if (out)
        ot_lane_record(p->d2h, p->events[3]);
    OT_TRY(ot_lane_sync(p->h2d));
    OT_TRY(ot_lane_sync(p->d2h));
    *seconds = 0;
    for (int way = 0; way < 2; way++) {
        if (!(way ? out : in))
            continue;
        OT_TRY(ot_event_seconds(p->events[2 * way], &begin[way]));
        OT_TRY(ot_event_seconds(p->events[2 * way + 1], &end[way]));
        double spent = (end[way] - begin[way]) / count;
        *seconds = ot_max(spent, *seconds);
    }
    return 0;
}

static int probe_copies(struct ot_probe *p) {
    double half = (double)(p->config->buffer_bytes / 2), one_way = 0;
    struct ot_repeats times[WAYS];
    OT_TRY(ot_repeats_take(&(struct ot_timed_calls){WAYS, time_copies, p, p->config->seconds}, times));
    for (int i = 0; i < WAYS; i++) {
        double work = ways[i].in && ways[i].out ? 2 * half : half;
        /* Both directions at once are compared with the sum of the two rates alone. */
        struct ot_probe_row row = {.group = OT_PROBE_COPY,
                                   .use = ways[i].use,
                                   .name = ways[i].name,
                                   .work = work,
                                   .peak = i == 2 ? one_way : 0};
        OT_TRY(ot_probe_report_times(&p->config->reader, row, &times[i]));
        one_way += work / ot_repeats_median(&times[i]);
    }
    return 0;
}

static int open_probe(struct ot_probe *p) {
    size_t row_bytes = (size_t)p->config->hidden * sizeof(float);
    p->ops = ot_device_ops(p->config->device);
    p->rows = (int64_t)(p->config->buffer_bytes / row_bytes);
    p->vocab = 8 * p->config->hidden;
    OT_TRY(open_lanes(p));
    return open_memory(p);
}

int ot_probe_largest_product(const struct ot_probe_config *config, double *rate) {
    int rc = 0;
    struct ot_probe p = {.config = config};
    OT_TRY_GOTO(open_probe(&p), rc, out);
    OT_TRY_GOTO(fill_memory(&p), rc, out);
    OT_TRY_GOTO(ot_probe_largest(&p, rate), rc, out);
out:
    close_probe(&p);
    return rc;
}

int ot_probe_device(const struct ot_probe_config *config) {
    int rc = 0;
    struct ot_probe p = {.config = config};
    OT_TRY_GOTO(open_probe(&p), rc, out);
    OT_TRY_GOTO(ot_probe_tune(&p), rc, out);
    OT_TRY_GOTO(fill_memory(&p), rc, out);
    OT_TRY_GOTO(probe_copies(&p), rc, out);
    OT_TRY_GOTO(ot_probe_ops(&p), rc, out);
out:
    close_probe(&p);
    return rc;
}

/* ---- rows ---- */

/* The probe's rows: their names, and the rates that they give. */

const char *ot_probe_group_name(enum ot_probe_group group) {
    static const char *const names[OT_PROBE_GROUPS] = {
        [OT_PROBE_COPY] = "copy",           [OT_PROBE_GEMM] = "gemm", [OT_PROBE_ATTENTION] = "attention",
        [OT_PROBE_KERNEL] = "kernel",       [OT_PROBE_TASK] = "task", [OT_PROBE_MEMORY] = "memory",
        [OT_PROBE_OPTIMIZER] = "optimizer", [OT_PROBE_NVME] = "nvme"};
    return names[group];
}

const char *ot_probe_io_name(enum ot_probe_io io) {
    static const char *const names[OT_PROBE_IOS] = {"read", "write", "mixed"};
    return names[io];
}

enum ot_probe_unit ot_probe_group_unit(enum ot_probe_group group) {
    if (group == OT_PROBE_TASK)
        return OT_PROBE_TASKS;
    return group == OT_PROBE_GEMM || group == OT_PROBE_ATTENTION ? OT_PROBE_FLOPS : OT_PROBE_BYTES;
}

int ot_probe_report(const struct ot_probe_reader *reader, struct ot_probe_row row) {
    row.rate = row.seconds > 0 ? row.work / row.seconds : 0;
    return reader->row(reader->context, &row);
}

int ot_probe_report_times(const struct ot_probe_reader *reader, struct ot_probe_row row,
                          const struct ot_repeats *times) {
    row.seconds = ot_repeats_median(times);
    row.spread = ot_repeats_spread(times);
    return ot_probe_report(reader, row);
}

void ot_probe_add(struct ot_probe_sums *sums, const struct ot_probe_row *row) {
    sums->work[row->use] += row->work;
    sums->seconds[row->use] += row->seconds;
    sums->apart[row->use] += row->seconds * row->spread;
}

/* Sets out->spread and out->uncertain: the rate with the largest spread. */
static void put_spread(const struct ot_probe_sums *sums, struct ot_rates *out) {
    static const char *const names[OT_PROBE_USES] = {[OT_PROBE_PRODUCT] = "products",
                                                     [OT_PROBE_GROUP_PRODUCT] = "products by groups",
                                                     [OT_PROBE_ATTENTION_FORWARD] = "attention forward",
                                                     [OT_PROBE_ATTENTION_BACKWARD] = "attention backward",
                                                     [OT_PROBE_DEVICE_COPY] = "copies on the device",
                                                     [OT_PROBE_H2D] = "copies to the device",
                                                     [OT_PROBE_D2H] = "copies from the device",
                                                     [OT_PROBE_BOTH] = "copies both ways",
                                                     [OT_PROBE_START] = "starting a task",
                                                     [OT_PROBE_TRIAD] = "the host's memory",
                                                     [OT_PROBE_ADAMW] = "the optimizer",
                                                     [OT_PROBE_ADAMW_16BIT] = "the optimizer, 16-bit state",
                                                     [OT_PROBE_ADAMW_8BIT] = "the optimizer, 8-bit state",
                                                     [OT_PROBE_CRC] = "checksums",
                                                     [OT_PROBE_NVME_READ] = "reading the disks",
                                                     [OT_PROBE_NVME_WRITE] = "writing the disks",
                                                     [OT_PROBE_NVME_MIXED] = "reading and writing the disks",
                                                     [OT_PROBE_NVME_READ_START] = "single reads",
                                                     [OT_PROBE_NVME_WRITE_START] = "single writes"};
    for (int use = 0; use < OT_PROBE_USES; use++) {
        double spread = sums->seconds[use] > 0 ? sums->apart[use] / sums->seconds[use] : 0;
        if (!names[use] || spread <= out->spread)
            continue;
        out->spread = spread;
        out->uncertain = names[use];
    }
}

void ot_probe_put_rates(const struct ot_probe_sums *sums, struct ot_rates *out) {
    struct ot_attention_rates *large = &out->attention[OT_HEAD_128], *small = &out->attention[OT_HEAD_64];
    double *const rates[OT_PROBE_USES] = {[OT_PROBE_PRODUCT] = &out->product_flops,
                                          [OT_PROBE_GROUP_PRODUCT] = &out->group_flops,
                                          [OT_PROBE_ATTENTION_FORWARD] = &large->forward,
                                          [OT_PROBE_ATTENTION_BACKWARD] = &large->backward,
                                          [OT_PROBE_ATTENTION_64_FORWARD] = &small->forward,
                                          [OT_PROBE_ATTENTION_64_BACKWARD] = &small->backward,
                                          [OT_PROBE_DEVICE_COPY] = &out->device_bytes,
                                          [OT_PROBE_H2D] = &out->h2d_bytes,
                                          [OT_PROBE_D2H] = &out->d2h_bytes,
                                          [OT_PROBE_BOTH] = &out->both_bytes,
                                          [OT_PROBE_TRIAD] = &out->triad_bytes,
                                          [OT_PROBE_ADAMW] = &out->adamw_bytes[OT_STATE_F32],
                                          [OT_PROBE_ADAMW_16BIT] = &out->adamw_bytes[OT_STATE_16BIT],
                                          [OT_PROBE_ADAMW_8BIT] = &out->adamw_bytes[OT_STATE_8BIT],
                                          [OT_PROBE_CRC] = &out->crc_bytes,
                                          [OT_PROBE_NVME_READ] = &out->nvme_read_bytes,
                                          [OT_PROBE_NVME_WRITE] = &out->nvme_write_bytes,
                                          [OT_PROBE_NVME_MIXED] = &out->nvme_mixed_bytes};
    for (int use = 0; use < OT_PROBE_USES; use++)
        if (rates[use] && sums->seconds[use] > 0)
            *rates[use] = sums->work[use] / sums->seconds[use];
    double *const starts[OT_PROBE_USES] = {[OT_PROBE_START] = &out->task_seconds,
                                           [OT_PROBE_NVME_READ_START] = &out->nvme_read_seconds,
                                           [OT_PROBE_NVME_WRITE_START] = &out->nvme_write_seconds};
    for (int use = 0; use < OT_PROBE_USES; use++)
        if (starts[use] && sums->work[use] > 0)
            *starts[use] = sums->seconds[use] / sums->work[use];
    put_spread(sums, out);
}
