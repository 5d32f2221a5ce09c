#include "src/files/torch_zip.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/memory.h"

enum {
    END_BYTES = 22,     /* "end of central directory", the last bytes of the file */
    LOCATOR_BYTES = 20, /* before it in zip64: where the zip64 record begins */
    RECORD_BYTES = 56,  /* the zip64 record */
    ENTRY_BYTES = 46,   /* an entry of the directory, without its name and extra fields */
    LOCAL_BYTES = 30,   /* the header before an entry's data, without its name and extra fields */
    ZIP64_FIELD = 1,
    FLAG_ENCRYPTED = 1,
    MAX_DIRECTORY_BYTES = 64 << 20, /* about 500000 entries */
};
#define END_SIGNATURE     0x06054b50u
#define LOCATOR_SIGNATURE 0x07064b50u
#define RECORD_SIGNATURE  0x06064b50u
#define ENTRY_SIGNATURE   0x02014b50u
#define LOCAL_SIGNATURE   0x04034b50u
#define IN_ZIP64          0xffffffffu /* a size or an offset that the zip64 field has instead */

static uint64_t load(const unsigned char *raw, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | raw[i];
    return value;
}

/* The directory in memory. */
struct directory {
    const struct ot_mapped_file *file;
    unsigned char *raw;
    size_t at, bytes; /* in the file */
    uint64_t n;
};

/* ---- where the directory is ---- */

static int take_place(struct directory *d, uint64_t n, uint64_t bytes, uint64_t at, size_t limit) {
    if (at > limit || bytes > limit - at || bytes > MAX_DIRECTORY_BYTES || n > bytes / ENTRY_BYTES)
        return ot_fail(
            OT_E_INPUT,
            "%s: the archive's directory would have %llu entries in %llu bytes at byte %llu, which "
            "cannot be; the file is damaged, get it again",
            d->file->path, (unsigned long long)n, (unsigned long long)bytes, (unsigned long long)at);
    d->n = n;
    d->bytes = (size_t)bytes;
    d->at = (size_t)at;
    return 0;
}

static int find_directory(struct directory *d) {
    unsigned char end[END_BYTES], locator[LOCATOR_BYTES], record[RECORD_BYTES];
    size_t bytes = d->file->bytes, end_at = bytes - END_BYTES;
    if (bytes >= END_BYTES)
        OT_TRY(ot_mapped_file_read(d->file, end, sizeof end, end_at));
    if (bytes < END_BYTES || load(end, 4) != END_SIGNATURE || load(end + 20, 2) != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: does not end with the directory of a zip archive, as files of torch.save do; it "
                       "is truncated or no such file, get it again",
                       d->file->path);
    if (end_at >= LOCATOR_BYTES) {
        OT_TRY(ot_mapped_file_read(d->file, locator, sizeof locator, end_at - LOCATOR_BYTES));
        if (load(locator, 4) == LOCATOR_SIGNATURE) {
            uint64_t at = load(locator + 8, 8), limit = end_at - LOCATOR_BYTES;
            if (limit < RECORD_BYTES || at > limit - RECORD_BYTES)
                return ot_fail(OT_E_INPUT, "%s: the zip64 record is outside the file; get it again",
                               d->file->path);
            OT_TRY(ot_mapped_file_read(d->file, record, sizeof record, (size_t)at));
            if (load(record, 4) != RECORD_SIGNATURE)
                return ot_fail(OT_E_INPUT, "%s: has no zip64 record at byte %llu; get it again",
                               d->file->path, (unsigned long long)at);
            return take_place(d, load(record + 32, 8), load(record + 40, 8), load(record + 48, 8),
                              (size_t)at);
        }
    }
    return take_place(d, load(end + 10, 2), load(end + 12, 4), load(end + 16, 4), end_at);
}

/* ---- entries ---- */

static int fail_entry(const struct directory *d, size_t index, const char *what) {
    return ot_fail(OT_E_INPUT, "%s: entry %zu of the archive %s; the file is damaged, get it again",
                   d->file->path, index, what);
}

/* Replaces saturated values by those of the zip64 field, in this order. False: the field lacks a value. */
static bool take_zip64(const unsigned char *extra, size_t bytes, uint64_t *values[3]) {
    for (size_t at = 0; at + 4 <= bytes;) {
        size_t id = load(extra + at, 2), field_bytes = load(extra + at + 2, 2);
        at += 4;
        if (field_bytes > bytes - at)
            return false;
        for (size_t i = 0, from = 0; id == ZIP64_FIELD && i < 3; i++)
            if (*values[i] == IN_ZIP64 && from + 8 <= field_bytes) {
                *values[i] = load(extra + at + from, 8);
                from += 8;
            }
        at += field_bytes;
    }
    return *values[0] != IN_ZIP64 && *values[1] != IN_ZIP64 && *values[2] != IN_ZIP64;
}

