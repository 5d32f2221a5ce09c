/* SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake of ranks that share a secret. It hashes
 * a few hundred bytes a connection, so it is written to be read. */
#ifndef OT_BASE_SHA256_H
#define OT_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OT_SHA256_BYTES = 32, OT_SHA256_BLOCK = 64 };

struct ot_sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[OT_SHA256_BLOCK];
};
void ot_sha256_begin(struct ot_sha256 *hash);
void ot_sha256_add(struct ot_sha256 *hash, const void *data, size_t bytes);
void ot_sha256_end(struct ot_sha256 *hash, uint8_t digest[OT_SHA256_BYTES]);

struct ot_hmac {
    struct ot_sha256 inner, outer;
};
void ot_hmac_begin(struct ot_hmac *mac, const void *key, size_t key_bytes);
void ot_hmac_add(struct ot_hmac *mac, const void *data, size_t bytes);
void ot_hmac_end(struct ot_hmac *mac, uint8_t digest[OT_SHA256_BYTES]);

/* Compares digests in a time that does not depend on where they differ. */
bool ot_sha256_is_same(const uint8_t a[OT_SHA256_BYTES], const uint8_t b[OT_SHA256_BYTES]);

#endif
