#include "src/session/measure.h"

#include <stdio.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"

/* ---- sizes ---- */

enum { MIB = 1 << 20 };

static const struct size {
    int64_t hidden, tokens;
    size_t buffer_bytes; /* of each of five buffers; four are on the device */
    double seconds;      /* time for one row of the probe */
} sizes[] = {{4096, 4096, (size_t)512 * MIB, 0.2},
             {2048, 1024, (size_t)128 * MIB, 0.1},
             {1024, 256, (size_t)64 * MIB, 0.05},
             {256, 128, (size_t)4 * MIB, 0.02},
             {128, 64, (size_t)MIB / 2, 0.02}};
enum { SMALLEST = sizeof sizes / sizeof *sizes - 1 };

#define MOST_PRODUCT_SECONDS 0.1

static int widest(const struct ot_session *s) {
    struct ot_device_usage usage;
    ot_device_usage(s->device, &usage);
    size_t free_bytes = s->budget_bytes[OT_TIER_GPU] - usage.used_bytes;
    int i = 0;
    while (i < SMALLEST && (4 * sizes[i].buffer_bytes + sizes[i].buffer_bytes / 8 > free_bytes ||
                            2 * sizes[i].buffer_bytes > s->budget_bytes[OT_TIER_HOST]))
        i++;
    return i;
}

int64_t ot_measure_widest(const struct ot_session *s) {
    return sizes[widest(s)].hidden;
}

/* Four times the last-level cache, as STREAM requires for its arrays, within the host budget. */
static size_t choose_host_bytes(const struct ot_session *s, bool quick) {
    struct ot_topology_summary topology = {0};
    if (s->topology)
        ot_topology_summarise(s->topology, &topology);
    size_t most = (size_t)(quick ? 512 : 1024) * MIB, least = (size_t)64 * MIB;
    size_t bytes = 4 * (size_t)topology.l3_bytes;
    bytes = bytes < least ? least : ot_min(most, bytes);
    if (bytes > s->budget_bytes[OT_TIER_HOST] / 2)
        bytes = s->budget_bytes[OT_TIER_HOST] / 2;
    return ot_max(bytes, OT_PROBE_HOST_LEAST_BYTES);
}

/* ---- rows ---- */

struct measurement {
    const struct ot_session *session;
    const struct ot_probe_reader *reader; /* NULL: no reader */
    const char *stage;
    int size; /* index in sizes[] of the size that the device is measured with */
    struct ot_probe_sums sums;
};

static void show_stage(const struct measurement *m) {
    char text[128];
    snprintf(text, sizeof text, "measuring %s", m->stage);
    if (!m->session->options->quiet)
        ot_log_set_status(text);
}

static void begin_stage(struct measurement *m, const char *stage) {
    m->stage = stage;
    show_stage(m);
}

/* Clears the status line around the reader, which may write to the same terminal. */
static int take_row(void *context, const struct ot_probe_row *row) {
    struct measurement *m = context;
    ot_probe_add(&m->sums, row);
    if (!m->reader)
        return 0;
    ot_log_set_status("");
    OT_TRY(m->reader->row(m->reader->context, row));
    show_stage(m);
    return 0;
}

static struct ot_probe_config configure(struct measurement *m, const struct size *size, bool quick) {
    return (struct ot_probe_config){.device = m->session->device,
                                    .dtype = m->session->dtype,
                                    .hidden = size->hidden,
                                    .tokens = size->tokens,
                                    .buffer_bytes = size->buffer_bytes,
                                    .seconds = quick ? size->seconds / 2 : size->seconds,
                                    .quick = quick,
                                    .reader = {take_row, m}};
}

/* Goes up from the smallest size. The rate at each size tells how long the next size would take. */
static int choose_size(struct measurement *m) {
    int i = SMALLEST, most = widest(m->session);
    for (double rate; i > most; i--) {
        struct ot_probe_config config = configure(m, &sizes[i], true);
        OT_TRY(ot_probe_largest_product(&config, &rate));
        if (ot_probe_largest_flops(sizes[i - 1].hidden, sizes[i - 1].tokens) > MOST_PRODUCT_SECONDS * rate)
            break;
    }
    return i;
}

