/* What the program says to a person while it works. Library layers report through return codes and records;
 * they log only what is worth knowing and not an error (a fallback taken, a limit met). Lines go to stderr,
 * so that stdout holds results alone (`--json`, generated text). A progress bar registers itself here so that
 * a line does not tear it. All functions may be called from any thread.
 *
 * After ot_log_start no caller waits for the reader of stderr: see src/base/output.h.
 */
#ifndef OT_BASE_LOG_H
#define OT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

enum ot_log_level { OT_LOG_ERROR, OT_LOG_WARN, OT_LOG_INFO, OT_LOG_DEBUG };

void ot_log_set_level(enum ot_log_level level); /* default: OT_LOG_INFO */
/* One whole line; the newline is added. Warnings carry "warning: ", errors "error: ". */
void ot_log(enum ot_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A line of OT_LOG_INFO that may be left out where the reader of stderr is slow. */
void ot_log_progress(const char *line);
/* Text as it is, on every level: it holds its own newlines, and no status is shown. */
void ot_log_text(const char *text, size_t bytes);

/* A line that is redrawn in place at the bottom of a terminal; other lines appear above it. Ignored, and
 * false returned, where stderr is not a terminal. "" removes it. */
bool ot_log_set_status(const char *text);
bool ot_log_is_terminal(void);

/* From here on a thread writes to stderr. Errors: as ot_output_open. */
int ot_log_start(void);
/* Writes what is queued, but gives up after `seconds` in which the reader took nothing. Later lines are not
 * shown. Nothing happens without ot_log_start. */
void ot_log_finish(double seconds);

#endif
