#include "src/checkpoint/verify.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/writer.h"
#include "src/files/adapter_config.h"
#include "src/files/model_config.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/machine/machine.h"
#include "src/tokenizer/tokenizer.h"

/* ---- gathering ---- */

static int verify_open(struct ot_verify *verify, const char *dir, bool is_checkpoint) {
    *verify = (struct ot_verify){.dir = strdup(dir), .is_checkpoint = is_checkpoint, .step = -1};
    return verify->dir ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory", dir);
}

/* Makes a row for each slab of the model. */
static int verify_add_slabs(struct ot_verify *verify, const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    verify->slabs = calloc((size_t)chain->n_slabs, sizeof *verify->slabs);
    if (!verify->slabs)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a table of %d slabs", verify->dir, chain->n_slabs);
    verify->n_slabs = chain->n_slabs;
    for (int i = 0; i < chain->n_slabs; i++)
        snprintf(verify->slabs[i].name, sizeof verify->slabs[i].name, "%s", chain->slabs[i].name);
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        verify->slabs[tensor->slab].params += tensor->rows * tensor->cols;
    }
    return 0;
}

/* If rc says that a file is damaged or unreadable, keeps the calling thread's sentence as a damage and
 * returns 0. Else returns rc. */
static int verify_note(struct ot_verify *verify, int rc) {
    if (rc != -OT_E_INPUT && rc != -OT_E_IO)
        return rc;
    if (verify->n_damages < OT_VERIFY_KEPT_DAMAGES) {
        char *text = strdup(ot_error_text());
        if (!text)
            return ot_fail(OT_E_BUDGET, "%s: no memory to say what is damaged", verify->dir);
        verify->damages[verify->n_damages] = text;
    }
    verify->n_damages++;
    return 0;
}

/* done, total: bytes of a checkpoint, or values of a model. */
static void verify_show_progress(const struct ot_verify *verify, int64_t done, int64_t total) {
    char line[OT_ERROR_TEXT_BYTES];
    if (!ot_log_is_terminal())
        return;
    snprintf(line, sizeof line, "reading %s: %.0f %%", verify->dir,
             100.0 * (double)done / (double)(total + !total));
    ot_log_set_status(done < total ? line : "");
}

/* The name of the tensor with this parameter of the slab, for errors; "padding" if it is in no tensor. */
static const char *verify_tensor(const struct ot_model *model, int slab, int64_t index) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(model, i);
        if (tensor->slab == slab && index >= tensor->first &&
            index < tensor->first + tensor->rows * tensor->cols)
            return tensor->name;
    }
    return "padding";
}

void ot_verify_free(struct ot_verify *verify) {
    for (int i = 0; i < OT_VERIFY_KEPT_DAMAGES; i++)
        free(verify->damages[i]);
    for (int i = 0; i < verify->n_files; i++)
        free(verify->files[i].name);
    free(verify->files);
    free(verify->missing);
    free(verify->slabs);
    free(verify->dir);
    *verify = (struct ot_verify){0};
}

/* ---- for people ---- */

static const char *state_of(const struct ot_verify_slab *slab) {
    static const char *const names[] = {"not read", "ok", "damaged", "read in part", "frozen"};
    return names[slab->state];
}

/* A slab that was not read whole has no largest value. */
static const char *most_text(const struct ot_verify_slab *slab, double value, char text[OT_TEXT_BYTES]) {
    if (slab->state != OT_VERIFY_OK)
        return "-";
    snprintf(text, OT_TEXT_BYTES, "%.4g", value);
    return text;
}

static void print_slab(const struct ot_verify *verify, const struct ot_verify_slab *slab, FILE *out) {
    char text[OT_TEXT_BYTES];
    fprintf(out, "  %-20s %16s", slab->name, ot_text_count(slab->params, text));
    fprintf(out, " %14s", most_text(slab, slab->most_weight, text));
    if (verify->is_checkpoint) {
        fprintf(out, " %12s", most_text(slab, slab->most_m, text));
        fprintf(out, " %12s", most_text(slab, slab->most_v, text));
        fprintf(out, " %18s", ot_text_count(slab->bytes, text));
    }
    fprintf(out, "  %s\n", state_of(slab));
}

