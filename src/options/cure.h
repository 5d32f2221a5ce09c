/* Names the options that cure a failure. The engine and the kernels name its cause (src/base/error.h). */
#ifndef OT_OPTIONS_CURE_H
#define OT_OPTIONS_CURE_H

#include "src/base/error.h"

/* The calling thread's last error sentence, followed by the cure of its cause. Valid until the thread's next
 * call. */
const char *ot_cure_text(void);

#endif
