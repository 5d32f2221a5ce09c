#include "src/plan/bench_export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/text.h"

/* The points that have a number in a column: all, those with a plan, those that ran, those with a prediction.
 */
enum group { ALWAYS, PLANNED, MEASURED, PREDICTED };
enum type { INTEGER, REAL, TEXT };

struct column {
    const char *name;
    enum group group;
    enum type type;
    size_t offset;                                             /* offset in the result, for numbers */
    const char *(*text)(const struct ot_bench_result *result); /* NULL: none */
};

static const char *home_name(enum ot_home home) {
    return home == OT_HOME_AUTO ? "auto" : ot_tier_name((enum ot_tier)home);
}

static const char *mix_text(const struct ot_bench_result *r) {
    return ot_bench_mix_at(r->point.mix)->name;
}

static const char *weights_text(const struct ot_bench_result *r) {
    return home_name(ot_bench_mix_at(r->point.mix)->home.weights);
}

static const char *state_text(const struct ot_bench_result *r) {
    return home_name(ot_bench_mix_at(r->point.mix)->home.state);
}

static const char *activations_text(const struct ot_bench_result *r) {
    return home_name(ot_bench_mix_at(r->point.mix)->home.activations);
}

static const char *status_text(const struct ot_bench_result *r) {
    return ot_bench_status_name(r->status);
}

static const char *reason_text(const struct ot_bench_result *r) {
    return *r->reason ? r->reason : NULL;
}

#define WORD(name, fn)                                                                                       \
    { name, ALWAYS, TEXT, 0, fn }
#define COUNT(name, group, field)                                                                            \
    { name, group, INTEGER, offsetof(struct ot_bench_result, field), NULL }
#define NUMBER(name, group, field)                                                                           \
    { name, group, REAL, offsetof(struct ot_bench_result, field), NULL }
#define LANE(lane, id, prefix, group, of) NUMBER(prefix lane "_seconds", group, of[id])
#define LANES(prefix, group, of)                                                                             \
    LANE("compute", OT_LANE_COMPUTE, prefix, group, of), LANE("h2d", OT_LANE_H2D, prefix, group, of),        \
        LANE("d2h", OT_LANE_D2H, prefix, group, of), LANE("cpu", OT_LANE_CPU, prefix, group, of),            \
        LANE("nvme_read", OT_LANE_NVME_READ, prefix, group, of),                                             \
        LANE("nvme_write", OT_LANE_NVME_WRITE, prefix, group, of)

