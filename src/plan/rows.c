#include "src/plan/rows.h"

#include <string.h>

#include "src/base/error.h"
#include "src/run/rows.h"
#include "src/session/chat_choice.h"
#include "src/session/session.h"

int ot_plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out) {
    struct ot_options as_run = *options;
    struct ot_session session;
    struct ot_rows rows = {0};
    int rc;
    as_run.command = OT_COMMAND_TRAIN;
    as_run.init = OT_CHOICE_INIT_RANDOM; /* weights are not needed */
    /* --threads describes the other machine; this machine reads the rows. */
    ot_option_reset(&as_run, ot_option_find("threads", strlen("threads"), as_run.command));
    struct ot_settings settings = {as_run};
    OT_TRY_GOTO(ot_session_open_files(&settings, OT_BF16, &session), rc, out);
    OT_TRY_GOTO(ot_chat_choice_open(&session), rc, out);
    OT_TRY_GOTO(ot_rows_open(&session, seq_len, &rows), rc, out);
    *out = (struct ot_plan_rows){ot_packing_rows(rows.train), ot_packing_sequences(rows.train)};
out:
    ot_rows_close(&rows);
    ot_session_close(&session);
    return rc;
}
