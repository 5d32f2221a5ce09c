#include "src/session/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "offload/comm/world.h"
#include "offload/predict/rates.h"
#include "src/base/cache_file.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
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
    ot_device_usage(s->machine.device, &usage);
    size_t free_bytes = s->machine.budget_bytes[OT_TIER_GPU] - usage.used_bytes;
    int i = 0;
    while (i < SMALLEST && (4 * sizes[i].buffer_bytes + sizes[i].buffer_bytes / 8 > free_bytes ||
                            2 * sizes[i].buffer_bytes > s->machine.budget_bytes[OT_TIER_HOST]))
        i++;
    return i;
}

int64_t ot_measure_widest(const struct ot_session *s) {
    return sizes[widest(s)].hidden;
}

/* Half of the host budget. A given budget may be more than the free RAM; buffers beyond that would end the
 * program where a container has a limit. */
static size_t most_host_bytes(const struct ot_session *s) {
    return (size_t)ot_min((int64_t)s->machine.budget_bytes[OT_TIER_HOST], s->machine.limits.free_bytes) / 2;
}

/* Four times the last-level cache, as STREAM requires for its arrays, within the host budget. */
static size_t choose_host_bytes(const struct ot_session *s, bool quick) {
    struct ot_topology_summary topology = {0};
    if (s->machine.topology)
        ot_topology_summarise(s->machine.topology, &topology);
    size_t most = (size_t)(quick ? 512 : 1024) * MIB, least = (size_t)64 * MIB;
    size_t bytes = 4 * (size_t)topology.l3_bytes;
    bytes = bytes < least ? least : ot_min(most, bytes);
    return ot_max(ot_min(bytes, most_host_bytes(s)), OT_PROBE_HOST_LEAST_BYTES);
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
    return (struct ot_probe_config){.device = m->session->machine.device,
                                    .dtype = m->session->model.dtype,
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
    size_t bytes = sizes[m->size].buffer_bytes, most = sizes[widest(m->session)].buffer_bytes;
    size_t enough = (size_t)64 * MIB;
    return bytes >= enough ? bytes : ot_min(most, enough);
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
    struct ot_probe_nvme_config config = {.store = &s->machine.store,
                                          .bytes = (size_t)(quick ? 256 : 1024) * MIB,
                                          .memory_bytes = most_host_bytes(s),
                                          .seconds = quick ? 0.2 : 0.15,
                                          .quick = quick,
                                          .reader = {take_row, m}};
    if (s->machine.store.n_dirs == 0)
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
    return s->model.dtype == OT_BF16 ? (enum ot_masters)s->options->master_weights : OT_MASTERS_F32;
}

static int measure_host(struct measurement *m, bool quick) {
    const struct ot_session *s = m->session;
    const struct ot_options *o = s->options;
    double seconds = ot_min(sizes[m->size].seconds, 0.1);
    struct ot_probe_host_config config = {.dtype = s->model.dtype,
                                          .masters = ot_measure_masters(s),
                                          .threads = s->machine.limits.cores,
                                          .optimizer_threads =
                                              (int)(o->optimizer_threads ? o->optimizer_threads : o->threads),
                                          .bytes = choose_host_bytes(s, quick),
                                          .seconds = quick ? seconds / 2 : seconds,
                                          .quick = quick,
                                          .topology = s->machine.topology,
                                          .reader = {take_row, m}};
    begin_stage(m, "the host: memory and the optimizer");
    return ot_probe_host(&config);
}

struct ot_rates ot_measure_facts(const struct ot_session *session) {
    const struct ot_options *o = session->options;
    return (struct ot_rates){.cores = session->machine.limits.cores,
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

/* ---- the cache of rates ---- */

enum { MAX_FILE_BYTES = 1 << 16 };

/* Repeats of a measurement differ by some 10 % on an idle machine, and by far more where others compute. A
 * load of half the cores does not disturb a measurement. */
static const double disturbed_spread = 0.25, idle_load = 0.5;

static const struct {
    const char *name; /* in the file */
    size_t field;
    bool always; /* a run needs this rate on every machine */
} fields[] = {
    {"product_flops_per_s", offsetof(struct ot_rates, product_flops), true},
    {"group_product_flops_per_s", offsetof(struct ot_rates, group_flops), false},
    {"attention_forward_flops_per_s", offsetof(struct ot_rates, attention[OT_HEAD_128].forward), true},
    {"attention_backward_flops_per_s", offsetof(struct ot_rates, attention[OT_HEAD_128].backward), true},
    {"attention_64_forward_flops_per_s", offsetof(struct ot_rates, attention[OT_HEAD_64].forward), false},
    {"attention_64_backward_flops_per_s", offsetof(struct ot_rates, attention[OT_HEAD_64].backward), false},
    {"device_bytes_per_s", offsetof(struct ot_rates, device_bytes), true},
    {"h2d_bytes_per_s", offsetof(struct ot_rates, h2d_bytes), true},
    {"d2h_bytes_per_s", offsetof(struct ot_rates, d2h_bytes), true},
    {"both_ways_bytes_per_s", offsetof(struct ot_rates, both_bytes), true},
    {"triad_bytes_per_s", offsetof(struct ot_rates, triad_bytes), true},
    {"adamw_bytes_per_s", offsetof(struct ot_rates, adamw_bytes[OT_STATE_F32]), true},
    {"adamw_16bit_bytes_per_s", offsetof(struct ot_rates, adamw_bytes[OT_STATE_16BIT]), true},
    {"adamw_8bit_bytes_per_s", offsetof(struct ot_rates, adamw_bytes[OT_STATE_8BIT]), true},
    {"nvme_read_bytes_per_s", offsetof(struct ot_rates, nvme_read_bytes), false},
    {"nvme_write_bytes_per_s", offsetof(struct ot_rates, nvme_write_bytes), false},
    {"nvme_mixed_bytes_per_s", offsetof(struct ot_rates, nvme_mixed_bytes), false},
    {"nvme_read_seconds", offsetof(struct ot_rates, nvme_read_seconds), false},
    {"nvme_write_seconds", offsetof(struct ot_rates, nvme_write_seconds), false},
    {"crc_bytes_per_s", offsetof(struct ot_rates, crc_bytes), false},
    {"task_seconds", offsetof(struct ot_rates, task_seconds), true},
    {"comm_bytes_per_s", offsetof(struct ot_rates, comm_bytes), false},
    {"comm_seconds", offsetof(struct ot_rates, comm_seconds), false},
    {"spread", offsetof(struct ot_rates, spread), false},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static double get_field(const struct ot_rates *rates, int number) {
    double value;
    memcpy(&value, (const char *)rates + fields[number].field, sizeof value);
    return value;
}

static void set_field(struct ot_rates *rates, int number, double value) {
    memcpy((char *)rates + fields[number].field, &value, sizeof value);
}

void ot_rates_put_json(const struct ot_rates *rates, const char *key, struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    for (int i = 0; i < FIELDS; i++)
        if (get_field(rates, i) > 0)
            ot_json_put_real(w, fields[i].name, get_field(rates, i));
    ot_json_end_object(w);
}

/* ---- the file ---- */

static int find_path(const char *folder, const char *key, char **out) {
    return ot_string_format(out, "%s/rates-%08x.json", folder,
                            (unsigned)crc32_z(0, (const Bytef *)key, strlen(key)));
}

/* Errors: OT_E_INPUT: the file is not one that ot_rates_write wrote under this key. */
static int parse_rates(const struct ot_json *root, const char *path, const char *key, struct ot_rates *out) {
    const char *found;
    OT_TRY(ot_json_need_string(root, path, "key", true, &found));
    if (strcmp(found, key) != 0)
        return ot_fail(OT_E_INPUT, "%s: holds the rates of another machine", path);
    const struct ot_json *rates = ot_json_get(root, "rates");
    for (int i = 0; i < FIELDS; i++) {
        double value = 0;
        OT_TRY(ot_json_need_real(rates, path, fields[i].name, fields[i].always, 1e-12, 1e30, &value));
        set_field(out, i, value);
    }
    if (out->nvme_read_bytes > 0 && !(out->nvme_read_seconds > 0 && out->nvme_write_seconds > 0))
        return ot_fail(OT_E_INPUT, "%s: lacks the times of single reads and writes", path);
    return 0;
}

int ot_rates_read(const char *folder, const char *key, struct ot_rates *out, bool *found) {
    char *path, *text;
    size_t bytes;
    struct ot_json *root = NULL;
    struct ot_rates rates = *out;
    *found = false;
    if (!folder)
        return 0;
    OT_TRY(find_path(folder, key, &path));
    int rc = ot_cache_read(path, MAX_FILE_BYTES, &text, &bytes);
    if (rc >= 0 && text && ot_json_parse(text, bytes, path, &root) >= 0 &&
        parse_rates(root, path, key, &rates) >= 0) {
        *out = rates;
        *found = true;
    }
    ot_json_free(root);
    free(text);
    free(path);
    return rc;
}

int ot_rates_write(const char *folder, const char *key, const struct ot_rates *rates) {
    char *path = NULL, *text = NULL;
    size_t bytes;
    struct ot_json_writer w = {.indent = 0};
    int rc = 0;
    if (!folder)
        return 0;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "key", key);
    ot_rates_put_json(rates, "rates", &w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    OT_TRY_GOTO(find_path(folder, key, &path), rc, out);
    OT_TRY_GOTO(ot_cache_write(path, text, bytes), rc, out);
out:
    free(path);
    free(text);
    return rc;
}

/* ---- for a session ---- */

int ot_rates_key(const struct ot_session *s, char **out) {
    const struct ot_options *o = s->options;
    const char *dirs[OT_NVME_MAX_DIRS];
    char machine[OT_FINGERPRINT_BYTES];
    for (int i = 0; i < o->nvme.n; i++)
        dirs[i] = o->nvme.dirs[i].path;
    OT_TRY(ot_machine_fingerprint(&s->machine.limits, ot_device_name(s->machine.device), o->nvme.n, dirs,
                                  machine));
    /* Ranks of one host measure at the same time, and share the host while they do. */
    int local_ranks = s->ranks.world ? ot_world_ranks(s->ranks.world)->local_ranks : 1;
    return ot_string_format(
        out, "machine %s, %s%s, layers to %lld wide, %lld + %lld threads, %d ranks, I/O %s%s", machine,
        ot_dtype_name(s->model.dtype), ot_measure_masters(s) == OT_MASTERS_NONE ? " without masters" : "",
        (long long)ot_measure_widest(s), (long long)o->threads,
        (long long)(o->optimizer_threads ? o->optimizer_threads : o->threads), local_ranks,
        ot_io_choice_name((enum ot_io_choice)o->io_engine), o->no_io_verify ? " without checksums" : "");
}

void ot_rates_warn(const struct ot_rates *rates) {
    if (rates->spread <= OT_REPEATS_NOISY || !rates->uncertain)
        return;
    ot_log(OT_LOG_INFO,
           "probe   the machine is busy: measurements of %s differ by %.0f %% even after more repeats, and "
           "predictions may be as far off; `offload-train probe` measures again",
           rates->uncertain, 100 * rates->spread);
}

int ot_rates_keep(const struct ot_session *session, const struct ot_rates *rates) {
    char *folder = NULL, *key = NULL;
    int rc;
    OT_TRY_GOTO(ot_cache_folder(&folder), rc, out);
    OT_TRY_GOTO(ot_rates_key(session, &key), rc, out);
    OT_TRY_GOTO(ot_rates_write(folder, key, rates), rc, out);
    rc = folder != NULL;
out:
    free(key);
    free(folder);
    return rc;
}

static int read_kept(const struct ot_session *session, struct ot_rates *out, bool *found) {
    char *folder, *key = NULL;
    OT_TRY(ot_cache_folder(&folder));
    int rc = ot_rates_key(session, &key);
    if (rc >= 0)
        rc = ot_rates_read(folder, key, out, found);
    free(key);
    free(folder);
    return rc;
}

/* True if other programs disturbed the measurement of the kept rates, and do not run now. */
static bool is_worth_repeating(const struct ot_session *session, const struct ot_rates *kept) {
    double load;
    return kept->spread > disturbed_spread && getloadavg(&load, 1) == 1 &&
           load < idle_load * session->machine.limits.cores;
}

int ot_rates_obtain(struct ot_session *session, bool quick, struct ot_rates *out) {
    bool found;
    char time[OT_TEXT_BYTES];
    *out = ot_measure_facts(session);
    OT_TRY(read_kept(session, out, &found));
    if (found && !is_worth_repeating(session, out))
        return 0;
    if (found)
        ot_log(OT_LOG_INFO, "probe   this machine was busy when its rates were measured; measuring again");
    *out = ot_measure_facts(session);
    double since = ot_clock_seconds();
    OT_TRY(ot_measure_machine(session, quick, NULL, out));
    ot_rates_warn(out);
    ot_text_duration(ot_clock_seconds() - since, time);
    int kept = ot_rates_keep(session, out);
    if (kept > 0)
        ot_log(OT_LOG_INFO,
               "probe   measured this machine in %s; later runs use these rates (`offload-train probe` "
               "measures again)",
               time);
    else
        ot_log(OT_LOG_INFO, "probe   measured this machine in %s%s%s", time, kept < 0 ? "; not kept: " : "",
               kept < 0 ? ot_error_text() : "");
    return 0;
}
