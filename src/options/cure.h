/* The options that cure a failure whose cause the engine or a kernel named (src/base/error.h). */
#ifndef OT_OPTIONS_CURE_H
#define OT_OPTIONS_CURE_H

#include "src/base/error.h"

/* This thread's last sentence and, behind it, the cure of its cause; valid until the thread's next call. */
const char *ot_cure_text(void);

#endif
