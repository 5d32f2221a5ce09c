/* Reads small files whole. */
#ifndef OT_BASE_READ_FILE_H
#define OT_BASE_READ_FILE_H

#include <stddef.h>

/* The caller frees *text, which has no NUL at its end; NULL after an error. Errors: OT_E_IO (cannot read),
 * OT_E_INPUT (more than max_bytes), OT_E_BUDGET. */
int ot_read_file(const char *path, size_t max_bytes, char **text, size_t *bytes);

#endif