static const struct column columns[] = {
    WORD("mix", mix_text),
    WORD("weights", weights_text),
    WORD("state", state_text),
    WORD("activations", activations_text),
    COUNT("gpu_mem_bytes", ALWAYS, point.gpu_bytes),
    COUNT("tokens_per_step", ALWAYS, point.step_tokens),
    COUNT("seq_len", ALWAYS, point.sequence_tokens),
    COUNT("micro_batch", PLANNED, micro_sequences),
    COUNT("micro_batches", PLANNED, micro_batches),
    COUNT("recomputed_layers", PLANNED, recomputed_layers),
    WORD("status", status_text),
    WORD("reason", reason_text),
    COUNT("steps", MEASURED, steps),
    NUMBER("step_seconds", MEASURED, step_seconds),
    NUMBER("fastest_step_seconds", MEASURED, fastest_seconds),
    NUMBER("slowest_step_seconds", MEASURED, slowest_seconds),
    NUMBER("tokens_per_second", MEASURED, tokens_per_second),
    NUMBER("predicted_step_seconds", PREDICTED, predicted_seconds),
    COUNT("planned_gpu_bytes", PLANNED, planned_bytes[OT_TIER_GPU]),
    COUNT("planned_host_bytes", PLANNED, planned_bytes[OT_TIER_HOST]),
    COUNT("planned_nvme_bytes", PLANNED, planned_bytes[OT_TIER_NVME]),
    COUNT("gpu_peak_bytes", MEASURED, device_bytes),
    COUNT("pinned_peak_bytes", MEASURED, pinned_bytes),
    COUNT("process_peak_bytes", MEASURED, resident_bytes),
    COUNT("nvme_read_bytes_per_step", MEASURED, nvme_read_bytes),
    COUNT("nvme_write_bytes_per_step", MEASURED, nvme_write_bytes),
    LANES("busy_", MEASURED, lanes.busy),
    LANES("exposed_", MEASURED, lanes.exposed),
    NUMBER("exposed_host_seconds", MEASURED, lanes.exposed_host),
    LANES("predicted_busy_", PREDICTED, predicted_lanes.busy),
    LANES("predicted_exposed_", PREDICTED, predicted_lanes.exposed),
    NUMBER("predicted_exposed_host_seconds", PREDICTED, predicted_lanes.exposed_host),
    NUMBER("point_seconds", ALWAYS, seconds),
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

static bool has_number(const struct column *column, const struct ot_bench_result *r) {
    switch (column->group) {
    case PLANNED:
        return r->micro_batches > 0;
    case MEASURED:
        return r->status == OT_BENCH_DONE;
    case PREDICTED:
        return r->predicted_seconds > 0;
    default:
        return true;
    }
}

static int64_t integer_at(const struct column *column, const struct ot_bench_result *r) {
    return *(const int64_t *)((const char *)r + column->offset);
}

static double real_at(const struct column *column, const struct ot_bench_result *r) {
    return *(const double *)((const char *)r + column->offset);
}

/* ---- CSV ---- */

static void put_quoted(struct ot_string_builder *out, const char *text) {
    ot_string_append_text(out, "\"");
    for (; *text; text++) {
        ot_string_append(out, text, 1);
        if (*text == '"')
            ot_string_append_text(out, "\"");
    }
    ot_string_append_text(out, "\"");
}

void ot_bench_put_csv_header(struct ot_string_builder *out) {
    ot_string_append_text(out, "point");
    for (int c = 0; c < N_COLUMNS; c++)
        ot_string_append_format(out, ",%s", columns[c].name);
    ot_string_append_text(out, "\n");
}

void ot_bench_put_csv(const struct ot_bench *bench, int index, struct ot_string_builder *out) {
    const struct ot_bench_result *r = &bench->results[index];
    ot_string_append_format(out, "%d", index + 1);
    for (int c = 0; c < N_COLUMNS; c++) {
        const struct column *column = &columns[c];
        const char *text = column->type == TEXT ? column->text(r) : NULL;
        ot_string_append_text(out, ",");
        if (text)
            put_quoted(out, text);
        else if (column->type == INTEGER && has_number(column, r))
            ot_string_append_format(out, "%" PRId64, integer_at(column, r));
        else if (column->type == REAL && has_number(column, r))
            ot_string_append_format(out, "%.9g", real_at(column, r));
    }
    ot_string_append_text(out, "\n");
}

/* ---- JSON ---- */

static void put_point(const struct ot_bench *bench, int index, struct ot_json_writer *w) {
    const struct ot_bench_result *r = &bench->results[index];
    ot_json_begin_object(w, NULL);
    ot_json_put_int(w, "point", index + 1);
    for (int c = 0; c < N_COLUMNS; c++) {
        const struct column *column = &columns[c];
        const char *text = column->type == TEXT ? column->text(r) : NULL;
        if (text)
            ot_json_put_text(w, column->name, text);
        else if (column->type == TEXT || !has_number(column, r))
            ot_json_put_null(w, column->name);
        else if (column->type == INTEGER)
            ot_json_put_int(w, column->name, integer_at(column, r));
        else
            ot_json_put_real(w, column->name, real_at(column, r));
    }
    ot_json_put_bool(w, "on_front", ot_bench_is_on_front(bench, index));
    ot_json_end_object(w);
}

const char *ot_bench_text_params(const struct ot_bench *bench, char text[OT_BENCH_PARAMS_BYTES]) {
    char params[OT_PARAMS_TEXT_BYTES];
    int n =
        snprintf(text, OT_BENCH_PARAMS_BYTES, "%s", ot_text_params(bench->frozen, bench->trained, params));
    if (bench->base)
        snprintf(text + n, OT_BENCH_PARAMS_BYTES - (size_t)n, ", frozen layers in %s", bench->base);
    return text;
}

const char *ot_bench_date(const struct ot_bench *bench, char text[OT_BENCH_DATE_BYTES]) {
    struct tm local;
    if (!localtime_r(&bench->began, &local) ||
        !strftime(text, OT_BENCH_DATE_BYTES, "%Y-%m-%dT%H:%M:%S%z", &local))
        return strcpy(text, "?");
    return text;
}

void ot_bench_put_json(const struct ot_bench *bench, const struct ot_options *options,
                       struct ot_json_writer *w) {
    char date[OT_BENCH_DATE_BYTES];
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "version", OT_VERSION);
    ot_json_put_text(w, "began", ot_bench_date(bench, date));
    ot_json_put_text(w, "model", bench->model);
    ot_json_put_int(w, "params", bench->params);
    ot_json_put_int(w, "frozen_params", bench->frozen);
    ot_json_put_int(w, "trained_params", bench->trained);
    ot_json_put_real(w, "flops_per_token", bench->flops_per_token);
    ot_json_put_text(w, "device", bench->device);
    ot_json_put_text(w, "dtype", bench->dtype);
    ot_json_put_int(w, "cores", bench->cores);
    ot_json_put_int(w, "ram_bytes", bench->ram_bytes);
    ot_json_put_real(w, "seconds", bench->seconds);
    ot_json_put_bool(w, "interrupted", bench->interrupted);
    ot_options_put_json(options, "options", w);
    ot_options_put_sources(options, "sources", w);
    ot_json_begin_array(w, "points");
    for (int i = 0; i < bench->n; i++)
        put_point(bench, i, w);
    ot_json_end_array(w);
    ot_json_end_object(w);
}

