/* Replacing an output file by file, where its directory cannot be exchanged by rename: OUT is a mount
 * point, or has one in it, or lies in the lower layer of an overlay, or the file system cannot exchange.
 *
 * The finished new files, the marker among them, lie in OUT/.offload-train-replacing; the directory gets
 * that name by one rename, and from that moment on the new output is the one that will be there. Then the
 * old config.json goes, so that no reader takes a mixture for a model; the rest of the old files go and the
 * new ones move in; config.json comes behind them, and the marker last. Where this is cut short, the
 * directory is still there: readers refuse OUT (ot_out_check_whole), and the next command that writes there
 * finishes it.
 */
#ifndef OT_FILES_OUT_REPLACE_H
#define OT_FILES_OUT_REPLACE_H

#include <stdbool.h>

struct ot_io_calls;

/* Whether OUT/.offload-train-replacing is there. */
bool ot_out_is_half_replaced(const char *out);
/* For readers. Errors: OT_E_INPUT: it is there. */
int ot_out_check_whole(const char *out);
/* Moves what is in it to its place and removes it; begins and ends like any other where a kill cut it
 * short. A file of OUT that is not ours and has the name of a new one is kept under another name, which is
 * said. Errors: OT_E_IO, OT_E_INPUT (a marker is damaged), OT_E_BUDGET. */
int ot_out_replace(const char *out, const struct ot_io_calls *calls);

/* Whether something is mounted on the path. */
bool ot_out_is_mount(const char *path);
/* Whether something is mounted on an entry of the directory. Errors: OT_E_IO. */
int ot_out_has_mount(const char *path, bool *has);

/* A marker: {"made_by": .., "files": [..]}. *marker NULL: the directory has none. Errors: OT_E_INPUT,
 * OT_E_IO. */
struct ot_json;
int ot_out_read_marker(const char *dir, struct ot_json **marker);
/* Whether a marker names the file; it does not name itself, and lists it all the same. */
bool ot_out_is_listed(const struct ot_json *marker, const char *name);

#endif
