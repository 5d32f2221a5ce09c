/* Memory that grows at its end without a copy of what is there: pages of this process, or of a file.
 *
 * Pages of a file are not memory that the process needs: the kernel writes them back and drops them when
 * memory is short. Space for them is allocated before they are written, so a full disk is an error of
 * ot_grow_map_add, and no signal. A disk that fails while pages are read back raises SIGBUS.
 *
 * One thread while it grows; afterwards any number of threads may read it.
 */
#ifndef OT_BASE_GROW_MAP_H
#define OT_BASE_GROW_MAP_H

#include <stdbool.h>
#include <stddef.h>

struct ot_grow_map { /* set to zero before the first use: empty memory of the process */
    char *data;
    size_t bytes, capacity;
    int file; /* descriptor; counts only with is_file */
    bool is_file, is_read_only;
    char *path; /* for messages; NULL: memory */
};

/* Makes an empty file. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_grow_map_create(const char *path, struct ot_grow_map *map);
/* The same for a file in `dir` without a name, which ends with the map. */
int ot_grow_map_create_unnamed(const char *dir, struct ot_grow_map *map);
/* Maps a file that has exactly `bytes` bytes, to read it. Errors: OT_E_IO, OT_E_INPUT (another size). */
int ot_grow_map_open(const char *path, size_t bytes, struct ot_grow_map *map);
/* Appends bytes; data NULL: zeros. What the map had may move. Errors: OT_E_BUDGET, OT_E_IO. */
int ot_grow_map_add(struct ot_grow_map *map, const void *data, size_t bytes);
/* Cuts a file to the bytes that it has, and writes all to disk. Does nothing with memory. Errors: OT_E_IO. */
int ot_grow_map_flush(struct ot_grow_map *map);
/* Tells the kernel that later reads are in no order. With a file, a read then brings its own pages alone;
 * else it brings up to megabytes around them. */
void ot_grow_map_expect_random(const struct ot_grow_map *map);
/* The same: they are in order again. */
void ot_grow_map_expect_order(const struct ot_grow_map *map);
/* Starts to read these bytes from the disk, as many of them as the map has. */
void ot_grow_map_read_ahead(const struct ot_grow_map *map, size_t at, size_t bytes);
/* Bytes of memory that only this process can give back; 0 with a file. */
size_t ot_grow_map_memory(const struct ot_grow_map *map);
void ot_grow_map_close(struct ot_grow_map *map); /* and sets it to zero */

#endif
