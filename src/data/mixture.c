#include "src/data/mixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/base/error.h"
#include "src/base/random.h"
#include "src/data/dataset.h"

enum { MOST_COPIES = 1000 };
static const double MOST_SHARE = 1e6;

int ot_mixture_parse(const char *text, struct ot_mixture_source *source) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    struct stat info;
    double share = colon && colon[1] ? strtod(colon + 1, &end) : 0;
    bool has_share = end && *end == '\0' && stat(text, &info) < 0;
    *source = (struct ot_mixture_source){0};
    if (has_share && !(share > 0 && share <= MOST_SHARE))
        return ot_fail(OT_E_USAGE, "--data %.200s: a share must be above 0, such as rows.jsonl:0.7", text);
    source->path = has_share ? strndup(text, (size_t)(colon - text)) : strdup(text);
    source->share = has_share ? share : 0;
    return source->path ? 0 : ot_fail(OT_E_BUDGET, "no memory for the names of --data");
}

/* ---- what a source has ---- */

/* Rows [begin, end) of the dataset that are trained. */
struct range {
    int64_t begin, end;
    int64_t documents, tokens;
};

static bool is_trained(const struct ot_mixture_config *config, int64_t row) {
    return !config->held_out || !config->held_out[row];
}

static struct range range_of(const struct ot_mixture_config *config, int source) {
    struct range range = {.begin = ot_dataset_source_begin(config->dataset, source),
                          .end = ot_dataset_source_begin(config->dataset, source + 1)};
    int64_t document = -1;
    for (int64_t i = range.begin; i < range.end; i++) {
        struct ot_row row = ot_dataset_row(config->dataset, i);
        if (!is_trained(config, i))
            continue;
        range.documents += row.document != document;
        range.tokens += row.n;
        document = row.document;
    }
    return range;
}

static double amount(const struct ot_mixture_config *config, const struct range *range) {
    return (double)(config->by_tokens ? range->tokens : range->documents);
}

/* ---- copies ---- */

/* Every document `whole` times, and `extra` documents once more: selection sampling, as in ot_split_rows. */
static void copy_documents(const struct ot_mixture_config *config, int source, const struct range *range,
                           int64_t whole, int64_t extra, uint16_t *copies) {
    uint64_t stream = ot_random_stream(OT_RANDOM_SPLIT, 1, (uint64_t)source);
    int64_t document = -1, seen = 0, drawn = 0;
    bool take = false;
    for (int64_t i = range->begin; i < range->end; i++) {
        struct ot_row row = ot_dataset_row(config->dataset, i);
        copies[i] = 0;
        if (!is_trained(config, i))
            continue;
        if (row.document != document) {
            document = row.document;
            uint64_t left = (uint64_t)(range->documents - seen);
            take = ot_random_below(config->seed, stream, (uint64_t)seen++, left) < (uint64_t)(extra - drawn);
            drawn += take;
        }
        copies[i] = (uint16_t)(whole + take);
    }
}

int ot_mixture_make(const struct ot_mixture_config *config, uint16_t *copies, struct ot_mixture_part *parts) {
    int n = ot_dataset_sources(config->dataset);
    double all = 0, shares = 0;
    for (int i = 0; i < n; i++) {
        struct range range = range_of(config, i);
        if (range.documents == 0)
            return ot_fail(OT_E_INPUT, "%s: no row of it is left to train on", config->sources[i].path);
        all += amount(config, &range);
        shares += config->sources[i].share;
    }
    for (int i = 0; i < n; i++) {
        struct range range = range_of(config, i);
        double share = config->sources[i].share / shares, times = share * all / amount(config, &range);
        if (times > MOST_COPIES)
            return ot_fail(
                OT_E_USAGE,
                "--data %.200s:%g: this share would train each of its %lld rows %.0f times an epoch; "
                "the limit is %d; give a smaller share",
                config->sources[i].path, config->sources[i].share, (long long)range.documents, times,
                MOST_COPIES);
        int64_t whole = (int64_t)times, extra = llround((times - floor(times)) * (double)range.documents);
        copy_documents(config, i, &range, whole, extra, copies);
        parts[i] = (struct ot_mixture_part){.share = share,
                                            .documents = range.documents,
                                            .unique = whole > 0 ? range.documents : extra,
                                            .trained = whole * range.documents + extra};
    }
    return 0;
}
