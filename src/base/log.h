/* The log: messages to a person while the program works. Library layers report errors through return codes
 * and records; they log only useful facts that are no errors (a fallback, a limit). Lines go to stderr, so
 * stdout has only results (`--json`, generated text). Any thread may call these functions.
 *
 * After ot_log_start no caller waits for the reader of stderr (src/base/output.h).
 */
#ifndef OT_BASE_LOG_H
#define OT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum ot_log_level { OT_LOG_ERROR, OT_LOG_WARN, OT_LOG_INFO, OT_LOG_DEBUG };

void ot_log_set_level(enum ot_log_level level); /* default: OT_LOG_INFO */
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

#endif
