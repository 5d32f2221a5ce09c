/* The failure that broke a plugin's communicator: the first one stays, later ones are dropped. Any thread may
 * call these functions. */
#ifndef OT_OFFLOAD_COMM_PLUGINS_BREAKAGE_H
#define OT_OFFLOAD_COMM_PLUGINS_BREAKAGE_H

#include <pthread.h>
#include <stddef.h>

enum { OT_BREAKAGE_BYTES = 512 };

struct ot_breakage {
    pthread_mutex_t mutex;
    int code; /* OT_COMM_OK, or the code of the first failure */
    char why[OT_BREAKAGE_BYTES];
};

void ot_breakage_init(struct ot_breakage *breakage);
void ot_breakage_destroy(struct ot_breakage *breakage);
/* Records that the communicator is broken, with a sentence. Returns the code of the first failure. */
int ot_breakage_set(struct ot_breakage *breakage, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the code of the first failure, or OT_COMM_OK. Copies its sentence to `why`, which may be NULL. */
int ot_breakage_get(struct ot_breakage *breakage, char *why, size_t why_bytes);

#endif
