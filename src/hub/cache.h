/* The Hugging Face cache: the folders and links of huggingface_hub, and its locks.
 *
 *     ROOT/models--ORG--NAME/blobs/ETAG                     a file; its name is its hash
 *     ROOT/models--ORG--NAME/snapshots/COMMIT/config.json   a link to ../../blobs/ETAG
 *     ROOT/models--ORG--NAME/refs/main                      the commit of a branch or a tag
 *     ROOT/.locks/models--ORG--NAME/ETAG.lock               locked (flock) while the blob is downloaded
 *
 * ROOT and the other places follow the environment as huggingface_hub reads it. "~" and "$NAME" in a variable
 * are replaced. Functions for reading create nothing. Any thread; the lock: one thread.
 */
#ifndef OT_HUB_CACHE_H
#define OT_HUB_CACHE_H

#include <limits.h>
#include <stdbool.h>

#include "src/hub/name.h"

/* $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, or $HF_HOME/hub. False: no place, or a path that is too long. */
bool ot_hub_cache_root(char root[PATH_MAX]);
/* $HF_HOME, $XDG_CACHE_HOME/huggingface, or ~/.cache/huggingface. */
bool ot_hub_home(char home[PATH_MAX]);
/* $HF_TOKEN_PATH, or $HF_HOME/token. */
bool ot_hub_token_path(char path[PATH_MAX]);
/* True if $HF_HUB_OFFLINE or $TRANSFORMERS_OFFLINE is 1, on, yes or true. */
bool ot_hub_is_offline(void);

/* ROOT/models--ORG--NAME, which may not exist. */
bool ot_hub_cache_repository(const struct ot_hub_name *name, char repository[PATH_MAX]);

enum ot_hub_commit { OT_HUB_COMMIT_KNOWN, OT_HUB_COMMIT_NONE, OT_HUB_COMMIT_SEVERAL };
/* The commit of the name's revision: the revision itself, what refs/REVISION says, or, for "main" without
 * refs/main (a copied cache), the only snapshot. */
enum ot_hub_commit ot_hub_cache_commit(const struct ot_hub_name *name, const char *repository,
                                       char commit[OT_HUB_COMMIT_BYTES]);

/* Makes snapshots/COMMIT/FILE a link to blobs/ETAG, and the folders for it. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_hub_cache_link(const char *repository, const char *commit, const char *file, const char *etag);
/* Writes refs/REVISION. Does nothing if the revision is the commit. Errors: as above. */
int ot_hub_cache_put_ref(const char *repository, const char *revision, const char *commit);
/* Makes all folders of a path of a file. Errors: OT_E_IO. */
int ot_hub_make_folders_of(const char *path);

/* Locks a file against other processes; makes it and its folders. Waits as long as another process has the
 * lock, and says once that it waits for `what`. Returns a descriptor, whose close ends the lock; -1: the file
 * system has no locks, and the caller goes on without. Errors: none. */
int ot_hub_lock(const char *path, const char *what);

#endif
