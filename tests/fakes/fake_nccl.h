/* A fake libnccl.so.2 over shared memory, for processes with an emulated GPU each. It is a shared object of
 * its own, which the plugin `nccl` opens as it opens the real one. It finds the emulated runtime in the
 * program, which is linked with export_dynamic.
 *
 * It imitates what NCCL documents: nonblocking communicators whose calls return ncclInProgress, groups,
 * errors that ncclCommGetAsyncError tells later, abort, and kernels that wait on the stream for other ranks,
 * for ever. It is stricter than NCCL where a plugin may be wrong:
 *
 * - work reaches the stream only when ncclCommGetAsyncError was asked often enough, and another call before
 *   that is refused with ncclInvalidUsage;
 * - ranks whose operations differ (kind, bytes, root) get ncclInvalidUsage as an async error; NCCL hangs;
 * - two threads inside calls with one communicator, and any use of a communicator that has ended, end the
 *   process with a message; NCCL demands this of ncclCommAbort alone;
 * - the pointers of operations must lie in device memory or in registered host memory.
 *
 * The environment says what goes wrong, when the library is loaded:
 *
 *   OT_FAKE_NCCL_VERSION=21703        what ncclGetVersion says; 22703 by default
 *   OT_FAKE_NCCL_POLLS=N              how often a call is in progress; 2 by default
 *   OT_FAKE_NCCL_FAIL=NAME:N          the Nth call of the function NAME returns ncclSystemError
 *   OT_FAKE_NCCL_ASYNC=N              the Nth launch fails on the stream, with ncclRemoteError
 *   OT_FAKE_NCCL_HANG=NAME            calls of ncclCommFinalize, ncclCommDestroy or ncclCommAbort hang
 *   OT_FAKE_NCCL_SLOW_US=N            each call takes so long, so that threads meet
 */
#ifndef OT_KERNELS_EMU_FAKE_NCCL_H
#define OT_KERNELS_EMU_FAKE_NCCL_H

#include <stddef.h>

#include <cuda_runtime_api.h>

enum { FAKE_MAX_RANKS = 16, FAKE_BOX_BYTES = 64 << 10 };

enum fake_result {
    FAKE_SUCCESS = 0,
    FAKE_SYSTEM_ERROR = 2,
    FAKE_INVALID_ARGUMENT = 4,
    FAKE_INVALID_USAGE = 5,
    FAKE_REMOTE_ERROR = 6,
    FAKE_IN_PROGRESS = 7
};

/* ---- fake_nccl_memory.c: the shared memory ---- */

struct fake_shared;

enum fake_kind { FAKE_GATHER = 1, FAKE_BROADCAST, FAKE_MESSAGE };

/* A message to or from one rank. All transfers of a launch advance together. */
struct fake_transfer {
    int from, to;
    enum fake_kind kind;
    int root;
    char *memory;
    size_t bytes, done;
    size_t header_done;
    int is_send;
};

/* Makes an empty memory and writes its name [64], which is valid while this process lives. Returns 0 or -1.
 */
int fake_shared_create(char *name);
/* Maps the memory, and joins the ranks. NULL: it does not exist. */
struct fake_shared *fake_shared_join(const char *name);
void fake_shared_leave(struct fake_shared *shared);
int fake_shared_joined(const struct fake_shared *shared);
int fake_shared_finalize(struct fake_shared *shared);  /* counts this rank */
int fake_shared_finalized(struct fake_shared *shared); /* the ranks that were counted */
/* Moves what can be moved now. Returns 1 if something moved, 0 if not, -1 if the other side sent another
 * operation. */
int fake_transfer_advance(struct fake_shared *shared, struct fake_transfer *transfer);

#endif
