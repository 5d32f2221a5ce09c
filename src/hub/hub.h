/* Gets models and files from the Hugging Face hub, and files from any https server.
 *
 * What is here already is used without asking anybody; only what is missing is downloaded, into the cache
 * that huggingface_hub and transformers use too (cache.h). Each finds what the other got.
 *
 *     hub.c      a model or adapters: the commit, the files, which of them are needed; a file of a dataset
 *     url_file.c a file of any https server
 *     site.c     the endpoint, the token, and why the hub refuses: gated, private, missing, limits
 *     name.h     names, and which are safe        cache.h    folders, links, locks
 *     download.h chunks, hashes, progress         partial.h  what an ended download leaves
 *     http.h     requests, redirects, time-outs   curl.h     libcurl, opened at run time
 *
 * What is trusted: nothing that comes over the network. A commit is 40 hexadecimal digits. Of a
 * repository's list of files only names are taken that this program knows, or that the index of its
 * weights names, and they are single parts of a path. A file counts only if its hash is the one that the
 * hub said. The hub itself is trusted for that hash, as far as TLS protects the answer. Weights are
 * safetensors; pytorch_model.bin is taken only where there is nothing else.
 *
 * The token (HF_TOKEN, or the file that `hf auth login` writes) goes to the endpoint alone, never to a host
 * that it redirects to; http.h. It is in no message, file or command line.
 *
 * One thread at a time calls these functions. A signal during a download ends the process; its end loses
 * nothing. Several ranks of a host may call them at once: one downloads, the others wait for its lock.
 */
#ifndef OT_HUB_HUB_H
#define OT_HUB_HUB_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/hub/name.h"

enum ot_hub_part {
    OT_HUB_SMALL_FILES, /* config, tokenizer, chat template */
    OT_HUB_WEIGHTS,     /* and the weights */
    OT_HUB_ADAPTERS,    /* adapters of PEFT: config, weights, tokenizer, chat template */
};

/* Gets what is missing of a revision's newest commit, and writes the folder of the snapshot. Always asks
 * the hub. received: may be NULL; counts the bytes. Errors: OT_E_INPUT (no such model, adapters in place of a
 * model or a model in place of adapters, no access, a hash is wrong; the sentence has the cure), OT_E_IO (no
 * network, no libcurl, no space), OT_E_BUDGET. */
int ot_hub_get_model(const struct ot_hub_name *name, enum ot_hub_part part, int64_t *received,
                     char snapshot[PATH_MAX]);
/* True if the cache has the file (ot_hub_name_parse_url) for its revision; then its path. */
bool ot_hub_find_file(const struct ot_hub_name *name, char path[PATH_MAX]);
/* Gets a file of a repository: ot_hub_name_parse_url. Uses the one that is here without asking, unless
 * `newest`. Errors: as above; OT_E_INPUT: HF_HUB_OFFLINE is set and the file is not here. */
int ot_hub_get_file(const struct ot_hub_name *name, bool newest, char path[PATH_MAX]);

/* Gets "hf://.." or "https://.." for reading: true for texts that are such a URL. */
bool ot_hub_is_remote(const char *text);
/* The local path of a remote file, which is downloaded if it is missing or has changed (url_file.c).
 * Errors: as ot_hub_get_model. */
int ot_hub_get_remote(const char *url, bool newest, char path[PATH_MAX]);
/* For a URL of http or https. */
int ot_hub_get_url_file(const char *url, char path[PATH_MAX]);

/* True if the snapshot has whole weights: one file, or all that its index names. */
bool ot_hub_has_weights(const char *snapshot);

#endif
