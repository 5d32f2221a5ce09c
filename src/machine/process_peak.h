/* The peak of the memory of the process, since a chosen time. */
#ifndef OT_MACHINE_PROCESS_PEAK_H
#define OT_MACHINE_PROCESS_PEAK_H

#include <stdint.h>

/* Returns freed memory to the system and resets the peak. If Linux does not allow the reset, the peak covers
 * the whole run. */
void ot_process_forget_peak(void);
int64_t ot_process_peak(void); /* bytes; 0: unknown */

#endif
