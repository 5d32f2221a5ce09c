/* The lock of an output directory. Every process that writes into OUT takes the lock first and keeps it to
 * the end.
 *
 * The lock is flock(2) on the directory itself. It leaves no file behind, and containers on two machines
 * that share a volume see the same lock. If OUT is absent, the lock is taken as soon as OUT exists. A result
 * that takes OUT's place by rename is locked before the rename, so OUT is never without its owner's lock.
 *
 * The owner also notices changes that others make to OUT while it works: whether OUT is still the locked
 * directory, and whether its marker was removed (the lock keeps a copy). One thread uses a lock.
 */
#ifndef OT_FILES_OUT_LOCK_H
#define OT_FILES_OUT_LOCK_H

#include <stdbool.h>
#include <stddef.h>

/* Names in OUT: the marker of an output of ours; the directory where files are being written; the directory
 * with the complete files. */
#define OT_OUT_MARKER    "offload-train.json"
#define OT_OUT_STAGED    ".offload-train-partial"
#define OT_OUT_REPLACING ".offload-train-replacing"
enum { OT_OUT_MARKER_MAX_BYTES = 1 << 20 };

struct ot_out_lock {
    char *out;    /* without trailing slashes */
    int fd;       /* of the locked directory; -1: OUT is absent */
    bool insists; /* wait for other processes without limit; set by an owner that has something to lose */
    double patience_seconds; /* without insists: how long to wait for a lock that another process holds */
    bool is_away;            /* OUT is no longer the locked directory; this was logged */
    char *marker;            /* contents of OUT's marker when last read; NULL: OUT had none */
    size_t marker_bytes;
};

/* Takes the lock if OUT exists. Errors: OT_E_INPUT (another process writes this output), OT_E_BUDGET,
 * OT_E_IO. */
int ot_out_lock_open(const char *out, struct ot_out_lock **lock);
/* The same for a command that begins. It waits some seconds for a process that holds the lock, and logs that:
 * the process may be the killed one in whose place the command was started. */
int ot_out_lock_await(const char *out, struct ot_out_lock **lock);
void ot_out_lock_close(struct ot_out_lock *lock); /* NULL is fine */

/* Call before every write: takes the lock if OUT exists by now. If the locked directory was moved away, logs
 * that; an empty or absent OUT takes its place. Errors: OT_E_INPUT (another process writes this output; OUT
 * is another directory and not empty), OT_E_IO, OT_E_BUDGET. */
int ot_out_lock_take(struct ot_out_lock *lock);
/* The directory of fd, already locked, has taken the place of OUT: the lock keeps a duplicate of fd. Errors:
 * OT_E_IO, OT_E_BUDGET. */
int ot_out_lock_move(struct ot_out_lock *lock, int fd);
/* True if OUT is the locked directory. */
bool ot_out_lock_holds(const struct ot_out_lock *lock);
/* Reads OUT's marker if it has one; restores a marker that was removed. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_out_lock_keep_marker(struct ot_out_lock *lock);

/* Locks fd with flock. Logs that it waits, and waits up to `seconds` (0, INFINITY too). Returns 1 if another
 * process holds the lock to the end. A file system without locks lets every process have it. path: for
 * messages. */
int ot_out_flock(int fd, const char *path, double seconds);
/* *empty: the directory has only entries of our own interrupted save or of the file system (lost+found).
 * Errors: OT_E_IO. */
int ot_out_is_empty(const char *path, bool *empty);

/* ---- replacing an output ---- */

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
