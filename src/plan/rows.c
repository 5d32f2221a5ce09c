#include "src/plan/rows.h"

#include <string.h>

#include "src/base/error.h"
#include "src/session/chat_choice.h"
#include "src/session/session.h"
#include "src/train/rows.h"

/* Bytes a token, of vocabularies up to most_tokens. English questions, and SQL with its tables: Llama 2
 * (32,000) has 3.3 and 2.8 bytes a token, CodeGen (50,295) 4.0 and 3.1 (measured on rows of WikiSQL). Llama 3
 * (128,256) has a quarter more than Llama 2 (Dubey et al., "The Llama 3 Herd of Models", 2024: 3.94
 * characters against 3.17). Texts in other languages have fewer. */
static const struct {
    int64_t most_tokens;
    double bytes;
} KINDS[] = {{1000, 1}, {40000, 3.0}, {99999, 3.5}, {INT64_MAX, 3.7}};

double ot_plan_rows_bytes_per_token(int64_t vocab) {
    int i = 0;
    while (vocab > KINDS[i].most_tokens)
        i++;
    return KINDS[i].bytes;
}

static int count(struct ot_options *as_run, int64_t seq_len, struct ot_plan_rows *out) {
    struct ot_session session;
    struct ot_rows rows = {0};
    int rc;
    as_run->command = OT_COMMAND_TRAIN;
    as_run->init = OT_CHOICE_INIT_RANDOM; /* weights are not needed */
    /* --threads describes the other machine; this machine reads the rows. */
    ot_option_reset(as_run, ot_option_find("threads", strlen("threads"), as_run->command));
    struct ot_settings settings = {*as_run};
    OT_TRY_GOTO(ot_session_open_files(&settings, OT_BF16, &session), rc, out);
    OT_TRY_GOTO(ot_chat_choice_open(&session), rc, out);
    OT_TRY_GOTO(ot_rows_open(&session, seq_len, &rows), rc, out);
    *out = (struct ot_plan_rows){ot_packing_rows(rows.train), ot_packing_sequences(rows.train),
                                 ot_packing_tokens(rows.train)};
out:
    ot_rows_close(&rows);
    ot_session_close(&session);
    return rc;
}

int ot_plan_rows_count(const struct ot_options *options, int64_t seq_len, struct ot_plan_rows *out) {
    struct ot_options as_run = *options;
    return count(&as_run, seq_len, out);
}

/* A preset of this program's own has a tokenizer whose tokens are bytes. */
int ot_plan_rows_estimate(const struct ot_options *options, double bytes_per_token, int64_t seq_len,
                          struct ot_plan_rows *out) {
    struct ot_options as_run = *options;
    as_run.model = "tiny-sql";
    as_run.adapter = NULL;
    OT_TRY(count(&as_run, (int64_t)((double)seq_len * bytes_per_token), out));
    out->tokens = (int64_t)((double)out->tokens / bytes_per_token);
    return 0;
}
