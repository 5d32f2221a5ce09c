/* The functions of a communicator that wait. They use the world's connections, or the plugin's own if the
 * plugin has found the ranks by itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm_state.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

/* The most bytes of a differing text, and the most texts, that the sentence shows. */
enum { SHOWN_BYTES = 100, SHOWN_BEFORE = 20, MOST_TEXTS = 4 };

/* ---- gathers ---- */

/* bytes <= OT_COMM_MOST_CONTROL_BYTES */
static int gather_piece(struct ot_comm *comm, const void *mine, size_t bytes, void *all) {
    if (atomic_load(&comm->is_broken))
        return ot_comm_error(comm);
    if (comm->world) {
        int rc = ot_world_all_gather(comm->world, mine, bytes, all);
        return rc < 0 ? ot_comm_break(comm, rc) : 0;
    }
    if (comm->is_open && (comm->api->capabilities & OT_COMM_HAS_CONTROL)) {
        int code = comm->api->all_gather_host(comm->context, mine, bytes, all);
        if (code == OT_COMM_OK)
            return 0;
        ot_comm_break_by_code(comm, "all_gather_host", code);
        return ot_comm_error(comm);
    }
    memcpy(all, mine, bytes);
    return 0;
}

int ot_comm_all_gather_host(struct ot_comm *comm, const void *mine, size_t bytes, void *all) {
    const size_t most = OT_COMM_MOST_CONTROL_BYTES, ranks = (size_t)comm->ranks;
    int rc = 0;
    if (bytes == 0)
        return 0;
    if (bytes <= most)
        return gather_piece(comm, mine, bytes, all);
    char *parts = malloc(ranks * most);
    if (!parts)
        return ot_fail(OT_E_BUDGET, "no memory to gather %zu bytes of %zu ranks", bytes, ranks);
    for (size_t at = 0; rc == 0 && at < bytes; at += most) {
        size_t piece = ot_min(bytes - at, most);
        rc = gather_piece(comm, (const char *)mine + at, piece, parts);
        for (size_t r = 0; rc == 0 && r < ranks; r++)
            memcpy((char *)all + r * bytes + at, parts + r * piece, piece);
    }
    free(parts);
    return rc;
}

int ot_comm_broadcast_host(struct ot_comm *comm, void *memory, size_t bytes, int root) {
    const size_t most = OT_COMM_MOST_CONTROL_BYTES;
    int rc = 0;
    if (bytes == 0 || comm->ranks == 1)
        return comm->ranks == 1 ? 0 : ot_comm_error(comm);
    char *parts = malloc((size_t)comm->ranks * ot_min(bytes, most));
    if (!parts)
        return ot_fail(OT_E_BUDGET, "no memory to broadcast %zu bytes", bytes);
    for (size_t at = 0; rc == 0 && at < bytes; at += most) {
        size_t piece = ot_min(bytes - at, most);
        rc = gather_piece(comm, (char *)memory + at, piece, parts);
        if (rc == 0 && comm->rank != root)
            memcpy((char *)memory + at, parts + (size_t)root * piece, piece);
    }
    free(parts);
    return rc;
}

int ot_comm_barrier(struct ot_comm *comm) {
    char mine = 0, all[OT_MAX_RANKS];
    return gather_piece(comm, &mine, 1, all);
}

/* ---- agreement ---- */

/* "ranks 2, 3 and 5 have ": the ranks whose text is the same as that of `rank`. */
static void append_ranks(struct ot_string_builder *b, const char *texts, size_t bytes, int rank, int ranks) {
    char list[OT_RANK_LIST_BYTES];
    uint64_t same = 0;
    for (int r = 0; r < ranks; r++)
        if (strcmp(texts + (size_t)r * bytes, texts + (size_t)rank * bytes) == 0)
            same |= UINT64_C(1) << r;
    bool is_one = (same & (same - 1)) == 0;
    ot_string_append_format(b, "%s %s ", ot_rank_list(same, list), is_one ? "has" : "have");
}

static bool appears_before(const char *texts, size_t bytes, int rank) {
    for (int r = 0; r < rank; r++)
        if (strcmp(texts + (size_t)r * bytes, texts + (size_t)rank * bytes) == 0)
            return true;
    return false;
}

/* The number of bytes at the start of all texts that are equal, less a few for the context. 0 if the texts
 * are short enough to be shown whole. */
static size_t common_start(const char *texts, size_t bytes, int ranks) {
    size_t common = 0;
    if (bytes <= SHOWN_BYTES)
        return 0;
    for (;; common++)
        for (int r = 0; r < ranks; r++) {
            char byte = texts[(size_t)r * bytes + common];
            if (byte != texts[common] || byte == '\0')
                return common > SHOWN_BEFORE ? common - SHOWN_BEFORE : 0;
        }
}

static int fail_to_agree(const char *what, const char *texts, size_t bytes, int ranks) {
    struct ot_string_builder b = {0};
    size_t skipped = common_start(texts, bytes, ranks);
    int shown = 0, left_out = 0;
    for (int r = 0; r < ranks; r++) {
        const char *text = texts + (size_t)r * bytes + skipped;
        if (appears_before(texts, bytes, r))
            continue;
        if (shown++ >= MOST_TEXTS) {
            left_out++;
            continue;
        }
        ot_string_append_text(&b, b.bytes ? ", " : "");
        append_ranks(&b, texts, bytes, r, ranks);
        ot_string_append_format(&b, "%s%.*s%s", skipped ? "..." : "", SHOWN_BYTES, *text ? text : "nothing",
                                strlen(text) > SHOWN_BYTES ? "..." : "");
    }
    if (left_out > 0)
        ot_string_append_format(&b, ", and there are %d more", left_out);
    int rc = ot_fail_cause(OT_E_USAGE, OT_CAUSE_RANKS_DIFFER, "%s differs: %s", what,
                           b.failed ? "between ranks" : b.text);
    free(b.text);
    return rc;
}

int ot_comm_agree(struct ot_comm *comm, const char *what, const char *text) {
    uint32_t sizes[OT_MAX_RANKS], mine = (uint32_t)strlen(text) + 1, bytes = 0;
    if (mine > OT_COMM_MOST_CONTROL_BYTES)
        return ot_fail(OT_E_INTERNAL, "%s: a text of %u bytes is too long to compare", what, mine);
    OT_TRY(gather_piece(comm, &mine, sizeof mine, sizes));
    for (int r = 0; r < comm->ranks; r++)
        bytes = ot_max(sizes[r], bytes);
    char *texts = calloc((size_t)comm->ranks + 1, bytes);
    if (!texts)
        return ot_fail(OT_E_BUDGET, "no memory to compare %s of %d ranks", what, comm->ranks);
    char *own = texts + (size_t)comm->ranks * bytes;
    memcpy(own, text, mine);
    int rc = gather_piece(comm, own, bytes, texts);
    bool same = true;
    for (int r = 1; rc == 0 && r < comm->ranks; r++)
        same &= strcmp(texts, texts + (size_t)r * bytes) == 0;
    if (rc == 0 && !same)
        rc = fail_to_agree(what, texts, bytes, comm->ranks);
    free(texts);
    return rc;
}
