#include "offload/probe/peers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"

/* The location of a rank's GPU, and the rank's measurements. */
struct seat {
    char host[128], bus_id[OT_BUS_ID_BYTES];
    bool has_next, is_measured;
    struct ot_device_peer peer;
};

/* The next rank of this host, in a circle. NULL: the rank is alone there, or the next has the same GPU. */
static const struct seat *next_seat(const struct seat *all, int ranks, int rank) {
    const struct seat *own = &all[rank];
    for (int i = 1; i < ranks; i++) {
        const struct seat *other = &all[(rank + i) % ranks];
        if (strcmp(other->host, own->host) == 0)
            return strcmp(other->bus_id, own->bus_id) ? other : NULL;
    }
    return NULL;
}

static int measure(const struct ot_peers_config *config, const char *bus_id, struct ot_device_peer *out) {
    void *memory;
    OT_TRY(ot_device_alloc(config->device, config->bytes, "copies between GPUs", &memory));
    int rc = ot_device_measure_peer(config->device, bus_id, memory, config->bytes, config->seconds, out);
    ot_device_free(config->device, memory);
    return rc;
}

static void sum_up(const struct seat *all, int ranks, struct ot_peers *out) {
    int n = 0;
    *out = (struct ot_peers){.is_known = true, .has_access = true};
    for (int r = 0; r < ranks; r++) {
        const struct seat *seat = &all[r];
        if (!seat->has_next)
            continue;
        out->is_known &= seat->is_measured;
        out->has_access &= seat->peer.has_access;
        if (n++ == 0 || seat->peer.rate < out->rate)
            out->rate = seat->peer.rate;
    }
    if (n == 0 || !out->is_known)
        *out = (struct ot_peers){0};
}

int ot_probe_peers(const struct ot_peers_config *config, struct ot_peers *out) {
    const struct ot_ranks *ranks = ot_world_ranks(config->world);
    struct seat own = {0}, *all = calloc((size_t)ranks->ranks, sizeof *all);
    *out = (struct ot_peers){0};
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the GPUs of %d ranks", ranks->ranks);
    if (gethostname(own.host, sizeof own.host - 1) < 0 ||
        !ot_device_bus_id(config->kind, config->index, own.bus_id))
        own.host[0] = own.bus_id[0] = '\0';
    int rc = ot_world_all_gather(config->world, &own, sizeof own, all);
    const struct seat *next = rc == 0 ? next_seat(all, ranks->ranks, ranks->rank) : NULL;
    if (next) {
        own.has_next = true;
        own.is_measured = measure(config, next->bus_id, &own.peer) == 0;
        if (!own.is_measured)
            ot_log(OT_LOG_DEBUG, "peers   not measured: %s", ot_error_text());
    }
    if (rc == 0)
        rc = ot_world_all_gather(config->world, &own, sizeof own, all);
    if (rc == 0)
        sum_up(all, ranks->ranks, out);
    free(all);
    return rc;
}
