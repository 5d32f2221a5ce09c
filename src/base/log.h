/* What the program says to a person while it works. Library layers report through return codes and records;
 * they log only what is worth knowing and not an error (a fallback taken, a limit met). Lines go to stderr,
 * so that stdout holds results alone (`--json`, generated text). A progress bar registers itself here so that
 * a line does not tear it. All functions may be called from any thread.
 */
#ifndef OT_BASE_LOG_H
#define OT_BASE_LOG_H

#include <stdbool.h>

enum ot_log_level { OT_LOG_ERROR, OT_LOG_WARN, OT_LOG_INFO, OT_LOG_DEBUG };

void ot_log_set_level(enum ot_log_level level); /* default: OT_LOG_INFO */
/* One whole line; the newline is added. Warnings carry "warning: ", errors "error: ". */
void ot_log(enum ot_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line that is redrawn in place at the bottom of a terminal; other lines appear above it. Ignored, and
 * false returned, where stderr is not a terminal. "" removes it. */
bool ot_log_set_status(const char *text);
bool ot_log_is_terminal(void);

#endif
