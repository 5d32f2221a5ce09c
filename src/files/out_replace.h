/* Replaces an output file by file, if its directory cannot be exchanged by rename: OUT is a mount point or
 * contains one, or is in the lower layer of an overlay, or the file system cannot exchange directories.
 *
 * The finished new files and their marker are in OUT/.offload-train-replacing. The directory gets this name
 * by one rename; from then on the new output will be completed. First the old config.json is removed, so
 * that no reader takes a mixture for a model. Then the other old files are removed and the new files move
 * in; config.json is next to last, the marker is last. If the process ends in between, the directory still
 * exists: readers refuse OUT (ot_out_check_whole), and the next command that writes there completes the
 * replacement.
 */
#ifndef OT_FILES_OUT_REPLACE_H
#define OT_FILES_OUT_REPLACE_H

#include <stdbool.h>

struct ot_io_calls;

/* True if OUT/.offload-train-replacing exists. */
bool ot_out_is_half_replaced(const char *out);
/* For readers. Errors: OT_E_INPUT: a replacement was interrupted. */
int ot_out_check_whole(const char *out);
/* Moves the new files to their place and removes the directory. Also completes an interrupted replacement. A
 * file in OUT that is not ours but has the name of a new file is kept under another name; that is logged.
 * Errors: OT_E_IO, OT_E_INPUT (a marker is damaged), OT_E_BUDGET. */
int ot_out_replace(const char *out, const struct ot_io_calls *calls);

/* True if something is mounted on the path. */
bool ot_out_is_mount(const char *path);
/* *has: something is mounted on an entry of the directory. Errors: OT_E_IO. */
int ot_out_has_mount(const char *path, bool *has);

/* Reads a marker: {"made_by": .., "files": [..]}. *marker is NULL if the directory has none. Errors:
 * OT_E_INPUT, OT_E_IO. */
struct ot_json;
int ot_out_read_marker(const char *dir, struct ot_json **marker);
/* True if the marker lists the file. The marker's own name counts as listed. */
bool ot_out_is_listed(const struct ot_json *marker, const char *name);

#endif
