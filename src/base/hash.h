/* Checksums and hashes: CRC-32, FNV-1a, SHA-256 and SHA-1. CRC-32 equals zlib's, whose rate is below that
 * of a good disk. With carry-less multiplication (PCLMULQDQ) one Sapphire Rapids core makes 23 GB/s of
 * data in the L2 cache; zlib 1.2.13: 5.8 GB/s. */
#ifndef OT_BASE_HASH_H
#define OT_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Continues from `crc`, which is 0 at the start, like zlib's crc32. */
uint32_t ot_crc32(uint32_t crc, const void *data, size_t bytes);
/* Returns the checksum of two adjacent pieces from their checksums, so that threads can share a long
 * piece. */
uint32_t ot_crc32_combine(uint32_t first, uint32_t second, size_t second_bytes);
const char *ot_crc32_kernel(void); /* "pclmulqdq" or "zlib": the kernel for this CPU */

/* ---- FNV-1a ---- */

/* The hash FNV-1a, for keys and names. It is not safe against texts that were chosen to collide. Files of
 * caches and tables in this program hold its values, so they stay the same in every version. */

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

/* ---- SHA-256 ---- */

/* SHA-256 (FIPS 180-4), for downloaded files, and HMAC-SHA-256 (RFC 2104), for the handshake of ranks that
 * share a secret. CPUs with SHA instructions hash 1 to 2 GB/s, others a tenth of that. */

enum { OT_SHA256_BYTES = 32, OT_SHA256_BLOCK = 64 };

struct ot_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[OT_SHA256_BLOCK];
};
void ot_sha256_begin(struct ot_sha256 *hash);
void ot_sha256_add(struct ot_sha256 *hash, const void *data, size_t bytes);
void ot_sha256_end(struct ot_sha256 *hash, uint8_t digest[OT_SHA256_BYTES]);

/* Chooses the kernel of later calls: the SHA instructions, which are the default where the CPU has them, or
 * plain C. Returns true if the instructions are in use. For tests; not while another thread hashes. */
bool ot_sha256_use_instructions(bool use);

struct ot_hmac {
    struct ot_sha256 inner, outer;
};
void ot_hmac_begin(struct ot_hmac *mac, const void *key, size_t key_bytes);
void ot_hmac_add(struct ot_hmac *mac, const void *data, size_t bytes);
void ot_hmac_end(struct ot_hmac *mac, uint8_t digest[OT_SHA256_BYTES]);

/* ---- SHA-1 ---- */

/* SHA-1 (FIPS 180-4), with which git names its files. It is not safe against files that were made to
 * collide. */

enum { OT_SHA1_BYTES = 20 };

struct ot_sha1 {
    uint32_t state[5];
    uint64_t bytes; /* so far */
    uint8_t block[64];
};
void ot_sha1_begin(struct ot_sha1 *hash);
void ot_sha1_add(struct ot_sha1 *hash, const void *data, size_t bytes);
void ot_sha1_end(struct ot_sha1 *hash, uint8_t digest[OT_SHA1_BYTES]);

/* Writes 2 * bytes digits in lower case, and a NUL. */
void ot_hash_text(const uint8_t *digest, size_t bytes, char *text);

/* Compares digests in a time that does not depend on where they differ. */
bool ot_sha256_is_same(const uint8_t a[OT_SHA256_BYTES], const uint8_t b[OT_SHA256_BYTES]);

#endif
