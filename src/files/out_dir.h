/* An output directory that appears whole or not at all.
 *
 * Files are written into OUT.partial, beside OUT; ot_out_dir_commit() flushes them and exchanges the two by
 * rename, so that at any moment OUT is the previous output or the new one. Where OUT cannot be exchanged
 * (it is a mount point, for example), files are written into OUT and replaced one by one (out_replace.h);
 * which of the two will work is found out by trying when the directory is opened.
 *
 * The file offload-train.json marks a directory as an output of ours and lists the files that were written.
 * What else lies there (a log, notes, checkpoints) belongs to others and moves to the new directory as it is.
 *
 * OUT may be absent, empty, or an earlier output of ours; anything else, a symbolic link included, is
 * refused before a byte is written. What a crash left behind is cleared at the next open.
 *
 * Whoever uses OUT holds its lock (out_lock.h): the caller's, which outlives the use, or where that is NULL
 * one that is taken for the use alone.
 *
 * Every call to the system that may fail with a full or broken disk goes through struct ot_io_calls, so
 * that tests can make it fail. One thread uses a directory.
 */
#ifndef OT_FILES_OUT_DIR_H
#define OT_FILES_OUT_DIR_H

#include <stddef.h>
#include <stdint.h>

struct ot_io_calls;
struct ot_out_dir;
struct ot_out_lock;

/* Missing parents are made. ops NULL: the system's. Errors: OT_E_INPUT (OUT is something else, or in use),
 * OT_E_IO. */
int ot_out_dir_open(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock,
                    struct ot_out_dir **dir);
/* Drops everything written since open, and the parents that open made; NULL and a committed directory are
 * fine. */
void ot_out_dir_close(struct ot_out_dir *dir);

/* Errors: OT_E_IO naming the shortfall. */
int ot_out_dir_need_space(struct ot_out_dir *dir, int64_t bytes);

/* One file at a time: create, write any number of times, finish (fsync and close). reserve_bytes 0:
 * unknown. Errors: OT_E_IO naming the file; OT_E_INTERNAL for a name that comes twice or is not a plain
 * file name. */
int ot_out_dir_create(struct ot_out_dir *dir, const char *name, int64_t reserve_bytes);
int ot_out_dir_write(struct ot_out_dir *dir, const void *data, size_t bytes);
int ot_out_dir_finish(struct ot_out_dir *dir);
int ot_out_dir_put(struct ot_out_dir *dir, const char *name, const void *data, size_t bytes); /* all three */
int ot_out_dir_copy(struct ot_out_dir *dir, const char *name, const char *from); /* the bytes of a file */

/* Writes the marker last, flushes the directories, and puts the result in OUT's place. Errors: OT_E_IO; OUT
 * is then what it was. */
int ot_out_dir_commit(struct ot_out_dir *dir);

/* Undoes or completes what a crash has left half done beside OUT, so that what others keep in OUT is there.
 * Errors as open. */
int ot_out_dir_settle(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock);

/* Makes OUT now, with nothing but the marker, so that a program may keep its log there before the first
 * save; does nothing where OUT is ours already. Errors as open. */
int ot_out_dir_claim(const char *out, const struct ot_io_calls *calls, struct ot_out_lock *lock);

#endif
