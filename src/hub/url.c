#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "src/hub/http.h"

/* libcurl and this file must see the same host in a URL, because the token depends on it. So only characters
 * about which no two programs differ may be in one. */
static bool is_host_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
}

static bool is_port(const char *text, size_t bytes) {
    return bytes >= 1 && bytes <= 5 && strspn(text, "0123456789") >= bytes;
}

/* The bytes of "host" or "[address]" at the start of a URL's authority; 0: neither. */
static size_t host_bytes(const char *at) {
    size_t n = 0;
    if (*at == '[') {
        n = 1 + strspn(at + 1, "0123456789abcdefABCDEF:.");
        return n > 2 && at[n] == ']' ? n + 1 : 0;
    }
    while (is_host_byte(at[n]))
        n++;
    return n;
}

bool ot_url_origin(const char *url, char origin[OT_HTTP_ORIGIN_BYTES]) {
    bool safe = strncasecmp(url, "https://", 8) == 0;
    if (!safe && strncasecmp(url, "http://", 7) != 0)
        return false;
    for (const char *c = url; *c; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '\\')
            return false;
    const char *at = url + (safe ? 8 : 7), *default_port = safe ? "443" : "80";
    size_t host = host_bytes(at), all = strcspn(at, "/?#");
    size_t port = host < all ? all - host - 1 : 0;
    if (host == 0 || host > all || (host < all && (at[host] != ':' || !is_port(at + host + 1, port))))
        return false;
    bool is_default = port == strlen(default_port) && strncmp(at + host + 1, default_port, port) == 0;
    size_t kept = port && !is_default ? all : host;
    if (snprintf(origin, OT_HTTP_ORIGIN_BYTES, "%s%.*s", safe ? "https://" : "http://", (int)kept, at) >=
        OT_HTTP_ORIGIN_BYTES)
        return false;
    for (char *c = origin; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return true;
}

bool ot_url_join(const char *base, const char *location, char url[OT_HTTP_URL_BYTES]) {
    char origin[OT_HTTP_ORIGIN_BYTES];
    bool is_whole = strncasecmp(location, "http://", 7) == 0 || strncasecmp(location, "https://", 8) == 0;
    int n;
    if (!ot_url_origin(base, origin))
        return false;
    if (is_whole)
        n = snprintf(url, OT_HTTP_URL_BYTES, "%s", location);
    else if (strncmp(location, "//", 2) == 0)
        n = snprintf(url, OT_HTTP_URL_BYTES, "%.*s:%s", (int)strcspn(base, ":"), base, location);
    else if (location[0] == '/')
        n = snprintf(url, OT_HTTP_URL_BYTES, "%s%s", origin, location);
    else
        return false;
    return n < OT_HTTP_URL_BYTES && ot_url_origin(url, origin);
}

bool ot_url_append(char url[OT_HTTP_URL_BYTES], const char *text, bool whole) {
    size_t at = strlen(url);
    for (const char *c = text; *c; c++) {
        bool plain = isalnum((unsigned char)*c) || strchr("-._~", *c) || (*c == '/' && !whole);
        if (at + 4 > OT_HTTP_URL_BYTES)
            return false;
        at += (size_t)sprintf(url + at, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    return true;
}

const char *ot_url_host(const char *url, char host[OT_HTTP_ORIGIN_BYTES]) {
    const char *colon = ot_url_origin(url, host) ? strstr(host, "://") : NULL;
    if (!colon)
        return "the server";
    return colon + 3;
}
