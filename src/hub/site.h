/* The endpoint of the hub, the token, and the errors of its answers. */
#ifndef OT_HUB_SITE_H
#define OT_HUB_SITE_H

#include "src/hub/http.h"
#include "src/hub/name.h"

struct ot_hub_site {
    struct ot_http_site http;
    char endpoint[OT_HTTP_ORIGIN_BYTES]; /* without a slash at its end; it may have a path */
};

/* Reads HF_ENDPOINT, HF_TOKEN, the token's file, HF_HUB_DOWNLOAD_TIMEOUT, and the variables by which Python's
 * requests and httpx find certificates. Errors: OT_E_USAGE: a variable has a wrong form, or names a file that
 * is missing. */
int ot_hub_site_open(struct ot_hub_site *site);

/* "ENDPOINT/api/models/ORG/NAME/revision/REVISION" and "ENDPOINT/[datasets/]ORG/NAME/resolve/REVISION/FILE".
 * False: too long. */
bool ot_hub_url_of_list(const struct ot_hub_site *site, const struct ot_hub_name *name,
                        char url[OT_HTTP_URL_BYTES]);
bool ot_hub_url_of_file(const struct ot_hub_site *site, const struct ot_hub_name *name, const char *revision,
                        const char *file, char url[OT_HTTP_URL_BYTES]);

/* The error of an answer that is not a success. file: NULL for the repository itself. Returns -OT_E_INPUT or
 * -OT_E_IO. */
int ot_hub_explain(const struct ot_hub_site *site, const struct ot_hub_name *name, const char *file,
                   struct ot_http_answer *answer);

#endif
