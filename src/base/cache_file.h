/* Small files that spare the next run some work, and that nothing depends on: what cannot be read counts as
 * not there, and a run that cannot write goes on.
 *
 * A file is written beside its place and renamed, so that a reader sees an old or a new one, whole. Only the
 * user may read it. Symbolic links in a file's place are neither read nor written through. The caller checks
 * the content: it may be damaged, or of another version or machine.
 */
#ifndef OT_BASE_CACHE_FILE_H
#define OT_BASE_CACHE_FILE_H

#include <stddef.h>

/* $XDG_CACHE_HOME/offload-train, or .cache/offload-train in $HOME. *out is freed by the caller, and NULL
 * where neither is set. Errors: OT_E_BUDGET. */
int ot_cache_folder(char **out);

/* The whole file, NUL-terminated beyond its end and freed by the caller; *out NULL: there is none, or none
 * of 1 to `most` bytes. Errors: OT_E_BUDGET. */
int ot_cache_read(const char *path, size_t most, char **out, size_t *bytes);
/* Makes the folder and the one above it where they are missing. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_cache_write(const char *path, const void *data, size_t bytes);

#endif
