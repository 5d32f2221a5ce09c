#include "offload/comm/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"

enum { NAME_BYTES = 64, PATH_BYTES = 64 };

/* Rank 0's message to the others about its file. */
struct offer {
    int64_t process;
    int file;
    char name[NAME_BYTES]; /* random: no other file has it */
};

/* ---- agreement ---- */

/* Returns 0 if all ranks have 0, else the error of the first rank that has one. */
static int agree(struct ot_comm *comm, int rc) {
    struct ot_error mine = {0}, *all = calloc((size_t)ot_comm_ranks(comm), sizeof *all);
    int first = 0;
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the answers of %d ranks", ot_comm_ranks(comm));
    ot_error_save(&mine, rc);
    rc = ot_comm_all_gather_host(comm, &mine, sizeof mine, all);
    while (rc == 0 && first < ot_comm_ranks(comm) && all[first].code == 0)
        first++;
    if (rc == 0 && first < ot_comm_ranks(comm))
        rc = ot_fail((enum ot_error_code)all[first].code, "rank %d: %s", first, all[first].text);
    free(all);
    return rc;
}

/* ---- the file ---- */

static int make_file(size_t bytes, struct offer *out) {
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return ot_fail_errno(OT_E_IO, errno, "cannot name memory that ranks share");
    out->process = getpid();
    snprintf(out->name, sizeof out->name, "offload-train-%016llx", (unsigned long long)random);
    out->file = memfd_create(out->name, MFD_CLOEXEC);
    if (out->file < 0)
        return ot_fail_errno(OT_E_IO, errno, "this system gives no memory that ranks can share");
    if (ftruncate(out->file, (off_t)bytes) < 0)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes of host memory left to share",
                             bytes);
    return 0;
}

/* A process number names another process in another container, so the name is compared. */
static int check_file(int file, const struct offer *offer, size_t bytes) {
    char path[PATH_BYTES], target[2 * NAME_BYTES] = "";
    struct stat info;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (readlink(path, target, sizeof target - 1) < 0 || fstat(file, &info) < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot tell which memory rank 0 shares");
    if (!strstr(target, offer->name) || info.st_size != (off_t)bytes)
        return ot_fail(OT_E_IO, "process %lld is not rank 0 here: the ranks are in different containers",
                       (long long)offer->process);
    return 0;
}

static int open_file(const struct offer *offer, size_t bytes, int *out) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)offer->process, offer->file);
    *out = open(path, O_RDWR | O_CLOEXEC);
    if (*out < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot open the memory of rank 0 (%s)", path);
    return check_file(*out, offer, bytes);
}

static int map_file(int file, size_t bytes, void **out) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "cannot map %zu bytes of shared memory", bytes);
    madvise(memory, bytes, MADV_HUGEPAGE); /* refused unless shmem_enabled allows it: then pages are small */
    *out = memory;
    return 0;
}

/* ---- shared_memory.h ---- */

int ot_shared_memory_map(struct ot_comm *comm, size_t bytes, void **out) {
    struct offer offer = {.file = -1};
    int file = -1, rc = 0;
    bool is_first = ot_comm_rank(comm) == 0;
    *out = NULL;
    if (is_first) {
        rc = make_file(bytes, &offer);
        file = offer.file;
    }
    OT_TRY_GOTO(agree(comm, rc), rc, out);
    OT_TRY_GOTO(ot_comm_broadcast_host(comm, &offer, sizeof offer, 0), rc, out);
    if (!is_first)
        rc = open_file(&offer, bytes, &file);
    if (rc == 0)
        rc = map_file(file, bytes, out);
    rc = agree(comm, rc); /* rank 0 keeps its descriptor until then */
out:
    if (file >= 0)
        close(file);
    if (rc < 0) {
        ot_shared_memory_unmap(*out, bytes);
        *out = NULL;
    }
    return rc;
}

void ot_shared_memory_unmap(void *memory, size_t bytes) {
    if (memory)
        munmap(memory, bytes);
}
