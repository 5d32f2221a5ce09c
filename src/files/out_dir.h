/* An output directory that appears as a whole or not at all.
 *
 * Files are written into OUT.partial, beside OUT. ot_out_dir_commit() flushes them and exchanges the two
 * directories by rename, so OUT is always the previous output or the new one. If OUT cannot be exchanged (it
 * is a mount point, for example), files are written into OUT and replaced one by one (out_lock.h). Open
 * finds out by trial which way works.
 *
 * The file offload-train.json, the marker, identifies a directory as an output of ours and lists our files.
 * Other files in OUT (a log, notes, checkpoints) are not ours and move to the new directory unchanged.
 *
 * OUT may be absent, empty, or an earlier output of ours. Anything else, also a symbolic link, is refused
 * before a byte is written. Remains of a crash are removed at the next open.
 *
 * Every user of OUT holds its lock (out_lock.h): the caller passes its own lock, or passes NULL, and the
 * lock is taken for this use alone.
 *
 * Every system call that may fail because of a full or broken disk goes through struct ot_io_calls, so that
 * tests can make it fail. One thread uses a directory.
 */
#ifndef OT_FILES_OUT_DIR_H
#define OT_FILES_OUT_DIR_H

#include <stddef.h>
#include <stdint.h>

struct ot_io_calls;
struct ot_out_dir;
struct ot_out_lock;

/* Makes missing parent directories. calls NULL: the system's. Errors: OT_E_INPUT (OUT is something else, or
 * in use), OT_E_IO, OT_E_BUDGET. */
int ot_out_dir_open(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock,
                    struct ot_out_dir **dir);
/* Removes everything written since open, and the parent directories that open made, unless the directory was
 * committed. NULL is fine. */
void ot_out_dir_close(struct ot_out_dir *dir);

/* Checks the free space. Errors: OT_E_IO; the message says how much is missing. */
int ot_out_dir_need_space(struct ot_out_dir *dir, int64_t bytes);

/* Files are written one at a time: create, write any number of times, finish (fsync and close).
 * reserve_bytes 0: size unknown. Errors: OT_E_IO (the message names the file); OT_E_INTERNAL (the name is
 * used twice or is not a plain file name). */
int ot_out_dir_create(struct ot_out_dir *dir, const char *name, int64_t reserve_bytes);
int ot_out_dir_write(struct ot_out_dir *dir, const void *data, size_t bytes);
/* Writes bytes at an offset in the file. Bytes below it that no call writes are zeros. */
int ot_out_dir_write_at(struct ot_out_dir *dir, int64_t at, const void *data, size_t bytes);
int ot_out_dir_finish(struct ot_out_dir *dir);
/* Create, write and finish in one call. */
int ot_out_dir_put(struct ot_out_dir *dir, const char *name, const void *data, size_t bytes);
/* Copies the file `from`. Errors: also OT_E_INPUT (`from` is not a regular file), OT_E_BUDGET. */
int ot_out_dir_copy(struct ot_out_dir *dir, const char *name, const char *from);

/* Writes the marker as the last file, flushes the directories, and puts the result in OUT's place. Errors:
 * OT_E_IO; OUT is then unchanged, or the message says where the result is. */
int ot_out_dir_commit(struct ot_out_dir *dir);

/* Undoes or completes a save that a crash interrupted, so that OUT has all the files that are not ours.
 * Errors: as ot_out_dir_open. */
int ot_out_dir_settle(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock);

/* Makes OUT with nothing but the marker, so that a log can be kept there before the first save. Does nothing
 * if OUT is ours already. Errors: as ot_out_dir_open. */
int ot_out_dir_claim(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock);

#endif
