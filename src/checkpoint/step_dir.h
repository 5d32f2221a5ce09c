/* The directories of checkpoints: their names, holding one, removing one. What the writer and the catalog
 * share.
 *
 * Everything goes by the descriptor of the directory above, and no symbolic link is followed: what is
 * removed lies where its name says.
 */
#ifndef OT_CHECKPOINT_STEP_DIR_H
#define OT_CHECKPOINT_STEP_DIR_H

#include <stdbool.h>
#include <stdint.h>

struct ot_io_calls;

enum { OT_STEP_NAME_BYTES = 40 };

/* "step-00000120", or "step-00000120.partial". */
void ot_step_name(char name[OT_STEP_NAME_BYTES], int64_t step, bool partial);
/* Whether the name is one of these. */
bool ot_step_parse(const char *name, int64_t *step, bool *partial);

/* path, here and below: of the directory itself, for sentences. */

/* Opens a directory and locks it. *dir_fd -1: another process holds it, or has just removed it. Errors:
 * OT_E_INPUT (something else has that name), OT_E_IO. */
int ot_step_hold(int parent_fd, const char *name, const char *path, int *dir_fd);
/* Removes what is in it, the manifest first and for good: half a removal leaves no checkpoint. Errors:
 * OT_E_IO (a directory in it is not ours, and stays). */
int ot_step_clear(const struct ot_io_calls *calls, int dir_fd, const char *path);
/* The same, and the directory itself. Nothing of that name is fine. Errors: OT_E_IO. */
int ot_step_remove(const struct ot_io_calls *calls, int parent_fd, const char *name, const char *path);

#endif