/* Finds the data behind the header that the directory points to. */
static int read_local(const struct directory *d, size_t index, uint64_t packed, struct ot_zip_entry *entry) {
    unsigned char local[LOCAL_BYTES];
    if (d->at < LOCAL_BYTES || entry->begin > d->at - LOCAL_BYTES)
        return fail_entry(d, index, "begins outside the file");
    OT_TRY(ot_mapped_file_read(d->file, local, sizeof local, entry->begin));
    if (load(local, 4) != LOCAL_SIGNATURE)
        return fail_entry(d, index, "has no header where it should begin");
    entry->at = entry->begin + LOCAL_BYTES + load(local + 26, 2) + load(local + 28, 2);
    if (entry->at > d->at || packed > d->at - entry->at)
        return fail_entry(d, index, "ends outside the file");
    entry->bytes = (size_t)packed;
    return 0;
}

/* Reads the entry at byte *at of the directory. */
static int read_entry(const struct directory *d, struct ot_arena *arena, size_t index, size_t *at,
                      struct ot_zip_entry *entry) {
    const unsigned char *raw = d->raw + *at;
    size_t left = d->bytes - *at;
    if (left < ENTRY_BYTES || load(raw, 4) != ENTRY_SIGNATURE)
        return fail_entry(d, index, "is missing from its directory");
    size_t name = load(raw + 28, 2), extra = load(raw + 30, 2), comment = load(raw + 32, 2);
    if (name + extra + comment > left - ENTRY_BYTES)
        return fail_entry(d, index, "goes past the end of its directory");
    uint64_t unpacked = load(raw + 24, 4), packed = load(raw + 20, 4), begin = load(raw + 42, 4);
    if (!take_zip64(raw + ENTRY_BYTES + name, extra, (uint64_t *[]){&unpacked, &packed, &begin}))
        return fail_entry(d, index, "has a zip64 field without its sizes");
    if (memchr(raw + ENTRY_BYTES, '\0', name))
        return fail_entry(d, index, "has a NUL in its name");
    entry->name = ot_arena_strdup(arena, (const char *)raw + ENTRY_BYTES, name);
    if (!entry->name)
        return -OT_E_BUDGET;
    entry->plain = load(raw + 10, 2) == 0 && !(load(raw + 8, 2) & FLAG_ENCRYPTED) && unpacked == packed;
    entry->crc = (uint32_t)load(raw + 16, 4);
    entry->begin = (size_t)begin;
    *at += ENTRY_BYTES + name + extra + comment;
    return read_local(d, index, packed, entry);
}

static int by_begin(const void *a, const void *b) {
    const struct ot_zip_entry *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ot_zip_entry *)a)->name, ((const struct ot_zip_entry *)b)->name);
}

static int check_entries(const struct directory *d, struct ot_zip *zip) {
    struct ot_zip_entry *entries = zip->entries;
    qsort(entries, zip->n, sizeof *entries, by_begin);
    for (size_t i = 1; i < zip->n; i++)
        if (entries[i].begin < entries[i - 1].at + entries[i - 1].bytes)
            return ot_fail(OT_E_INPUT, "%s: %s overlaps %s in the archive; the file is damaged, get it again",
                           d->file->path, entries[i].name, entries[i - 1].name);
    qsort(entries, zip->n, sizeof *entries, by_name);
    for (size_t i = 1; i < zip->n; i++)
        if (by_name(&entries[i - 1], &entries[i]) == 0)
            return ot_fail(OT_E_INPUT, "%s: the archive has two entries with the name %s", d->file->path,
                           entries[i].name);
    return 0;
}

int ot_zip_read(const struct ot_mapped_file *file, struct ot_arena *arena, struct ot_zip *zip) {
    struct directory d = {.file = file};
    size_t at = 0;
    int rc;
    OT_TRY(find_directory(&d));
    d.raw = malloc(d.bytes + 1);
    zip->entries = ot_arena_alloc(arena, (size_t)d.n + 1, sizeof *zip->entries);
    if (!d.raw || !zip->entries) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to read the archive's directory", file->path);
        goto out;
    }
    OT_TRY_GOTO(ot_mapped_file_read(file, d.raw, d.bytes, d.at), rc, out);
    for (zip->n = 0; zip->n < d.n; zip->n++)
        OT_TRY_GOTO(read_entry(&d, arena, zip->n, &at, &zip->entries[zip->n]), rc, out);
    rc = check_entries(&d, zip);
out:
    free(d.raw);
    return rc;
}

const struct ot_zip_entry *ot_zip_find(const struct ot_zip *zip, const char *name) {
    struct ot_zip_entry key = {.name = name};
    return bsearch(&key, zip->entries, zip->n, sizeof key, by_name);
}
