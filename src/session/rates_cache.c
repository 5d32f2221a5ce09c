#include "src/session/rates_cache.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "offload/comm/world.h"
#include "offload/predict/repeats.h"
#include "src/base/cache_file.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/session/measure.h"

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
    OT_TRY(ot_machine_fingerprint(&s->machine, ot_device_name(s->device), o->nvme.n, dirs, machine));
    /* Ranks of one host measure at the same time, and share the host while they do. */
    int local_ranks = s->world ? ot_world_ranks(s->world)->local_ranks : 1;
    return ot_string_format(
        out, "machine %s, %s%s, layers to %lld wide, %lld + %lld threads, %d ranks, I/O %s%s", machine,
        ot_dtype_name(s->dtype), ot_measure_masters(s) == OT_MASTERS_NONE ? " without masters" : "",
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
           load < idle_load * session->machine.cores;
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
