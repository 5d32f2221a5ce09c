/* The memory of the one copy of weights (plan/one_copy.h): maps, places and pins it. */
#include "offload/comm/shared_memory.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"

static const char NAME[] = "weights that ranks share";

/* A rank's part of the pages comes from the memory that is near its device. All ranks place their parts
 * before one pins them: pinning makes pages resident, wherever they are. */
int ot_engine_open_one_copy(struct ot_engine *en, void *given) {
    size_t bytes = en->layout.one_copy_bytes, part = bytes / (size_t)ot_shard_ranks(&en->plan.shard);
    void *memory = given;
    if (bytes == 0)
        return 0;
    if (!given)
        OT_TRY(ot_shared_memory_map(en->comm, bytes, &memory));
    en->one_copy_is_mapped = !given;
    en->tier_memory[OT_MEMORY_ONE_COPY] = memory;
    OT_TRY(ot_device_place(en->device, (char *)memory + (size_t)en->plan.shard.rank * part, part, NAME));
    OT_TRY(ot_comm_barrier(en->comm));
    OT_TRY(ot_device_pin(en->device, memory, bytes, part, NAME));
    en->one_copy_is_pinned = true;
    return 0;
}

/* A step begins with updates of streamed tiles. After a flush these are none, but they write the bytes that
 * are there. */
int ot_engine_leave_one_copy(struct ot_engine *en) {
    if (!en->one_copy_is_read)
        return 0;
    en->one_copy_is_read = false;
    return ot_comm_barrier(en->comm);
}

void ot_engine_close_one_copy(struct ot_engine *en) {
    size_t bytes = en->layout.one_copy_bytes;
    void *memory = en->tier_memory[OT_MEMORY_ONE_COPY];
    if (en->one_copy_is_pinned)
        ot_device_unpin(en->device, memory, bytes / (size_t)ot_shard_ranks(&en->plan.shard));
    if (en->one_copy_is_mapped)
        ot_shared_memory_unmap(memory, bytes);
}
