/* A checkpoint's manifest. The input is a manifest without its last four bytes. The target appends the right
 * checksum, because otherwise only the checksum would be tested. An accepted manifest encodes to the same
 * bytes, and is refused if one bit of it is changed. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/checkpoint/manifest.h"
#include "tests/fuzz/target.h"

enum { CRC_BYTES = 4 };

static void check_decoded(const struct ot_manifest *m, const unsigned char *bytes, size_t n) {
    unsigned char *again;
    size_t again_n;
    FUZZ_CHECK(ot_manifest_encode(m, &again, &again_n) == 0);
    FUZZ_CHECK(again_n == n && memcmp(again, bytes, n) == 0);
    free(again);
    for (int i = 0; i < m->n_files; i++)
        FUZZ_CHECK(m->files[i].name[0] != '.' && !strchr(m->files[i].name, '/'));
    for (int64_t i = 0; i < m->n_spans; i++)
        FUZZ_CHECK(m->spans[i].offset + m->spans[i].bytes <= m->files[m->spans[i].file].bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n = size + CRC_BYTES;
    unsigned char *bytes = malloc(n);
    struct ot_manifest manifest;
    FUZZ_CHECK(bytes);
    memcpy(bytes, data, size);
    uint32_t crc = ot_crc32(0, bytes, size);
    for (int i = 0; i < CRC_BYTES; i++)
        bytes[size + (size_t)i] = (unsigned char)(crc >> 8 * i);
    int rc = ot_manifest_decode(bytes, n, "manifest.bin", &manifest);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
    } else {
        check_decoded(&manifest, bytes, n);
        ot_manifest_free(&manifest);
        bytes[crc % n] ^= (unsigned char)(1u << (crc >> 29));
        fuzz_check_refusal(ot_manifest_decode(bytes, n, "manifest.bin", &manifest), OT_E_INPUT);
    }
    FUZZ_CHECK(!manifest.files && !manifest.segments);
    free(bytes);
    return 0;
}
