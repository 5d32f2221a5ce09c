#include "src/checkpoint/verify.h"

#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"

/* ---- gathering ---- */

int ot_verify_open(struct ot_verify *verify, const char *dir, bool is_checkpoint) {
    *verify = (struct ot_verify){.dir = strdup(dir), .is_checkpoint = is_checkpoint, .step = -1};
    return verify->dir ? 0 : ot_fail(OT_E_BUDGET, "%s: no memory", dir);
}

int ot_verify_add_slabs(struct ot_verify *verify, const struct ot_model *model) {
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

int ot_verify_note(struct ot_verify *verify, int rc) {
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

void ot_verify_show_progress(const struct ot_verify *verify, int64_t done, int64_t total) {
    char line[OT_ERROR_TEXT_BYTES];
    if (!ot_log_is_terminal())
        return;
    snprintf(line, sizeof line, "reading %s: %.0f %%", verify->dir,
             100.0 * (double)done / (double)(total + !total));
    ot_log_set_status(done < total ? line : "");
}

const char *ot_verify_tensor(const struct ot_model *model, int slab, int64_t index) {
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
