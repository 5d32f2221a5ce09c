/* The files that one value of --data names: a file, standard input ("-"), the files of a directory, those
 * that match a pattern such as 'rows-*.jsonl', or a file of the hub or of an https server, which is
 * downloaded. */
#ifndef OT_DATA_DATA_FILES_H
#define OT_DATA_DATA_FILES_H

#include <stddef.h>
#include <stdint.h>

struct ot_data_files { /* set to zero before the first use */
    char **paths;      /* in the order of their bytes, so that it is the same on every machine */
    size_t n, capacity;
};

/* Appends the files of `given`. Of a directory: its own files (not those of directories in it, and no
 * hidden ones) whose names end as rows do: .jsonl, .json, .csv, .tsv, .txt or .parquet, and each of these
 * with .gz or .zst. A path that exists is no pattern. Errors: OT_E_INPUT (nothing matches), OT_E_IO,
 * OT_E_BUDGET, and those of ot_hub_get_remote. Close it also after an error. */
int ot_data_files_open(const char *given, struct ot_data_files *files);
void ot_data_files_close(struct ot_data_files *files);
int64_t
ot_data_files_bytes(const struct ot_data_files *files); /* of all files together; 0: unknown, a pipe */

#endif
