/* offload-train merge: adds adapters to the weights of their base and writes a Hugging Face directory. */
#include <stdio.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/files/out_lock.h"
#include "src/session/chat_choice.h"
#include "src/train/merge.h"
#include "src/train/result.h"

struct job {
    struct ot_settings settings;
    struct ot_session session;
    struct ot_merge merge;
    struct ot_result result;
    struct ot_out_lock *lock;
    int64_t done;
    double seconds;
};

static int get_values(void *context, int slab, int64_t first, int64_t n, float *values) {
    struct job *job = context;
    char line[96], done[OT_TEXT_BYTES], total[OT_TEXT_BYTES];
    OT_TRY(ot_merge_get(&job->merge, slab, first, n, values));
    job->done += n;
    double all = (double)ot_model_param_count(ot_model_get_config(job->session.model.built));
    snprintf(line, sizeof line, "merging: %s of %s parameters", ot_text_short((double)job->done, done),
             ot_text_short(all, total));
    if (!job->settings.in_effect.quiet && ot_log_is_terminal())
        ot_log_set_status(line);
    return 0;
}

static int merge(struct job *job) {
    double begun = ot_clock_seconds();
    OT_TRY(ot_session_open_files(&job->settings, OT_F32, &job->session));
    OT_TRY(ot_chat_choice_open(&job->session));
    OT_TRY(ot_merge_open(&job->session, &job->merge));
    OT_TRY(ot_result_open(&job->session, job->settings.in_effect.out, job->lock, NULL, &job->result));
    int rc = ot_result_write_from(&job->result, NULL, get_values, job);
    ot_log_set_status("");
    job->seconds = ot_clock_seconds() - begun;
    return rc;
}

static int print_result(const struct job *job) {
    const struct ot_session *s = &job->session;
    const struct ot_options *o = s->options;
    int64_t n = ot_model_param_count(ot_model_get_config(s->model.built));
    char count[OT_TEXT_BYTES], time[OT_TEXT_BYTES], bytes[OT_TEXT_BYTES];
    if (!o->json) {
        printf("%s: %s parameters as %s, %lld adapters of %s merged%s · %s in %s\n", o->out,
               ot_text_count(n, count), ot_dtype_name(s->model.stored), (long long)job->merge.n_adapters,
               o->adapter, job->merge.unties ? ", head and embedding apart now" : "",
               ot_text_bytes(job->result.bytes, bytes), ot_text_duration(job->seconds, time));
        return 0;
    }
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "out", o->out);
    ot_json_put_text(&w, "base", ot_model_dir_path(s->model.dir));
    ot_json_put_text(&w, "adapter", o->adapter);
    ot_json_put_text(&w, "lora", o->lora);
    ot_json_put_int(&w, "adapters", job->merge.n_adapters);
    ot_json_put_int(&w, "parameters", n);
    ot_json_put_text(&w, "dtype", ot_dtype_name(s->model.stored));
    ot_json_put_real(&w, "seconds", job->seconds);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

int ot_command_merge(const struct ot_options *options) {
    struct job job = {.settings = {*options}};
    int rc;
    OT_TRY_GOTO(ot_out_lock_await(options->out, &job.lock), rc, out);
    OT_TRY_GOTO(merge(&job), rc, out);
    rc = print_result(&job);
out:
    ot_result_close(&job.result);
    ot_merge_close(&job.merge);
    ot_session_close(&job.session);
    ot_out_lock_close(job.lock);
    return rc;
}
