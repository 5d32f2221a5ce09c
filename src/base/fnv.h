/* The hash FNV-1a, for keys and names. It is not safe against texts that were chosen to collide. Files of
 * caches and tables in this program hold its values, so they stay the same in every version. */
#ifndef OT_BASE_FNV_H
#define OT_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define OT_FNV64 UINT64_C(0xcbf29ce484222325) /* the hash of no bytes */
#define OT_FNV32 UINT32_C(0x811c9dc5)

/* Continues from `hash`, which is OT_FNV64 at the start. */
static inline uint64_t ot_fnv64(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The same with 32 bits, from OT_FNV32. */
static inline uint32_t ot_fnv32(uint32_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT32_C(16777619);
    return hash;
}

#endif
