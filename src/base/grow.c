#include "src/base/grow.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* The least capacity, so that small arrays are not reallocated often. */
enum { LEAST = 32 };

bool ot_array_reallocate(void *array, size_t *capacity, size_t needed, size_t each) {
    size_t most = SIZE_MAX / each;
    if (needed > most)
        return false;
    size_t wanted = *capacity <= most / 3 * 2 ? *capacity + *capacity / 2 : most;
    wanted = ot_max(ot_max(wanted, needed), LEAST);
    void *old, *grown;
    memcpy(&old, array, sizeof old); /* the pointer has another type than void * */
    grown = realloc(old, wanted * each);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

int ot_array_fail(size_t needed, const char *what) {
    return ot_fail(OT_E_BUDGET, "no memory for %zu %s", needed, what);
}
