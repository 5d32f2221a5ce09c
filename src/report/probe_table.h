/* Prints the probe's rows as a table for people, while they arrive: a heading for each group, then one line
 * for each row, with the spread of its repeats. Disks have one line for each engine, block size and depth. */
#ifndef OT_REPORT_PROBE_TABLE_H
#define OT_REPORT_PROBE_TABLE_H

#include <stdio.h>

#include "offload/probe/probe.h"

struct ot_probe_table {
    FILE *out; /* NULL: prints nothing */
    int rows;  /* printed so far */
    struct ot_probe_row last;
    struct { /* the incomplete line of the disks */
        double rates[OT_PROBE_IOS], peaks[OT_PROBE_IOS], spreads[OT_PROBE_IOS];
        int rows;
    } disks;
};

void ot_probe_table_add(struct ot_probe_table *table, const struct ot_probe_row *row);
void ot_probe_table_end(struct ot_probe_table *table);

#endif
