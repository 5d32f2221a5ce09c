/* The log: messages to a person while the program works; and text streams to slow readers. Library layers log
 * only useful facts (a fallback, a limit), and return errors. Lines go to stderr, so stdout has only results
 * (`--json`, generated text). Any thread may call these functions.
 *
 * After ot_log_start no caller waits for the reader of stderr.
 */
#ifndef OT_BASE_LOG_H
#define OT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum ot_log_level { OT_LOG_ERROR, OT_LOG_WARN, OT_LOG_INFO, OT_LOG_DEBUG };

void ot_log_set_level(enum ot_log_level level); /* default: OT_LOG_INFO */
bool ot_log_is_quiet(void);                     /* the level is below OT_LOG_INFO */
/* Logs one whole line and adds the newline. Warnings begin with "warning: ", errors with "error: ". */
void ot_log(enum ot_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs a line of OT_LOG_INFO that is dropped if the reader of stderr is slow. */
void ot_log_progress(const char *line);
/* Logs text unchanged, at every level. The text has its own newlines. The status line is not redrawn. */
void ot_log_text(const char *text, size_t bytes);

/* Sets the status: a line that is redrawn at the bottom of the terminal while other lines appear above it. ""
 * removes it. Returns false, and shows nothing, if stderr is not a terminal. */
bool ot_log_set_status(const char *text);
bool ot_log_is_terminal(void);

/* Starts the thread that writes to stderr from now on. Errors: as ot_output_open. */
int ot_log_start(void);
/* Writes the queued lines. Gives up after `seconds` in which the reader took nothing. Later lines are
 * dropped. Does nothing without ot_log_start. */
void ot_log_finish(double seconds);

/* ---- output ---- */

/* A text stream whose reader may be slow, stopped or gone: a terminal after Ctrl-S, a pipe that nobody reads.
 * Threads that put text never wait for the reader. The text goes into a queue, and a thread of the stream
 * writes it to the descriptor. If the queue gets long because the reader is slow, progress is dropped, and a
 * note says how many texts are missing. Any thread may call these functions, but no signal handler. */

struct ot_output;

struct ot_output_config {
    int fd; /* the stream writes to it and never closes it */
    const char *name;
    size_t progress_bytes; /* progress is dropped while the queue has this many bytes */
    size_t most_bytes;     /* all text is dropped while the queue has this many bytes */
    /* A note is before_count, the number of dropped texts, and after_count. Both are static texts. */
    const char *before_count, *after_count;
};

enum ot_output_kind {
    OT_OUTPUT_TEXT,     /* dropped only beyond most_bytes */
    OT_OUTPUT_PROGRESS, /* dropped, and counted, beyond progress_bytes */
    OT_OUTPUT_REDRAW,   /* dropped beyond progress_bytes, not counted: a later text replaces it */
};

/* Errors: OT_E_BUDGET, OT_E_IO (no thread can start). */
int ot_output_open(const struct ot_output_config *config, struct ot_output **out);
/* Queues the text. Errors: OT_E_IO (an earlier write failed: the reader is gone), OT_E_BUDGET. */
int ot_output_put(struct ot_output *output, enum ot_output_kind kind, const char *text, size_t bytes);
/* Waits until all text is written. Gives up after `seconds` in which the reader took nothing. Returns true if
 * all text was written. */
bool ot_output_flush(struct ot_output *output, double seconds);
/* Drops text that is still queued. If the thread hangs in a write, it is left running, because the process is
 * about to end. NULL is fine. */
void ot_output_close(struct ot_output *output);

#endif
