/* Cache files, which save work in later runs, and the identity of the build, which some of them depend on. No
 * result depends on a cache file: one that cannot be read counts as missing; a run can go on without any.
 *
 * A file is written under a temporary name and renamed, so a reader sees the old or the new file, always
 * whole. Only the user may read it. Symbolic links in its place are not followed. The caller checks the
 * content: it may be damaged, or come from another version or machine.
 */
#ifndef OT_BASE_CACHE_FILE_H
#define OT_BASE_CACHE_FILE_H

#include <stddef.h>

/* The folder $XDG_CACHE_HOME/offload-train, else $HOME/.cache/offload-train. The caller frees *out; it is
 * NULL if neither variable is set. Errors: OT_E_BUDGET. */
int ot_cache_folder(char **out);

/* Reads the whole file and adds a NUL. The caller frees *out. *out is NULL if the file is missing or its size
 * is not 1 to `most` bytes. Errors: OT_E_BUDGET. */
int ot_cache_read(const char *path, size_t most, char **out, size_t *bytes);
/* Writes the file. Creates its folder and the folder above it if they are missing. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_cache_write(const char *path, const void *data, size_t bytes);
/* Creates the file if it is missing, and locks it against other processes (flock). Waits up to `seconds` for
 * a process that holds the lock. Returns a descriptor, whose close ends the lock, as does the end of the
 * process; -1 without the lock: another process still holds it, or the file cannot be created or locked. */
int ot_cache_lock(const char *path, double seconds);

/* ---- the build ---- */

/* Identifies the build of the program. */

enum { OT_BUILD_ID_BYTES = 65 };

/* The linker's build id of the running program, a hash of its content, in hexadecimal digits. "" if the
 * linker made none. Source: elf(5), NT_GNU_BUILD_ID. */
void ot_build_id(char text[OT_BUILD_ID_BYTES]);

#endif
