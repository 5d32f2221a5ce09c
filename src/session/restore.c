#include "src/session/restore.h"

#include <math.h>
#include <stdio.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/reader.h"
#include "src/session/session_ranks.h"

static int check_model(const struct ot_session *s) {
    const struct ot_chain *chain = ot_model_chain(s->model);
    const struct ot_manifest *manifest = ot_checkpoint_manifest(s->restored);
    const char *dir = ot_checkpoint_dir(s->restored);
    if (manifest->dtype != chain->dtype)
        return ot_fail(
            OT_E_INPUT, "%s: the checkpoint was trained in %s and this run uses %s. Give --dtype %s", dir,
            ot_dtype_name(manifest->dtype), ot_dtype_name(chain->dtype), ot_dtype_name(manifest->dtype));
    return ot_manifest_check_model(manifest, chain, dir);
}

/* The run goes on in another format of the moments only if the user asked for it. Warns of the effect. */
static int check_format(const struct ot_session *s, enum ot_state_format was) {
    enum ot_state_format is = ot_model_chain(s->model)->state;
    const char *dir = ot_checkpoint_dir(s->restored);
    if (was == is)
        return 0;
    if (s->options->exact)
        return ot_fail(OT_E_USAGE,
                       "%s has its optimizer state in %s, and this run uses --state %s: --exact resumes only "
                       "with the same format",
                       dir, ot_state_format_name(was), ot_state_format_name(is));
    ot_log(
        OT_LOG_WARN,
        "%s has its optimizer state in %s, which is converted to %s: from now on, losses and weights differ "
        "from those of a run that keeps %s",
        dir, ot_state_format_name(was), ot_state_format_name(is), ot_state_format_name(was));
    return 0;
}

/* The same for fp32 masters that the run gives up or takes up. */
static int check_masters(const struct ot_session *s, enum ot_masters was) {
    enum ot_masters is = ot_model_chain(s->model)->masters;
    const char *dir = ot_checkpoint_dir(s->restored);
    if (was == is)
        return 0;
    if (s->options->exact)
        return ot_fail(OT_E_USAGE,
                       "%s was made with --master-weights %s, and this run uses --master-weights %s: --exact "
                       "resumes only with the same",
                       dir, ot_masters_name(was), ot_masters_name(is));
    ot_log(OT_LOG_WARN,
           "%s has %s: from now on, losses and weights differ from those of a run that keeps "
           "--master-weights %s",
           dir,
           is == OT_MASTERS_NONE ? "fp32 master weights, which this run drops"
                                 : "no fp32 master weights, so they begin as its bf16 weights",
           ot_masters_name(was));
    return 0;
}

static int check_state(const struct ot_session *s) {
    struct ot_segment was = ot_manifest_state(ot_checkpoint_manifest(s->restored));
    OT_TRY(check_format(s, was.state));
    return check_masters(s, was.masters);
}

static bool wants_segment(void *context, const struct ot_segment *segment) {
    return ot_engine_holds(context, segment);
}

static int put_segment(void *context, const struct ot_segment *segment, const void *memory) {
    return ot_engine_put(context, segment, memory);
}

static void show_progress(void *context, int64_t bytes, int64_t total) {
    char line[160], so_far[OT_TEXT_BYTES], all[OT_TEXT_BYTES];
    snprintf(line, sizeof line, "reading the checkpoint: %s of %s", ot_text_bytes(bytes, so_far),
             ot_text_bytes(total, all));
    ot_log_set_status(line);
    (void)context;
}

/* The bytes of the segments that this rank reads. */
static int64_t count_bytes(const struct ot_session *s) {
    const struct ot_manifest *manifest = ot_checkpoint_manifest(s->restored);
    int64_t bytes = 0;
    for (int64_t i = 0; i < manifest->n_segments; i++) {
        const struct ot_manifest_segment *segment = &manifest->segments[i];
        if (segment->n_spans > 0 && ot_engine_holds(s->engine, &segment->segment))
            bytes += (int64_t)ot_segment_padded_bytes(manifest->dtype, &segment->segment);
    }
    return bytes;
}

static void print_time(const struct ot_session *s) {
    char size[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES];
    int64_t bytes = count_bytes(s);
    ot_log(OT_LOG_INFO, "restore %s in %s (%s/s)", ot_text_bytes(bytes, size),
           ot_text_seconds(s->restore_seconds, time),
           ot_text_bytes((int64_t)((double)bytes / fmax(s->restore_seconds, 1e-6)), rate));
}

/* More threads do not make a restore faster: each takes checksums and copies at several GB/s. */
enum { MOST_THREADS = 4 };

int ot_session_restore(struct ot_session *s) {
    int threads = (int)s->options->threads;
    struct ot_checkpoint_read read = {.io_engine = (enum ot_io_choice)s->options->io_engine,
                                      .threads = threads < 2 ? 0 : ot_min(threads, MOST_THREADS),
                                      .sink = put_segment,
                                      .context = s->engine,
                                      .wants = wants_segment,
                                      .progress =
                                          s->options->quiet || !ot_is_rank0(s) ? NULL : show_progress};
    OT_TRY(check_model(s));
    OT_TRY(check_state(s));
    read.memory = ot_engine_snapshot_slots(s->engine, &read.n_slots);
    double begun = ot_clock_seconds();
    int rc = ot_checkpoint_read(s->restored, &read);
    if (rc == 0)
        rc = ot_engine_unstage(s->engine);
    s->restore_seconds = ot_clock_seconds() - begun;
    ot_log_set_status("");
    OT_TRY(rc);
    ot_engine_set_progress(s->engine, &ot_checkpoint_record(s->restored)->progress);
    print_time(s);
    return 0;
}
