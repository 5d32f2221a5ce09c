#include "src/train/out_sharing.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "src/base/crc32.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/path.h"

enum { HOST_BYTES = 64, OUT_BYTES = 512 };

struct facts { /* of a rank */
    char host[HOST_BYTES];
    char out[OUT_BYTES]; /* --out, for people: cut if it is longer */
    uint64_t token;      /* rank 0's counts: part of the names of the files */
    bool looks;          /* this rank saves, so it needs a directory */
    bool local;          /* --save-local */
};

struct sight {     /* of a rank's search */
    uint64_t seen; /* bit r: the file of rank r is there */
    bool wrote;    /* its own file could be made */
};

struct search {
    const struct ot_options *options;
    struct ot_world *world;
    int rank, ranks;
    char dir[PATH_MAX]; /* the nearest existing directory */
    uint32_t rest; /* a checksum of the rest of --out: --out a and --out b differ, though neither exists */
    struct facts *facts;
    struct sight *sights;
};

static void find_dir(struct search *s) {
    const char *out = s->options->out;
    if (!ot_path_find_nearest(out, s->dir))
        snprintf(s->dir, sizeof s->dir, ".");
    size_t known = strlen(s->dir);
    const char *rest = strncmp(out, s->dir, known) == 0 ? out + known : out;
    rest += strspn(rest, "/");
    size_t n = strlen(rest);
    while (n > 0 && rest[n - 1] == '/')
        n--;
    s->rest = ot_crc32(0, rest, n);
}

/* Room for the directory, and for the longest name. */
enum { PATH_BYTES = PATH_MAX + 80 };

static void name_file(const struct search *s, int rank, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/.offload-train-%016" PRIx64 "-%08" PRIx32 "-%d", s->dir, s->facts[0].token,
             s->rest, rank);
}

static bool make_file(const struct search *s) {
    char path[PATH_BYTES];
    name_file(s, s->rank, path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd >= 0 && close(fd) == 0;
}

/* No rank has looked for these names before, so a network file system has no old answer for them. */
static uint64_t look(const struct search *s) {
    char path[PATH_BYTES];
    uint64_t seen = 0;
    for (int r = 0; r < s->ranks; r++) {
        name_file(s, r, path);
        if (s->sights[r].wrote && access(path, F_OK) == 0)
            seen |= (uint64_t)1 << r;
    }
    return seen;
}

/* Lets all ranks look at the same time. A rank whose file could not be made is seen by none, but may see the
 * others. */
static int search(struct search *s) {
    char path[PATH_BYTES];
    struct sight mine = {0};
    bool looks = s->facts[s->rank].looks;
    if (looks) {
        find_dir(s);
        mine.wrote = make_file(s);
    }
    int rc = ot_world_all_gather(s->world, &mine, sizeof mine, s->sights);
    if (rc == 0 && looks)
        mine.seen = look(s);
    if (rc == 0)
        rc = ot_world_all_gather(s->world, &mine, sizeof mine, s->sights);
    if (mine.wrote) {
        name_file(s, s->rank, path);
        (void)unlink(path);
    }
    return rc;
}

/* The first rank that shares the directory of `rank`. If rank 0 cannot write its directory, it soon says why,
 * so all are taken to share. */
static int find_leader(const struct search *s, int rank) {
    uint64_t seen = s->sights[rank].seen;
    if (!s->facts[rank].looks || !s->sights[0].wrote)
        return 0;
    return seen ? __builtin_ctzll(seen) : rank;
}

static int refuse(const struct search *s, int rank) {
    char first[256];
    snprintf(first, sizeof first, "%s", ot_world_name(s->world, 0));
    return ot_fail(
        OT_E_USAGE,
        "%s does not see the --out directory of %s (%s): give a directory that all hosts share, or "
        "--save-local, with which each host keeps the checkpoint parts of its own ranks",
        ot_world_name(s->world, rank), first, s->facts[0].out);
}

static int join_hosts(const struct search *s, char **out) {
    size_t used = 0, bytes = (size_t)s->ranks * (HOST_BYTES + 1) + 1;
    *out = calloc(1, bytes);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for the names of the hosts");
    for (int r = 0; r < s->ranks; r++)
        used += (size_t)snprintf(*out + used, bytes - used, "%s%s", r ? " " : "", s->facts[r].host);
    return 0;
}

static int conclude(const struct search *s, struct ot_out_sharing *out) {
    int own = find_leader(s, s->rank), other = 0;
    out->sharers = 0;
    for (int r = 0; r < s->ranks; r++) {
        int leader = find_leader(s, r);
        out->sharers += leader == own;
        if (leader > 0 && other == 0)
            other = r;
    }
    out->leads = own == s->rank;
    out->is_local = other > 0;
    if (out->is_local && !s->facts[0].local)
        return refuse(s, other);
    if (out->is_local)
        return join_hosts(s, &out->hosts);
    if (s->facts[0].local && s->rank == 0)
        ot_log(OT_LOG_WARN, "--save-local has no effect: all ranks share the directory %s", s->options->out);
    return 0;
}

static void find_facts(const struct search *s, struct facts *mine) {
    *mine = (struct facts){.looks = !s->options->no_save && !s->options->dry_run,
                           .local = s->options->save_local};
    snprintf(mine->out, sizeof mine->out, "%s", s->options->out ? s->options->out : "");
    if (gethostname(mine->host, sizeof mine->host - 1) < 0 || !*mine->host)
        snprintf(mine->host, sizeof mine->host, "?");
    for (char *at = mine->host; *at; at++)
        if (*at == ' ')
            *at = '_';
    if (getrandom(&mine->token, sizeof mine->token, 0) < 0)
        mine->token = (uint64_t)getpid();
}

int ot_out_sharing_find(const struct ot_options *options, struct ot_world *world,
                        struct ot_out_sharing *out) {
    struct search s = {.options = options, .world = world};
    struct facts mine;
    int rc;
    *out = (struct ot_out_sharing){.leads = true, .sharers = 1};
    if (!world && options->save_local)
        ot_log(OT_LOG_WARN, "--save-local has no effect with one rank");
    if (!world)
        return 0;
    s.rank = ot_world_ranks(world)->rank;
    s.ranks = ot_world_ranks(world)->ranks;
    s.facts = calloc((size_t)s.ranks, sizeof *s.facts);
    s.sights = calloc((size_t)s.ranks, sizeof *s.sights);
    if (!s.facts || !s.sights) {
        rc = ot_fail(OT_E_BUDGET, "no memory to compare the directories of %d ranks", s.ranks);
        goto out;
    }
    find_facts(&s, &mine);
    OT_TRY_GOTO(ot_world_all_gather(world, &mine, sizeof mine, s.facts), rc, out);
    out->leads = s.rank == 0;
    out->sharers = s.ranks;
    out->is_local = s.facts[0].local; /* without looking, each rank reads its own directory */
    if (!s.facts[0].looks)
        goto out;
    OT_TRY_GOTO(search(&s), rc, out);
    rc = conclude(&s, out);
out:
    free(s.facts);
    free(s.sights);
    return rc;
}

void ot_out_sharing_free(struct ot_out_sharing *sharing) {
    free(sharing->hosts);
    *sharing = (struct ot_out_sharing){0};
}
