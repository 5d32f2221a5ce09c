#include "offload/comm/plugins/breakage.h"

#include <stdarg.h>
#include <stdio.h>

#include "offload/comm/plugin.h"

void ot_breakage_init(struct ot_breakage *breakage) {
    *breakage = (struct ot_breakage){.code = OT_COMM_OK};
    pthread_mutex_init(&breakage->mutex, NULL);
}

void ot_breakage_destroy(struct ot_breakage *breakage) {
    pthread_mutex_destroy(&breakage->mutex);
}

int ot_breakage_set(struct ot_breakage *breakage, int code, const char *format, ...) {
    va_list args;
    pthread_mutex_lock(&breakage->mutex);
    if (breakage->code == OT_COMM_OK) {
        breakage->code = code;
        va_start(args, format);
        vsnprintf(breakage->why, sizeof breakage->why, format, args);
        va_end(args);
    }
    code = breakage->code;
    pthread_mutex_unlock(&breakage->mutex);
    return code;
}

int ot_breakage_get(struct ot_breakage *breakage, char *why, size_t why_bytes) {
    pthread_mutex_lock(&breakage->mutex);
    int code = breakage->code;
    if (code != OT_COMM_OK && why)
        snprintf(why, why_bytes, "%s", breakage->why);
    pthread_mutex_unlock(&breakage->mutex);
    return code;
}
