/* A stream of text whose reader may be slow, stopped or gone: a terminal after Ctrl-S, a pipe that nobody
 * reads. The threads that put text never wait for the reader. The text goes into a queue, and a thread of the
 * stream writes it to the descriptor. Where the queue is long because the reader is slow, progress is left
 * out, and a note in its place says how many texts are missing. Any thread may call these functions, but not
 * a signal handler.
 */
#ifndef OT_BASE_OUTPUT_H
#define OT_BASE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

struct ot_output;

struct ot_output_config {
    int fd; /* the stream writes there and never closes it */
    const char *name;
    size_t progress_bytes; /* a queue of this length takes no more progress */
    size_t most_bytes;     /* a queue of this length takes nothing more */
    /* A note is before_count, the number of texts that were left out, and after_count. Static texts. */
    const char *before_count, *after_count;
};

enum ot_output_kind {
    OT_OUTPUT_TEXT,     /* left out only beyond most_bytes */
    OT_OUTPUT_PROGRESS, /* left out, and counted, beyond progress_bytes */
    OT_OUTPUT_REDRAW,   /* likewise, but not counted: a later text replaces it */
};

/* Errors: OT_E_BUDGET, OT_E_IO (no thread can start). */
int ot_output_open(const struct ot_output_config *config, struct ot_output **out);
/* Queues the text. Errors: OT_E_IO (an earlier write failed: the reader is gone), OT_E_BUDGET. */
int ot_output_put(struct ot_output *output, enum ot_output_kind kind, const char *text, size_t bytes);
/* Waits until all text is written. Gives up after `seconds` in which the reader took nothing. Returns whether
 * all was written. */
bool ot_output_flush(struct ot_output *output, double seconds);
/* Loses what is still queued. A thread that hangs in a write is left behind: the process is about to end.
 * NULL is fine. */
void ot_output_close(struct ot_output *output);

#endif
