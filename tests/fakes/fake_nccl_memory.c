#include "tests/fakes/fake_nccl.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A pipe from one rank to another. Each count is written by one side only. */
struct box {
    _Atomic size_t sent, received;
    unsigned char data[FAKE_BOX_BYTES];
};

struct fake_shared {
    atomic_int joined, finalized;
    struct box boxes[FAKE_MAX_RANKS][FAKE_MAX_RANKS]; /* [from][to] */
};

/* Precedes each message. */
struct header {
    uint32_t kind;
    int32_t root;
    uint64_t bytes;
};

/* The file has no name that could outlive its processes. Others open it through /proc. */
int fake_shared_create(char *name) {
    int fd = memfd_create("fake-nccl", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    snprintf(name, 64, "/proc/%d/fd/%d", (int)getpid(), fd);
    return ftruncate(fd, sizeof(struct fake_shared));
}

struct fake_shared *fake_shared_join(const char *name) {
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *memory = mmap(NULL, sizeof(struct fake_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return NULL;
    struct fake_shared *shared = memory;
    atomic_fetch_add(&shared->joined, 1);
    return shared;
}

void fake_shared_leave(struct fake_shared *shared) {
    munmap(shared, sizeof *shared);
}

int fake_shared_joined(const struct fake_shared *shared) {
    return atomic_load(&shared->joined);
}

int fake_shared_finalize(struct fake_shared *shared) {
    return atomic_fetch_add(&shared->finalized, 1);
}

int fake_shared_finalized(struct fake_shared *shared) {
    return atomic_load(&shared->finalized);
}

/* Copies as many of the bytes as fit in, or are in, the box. Returns their number. */
static size_t put(struct box *box, const void *from, size_t bytes) {
    size_t sent = atomic_load_explicit(&box->sent, memory_order_relaxed), done = 0;
    size_t room = FAKE_BOX_BYTES - (sent - atomic_load_explicit(&box->received, memory_order_acquire));
    for (bytes = bytes < room ? bytes : room; done < bytes;) {
        size_t at = (sent + done) % FAKE_BOX_BYTES, n = FAKE_BOX_BYTES - at;
        n = n < bytes - done ? n : bytes - done;
        memcpy(box->data + at, (const char *)from + done, n);
        done += n;
    }
    atomic_store_explicit(&box->sent, sent + done, memory_order_release);
    return done;
}

static size_t get(struct box *box, void *to, size_t bytes) {
    size_t received = atomic_load_explicit(&box->received, memory_order_relaxed), done = 0;
    size_t there = atomic_load_explicit(&box->sent, memory_order_acquire) - received;
    for (bytes = bytes < there ? bytes : there; done < bytes;) {
        size_t at = (received + done) % FAKE_BOX_BYTES, n = FAKE_BOX_BYTES - at;
        n = n < bytes - done ? n : bytes - done;
        memcpy((char *)to + done, box->data + at, n);
        done += n;
    }
    atomic_store_explicit(&box->received, received + done, memory_order_release);
    return done;
}

/* Headers are small and divide the size of a box, so they are moved whole. */
static int advance_header(struct box *box, struct fake_transfer *t) {
    struct header mine = {(uint32_t)t->kind, t->root, t->bytes}, theirs;
    _Static_assert(FAKE_BOX_BYTES % sizeof mine == 0, "divides");
    size_t sent = atomic_load_explicit(&box->sent, memory_order_acquire);
    size_t received = atomic_load_explicit(&box->received, memory_order_acquire);
    size_t there = sent - received;
    if (t->is_send ? FAKE_BOX_BYTES - there < sizeof mine : there < sizeof mine)
        return 0;
    if (t->is_send) {
        t->header_done = put(box, &mine, sizeof mine);
        return 1;
    }
    t->header_done = get(box, &theirs, sizeof theirs);
    return memcmp(&mine, &theirs, sizeof mine) == 0 ? 1 : -1;
}

int fake_transfer_advance(struct fake_shared *shared, struct fake_transfer *t) {
    struct box *box = &shared->boxes[t->from][t->to];
    if (t->header_done == 0) {
        int rc = advance_header(box, t);
        if (rc != 1)
            return rc;
    }
    size_t n = t->is_send ? put(box, t->memory + t->done, t->bytes - t->done)
                          : get(box, t->memory + t->done, t->bytes - t->done);
    t->done += n;
    return n > 0 || t->bytes == 0;
}
