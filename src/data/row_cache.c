#include "src/data/row_cache.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/cache_file.h"
#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

enum { NAME_DIGITS = 16, HEAD_MAX_BYTES = 1 << 20, BLOCK = 4096 };

/* The files of a kind. */
static const struct kind {
    const char *names[OT_ROW_ARRAYS];
    int n, first_summed; /* arrays before this one have no sums */
    const char *what;    /* for messages */
} kinds[] = {
    [OT_ROW_CACHE_ROWS] = {{"tokens", "rows", "json", "ends"}, 4, 1, "the rows"},
    [OT_ROW_CACHE_SPLIT] = {{"held"}, 1, 0, "the choice of held-out rows"},
    [OT_ROW_CACHE_MIXTURE] = {{"copies"}, 1, 0, "the mixture of rows"},
    [OT_ROW_CACHE_PACKING] = {{"ranked", "placed", "first", "groups"}, 4, 0, "the packing of rows"},
    [OT_ROW_CACHE_EPOCH] = {{"order", "packed"}, 2, 0, "the order of rows"},
};
static const char *const other_names[] = {"key", "head", "sums"};

struct ot_row_cache {
    const struct kind *kind;
    char dir[PATH_MAX], whole[PATH_MAX], partial[PATH_MAX];
    char key_name[NAME_DIGITS + 1];
    char *key;
    size_t key_bytes;
    int lock;
    bool is_own, is_finished;
};

struct head {
    char magic[8];
    uint64_t bytes, sizes[OT_ROW_ARRAYS];
    uint32_t sums_crc, unused;
};
static const char magic[8] = "OTROWS2";

static int name_path(char path[PATH_MAX], const char *dir, const char *name, const char *ending) {
    int n = snprintf(path, PATH_MAX, "%s/%s%s", dir, name, ending);
    return n > 0 && n < PATH_MAX ? 0 : ot_fail(OT_E_USAGE, "--cache %.200s...: the path is too long", dir);
}

/* ---- reading ---- */

static bool has_file(const char *dir, const char *name, const void *content, size_t bytes) {
    char path[PATH_MAX], *text = NULL;
    size_t found;
    bool is = name_path(path, dir, name, "") == 0 && ot_read_file(path, HEAD_MAX_BYTES, &text, &found) == 0 &&
              found == bytes && memcmp(text, content, bytes) == 0;
    free(text);
    return is;
}

static size_t n_blocks(size_t bytes) {
    return bytes / BLOCK + (bytes % BLOCK != 0);
}

static int read_arrays(const struct ot_row_cache *c, const struct head *head, struct ot_row_arrays *arrays) {
    char path[PATH_MAX];
    size_t blocks = 0;
    for (int i = 0; i < c->kind->n; i++) {
        OT_TRY(name_path(path, c->whole, c->kind->names[i], ""));
        OT_TRY(ot_grow_map_open(path, head->sizes[i], &arrays->maps[i]));
        blocks += i >= c->kind->first_summed ? n_blocks(head->sizes[i]) : 0;
    }
    OT_TRY(name_path(path, c->whole, "sums", ""));
    OT_TRY(ot_grow_map_open(path, blocks * sizeof(uint32_t), &arrays->sums));
    bool is_whole = ot_crc32(0, arrays->sums.data, arrays->sums.bytes) == head->sums_crc;
    return is_whole ? ot_string_format(&arrays->dir, "%s", c->whole)
                    : ot_fail(OT_E_INPUT, "%s: damaged", path);
}

/* The file has the head, the caller's head, and the checksum of both. */
static int read_whole(const struct ot_row_cache *c, void *out, size_t bytes, struct ot_row_arrays *arrays) {
    char path[PATH_MAX], *text;
    size_t found;
    struct head head;
    uint32_t crc;
    OT_TRY(name_path(path, c->whole, "head", ""));
    OT_TRY(ot_read_file(path, HEAD_MAX_BYTES, &text, &found));
    bool is_whole = found == sizeof head + bytes + sizeof crc;
    if (is_whole) {
        memcpy(&head, text, sizeof head);
        memcpy(out, text + sizeof head, bytes);
        memcpy(&crc, text + sizeof head + bytes, sizeof crc);
        is_whole = memcmp(head.magic, magic, sizeof magic) == 0 && head.bytes == bytes &&
                   ot_crc32(0, text, found - sizeof crc) == crc;
    }
    free(text);
    return is_whole ? read_arrays(c, &head, arrays) : ot_fail(OT_E_INPUT, "%s: damaged", path);
}