/* ---- files ---- */

static int check_is_new(const char *dir) {
    static const char *const names[] = {"bench.csv", "bench.json", "bench.html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path;
        struct stat info;
        OT_TRY(ot_string_format(&path, "%s/%s", dir, names[i]));
        bool is_there = lstat(path, &info) == 0;
        free(path);
        if (is_there)
            return ot_fail(OT_E_INPUT, "%s already has a %s; choose another directory with --out", dir,
                           names[i]);
    }
    return 0;
}

int ot_bench_files_open(const char *dir, struct ot_bench_files *out) {
    char *path;
    *out = (struct ot_bench_files){.csv = -1};
    OT_TRY(ot_string_format(&out->dir, "%s", dir));
    int error = ot_path_make_dirs(out->dir, NULL);
    if (error < 0)
        return ot_fail_errno(OT_E_IO, -error, "%s: cannot create this directory", dir);
    OT_TRY(check_is_new(dir));
    OT_TRY(ot_string_format(&path, "%s/bench.csv", dir));
    out->csv = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    int rc = out->csv < 0 ? ot_fail_errno(OT_E_IO, errno, "%s: cannot create this file", path) : 0;
    free(path);
    return rc;
}

void ot_bench_files_close(struct ot_bench_files *files) {
    if (files->csv >= 0)
        close(files->csv);
    free(files->dir);
    *files = (struct ot_bench_files){.csv = -1};
}

int ot_bench_files_append_csv(struct ot_bench_files *files, const char *text, size_t bytes) {
    int error = ot_write_all(NULL, files->csv, text, bytes);
    return error < 0 ? ot_fail_errno(OT_E_IO, -error, "%s/bench.csv: cannot write", files->dir) : 0;
}

int ot_bench_files_replace(struct ot_bench_files *files, const char *name, const char *text, size_t bytes) {
    char *path;
    OT_TRY(ot_string_format(&path, "%s/%s", files->dir, name));
    int rc = ot_replace_file(path, text, bytes);
    free(path);
    return rc;
}
