/* Giving back what checkpoints keep on disk for nothing.
 *
 * A file that was the NVMe store's is kept by the checkpoints that have a second name of it (store.h), as a
 * whole, though they refer to a part of it: less and less when the older of them are removed. So what no
 * manifest speaks of is punched out. Only of files that nobody holds, that is to say whose store is closed
 * or dead; and only if every name that a file has lies in a checkpoint that could be read: whoever has
 * another keeps what he has. The name that a dead store's file had goes with ot_store_remove_stale.
 */
#ifndef OT_CHECKPOINT_RECLAIM_H
#define OT_CHECKPOINT_RECLAIM_H

#include "src/checkpoint/list.h"

/* All checkpoints of a directory. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_reclaim(const struct ot_checkpoint_list *list);

#endif
