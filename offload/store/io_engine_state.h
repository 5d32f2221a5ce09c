/* Declarations that the I/O engines share: the functions of each engine, and the note on how it was set up.
 * Private to io_engine.c, io_engine_uring.c and io_engine_pool.c. */
#ifndef OT_OFFLOAD_STORE_IO_ENGINE_STATE_H
#define OT_OFFLOAD_STORE_IO_ENGINE_STATE_H

#include "offload/store/io_engine.h"

struct ot_io_engine_ops {
    int (*submit)(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
    int (*reap)(struct ot_io_engine *engine, struct ot_io_result *results, int most);
    void (*close)(struct ot_io_engine *engine);
};

enum { OT_IO_NOTE_BYTES = 512 };

struct ot_io_engine { /* first member of each engine's struct */
    const struct ot_io_engine_ops *ops;
    enum ot_io_choice choice;
    const int *files; /* as in the config */
    const struct ot_io_calls *calls;
    char note[OT_IO_NOTE_BYTES];
};

/* Adds ", " and the text to the note. Cuts text that does not fit. */
void ot_io_engine_add_note(struct ot_io_engine *engine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Tells the seam that this I/O begins now. */
static inline void ot_io_note_begin(const struct ot_io_engine *engine, const struct ot_io_request *request) {
    const struct ot_io_calls *calls = engine->calls;
    if (calls->begin)
        calls->begin(calls->context, request->write, engine->files[request->file], request->bytes,
                     request->offset);
}

/* Open one kind of engine. config->calls must be set; config->choice is ignored. Errors: as
 * ot_io_engine_open. */
int ot_io_uring_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);
int ot_io_pool_open(const struct ot_io_engine_config *config, struct ot_io_engine **out);

#endif
