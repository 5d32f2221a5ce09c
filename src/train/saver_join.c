/* Joins the parts that the ranks have written to one checkpoint. */
#include <stdlib.h>

#include "src/checkpoint/writer.h"
#include "src/session/session_ranks.h"
#include "src/train/saver_state.h"

/* Brings the parts of one rank to rank 0. `rc`: rank 0's error so far; it still takes part. */
static int join_rank(struct ot_saver *sv, int from, unsigned char *own, size_t own_bytes, int *rc) {
    unsigned char *bytes = own;
    size_t n = own_bytes;
    int handed = ot_session_ranks_hand(sv->config.session, from, &bytes, &n);
    if (handed == 0 && sv->is_rank0 && *rc == 0)
        *rc = ot_checkpoint_writer_add(sv->writer, bytes, n);
    if (bytes != own)
        free(bytes);
    return handed;
}

/* Hands the manifest of all parts to the ranks that lead in other directories. `rc`: as above. */
static int spread(struct ot_saver *sv, int *rc) {
    unsigned char *bytes = NULL;
    size_t n = 0;
    if (sv->is_rank0 && *rc == 0)
        *rc = ot_checkpoint_writer_share(sv->writer, &bytes, &n);
    int handed = ot_session_ranks_hand(sv->config.session, 0, &bytes, &n);
    if (handed == 0 && n > 0 && sv->leads && !sv->is_rank0)
        *rc = ot_checkpoint_writer_take(sv->writer, bytes, n);
    free(bytes);
    return handed;
}

int ot_saver_join(struct ot_saver *sv, int rc) {
    struct ot_session *s = sv->config.session;
    unsigned char *own = NULL;
    size_t n = 0;
    if (!ot_plan_is_sharded(&s->plan)) /* each leader has written everything */
        return ot_session_ranks_agree(s, rc);
    if (rc == 0 && !sv->is_rank0)
        rc = ot_checkpoint_writer_share(sv->writer, &own, &n);
    OT_TRY_GOTO(ot_session_ranks_agree(s, rc), rc, out);
    int joined = 0;
    for (int from = 1; from < s->plan.shard.ranks; from++)
        OT_TRY_GOTO(join_rank(sv, from, own, n, &joined), rc, out);
    if (sv->is_local) {
        OT_TRY_GOTO(spread(sv, &joined), rc, out);
        OT_TRY_GOTO(ot_session_ranks_agree(s, joined), rc,
                    out); /* before the first directory has the checkpoint */
    }
    if (sv->leads && joined == 0)
        joined = ot_checkpoint_writer_seal(sv->writer);
    rc = ot_session_ranks_agree(s, joined);
out:
    free(own);
    return rc;
}
