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
#include "src/base/text.h"

const char *const ot_row_array_names[OT_ROW_ARRAYS] = {"tokens", "rows", "json", "ends"};

enum { NAME_DIGITS = 16, HEAD_MAX_BYTES = 1 << 20, FIRST_CHECKED = 1 /* tokens are checked row by row */ };

struct ot_row_cache {
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
    uint32_t crcs[OT_ROW_ARRAYS];
};
static const char magic[8] = "OTROWS1";

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

static int check_array(const struct ot_grow_map *map, uint32_t crc) {
    return ot_crc32(0, map->data, map->bytes) == crc ? 0 : ot_fail(OT_E_INPUT, "%s: damaged", map->path);
}

static int read_arrays(const char *dir, const struct head *head, struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    char path[PATH_MAX];
    for (int i = 0; i < OT_ROW_ARRAYS; i++) {
        OT_TRY(name_path(path, dir, ot_row_array_names[i], ""));
        OT_TRY(ot_grow_map_open(path, head->sizes[i], &arrays[i]));
        if (i >= FIRST_CHECKED)
            OT_TRY(check_array(&arrays[i], head->crcs[i]));
    }
    return 0;
}

/* The file has the head, the caller's head, and the checksum of both. */
static int read_whole(const char *dir, void *out, size_t bytes, struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    char path[PATH_MAX], *text;
    size_t found;
    struct head head;
    uint32_t crc;
    OT_TRY(name_path(path, dir, "head", ""));
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
    return is_whole ? read_arrays(dir, &head, arrays) : ot_fail(OT_E_INPUT, "%s: damaged", path);
}

/* ---- removing ---- */

/* Removes a directory of a cache and its files. A name that is no file of a cache stays, and so does the
 * directory then. */
static void remove_files(const char *dir) {
    static const char *const others[] = {"key", "head"};
    char path[PATH_MAX];
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        if (name_path(path, dir, ot_row_array_names[i], "") == 0)
            unlink(path);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (name_path(path, dir, others[i], "") == 0)
            unlink(path);
    rmdir(dir);
}

static bool is_name(const char *name) {
    return strlen(name) == NAME_DIGITS && strspn(name, "0123456789abcdef") == NAME_DIGITS;
}

/* Removes the other caches. A process that has one mapped keeps it. */
static void remove_stale(const struct ot_row_cache *c) {
    char path[PATH_MAX];
    DIR *dir = opendir(c->dir);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (!is_name(entry->d_name) || strcmp(entry->d_name, c->key_name) == 0)
            continue;
        if (name_path(path, c->dir, entry->d_name, "") == 0)
            remove_files(path);
        if (name_path(path, c->dir, entry->d_name, ".lock") == 0)
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
        ot_log(OT_LOG_INFO, "waiting for another process, which makes the cache of rows %s", c->whole);
        c->lock = ot_cache_lock(path, 1e9);
    }
    return c->lock >= 0 ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot make and lock the file", path);
}

static int begin(struct ot_row_cache *c, struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    char path[PATH_MAX];
    remove_files(c->partial);
    if (mkdir(c->partial, 0777) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot make the directory", c->partial);
    for (int i = 0; i < OT_ROW_ARRAYS; i++) {
        OT_TRY(name_path(path, c->partial, ot_row_array_names[i], ""));
        OT_TRY(ot_grow_map_create(path, &arrays[i]));
    }
    return 0;
}

static void close_arrays(struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    for (int i = 0; i < OT_ROW_ARRAYS; i++)
        ot_grow_map_close(&arrays[i]);
}

/* Returns 1 if the cache is there and whole. */
static int find(const struct ot_row_cache *c, void *head, size_t bytes,
                struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    if (!has_file(c->whole, "key", c->key, c->key_bytes))
        return 0;
    if (read_whole(c->whole, head, bytes, arrays) == 0)
        return 1;
    if (c->lock >= 0)
        ot_log(OT_LOG_WARN, "%s; the cache of rows is made again", ot_error_text());
    close_arrays(arrays);
    memset(head, 0, bytes);
    return 0;
}

/* Returns as ot_row_cache_open. */
static int find_or_begin(struct ot_row_cache *c, const struct ot_row_cache_config *config, void *head,
                         size_t bytes, struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    int found = find(c, head, bytes, arrays);
    if (found != 0 || !config->may_make)
        return found;
    OT_TRY(take_lock(c));
    found = find(c, head, bytes, arrays);
    return found != 0 ? found : begin(c, arrays);
}

int ot_row_cache_open(const struct ot_row_cache_config *config, const char *key, size_t key_bytes, void *head,
                      size_t head_bytes, struct ot_grow_map arrays[OT_ROW_ARRAYS],
                      struct ot_row_cache **out) {
    *out = NULL;
    if (!config->dir)
        return 0;
    struct ot_row_cache *c = calloc(1, sizeof *c);
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory for the cache of rows");
    c->lock = -1;
    c->is_own = config->is_own;
    int rc = find_paths(c, config->dir, key, key_bytes);
    if (rc == 0)
        rc = find_or_begin(c, config, head, head_bytes, arrays);
    bool makes = rc == 0 && config->may_make;
    if (rc < 0 && config->is_optional) {
        ot_log(OT_LOG_WARN, "%s; the rows are kept in memory (--cache DIR: another place)", ot_error_text());
        close_arrays(arrays);
        rc = 0;
    }
    if (makes)
        *out = c;
    else
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

int ot_row_cache_finish(struct ot_row_cache *c, const void *head, size_t head_bytes,
                        struct ot_grow_map arrays[OT_ROW_ARRAYS]) {
    struct head mine = {.bytes = head_bytes};
    memcpy(mine.magic, magic, sizeof magic);
    for (int i = 0; i < OT_ROW_ARRAYS; i++) {
        OT_TRY(ot_grow_map_flush(&arrays[i]));
        mine.sizes[i] = arrays[i].bytes;
        if (i >= FIRST_CHECKED)
            mine.crcs[i] = ot_crc32(0, arrays[i].data, arrays[i].bytes);
    }
    uint32_t crc = ot_crc32(ot_crc32(0, &mine, sizeof mine), head, head_bytes);
    OT_TRY(write_file(c->partial, "head", (const void *[]){&mine, head, &crc},
                      (size_t[]){sizeof mine, head_bytes, sizeof crc}, 3));
    OT_TRY(write_file(c->partial, "key", (const void *[]){c->key}, &c->key_bytes, 1));
    remove_files(c->whole); /* a damaged one */
    if (rename(c->partial, c->whole) < 0)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot be renamed to %s", c->partial, c->whole);
    c->is_finished = true;
    if (c->is_own)
        remove_stale(c);
    return 0;
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
