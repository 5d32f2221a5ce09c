/* Reads the rows of a data file one at a time, as bytes.
 *
 * A file has JSON lines, one JSON array of rows, or a table (CSV, TSV) whose header names the fields. It may
 * be packed with gzip or zstd. Or it is a Parquet file, which must not be a pipe. The source finds out from
 * the bytes. The name decides for two kinds that bytes cannot tell. A file *.txt that does not begin like
 * JSON is text, and becomes rows {"text": ".."}: one, or one for each paragraph or line (enum ot_text_by). A
 * file *.csv or *.tsv is a table even with a single column. Memory is bounded by the longest row, for zstd by
 * a window of 128 MB, and for Parquet by its pages. Offsets have 64 bits. A UTF-8 byte order mark, CRLF and
 * empty lines are accepted. A truncated or damaged stream and files of other kinds are errors that name the
 * file and the place.
 *
 * A source checks only what it needs to separate rows. The parser checks that a row is UTF-8 and JSON. One
 * thread at a time.
 */
#ifndef OT_DATA_SOURCE_H
#define OT_DATA_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_source;

/* Longer rows are refused. No real row is that long, but files without line ends are common, and a packed
 * stream may unpack to thousands of times its size. A row's text and tokens need about ten times its
 * bytes. */
#define OT_SOURCE_MAX_ROW_BYTES ((size_t)1 << 28)

/* The path of standard input. */
#define OT_SOURCE_STANDARD_INPUT "-"

/* True if the name ends in .ending, .ending.gz or .ending.zst, in any case. */
bool ot_source_is_named(const char *name, const char *ending);

/* How a text is cut into rows. A paragraph ends at the next blank line, or at the end of the file. A blank
 * line has white space alone, and is no row. The row of a paragraph or a line has no line end behind its last
 * line; the line ends inside a paragraph become \n. */
enum ot_text_by { OT_TEXT_BY_DOCUMENT, OT_TEXT_BY_PARAGRAPH, OT_TEXT_BY_LINE };

/* Errors: OT_E_IO (cannot open), OT_E_INPUT (a directory, empty, UTF-16, a bad header, a hub name, ...),
 * OT_E_BUDGET. */
int ot_source_open(const char *path, enum ot_text_by text_by, struct ot_source **out);
void ot_source_close(struct ot_source *source); /* NULL is fine */

/* Reads the next row. Returns 1 and *text, which is borrowed until the next call and not NUL-terminated; 0 at
 * the end of the file. *line is the line, from 1, where the row begins; of a Parquet file, the number of the
 * row. Errors: OT_E_IO, OT_E_INPUT (the stream is damaged, so reading cannot go on), OT_E_USAGE (a library
 * for its packing is missing), OT_E_BUDGET. */
int ot_source_next(struct ot_source *source, const char **text, size_t *bytes, int64_t *line);

bool ot_source_is_text(const struct ot_source *source); /* of which text_by makes rows */

/* Bytes of the file on disk: read so far, and in total (0: unknown, a pipe). For progress. */
int64_t ot_source_bytes_read(const struct ot_source *source);
int64_t ot_source_bytes_total(const struct ot_source *source);

#endif