static void print_slabs(const struct ot_verify *verify, FILE *out) {
    char text[OT_TEXT_BYTES];
    int64_t params = 0, bytes = 0;
    fprintf(out, "  %-20s %16s %14s", "slab", "parameters", "max |weight|");
    if (verify->is_checkpoint)
        fprintf(out, " %12s %12s %18s", "max |m|", "max v", "bytes");
    fprintf(out, "\n");
    for (int i = 0; i < verify->n_slabs; i++) {
        print_slab(verify, &verify->slabs[i], out);
        params += verify->slabs[i].params;
        bytes += verify->slabs[i].bytes;
    }
    fprintf(out, "  %-20s %16s", "total", ot_text_count(params, text));
    if (verify->is_checkpoint)
        fprintf(out, " %14s %12s %12s %18s", "", "", "", ot_text_count(bytes, text));
    fprintf(out, "\n");
}

static void print_files(const struct ot_verify *verify, FILE *out) {
    char bytes[OT_TEXT_BYTES];
    int64_t all = 0;
    fprintf(out, "  %-78s %18s\n", "file", "bytes");
    for (int i = 0; i < verify->n_files; i++) {
        const struct ot_verify_file *file = &verify->files[i];
        all += file->bytes;
        fprintf(out, "  %-78s %18s  %s\n", file->name, ot_text_count(file->bytes, bytes),
                file->is_elsewhere ? "on another host"
                : file->damaged    ? "damaged"
                                   : "ok");
    }
    fprintf(out, "  %-78s %18s\n", "total", ot_text_count(all, bytes));
}

void ot_verify_print(const struct ot_verify *verify, FILE *out) {
    fprintf(out, "%s %s%s%s\n", verify->is_checkpoint ? "checkpoint" : "model", verify->dir,
            *verify->what ? ": " : "", verify->what);
    if (verify->n_slabs)
        print_slabs(verify, out);
    if (verify->n_files)
        print_files(verify, out);
    for (int64_t i = 0; i < verify->n_damages && i < OT_VERIFY_KEPT_DAMAGES; i++)
        fprintf(out, "  - %s\n", verify->damages[i]);
    if (verify->n_damages > OT_VERIFY_KEPT_DAMAGES)
        fprintf(out, "  - and %lld more\n", (long long)verify->n_damages - OT_VERIFY_KEPT_DAMAGES);
    if (verify->missing)
        fprintf(out, "  - %s\n", verify->missing);
}

/* ---- as JSON ---- */

static void put_most(const struct ot_verify_slab *slab, const char *key, double value,
                     struct ot_json_writer *w) {
    if (slab->state == OT_VERIFY_OK)
        ot_json_put_real(w, key, value);
    else
        ot_json_put_null(w, key);
}

static void put_slab(const struct ot_verify *verify, const struct ot_verify_slab *slab,
                     struct ot_json_writer *w) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "name", slab->name);
    ot_json_put_int(w, "parameters", slab->params);
    ot_json_put_text(w, "state", state_of(slab));
    put_most(slab, "max_weight", slab->most_weight, w);
    if (verify->is_checkpoint) {
        put_most(slab, "max_m", slab->most_m, w);
        put_most(slab, "max_v", slab->most_v, w);
        ot_json_put_int(w, "bytes", slab->bytes);
    }
    ot_json_end_object(w);
}

static void put_files(const struct ot_verify *verify, struct ot_json_writer *w) {
    ot_json_begin_array(w, "files");
    for (int i = 0; i < verify->n_files; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "name", verify->files[i].name);
        ot_json_put_int(w, "bytes", verify->files[i].bytes);
        ot_json_put_bool(w, "ok", !verify->files[i].damaged && !verify->files[i].is_elsewhere);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

void ot_verify_put_json(const struct ot_verify *verify, const char *key, struct ot_json_writer *w) {
    ot_json_begin_object(w, key);
    ot_json_put_text(w, "dir", verify->dir);
    ot_json_put_bool(w, "ok", verify->n_damages == 0 && !verify->missing);
    if (verify->step >= 0)
        ot_json_put_int(w, "step", verify->step);
    ot_json_put_text(w, "what", verify->what);
    ot_json_begin_array(w, "slabs");
    for (int i = 0; i < verify->n_slabs; i++)
        put_slab(verify, &verify->slabs[i], w);
    ot_json_end_array(w);
    if (verify->is_checkpoint)
        put_files(verify, w);
    ot_json_put_int(w, "damages", verify->n_damages);
    ot_json_begin_array(w, "damaged");
    for (int64_t i = 0; i < verify->n_damages && i < OT_VERIFY_KEPT_DAMAGES; i++)
        ot_json_put_text(w, NULL, verify->damages[i]);
    ot_json_end_array(w);
    if (verify->missing)
        ot_json_put_text(w, "missing", verify->missing);
    ot_json_end_object(w);
}

/* ---- checkpoints ---- */

/* Verifies a checkpoint: the reader checks the bytes, and this file checks the values as they are read. */

/* With segments of 3 MiB this is as many reads of 1 MiB as an engine can have in flight. With more slots the
 * data leaves the cache before it is checked: 20 slots took 1.5 times the CPU time. */
enum { SLOTS = 12 };
/* Enough for a fast disk: a thread checks 8-bit moments at about 1 GB/s, other values at 4 GB/s. */
enum { MOST_THREADS = 8 };

struct check {
    struct ot_verify *verify;
    struct ot_checkpoint *checkpoint;
    struct ot_model *model;
    const struct ot_manifest *manifest;
    bool progress;
    pthread_mutex_t mutex; /* protects `verify` while segments are read */
};

/* ---- values ---- */

/* The largest magnitude, as the bits of its fp32: infinities and NaN have larger bits than all numbers.
 * signs: the largest bits with the sign, above 1 << 31 if a number is negative. Compilers vectorize these
 * plain loops. */
static uint32_t most_f32(const uint32_t *bits, int64_t n, uint32_t *signs) {
    uint32_t most = 0, most_bits = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = bits[i] & 0x7fffffffu;
        most = ot_max(magnitude, most);
        most_bits = ot_max(bits[i], most_bits);
    }
    *signs = most_bits;
    return most;
}

