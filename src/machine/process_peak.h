/* The most memory that the process has had at once, since when one wants to know it. */
#ifndef OT_MACHINE_PROCESS_PEAK_H
#define OT_MACHINE_PROCESS_PEAK_H

#include <stdint.h>

/* It begins anew, once what is freed has gone back to the system. Where Linux may not be told so, the peak is
 * that of the whole run. */
void ot_process_forget_peak(void);
int64_t ot_process_peak(void); /* bytes; 0: unknown */

#endif