/* The copies of a slow device need larger buffers than its small layer has, so that caches do not matter. */
static size_t choose_buffer_bytes(const struct measurement *m) {
    size_t own = sizes[m->size].buffer_bytes, most = sizes[widest(m->session)].buffer_bytes;
    size_t enough = (size_t)64 * MIB;
    return own >= enough ? own : ot_min(most, enough);
}

static int measure_device(struct measurement *m, bool quick) {
    begin_stage(m, "the device: copies, products, attention, kernels");
    m->size = choose_size(m);
    OT_TRY(m->size);
    struct ot_probe_config config = configure(m, &sizes[m->size], quick);
    config.buffer_bytes = choose_buffer_bytes(m);
    if (m->reader)
        ot_log(OT_LOG_INFO, "probe   %s, layers %lld wide, %lld tokens, on random numbers",
               ot_dtype_name(config.dtype), (long long)config.hidden, (long long)config.tokens);
    return ot_probe_device(&config);
}

/* The probe's files stay within the bytes that --nvme allows. No plan occupies these bytes yet. */
static int measure_disks(struct measurement *m, bool quick) {
    const struct ot_session *s = m->session;
    char wrote[OT_TEXT_BYTES];
    struct ot_probe_nvme_result result;
    struct ot_probe_nvme_config config = {.store = &s->store,
                                          .bytes = (size_t)(quick ? 256 : 1024) * MIB,
                                          .memory_bytes = s->budget_bytes[OT_TIER_HOST] / 2,
                                          .seconds = quick ? 0.2 : 0.15,
                                          .quick = quick,
                                          .reader = {take_row, m}};
    if (s->store.n_dirs == 0)
        return 0;
    begin_stage(m, quick ? "the disks" : "the disks: both engines, by block size and depth");
    OT_TRY(ot_probe_nvme(&config, &result));
    ot_text_bytes(result.written_bytes, wrote);
    if (m->reader)
        ot_log(OT_LOG_INFO, "nvme    %s · the probe wrote %s", result.store, wrote);
    else
        ot_log(OT_LOG_INFO, "nvme    the probe wrote %s", wrote);
    return 0;
}

enum ot_masters ot_measure_masters(const struct ot_session *s) {
    return s->dtype == OT_BF16 ? (enum ot_masters)s->options->master_weights : OT_MASTERS_F32;
}

static int measure_host(struct measurement *m, bool quick) {
    const struct ot_session *s = m->session;
    const struct ot_options *o = s->options;
    double seconds = ot_min(sizes[m->size].seconds, 0.1);
    struct ot_probe_host_config config = {.dtype = s->dtype,
                                          .masters = ot_measure_masters(s),
                                          .threads = s->machine.cores,
                                          .optimizer_threads =
                                              (int)(o->optimizer_threads ? o->optimizer_threads : o->threads),
                                          .bytes = choose_host_bytes(s, quick),
                                          .seconds = quick ? seconds / 2 : seconds,
                                          .quick = quick,
                                          .topology = s->topology,
                                          .reader = {take_row, m}};
    begin_stage(m, "the host: memory and the optimizer");
    return ot_probe_host(&config);
}

struct ot_rates ot_measure_facts(const struct ot_session *session) {
    const struct ot_options *o = session->options;
    return (struct ot_rates){.cores = session->machine.cores,
                             .device_is_host = o->device.kind == OT_DEVICE_CPU,
                             .device_threads = (int)o->threads,
                             .optimizer_threads =
                                 (int)(o->optimizer_threads ? o->optimizer_threads : o->threads)};
}

int ot_measure_machine(const struct ot_session *session, bool quick, const struct ot_probe_reader *reader,
                       struct ot_rates *out) {
    int rc;
    struct measurement m = {.session = session, .reader = reader};
    *out = ot_measure_facts(session);
    OT_TRY_GOTO(measure_device(&m, quick), rc, out);
    OT_TRY_GOTO(measure_host(&m, quick), rc, out);
    OT_TRY_GOTO(measure_disks(&m, quick), rc, out);
    ot_probe_put_rates(&m.sums, out);
out:
    ot_log_set_status("");
    return rc;
}