static uint32_t most_half(enum ot_dtype dtype, const uint16_t *bits, int64_t n) {
    uint16_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t magnitude = bits[i] & 0x7fffu;
        most = ot_max(magnitude, most);
    }
    return ot_f32_bits(dtype == OT_BF16 ? ot_bf16_to_f32(most) : ot_f16_to_f32(most));
}

static int64_t find_bad(enum ot_dtype dtype, const void *values, int64_t n, bool negative) {
    for (int64_t i = 0; i < n; i++) {
        float value = ot_dtype_read(dtype, values, i);
        if (!isfinite(value) || (negative && value < 0))
            return i;
    }
    return n;
}

/* Checks one array of a segment. what: "weight", "m" or "v", for the error. Several threads check segments at
 * the same time. */
static int check_values(struct check *c, const struct ot_segment *segment, const char *what,
                        enum ot_dtype dtype, const void *values, double *most) {
    uint32_t signs = 0;
    uint32_t bits =
        dtype == OT_F32 ? most_f32(values, segment->n, &signs) : most_half(dtype, values, segment->n);
    bool is_v = *what == 'v', is_finite = bits < 0x7f800000u;
    if (is_finite && !(is_v && signs > 0x80000000u)) {
        double value = (double)ot_f32_from_bits(bits);
        pthread_mutex_lock(&c->mutex);
        *most = ot_max(value, *most);
        pthread_mutex_unlock(&c->mutex);
        return 0;
    }
    int64_t index = segment->first + find_bad(dtype, values, segment->n, is_v);
    struct ot_verify_slab *slab = &c->verify->slabs[segment->slab];
    int rc = ot_fail(OT_E_INPUT, "%s: %s: the %s of parameter %lld (%s) is %s", c->verify->dir, slab->name,
                     what, (long long)index, verify_tensor(c->model, segment->slab, index),
                     is_finite ? "negative" : "not finite");
    pthread_mutex_lock(&c->mutex);
    slab->state = OT_VERIFY_DAMAGED;
    rc = verify_note(c->verify, rc);
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

/* Decodes the moments of a compact state, some groups at a time, and checks them. */
static int check_compact(struct check *c, const struct ot_segment *segment, const void *memory) {
    enum { PIECE = 32 * OT_STATE_GROUP };
    struct ot_verify_slab *slab = &c->verify->slabs[segment->slab];
    float m[PIECE], v[PIECE];
    const struct ot_state_arrays to = {OT_STATE_F32, m, v, NULL};
    struct ot_segment piece = *segment;
    for (int64_t at = 0; at < segment->n; at += piece.n) {
        const char *arrays[OT_SEGMENT_STATE_ARRAYS];
        for (enum ot_segment_array array = OT_SEGMENT_M; array < OT_SEGMENT_STATE_ARRAYS; array++) {
            struct ot_segment_values where = ot_segment_find(c->manifest->dtype, segment, array);
            arrays[array] = (const char *)memory + where.offset + ot_segment_value_bytes(where, at);
        }
        struct ot_state_view from = {segment->state, arrays[OT_SEGMENT_M], arrays[OT_SEGMENT_V],
                                     (const struct ot_state_scale *)(const void *)arrays[OT_SEGMENT_SCALES]};
        piece.first = segment->first + at;
        piece.n = ot_min(segment->n - at, PIECE);
        ot_state_convert(from, &to, piece.first, piece.n, 0, 0);
        OT_TRY(check_values(c, &piece, "m", OT_F32, m, &slab->most_m));
        OT_TRY(check_values(c, &piece, "v", OT_F32, v, &slab->most_v));
    }
    return 0;
}

static int check_segment(void *context, const struct ot_segment *segment, const void *memory) {
    struct check *c = context;
    enum ot_dtype dtype = c->manifest->dtype;
    struct ot_verify_slab *slab = &c->verify->slabs[segment->slab];
    double ignored = 0;
    const struct {
        const char *what;
        enum ot_dtype dtype;
        double *most;
    } arrays[OT_SEGMENT_ARRAYS] = {
        [OT_SEGMENT_M] = {"m", OT_F32, &slab->most_m},
        [OT_SEGMENT_V] = {"v", OT_F32, &slab->most_v},
        [OT_SEGMENT_MASTER_REST] = {dtype == OT_F16 ? "master weight" : NULL, OT_F32,
                                    &ignored}, /* bf16: all bits are valid */
        [OT_SEGMENT_WEIGHTS] = {"weight", dtype, &slab->most_weight},
    };
    bool compact = segment->has_state && segment->state != OT_STATE_F32;
    if (compact)
        OT_TRY(check_compact(c, segment, memory));
    for (enum ot_segment_array array = compact ? OT_SEGMENT_MASTER_REST : OT_SEGMENT_M;
         array < OT_SEGMENT_ARRAYS; array++) {
        struct ot_segment_values where = ot_segment_find(dtype, segment, array);
        if (where.width > 0 && arrays[array].what)
            OT_TRY(check_values(c, segment, arrays[array].what, arrays[array].dtype,
                                (const char *)memory + where.offset, arrays[array].most));
    }
    return 0;
}

static int note_damage(void *context, const struct ot_segment *segment, int file, int rc) {
    struct check *c = context;
    pthread_mutex_lock(&c->mutex);
    c->verify->slabs[segment->slab].state = OT_VERIFY_DAMAGED;
    c->verify->files[file].damaged = true;
    rc = verify_note(c->verify, rc);
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

static void show_progress(void *context, int64_t bytes, int64_t total) {
    const struct check *c = context;
    if (c->progress)
        verify_show_progress(c->verify, bytes, total);
}

/* ---- structure ---- */

/* Checks that the model of the record has the slabs of the manifest. */
static int check_model(struct check *c) {
    const struct ot_checkpoint_record *record = ot_checkpoint_record(c->checkpoint);
    struct ot_config_file file;
    char *where;
    OT_TRY(ot_string_format(&where, "%s/" OT_RECORD_NAME ": model", c->verify->dir));
    int rc = ot_model_config_parse(record->model, where, &file);
    free(where);
    OT_TRY(rc);
    OT_TRY(ot_checkpoint_record_open_model(record, &file.config, c->manifest->dtype, &c->model));
    OT_TRY(ot_manifest_check_model(c->manifest, ot_model_chain(c->model), c->verify->dir));
    return verify_add_slabs(c->verify, c->model);
}

static int add_files(struct check *c) {
    const struct ot_manifest *m = c->manifest;
    struct ot_verify *verify = c->verify;
    verify->files = calloc((size_t)m->n_files + 1, sizeof *verify->files);
    if (!verify->files)
        return ot_fail(OT_E_BUDGET, "%s: no memory for a table of files", verify->dir);
    for (int i = 0; i < m->n_files; i++) {
        verify->files[i].is_elsewhere = !ot_checkpoint_has_file(c->checkpoint, i);
        verify->files[verify->n_files].name = strdup(m->files[i].name);
        if (!verify->files[verify->n_files++].name)
            return ot_fail(OT_E_BUDGET, "%s: no memory for a table of files", verify->dir);
    }
    for (int64_t i = 0; i < m->n_segments; i++)
        for (int64_t s = m->segments[i].first_span; s < m->segments[i].first_span + m->segments[i].n_spans;
             s++) {
            verify->slabs[m->segments[i].segment.slab].bytes += m->spans[s].bytes;
            verify->files[m->spans[s].file].bytes += m->spans[s].bytes;
        }
    return 0;
}

/* Slabs with segments on other hosts are not read whole. */
static int note_missing(struct check *c) {
    const struct ot_manifest *m = c->manifest;
    for (int64_t i = 0; i < m->n_segments; i++)
        for (int64_t s = m->segments[i].first_span; s < m->segments[i].first_span + m->segments[i].n_spans;
             s++) {
            struct ot_verify_slab *slab = &c->verify->slabs[m->segments[i].segment.slab];
            if (c->verify->files[m->spans[s].file].is_elsewhere && slab->state == OT_VERIFY_NOT_READ)
                slab->state = OT_VERIFY_IN_PART;
        }
    if (ot_checkpoint_check_whole(c->checkpoint) == 0)
        return 0;
    c->verify->missing = strdup(ot_error_text());
    return c->verify->missing ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory", c->verify->dir);
}

static int read_segments(struct check *c) {
    size_t bytes = SLOTS * ot_segment_slot_bytes(c->manifest->dtype);
    struct ot_machine machine;
    OT_TRY(ot_machine_read("", &machine));
    struct ot_checkpoint_read read = {.memory = aligned_alloc(OT_STORE_ALIGN, bytes),
                                      .n_slots = SLOTS,
                                      .threads = machine.cores < 2 ? 0 : ot_min(machine.cores, MOST_THREADS),
                                      .skips_missing = true,
                                      .sink = check_segment,
                                      .damaged = note_damage,
                                      .progress = show_progress,
                                      .context = c};
    if (!read.memory)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %zu bytes of it", c->verify->dir, bytes);
    int rc = ot_checkpoint_read(c->checkpoint, &read);
    if (rc == 0)
        rc = note_missing(c);
    const struct ot_slab_spec *slabs = ot_model_chain(c->model)->slabs;
    for (int i = 0; i < c->verify->n_slabs && rc == 0; i++)
        if (c->verify->slabs[i].state == OT_VERIFY_NOT_READ)
            c->verify->slabs[i].state = slabs[i].frozen ? OT_VERIFY_FROZEN : OT_VERIFY_OK;
    free(read.memory);
    return rc;
}

int ot_verify_checkpoint(const char *dir, bool progress, struct ot_verify *out) {
    struct check c = {.verify = out, .progress = progress, .mutex = PTHREAD_MUTEX_INITIALIZER};
    int rc;
    OT_TRY(verify_open(out, dir, true));
    OT_TRY_GOTO(ot_checkpoint_open(dir, &c.checkpoint), rc, out);
    c.manifest = ot_checkpoint_manifest(c.checkpoint);
    const struct ot_checkpoint_record *record = ot_checkpoint_record(c.checkpoint);
    struct ot_segment state = ot_manifest_state(c.manifest);
    out->step = record->progress.step;
    snprintf(out->what, sizeof out->what, "step %lld of %lld, %s%s%s%s, made %s by offload-train %s on %s",
             (long long)record->progress.step, (long long)record->steps, ot_dtype_name(c.manifest->dtype),
             state.state           ? ", state in "
             : state.lacks_moments ? ", the weights alone"
                                   : "",
             state.state ? ot_state_format_name(state.state) : "",
             state.masters == OT_MASTERS_NONE ? ", without masters" : "", record->made, record->library,
             record->device);
    OT_TRY_GOTO(check_model(&c), rc, out);
    OT_TRY_GOTO(add_files(&c), rc, out);
    rc = read_segments(&c);
out:
    pthread_mutex_destroy(&c.mutex);
    ot_model_close(c.model);
    ot_checkpoint_close(c.checkpoint);
    return verify_note(out, rc);
}

/* ---- models and adapters ---- */

/* Verifies a model directory, or adapters over their base: opening and loading it checks the files, and this
 * file gathers the largest values as they are read. */

struct model_check {
    struct ot_verify *verify;
    const struct ot_chain *chain;
    int64_t done, total; /* in values, padding included */
    bool progress;
};

static int take_values(void *context, int slab, int64_t first, int64_t n, const float *values) {
    struct model_check *c = context;
    float most = 0;
    for (int64_t i = 0; i < n;
         i++) { /* all finite: for any other value the loader returns an error that names the tensor */
        float magnitude = fabsf(values[i]);
        most = ot_max(magnitude, most);
    }
    struct ot_verify_slab *row = &c->verify->slabs[slab];
    row->most_weight = ot_max((double)most, row->most_weight);
    row->state = first + n == c->chain->slabs[slab].n_params ? OT_VERIFY_OK : OT_VERIFY_NOT_READ;
    c->done += n;
    if (c->progress)
        verify_show_progress(c->verify, c->done, c->total);
    return 0;
}

static int check_tokenizer(const struct ot_model_facts *facts, struct ot_verify *verify) {
    struct ot_tokenizer *tokenizer = NULL;
    if (!facts->tokenizer_path && (facts->sentencepiece || facts->tokenizer_file))
        return verify_note(verify, ot_fail(OT_E_INPUT, "%s", facts->tokenizer_missing));
    if (!facts->tokenizer_path)
        return 0;
    int rc = ot_tokenizer_open(facts->tokenizer_path, &tokenizer);
    ot_tokenizer_close(tokenizer);
    if (rc < 0 && facts->tokenizer_is_made)
        rc = ot_fail_context(rc, "%s: the tokenizer that its keys describe", verify->dir);
    if (rc < 0 && facts->has_made_sentencepiece)
        rc = ot_fail_context(rc, "%s: the tokenizer that is made from it", facts->sentencepiece);
    if (rc < 0 && facts->tokenizer_file)
        rc = ot_fail_context(rc, "%s: with the added tokens of the files beside it", facts->tokenizer_file);
    return verify_note(verify, rc);
}

/* Loads slab by slab and stops at the first wrong value. */
static int load_weights(const struct ot_model_dir *dir, const struct ot_model *model, struct model_check *c) {
    OT_TRY(ot_model_dir_check(dir, model));
    int rc = ot_model_dir_load(dir, model, NULL, take_values, c), at = 0;
    while (at < c->verify->n_slabs && c->verify->slabs[at].state == OT_VERIFY_OK)
        at++;
    if (rc < 0 && at < c->verify->n_slabs)
        c->verify->slabs[at].state = OT_VERIFY_DAMAGED;
    return rc;
}

/* lora: the spec of the adapters laid over the model; NULL: none. */
static int check_weights(const struct ot_model_dir *dir, const char *lora, struct model_check *c) {
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    const struct ot_selection selection = {.lora = lora};
    struct ot_model *model;
    if (!facts->has_weights)
        return ot_fail(OT_E_INPUT, "%s: %s", c->verify->dir, facts->weights_missing);
    OT_TRY(lora ? ot_model_open_selected(&facts->config, OT_F32, 1, &selection, &model)
                : ot_model_open(&facts->config, OT_F32, 1, &model));
    c->chain = ot_model_chain(model);
    for (int i = 0; i < c->chain->n_slabs; i++)
        c->total += c->chain->slabs[i].n_params;
    int rc = verify_add_slabs(c->verify, model);
    if (rc == 0)
        rc = load_weights(dir, model, c);
    ot_model_close(model);
    return rc;
}

static void describe(const struct ot_model_facts *facts, const char *adapter, struct ot_verify *out) {
    char bytes[OT_TEXT_BYTES];
    snprintf(out->what, sizeof out->what, "%s%s, %s, %d weight file%s of %s bytes%s",
             adapter ? "adapters over " : "", ot_family_row(facts->config.family)->model_type,
             ot_dtype_name(facts->dtype), facts->n_shards, facts->n_shards == 1 ? "" : "s",
             ot_text_count(facts->weight_bytes, bytes),
             facts->tokenizer_path ? ", with a tokenizer" : ", without a tokenizer");
}

int ot_verify_model(const char *path, bool progress, struct ot_verify *out) {
    struct model_check c = {.verify = out, .progress = progress};
    struct ot_resolved found = {0};
    struct ot_model_dir *dir = NULL;
    char *lora = NULL;
    int rc;
    OT_TRY(verify_open(out, path, false));
    OT_TRY_GOTO(ot_model_resolve(path, &found), rc, out);
    OT_TRY_GOTO(ot_model_dir_open(found.path, &dir), rc, out);
    const struct ot_model_facts *facts = ot_model_dir_facts(dir);
    describe(facts, found.adapter, out);
    OT_TRY_GOTO(check_tokenizer(facts, out), rc, out);
    if (found.adapter) {
        OT_TRY_GOTO(ot_model_dir_add_adapter(dir, found.adapter), rc, out);
        OT_TRY_GOTO(ot_adapter_config_check_saved(found.adapter, dir), rc, out);
        OT_TRY_GOTO(ot_adapter_config_read(found.adapter, &facts->config, false, &lora), rc, out);
    }
    rc = check_weights(dir, lora, &c);
out:
    free(lora);
    ot_resolved_free(&found);
    ot_model_dir_close(dir);
    return verify_note(out, rc);
}