/* ---- removing ---- */

static bool is_name(const char *name, const char *ending) {
    return strspn(name, "0123456789abcdef") == NAME_DIGITS && strcmp(name + NAME_DIGITS, ending) == 0;
}

static void remove_caches(const char *in, const char *but);

/* Removes a directory of a cache, its files, and the caches in it. A name that is no file of a cache stays,
 * and so does the directory then. */
static void remove_files(const char *dir) {
    char path[PATH_MAX];
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int i = 0; i < kinds[kind].n; i++)
            if (name_path(path, dir, kinds[kind].names[i], "") == 0)
                unlink(path);
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (name_path(path, dir, other_names[i], "") == 0)
            unlink(path);
    if (rmdir(dir) == 0)
        return;
    remove_caches(dir, NULL);
    rmdir(dir);
}

/* Removes the caches in a directory but for the one of this name, and those that are being made. NULL: all of
 * them. A process that has one mapped keeps it. */
static void remove_caches(const char *in, const char *but) {
    char path[PATH_MAX];
    DIR *dir = opendir(in);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        bool is_cache = is_name(name, "") && (!but || strcmp(name, but) != 0);
        if ((is_cache || (!but && is_name(name, ".partial"))) && name_path(path, in, name, "") == 0)
            remove_files(path);
        if (!but && is_name(name, ".lock") && name_path(path, in, name, "") == 0)
            unlink(path);
        if (is_cache && name_path(path, in, name, ".lock") == 0)
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

/* ---- making ---- */

static int find_paths(struct ot_row_cache *c, const char *dir, const char *key, size_t bytes) {
    struct ot_sha256 hash;
    uint8_t digest[OT_SHA256_BYTES];
    ot_sha256_begin(&hash);
    ot_sha256_add(&hash, key, bytes);
    ot_sha256_end(&hash, digest);
    ot_hash_text(digest, NAME_DIGITS / 2, c->key_name);
    snprintf(c->dir, sizeof c->dir, "%s", dir);
    OT_TRY(name_path(c->whole, dir, c->key_name, ""));
    OT_TRY(name_path(c->partial, dir, c->key_name, ".partial"));
    c->key_bytes = bytes;
    c->key = ot_string_copy(key, bytes);
    return c->key ? 0 : ot_fail(OT_E_BUDGET, "no memory for the cache of rows");
}

static int take_lock(struct ot_row_cache *c) {
    char path[PATH_MAX];
    OT_TRY(name_path(path, c->dir, c->key_name, ".lock"));
    c->lock = ot_cache_lock(path, 0);
    if (c->lock < 0 && access(path, F_OK) == 0) {
        ot_log(OT_LOG_INFO, "waiting for another process, which keeps %s in %s", c->kind->what, c->whole);
        c->lock = ot_cache_lock(path, 1e9);
    }
    return c->lock >= 0 ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot make and lock the file", path);
}

static int begin(struct ot_row_cache *c, struct ot_row_arrays *arrays) {
    char path[PATH_MAX];
    remove_files(c->partial);
    if (mkdir(c->partial, 0777) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot make the directory", c->partial);
    for (int i = 0; i < c->kind->n; i++) {
        OT_TRY(name_path(path, c->partial, c->kind->names[i], ""));
        OT_TRY(ot_grow_map_create(path, &arrays->maps[i]));
    }
    return 0;
}

/* Returns 1 if the cache is there and whole. */
static int find(const struct ot_row_cache *c, void *head, size_t bytes, struct ot_row_arrays *arrays) {
    if (!has_file(c->whole, "key", c->key, c->key_bytes))
        return 0;
    if (read_whole(c, head, bytes, arrays) == 0)
        return 1;
    if (c->lock >= 0)
        ot_log(OT_LOG_WARN, "%s; %s: made again", ot_error_text(), c->kind->what);
    ot_row_arrays_close(arrays);
    memset(head, 0, bytes);
    return 0;
}

/* Returns as ot_row_cache_open. */
static int find_or_begin(struct ot_row_cache *c, const struct ot_row_cache_config *config, void *head,
                         size_t bytes, struct ot_row_arrays *arrays) {
    int found = find(c, head, bytes, arrays);
    if (found != 0 || !config->may_make)
        return found;
    OT_TRY(take_lock(c));
    found = find(c, head, bytes, arrays);
    return found != 0 ? found : begin(c, arrays);
}

static int begin_unnamed(const char *dir, enum ot_row_cache_kind kind, struct ot_row_arrays *arrays) {
    for (int i = 0; dir && i < kinds[kind].n; i++)
        OT_TRY(ot_grow_map_create_unnamed(dir, &arrays->maps[i]));
    return 0;
}

static int fall_back(const struct kind *kind, struct ot_row_arrays *arrays) {
    ot_log(OT_LOG_WARN, "%s; %s: kept in memory (--cache DIR: another place)", ot_error_text(), kind->what);
    ot_row_arrays_close(arrays);
    return 0;
}

int ot_row_cache_open(const struct ot_row_cache_config *config, enum ot_row_cache_kind kind, const char *key,
                      size_t key_bytes, void *head, size_t head_bytes, struct ot_row_arrays *arrays,
                      struct ot_row_cache **out) {
    *out = NULL;
    if (!config->dir)
        return begin_unnamed(config->scratch, kind, arrays);
    struct ot_row_cache *c = calloc(1, sizeof *c);
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory for the cache of rows");
    c->lock = -1;
    c->kind = &kinds[kind];
    c->is_own = config->is_own;
    int rc = find_paths(c, config->dir, key, key_bytes);
    if (rc == 0)
        rc = find_or_begin(c, config, head, head_bytes, arrays);
    if (rc == 0 && config->may_make) {
        *out = c;
        return 0;
    }
    if (rc == 0)
        rc = begin_unnamed(config->scratch, kind, arrays);
    if (rc < 0 && config->is_optional)
        rc = fall_back(c->kind, arrays);
    ot_row_cache_close(c);
    return rc;
}

static int write_file(const char *dir, const char *name, const void *parts[], const size_t bytes[], int n) {
    char path[PATH_MAX];
    struct ot_grow_map map = {0};
    OT_TRY(name_path(path, dir, name, ""));
    int rc = ot_grow_map_create(path, &map);
    for (int i = 0; i < n && rc == 0; i++)
        rc = ot_grow_map_add(&map, parts[i], bytes[i]);
    if (rc == 0)
        rc = ot_grow_map_flush(&map);
    ot_grow_map_close(&map);
    return rc;
}

/* The checksums of the blocks of an array, after those of the arrays before it. */
static int add_sums(const struct ot_grow_map *map, struct ot_grow_map *sums) {
    for (size_t at = 0; at < map->bytes; at += BLOCK) {
        const uint32_t crc = ot_crc32(0, map->data + at, ot_min(map->bytes - at, (size_t)BLOCK));
        OT_TRY(ot_grow_map_add(sums, &crc, sizeof crc));
    }
    return 0;
}

static int write_arrays(const struct ot_row_cache *c, struct head *head, struct ot_row_arrays *arrays) {
    char path[PATH_MAX];
    OT_TRY(name_path(path, c->partial, "sums", ""));
    OT_TRY(ot_grow_map_create(path, &arrays->sums));
    for (int i = 0; i < c->kind->n; i++) {
        OT_TRY(ot_grow_map_flush(&arrays->maps[i]));
        head->sizes[i] = arrays->maps[i].bytes;
        if (i >= c->kind->first_summed)
            OT_TRY(add_sums(&arrays->maps[i], &arrays->sums));
    }
    head->sums_crc = ot_crc32(0, arrays->sums.data, arrays->sums.bytes);
    return ot_grow_map_flush(&arrays->sums);
}

/* The files have moved from the partial directory: messages name the new one. */
static int name_arrays(const struct ot_row_cache *c, struct ot_row_arrays *arrays) {
    for (int i = 0; i < c->kind->n; i++) {
        char **path = &arrays->maps[i].path;
        free(*path);
        *path = NULL;
        OT_TRY(ot_string_format(path, "%s/%s", c->whole, c->kind->names[i]));
    }
    return ot_string_format(&arrays->dir, "%s", c->whole);
}

int ot_row_cache_finish(struct ot_row_cache *c, const void *head, size_t head_bytes,
                        struct ot_row_arrays *arrays) {
    struct head mine = {.bytes = head_bytes};
    memcpy(mine.magic, magic, sizeof magic);
    OT_TRY(write_arrays(c, &mine, arrays));
    uint32_t crc = ot_crc32(ot_crc32(0, &mine, sizeof mine), head, head_bytes);
    OT_TRY(write_file(c->partial, "head", (const void *[]){&mine, head, &crc},
                      (size_t[]){sizeof mine, head_bytes, sizeof crc}, 3));
    OT_TRY(write_file(c->partial, "key", (const void *[]){c->key}, &c->key_bytes, 1));
    remove_files(c->whole); /* a damaged one */
    if (rename(c->partial, c->whole) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot be renamed to %s", c->partial, c->whole);
    c->is_finished = true;
    if (c->is_own)
        remove_caches(c->dir, c->key_name);
    return name_arrays(c, arrays);
}

void ot_row_cache_close(struct ot_row_cache *c) {
    if (!c)
        return;
    if (c->lock >= 0) {
        if (!c->is_finished)
            remove_files(c->partial);
        close(c->lock);
    }
    free(c->key);
    free(c);
}

int ot_row_cache_get(const struct ot_row_cache_config *config, enum ot_row_cache_kind kind, const char *key,
                     void *head, size_t head_bytes, struct ot_row_arrays *arrays,
                     int (*make)(void *context, struct ot_row_arrays *arrays), void *context) {
    struct ot_row_cache *cache;
    int found = ot_row_cache_open(config, kind, key, strlen(key), head, head_bytes, arrays, &cache);
    if (found != 0)
        return found < 0 ? found : 0;
    int rc = make(context, arrays);
    if (rc == 0 && cache)
        rc = ot_row_cache_finish(cache, head, head_bytes, arrays);
    if (rc == -OT_E_IO && config->is_optional) {
        rc = fall_back(&kinds[kind], arrays);
        memset(head, 0, head_bytes);
        if (rc == 0)
            rc = make(context, arrays);
    }
    ot_row_cache_close(cache);
    return rc;
}

/* ---- arrays ---- */

int ot_row_arrays_check(const struct ot_row_arrays *arrays, int array, size_t at, size_t bytes) {
    const struct ot_grow_map *map = &arrays->maps[array];
    size_t first = arrays->sums.bytes / sizeof(uint32_t), end = at + bytes;
    if (arrays->sums.bytes == 0 || bytes == 0)
        return 0;
    for (int i = OT_ROW_ARRAYS - 1; i >= array; i--)
        first -= n_blocks(arrays->maps[i].bytes);
    const uint32_t *sums = (const uint32_t *)(const void *)arrays->sums.data + first;
    bool is_whole = at <= map->bytes && bytes <= map->bytes - at;
    for (size_t block = at / BLOCK; is_whole && block * BLOCK < end; block++) {
        const size_t begin = block * BLOCK;
        is_whole = ot_crc32(0, map->data + begin, ot_min(map->bytes - begin, (size_t)BLOCK)) == sums[block];
    }
    return is_whole
               ? 0
               : ot_fail(OT_E_INPUT, "%s: damaged; remove the file and start again: it is then made again",
                         map->path);
}

size_t ot_row_arrays_memory(const struct ot_row_arrays *arrays) {
    size_t bytes = 0;
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        bytes += ot_grow_map_memory(&arrays->maps[i]);
    return bytes;
}

void ot_row_arrays_close(struct ot_row_arrays *arrays) {
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        ot_grow_map_close(&arrays->maps[i]);
    ot_grow_map_close(&arrays->sums);
    free(arrays->dir);
    *arrays = (struct ot_row_arrays){0};
}
