/* Joins the manifests of several ranks. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/checkpoint/manifest.h"

static int check_same_model(const struct ot_manifest *whole, const struct ot_manifest *share) {
    bool same = whole->dtype == share->dtype && whole->n_slabs == share->n_slabs;
    for (int s = 0; s < whole->n_slabs && same; s++)
        same = whole->slab_params[s] == share->slab_params[s];
    if (!same)
        return ot_fail(OT_E_INTERNAL, "the segments of two ranks are of different models");
    for (int i = 0; i < whole->n_files; i++)
        for (int k = 0; k < share->n_files; k++)
            if (strcmp(whole->files[i].name, share->files[k].name) == 0)
                return ot_fail(OT_E_INTERNAL, "two ranks have written %s", whole->files[i].name);
    return 0;
}

/* Makes room behind the entries of `whole` for those of `share`. */
static int make_room(struct ot_manifest *whole, const struct ot_manifest *share) {
    size_t n_files = (size_t)whole->n_files + (size_t)share->n_files;
    size_t n_segments = (size_t)(whole->n_segments + share->n_segments);
    size_t n_spans = (size_t)(whole->n_spans + share->n_spans);
    struct ot_manifest_file *files = realloc(whole->files, (n_files + 1) * sizeof *files);
    if (files)
        whole->files = files;
    struct ot_manifest_segment *segments = realloc(whole->segments, (n_segments + 1) * sizeof *segments);
    if (segments)
        whole->segments = segments;
    struct ot_store_span *spans = realloc(whole->spans, (n_spans + 1) * sizeof *spans);
    if (spans)
        whole->spans = spans;
    return files && segments && spans
               ? 0
               : ot_fail(OT_E_BUDGET, "no memory for the %zu segments of a checkpoint", n_segments);
}

int ot_manifest_merge(struct ot_manifest *whole, struct ot_manifest *share) {
    OT_TRY(check_same_model(whole, share));
    OT_TRY(make_room(whole, share));
    for (int64_t i = 0; i < share->n_segments; i++) {
        whole->segments[whole->n_segments + i] = share->segments[i];
        whole->segments[whole->n_segments + i].first_span += whole->n_spans;
    }
    for (int64_t i = 0; i < share->n_spans; i++) {
        whole->spans[whole->n_spans + i] = share->spans[i];
        whole->spans[whole->n_spans + i].file += whole->n_files;
    }
    for (int i = 0; i < share->n_files; i++)
        whole->files[whole->n_files + i] = share->files[i]; /* with its name */
    whole->n_segments += share->n_segments;
    whole->n_spans += share->n_spans;
    whole->n_files += share->n_files;
    share->n_files = 0;
    ot_manifest_free(share);
    return 0;
}
