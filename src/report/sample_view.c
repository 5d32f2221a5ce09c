#include "src/report/sample_view.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"

int ot_sample_view_print(const struct ot_session *session, const struct ot_rows *rows) {
    struct ot_dataset_config config = ot_rows_config(session, session->options->data, rows->seq_len);
    char *text;
    config.progress = NULL;
    OT_TRY(ot_dataset_show_sample(&config, 0, ot_log_is_terminal(), &text));
    ot_log_text(text, strlen(text));
    free(text);
    return 0;
}
