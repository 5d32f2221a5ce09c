/* I/O engines: the two ways to move blocks between memory and open files, behind one interface, and the seam
 * through which both reach the system.
 *
 * An engine has a queue of I/Os, each a range of one file; the owner submits and reaps on one thread. Results
 * are as io_uring's: bytes moved, or -errno; short and interrupted I/Os are the owner's to take up again (it
 * knows what alignment they need).
 */
#ifndef OT_OFFLOAD_IO_ENGINE_H
#define OT_OFFLOAD_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum ot_io_choice { OT_IO_AUTO, OT_IO_URING, OT_IO_POOL };
const char *ot_io_choice_name(enum ot_io_choice choice); /* "auto", "uring", "pool" */

/* The system calls of the store; tests put their own in between to inject faults (short transfers, EIO,
 * ENOSPC, EINTR, refused set-up). All as the calls they are named after; errors are -errno. */
struct ot_io_calls {
    void *context;
    int (*open)(void *context, const char *path, int flags, int mode);
    int (*allocate)(void *context, int fd, off_t offset, off_t bytes); /* fallocate */
    ssize_t (*pread)(void *context, int fd, void *memory, size_t bytes, off_t offset);
    ssize_t (*pwrite)(void *context, int fd, const void *memory, size_t bytes, off_t offset);
    /* Of io_uring: whether a ring may be set up (0 or -errno), and what a completion's result becomes. */
    int (*ring_setup)(void *context);
    int (*ring_register)(void *context);
    int (*ring_result)(void *context, bool write, int result);
};
extern const struct ot_io_calls ot_io_system;

struct ot_io_request {
    bool write;
    int file; /* index into the engine's files */
    void *memory;
    size_t bytes;
    off_t offset;
    void *owner; /* comes back with the result */
};

struct ot_io_result {
    void *owner;
    int64_t result; /* bytes, or -errno */
};

struct ot_io_engine;

struct ot_io_engine_config {
    enum ot_io_choice choice; /* not auto */
    int n_files;
    const int *files; /* descriptors, the caller's */
    int depth;        /* requests in flight at most */
    void *arena;      /* to be registered; NULL: none */
    size_t arena_bytes;
    const struct ot_io_calls *calls;
};

/* On the thread that will use it. Errors: -OT_E_IO: refused, with the reason. */
int ot_io_engine_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);
void ot_io_engine_close(struct ot_io_engine *engine); /* nothing is in flight; NULL is fine */
/* At most `depth` in flight. Errors: OT_E_IO. */
int ot_io_engine_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
/* At least one result, at most `most`; returns their number. Errors: OT_E_IO. */
int ot_io_engine_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most);
/* "DEFER_TASKRUN, fixed buffers" or why not; for people. */
const char *ot_io_engine_note(const struct ot_io_engine *engine);

#endif
