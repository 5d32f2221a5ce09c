/* The probe's rows as a table for people, printed as they come: a heading where a group begins, then a row to
 * a line, with how far its repeats lie apart; of the disks a line for each engine, size of block and depth.
 */
#ifndef OT_REPORT_PROBE_TABLE_H
#define OT_REPORT_PROBE_TABLE_H

#include <stdio.h>

#include "offload/probe/probe.h"

struct ot_probe_table {
    FILE *out; /* NULL: prints nothing */
    int rows;  /* so far */
    struct ot_probe_row last;
    struct { /* the line of the disks that is not complete yet */
        double rates[OT_PROBE_IOS], peaks[OT_PROBE_IOS], spreads[OT_PROBE_IOS];
        int rows;
    } disks;
};

void ot_probe_table_add(struct ot_probe_table *table, const struct ot_probe_row *row);
void ot_probe_table_end(struct ot_probe_table *table);

#endif
