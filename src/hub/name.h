/* Names of the hub: repositories, revisions and files. All of them become parts of paths, so each has a check
 * that it cannot leave a folder. Any thread. */
#ifndef OT_HUB_NAME_H
#define OT_HUB_NAME_H

#include <stdbool.h>
#include <stddef.h>

enum ot_hub_kind { OT_HUB_MODEL, OT_HUB_DATASET };
enum {
    OT_HUB_ID_BYTES = 97,
    OT_HUB_REVISION_BYTES = 129,
    OT_HUB_FILE_BYTES = 512,
    OT_HUB_COMMIT_BYTES = 129
};

struct ot_hub_name {
    enum ot_hub_kind kind;
    char id[OT_HUB_ID_BYTES];             /* "org/name" */
    char revision[OT_HUB_REVISION_BYTES]; /* a branch, a tag or a commit; "main" if none is given */
    char file[OT_HUB_FILE_BYTES];         /* of ot_hub_name_parse_url: "data/rows.jsonl" */
};

/* "org/name" or "org/name@revision". False: neither. */
bool ot_hub_name_parse(const char *text, struct ot_hub_name *out);
/* True for "hf://.." */
bool ot_hub_is_url(const char *text);
/* "hf://datasets/org/name[@revision]/file"; "hf://[models/]org/name[@revision]/file". Errors: OT_E_INPUT; the
 * sentence shows the form. */
int ot_hub_name_parse_url(const char *text, struct ot_hub_name *out);

/* Letters, digits, '-', '_' and '.', as the hub allows: "org/name". */
bool ot_hub_is_id(const char *text, size_t bytes);
/* One part of a path, neither hidden nor ".": "tokenizer.json". */
bool ot_hub_is_file(const char *text);
/* 40 hexadecimal digits. */
bool ot_hub_is_commit(const char *text);
/* True for `digits` lower-case hexadecimal digits, and no more. */
bool ot_hub_is_hex(const char *text, size_t digits);

#endif
