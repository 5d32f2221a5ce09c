/* Source: the rows of a data file, one at a time, as bytes.
 *
 * Reads JSON lines or one JSON array of rows, plain or gzip; which it is is seen in the bytes, not in the
 * name. Memory is bounded by the longest row. Offsets are 64 bits. A UTF-8 byte order mark, CRLF and empty
 * lines are accepted; a truncated or damaged gzip stream and files of other kinds are errors that name the
 * file and the place.
 *
 * A source checks only what it needs to cut rows; that a row is UTF-8 and JSON is for who parses it.
 * One thread at a time.
 */
#ifndef OT_DATA_SOURCE_H
#define OT_DATA_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct ot_source;

/* A longer row is refused: nothing that large is a row, but a file without line ends is common, and a gzip
 * stream may hold a thousand times its size. A row's text and tokens take some ten times its bytes. */
#define OT_SOURCE_MAX_ROW_BYTES ((size_t)1 << 28)

/* Errors: OT_E_IO (cannot open), OT_E_INPUT (a directory, empty, UTF-16, CSV, a name of a hub, ...). */
int ot_source_open(const char *path, struct ot_source **out);
void ot_source_close(struct ot_source *source); /* NULL is fine */

/* The next row: 1 and *text, borrowed until the next call and not NUL-terminated; 0 at the end. *line counts
 * from 1 and is where the row starts. Errors: OT_E_IO, OT_E_INPUT (the stream is damaged, so reading cannot
 * go on), OT_E_BUDGET. */
int ot_source_next(struct ot_source *source, const char **text, size_t *bytes, int64_t *line);

/* Bytes of the file as it lies on the disk, consumed so far and in total (0 where unknown: a pipe). For
 * progress. */
int64_t ot_source_bytes_read(const struct ot_source *source);
int64_t ot_source_bytes_total(const struct ot_source *source);

#endif
