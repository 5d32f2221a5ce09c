/* Ranks prove to each other that they know the secret of the run (world.h). */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "offload/comm/world_state.h"

/* The proofs of both sides differ in their first bytes, so neither can be sent back as the other. They cover
 * the random numbers of both sides, so an old proof is worthless, and they cover the rank's whole hello. */
void ot_world_prove(const struct ot_world *world, enum ot_world_prover who,
                    const struct ot_world_hello *hello, const uint8_t nonce[OT_WORLD_NONCE_BYTES],
                    uint8_t proof[OT_SHA256_BYTES]) {
    static const char labels[][24] = {
        [OT_WORLD_ROOT] = "offload-train root", [OT_WORLD_OTHER] = "offload-train rank"};
    struct ot_hmac mac;
    ot_hmac_begin(&mac, world->secret, strlen(world->secret));
    ot_hmac_add(&mac, labels[who], sizeof labels[who]);
    ot_hmac_add(&mac, hello, sizeof *hello);
    ot_hmac_add(&mac, nonce, OT_WORLD_NONCE_BYTES);
    ot_hmac_end(&mac, proof);
}

int ot_world_make_nonce(uint8_t nonce[OT_WORLD_NONCE_BYTES]) {
    return getrandom(nonce, OT_WORLD_NONCE_BYTES, 0) == OT_WORLD_NONCE_BYTES
               ? 0
               : ot_fail_errno(OT_E_IO, errno, "cannot make a random number for the handshake of the ranks");
}
