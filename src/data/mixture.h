/* How often each row is trained in an epoch, where the sources of --data have shares.
 *
 * An epoch has as many rows (or tokens) as all sources together have to train on. A source with the share s
 * gets s of them: all its documents a whole number of times, and for the rest a draw of its documents. So a
 * share above the source's own repeats documents, and a smaller one leaves documents out. Both are the same
 * in every epoch: the number of steps is then the same too, and a run resumes anywhere. The draw is a
 * function of the seed (counter-based, as all random numbers here). Pieces of one document stay together.
 * */
#ifndef OT_DATA_MIXTURE_H
#define OT_DATA_MIXTURE_H

#include <stdbool.h>
#include <stdint.h>

struct ot_dataset;

/* A source as the user gives it: "rows.jsonl", or with a share, "rows.jsonl:0.7". */
struct ot_mixture_source {
    char *path;
    double share; /* 0: none */
};
/* Splits "PATH:SHARE" at its last colon, where a number follows. A path that exists as it is has no share.
 * The caller frees source->path. Errors: OT_E_USAGE (the share is not above 0, or above 1e6), OT_E_BUDGET. */
int ot_mixture_parse(const char *text, struct ot_mixture_source *source);

struct ot_mixture_config {
    const struct ot_dataset *dataset;
    const struct ot_mixture_source *sources; /* of the dataset, each with a share */
    const bool *held_out;                    /* [rows]: these are not trained; NULL: all are */
    bool by_tokens;                          /* shares of tokens, not of rows */
    uint64_t seed;
};
struct ot_mixture_part {
    double share;              /* of 1 */
    int64_t documents, unique; /* to train on; trained at least once an epoch */
    int64_t trained;           /* documents an epoch, with repetitions */
};
/* Writes copies[rows], the number of times that each row is trained in an epoch, and parts[sources]. Errors:
 * OT_E_INPUT (a source has no row to train on), OT_E_USAGE (a share repeats rows more than 1,000 times). */
int ot_mixture_make(const struct ot_mixture_config *config, uint16_t *copies, struct ot_mixture_part *parts);

#endif
