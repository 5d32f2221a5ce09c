/* The directory of a zip archive, as torch.save writes it: with the zip64 record or without. No entry is
 * unpacked: callers read the bytes of entries that are stored as they are. */
#ifndef OT_FILES_TORCH_ZIP_H
#define OT_FILES_TORCH_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_arena;
struct ot_mapped_file;

struct ot_zip_entry {
    const char *name;
    size_t begin;     /* of its header in the file */
    size_t at, bytes; /* of its data in the file, which is compressed or encrypted unless `plain` */
    uint32_t crc;     /* zlib's CRC-32 of the unpacked data; not compared */
    bool plain;
};

struct ot_zip {
    struct ot_zip_entry *entries; /* sorted by name */
    size_t n;
};

/* Reads the directory and the header of each entry. Checks that entries lie within the file, do not overlap
 * and have different names. The entries belong to the arena. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_zip_read(const struct ot_mapped_file *file, struct ot_arena *arena, struct ot_zip *zip);
/* NULL: the archive has no such entry. */
const struct ot_zip_entry *ot_zip_find(const struct ot_zip *zip, const char *name);

#endif
