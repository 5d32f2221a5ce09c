/* Base64 (RFC 4648, section 4), with padding and without line breaks. */
#ifndef OT_BASE_BASE64_H
#define OT_BASE_BASE64_H

#include <stddef.h>

/* The caller frees *bytes, which end with a NUL. Errors: OT_E_INPUT (`where` names the text), OT_E_BUDGET. */
int ot_base64_decode(const char *text, size_t n, const char *where, char **bytes, size_t *n_bytes);
/* The caller frees *text, which ends with a NUL. Errors: OT_E_BUDGET. */
int ot_base64_encode(const void *bytes, size_t n, char **text, size_t *n_text);

#endif
