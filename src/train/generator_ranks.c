/* Several ranks share the work of generation: each continues some of the prompts (generator_state.h).
 *
 * MEETINGS. A rank may finish its texts long before another one. It must not wait for that rank in one call,
 * because each wait for a rank has a deadline (--comm-timeout). So all ranks meet after every few passes,
 * and say whether they go on, are done, or have failed. Ranks that are done go on to meet until all are.
 * A failure ends the work of all at the next meeting. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/session/session_ranks.h"
#include "src/train/generator_state.h"

/* A pass that streams a large model from a disk takes minutes. */
enum { PASSES_BETWEEN_MEETINGS = 4 };

enum progress { GOES_ON, DONE, FAILED };

/* Returns the least progress of all ranks, or FAILED if a rank has failed. */
static int meet(struct ot_session *s, enum progress mine) {
    unsigned char own = (unsigned char)mine, all[OT_MAX_RANKS];
    int least = FAILED;
    OT_TRY(ot_comm_all_gather_host(s->ranks.comm, &own, 1, all));
    for (int r = 0; r < ot_comm_ranks(s->ranks.comm); r++) {
        if (all[r] == FAILED)
            return FAILED;
        least = ot_min(least, all[r]);
    }
    return least;
}

int ot_meetings_pass(struct ot_meetings *m) {
    if (++m->passes % PASSES_BETWEEN_MEETINGS != 0)
        return 0;
    int progress = meet(m->session, GOES_ON);
    return progress < 0 ? progress : progress == FAILED;
}

/* After this rank's last pass. rc: as ot_generate_groups. */
static int await_others(struct ot_session *s, int rc) {
    struct ot_error own;
    ot_error_save(&own, rc);
    if (rc == -OT_E_COMM || rc > 0)
        return rc < 0 ? rc : 0;
    int progress;
    do
        OT_TRY(progress = meet(s, rc < 0 ? FAILED : DONE));
    while (progress == GOES_ON);
    return ot_error_load(&own);
}

/* ---- the texts of a rank, as bytes ---- */

struct packed {
    unsigned char *bytes;
    size_t n, capacity;
};

struct head {
    int64_t n;
    size_t bytes;
    double seconds;
    int64_t ended;
};

static int put(struct packed *p, const void *from, size_t bytes) {
    OT_TRY(ot_grow(&p->bytes, &p->capacity, p->n + bytes + 1, 1, "bytes of generated texts"));
    if (bytes > 0)
        memcpy(p->bytes + p->n, from, bytes);
    p->n += bytes;
    return 0;
}

static int pack(struct packed *p, const struct ot_generated *text) {
    const struct head head = {text->n, text->bytes, text->seconds, text->ended};
    OT_TRY(put(p, &head, sizeof head));
    OT_TRY(put(p, text->ids, (size_t)text->n * sizeof *text->ids));
    return put(p, text->text, text->bytes);
}

/* Takes the text at *at, and moves *at behind it. */
static int unpack(const unsigned char **at, struct ot_generated *out) {
    struct head head;
    memcpy(&head, *at, sizeof head);
    *at += sizeof head;
    size_t ids = (size_t)head.n * sizeof *out->ids;
    *out = (struct ot_generated){.n = head.n,
                                 .bytes = head.bytes,
                                 .seconds = head.seconds,
                                 .ended = head.ended,
                                 .ids = malloc(ids + 1),
                                 .text = malloc(head.bytes + 1)};
    if (!out->ids || !out->text) {
        ot_generated_free(out);
        return ot_fail(OT_E_BUDGET, "no memory for a text of another rank, %zu bytes", head.bytes);
    }
    memcpy(out->ids, *at, ids);
    memcpy(out->text, *at + ids, head.bytes);
    out->text[head.bytes] = '\0';
    *at += ids + head.bytes;
    return 0;
}

/* ---- sharing ---- */

struct share {
    struct ot_session *session;
    const struct ot_generation *generations; /* [n] of all ranks */
    struct ot_generated *out;                /* [n] */
    int n, ranks;
};

/* Generates the texts of this rank. */
static int generate_own(const struct share *share, int rank) {
    struct ot_meetings meetings = {.session = share->session};
    int own = 0, rc, n = share->n > rank ? (share->n - rank - 1) / share->ranks + 1 : 0;
    struct ot_generation *generations = calloc((size_t)n + 1, sizeof *generations);
    struct ot_generated *texts = calloc((size_t)n + 1, sizeof *texts);
    if (!generations || !texts)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory to generate %d texts", n), rc, out);
    for (int i = rank; i < share->n; i += share->ranks)
        generations[own++] = share->generations[i];
    rc = ot_generate_groups(share->session, generations, n, &meetings, texts);
    for (int i = 0; i < n; i++)
        share->out[rank + i * share->ranks] = texts[i];
out:
    free(generations);
    free(texts);
    return await_others(share->session, rc);
}

/* Hands the texts of a rank to all ranks. */
static int hand(const struct share *share, int rank) {
    bool is_own = ot_comm_rank(share->session->ranks.comm) == rank;
    struct packed packed = {0};
    int rc = 0;
    for (int i = rank; i < share->n && is_own && rc == 0; i += share->ranks)
        rc = pack(&packed, &share->out[i]);
    if (rc == 0)
        rc = ot_session_ranks_hand(share->session, rank, &packed.bytes, &packed.n);
    const unsigned char *at = packed.bytes;
    for (int i = rank; i < share->n && !is_own && rc == 0; i += share->ranks) {
        rc = unpack(&at, &share->out[i]);
        if (rc == 0)
            rc = ot_generated_finish(&share->generations[i], &share->out[i]);
    }
    free(packed.bytes);
    return rc;
}

/* A rank that fails reports its own error; the others report the error of the first such rank. */
static int agree(struct ot_session *s, int rc) {
    struct ot_error own;
    ot_error_save(&own, rc);
    int all = ot_session_ranks_agree(s, rc);
    return rc < 0 ? ot_error_load(&own) : all;
}

int ot_generate_shared(struct ot_session *s, const struct ot_generation *generations, int n,
                       struct ot_generated *out) {
    int ranks = ot_comm_ranks(s->ranks.comm), most = ranks * ot_max(s->plan.texts, 1);
    OT_TRY(ot_engine_prepare_passes(s->engine));
    for (int first = 0; first < n; first += most) {
        struct share share = {s, generations + first, out + first, ot_min(n - first, most), ranks};
        OT_TRY(agree(s, generate_own(&share, ot_comm_rank(s->ranks.comm))));
        for (int r = 0; r < ranks; r++)
            OT_TRY(hand(&share, r));
    }
    return 0;
}
