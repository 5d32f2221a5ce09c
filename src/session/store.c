#include "src/session/store.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "offload/comm/world.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"

int64_t ot_session_free_in(const char *dir) {
    struct statvfs info;
    if (statvfs(dir, &info) < 0)
        return -1;
    return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
}

/* Checks that the bytes promised to the plan are free on the disk now. */
static int check_dir(const struct ot_nvme_dir *dir, int64_t limit) {
    int64_t have = ot_session_free_in(dir->path);
    char give[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    if (have < 0 || access(dir->path, W_OK) < 0)
        return ot_fail_errno(OT_E_IO, errno, "--nvme %s: cannot write to this directory", dir->path);
    if (limit == 0)
        return ot_fail(
            OT_E_BUDGET,
            "--nvme %s: the disk has no space left for it; free some space, or give less to other --nvme on "
            "the same disk",
            dir->path);
    if (limit <= have)
        return 0;
    return ot_fail(OT_E_BUDGET, "--nvme %s: %s is more than the %s that are free on this disk; give less",
                   dir->path, ot_text_bytes(limit, give), ot_text_bytes(have, left));
}

int ot_session_open_store(struct ot_session *s) {
    const struct ot_options *o = s->options;
    int64_t limits[OT_STORE_MAX_DIRS];
    _Static_assert((int)OT_NVME_MAX_DIRS <= (int)OT_STORE_MAX_DIRS, "every --nvme has a place");
    if (o->nvme.n == 0)
        return 0;
    for (int i = 0; i < o->nvme.n; i++)
        s->store_dirs[i] = (struct ot_store_dir){o->nvme.dirs[i].path, (size_t)o->nvme.dirs[i].bytes};
    int rc = ot_store_find_limits(s->store_dirs, o->nvme.n, limits);
    if (rc < 0)
        return ot_fail_context(rc, "--nvme");
    for (int i = 0; i < o->nvme.n; i++) {
        OT_TRY(check_dir(&o->nvme.dirs[i], limits[i]));
        limits[i] /= s->world ? ot_world_ranks(s->world)->local_ranks : 1; /* the ranks of a host share it */
        s->store_dirs[i].bytes = (size_t)limits[i];
        s->budget_bytes[OT_TIER_NVME] += (size_t)limits[i];
    }
    s->store = (struct ot_store_config){.n_dirs = o->nvme.n,
                                        .dirs = s->store_dirs,
                                        .engine = (enum ot_io_choice)o->io_engine,
                                        .no_verify = o->no_io_verify,
                                        .topology = s->topology};
    return 0;
}

void ot_session_warn_disks(const struct ot_session *s) {
    const double look_seconds = 0.05;
    char note[OT_MACHINE_NOTE_BYTES];
    for (int i = 0; i < s->store.n_dirs; i++)
        if (*ot_machine_dir_note("", s->store.dirs[i].path, look_seconds, note))
            ot_log(OT_LOG_WARN, "%s", note);
}
