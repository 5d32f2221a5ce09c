/* The tcp communicator as a plugin, for tests of the program. As it is, it is a plugin from before there were
 * transfers. With FLIPS it has them, and changes a byte of what it receives: the last one. */
#define ot_comm_tcp ot_comm_plugin_v1
#include "offload/comm/tcp.c" /* NOLINT */

#ifdef FLIPS
static int flip(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    int code = transfer(context, transfers, n, stream);
    for (size_t i = 0; i < n && code == OT_COMM_OK; i++)
        if (!transfers[i].is_send && transfers[i].bytes > 0)
            ((char *)transfers[i].memory)[transfers[i].bytes - 1] ^= 1;
    return code;
}

const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1 = {
    .abi = OT_COMM_TRANSFERS_V1, .struct_size = sizeof ot_comm_plugin_transfers_v1, .transfer = flip};
#endif
