/* What the I/O engines share: the functions behind each, and the note on how each was set up. Private to
 * io_engine.c, io_engine_uring.c and io_engine_pool.c. */
#ifndef OT_OFFLOAD_STORE_IO_ENGINE_STATE_H
#define OT_OFFLOAD_STORE_IO_ENGINE_STATE_H

#include "offload/store/io_engine.h"

struct ot_io_engine_ops {
    int (*submit)(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
    int (*reap)(struct ot_io_engine *engine, struct ot_io_result *results, int most);
    void (*close)(struct ot_io_engine *engine);
};

enum { OT_IO_NOTE_BYTES = 512 };

struct ot_io_engine { /* the first member of each engine */
    const struct ot_io_engine_ops *ops;
    enum ot_io_choice choice;
    const int *files; /* of the config */
    const struct ot_io_calls *calls;
    char note[OT_IO_NOTE_BYTES];
};

/* Adds ", " and the words to the note; what does not fit is cut. */
void ot_io_engine_add_note(struct ot_io_engine *engine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Tells the seam that the system gets this I/O now. */
static inline void ot_io_note_begin(const struct ot_io_engine *engine, const struct ot_io_request *request) {
    const struct ot_io_calls *calls = engine->calls;
    if (calls->begin)
        calls->begin(calls->context, request->write, engine->files[request->file], request->bytes,
                     request->offset);
}

/* config->calls is set; config->choice is not looked at. Errors: as ot_io_engine_open. */
int ot_io_uring_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);
int ot_io_pool_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);

#endif
