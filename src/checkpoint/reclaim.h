/* Frees disk space of store files that no checkpoint needs any more.
 *
 * Checkpoints keep hard links to the NVMe store's files (store.h). A hard link keeps the whole file on the
 * disk, but the checkpoint's manifest refers only to some of its bytes, and to fewer as older checkpoints are
 * removed. Reclaim punches holes where no manifest refers to the file. It does so only if no process holds
 * the file (its store is closed or its process has died), and only if every hard link of the file is in a
 * checkpoint that could be read: an unknown link may belong to a user who needs all bytes.
 * ot_store_remove_stale removes a dead store's own name of the file.
 */
#ifndef OT_CHECKPOINT_RECLAIM_H
#define OT_CHECKPOINT_RECLAIM_H

#include "src/checkpoint/list.h"

/* list: all checkpoints of one directory. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_reclaim(const struct ot_checkpoint_list *list);

#endif
