/* The directory of one checkpoint: its name, its lock, its removal. The writer and the catalog use it.
 *
 * All calls use the descriptor of the parent directory and follow no symbolic link, so that nothing outside
 * the parent is removed.
 */
#ifndef OT_CHECKPOINT_STEP_DIR_H
#define OT_CHECKPOINT_STEP_DIR_H

#include <stdbool.h>
#include <stdint.h>

struct ot_io_calls;

enum { OT_STEP_NAME_BYTES = 40 };

/* "step-00000120", or "step-00000120.partial". */
void ot_step_name(char name[OT_STEP_NAME_BYTES], int64_t step, bool partial);
/* True if `name` is a name that ot_step_name makes. */
bool ot_step_parse(const char *name, int64_t *step, bool *partial);

/* `path`, here and below: path of the directory itself, for error messages. */

/* Opens a directory and locks it with flock. *dir_fd is -1 if another process holds the lock, or if the
 * directory does not exist (any more). Errors: OT_E_INPUT (a file or a link has that name), OT_E_IO. */
int ot_step_hold(int parent_fd, const char *name, const char *path, int *dir_fd);
/* Removes the directory's contents. The manifest is removed and flushed first, so that an interrupted removal
 * leaves no checkpoint. Errors: OT_E_IO (a subdirectory is not ours and stays). */
int ot_step_clear(const struct ot_io_calls *calls, int dir_fd, const char *path);
/* Removes the contents and the directory itself. A missing directory is fine. Errors: OT_E_IO. */
int ot_step_remove(const struct ot_io_calls *calls, int parent_fd, const char *name, const char *path);

#endif
