#include "src/session/restore.h"

#include <math.h>
#include <stdio.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/checkpoint/reader.h"

static int check_model(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model);
    const struct ot_manifest *manifest = ot_checkpoint_manifest(s->restored);
    const char *dir = ot_checkpoint_dir(s->restored);
    if (manifest->dtype != chain->dtype)
        return ot_fail(OT_E_INPUT, "%s: is of training in %s, and this is in %s: give --dtype %s", dir,
                       ot_dtype_name(manifest->dtype), ot_dtype_name(chain->dtype),
                       ot_dtype_name(manifest->dtype));
    bool same = manifest->n_slabs == chain->n_slabs;
    for (int i = 0; i < chain->n_slabs && same; i++)
        same = manifest->slab_params[i] == chain->slabs[i].n_params;
    return same ? 0 : ot_fail(OT_E_INPUT, "%s: is of a model of another shape", dir);
}

static int put_part(void *context, const struct ot_part *part, const void *memory) {
    return ot_engine_put(context, part, memory);
}

static void show_progress(void *context, int64_t bytes, int64_t total) {
    char line[160], so_far[OT_TEXT_BYTES], all[OT_TEXT_BYTES];
    snprintf(line, sizeof line, "reading the checkpoint: %s of %s", ot_text_bytes(bytes, so_far),
             ot_text_bytes(total, all));
    ot_log_set_status(line);
    (void)context;
}

static void print_time(const struct ot_session *s) {
    char size[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES];
    int64_t bytes = ot_checkpoint_bytes(s->restored);
    ot_log(OT_LOG_INFO, "restore %s in %s (%s/s)", ot_text_bytes(bytes, size),
           ot_text_seconds(s->restore_seconds, time),
           ot_text_bytes((int64_t)((double)bytes / fmax(s->restore_seconds, 1e-6)), rate));
}

int ot_session_restore(struct ot_session *s) {
    struct ot_checkpoint_read read = {.io_engine = (enum ot_io_choice)s->options->io_engine,
                                      .sink = put_part,
                                      .context = s->engine,
                                      .progress = s->options->quiet ? NULL : show_progress};
    OT_TRY(check_model(s));
    read.memory = ot_engine_snapshot_slots(s->engine, &read.n_slots);
    double begun = ot_clock_seconds();
    int rc = ot_checkpoint_read(s->restored, &read);
    s->restore_seconds = ot_clock_seconds() - begun;
    ot_log_set_status("");
    OT_TRY(rc);
    ot_engine_set_progress(s->engine, &ot_checkpoint_record(s->restored)->progress);
    print_time(s);
    return 0;
}
