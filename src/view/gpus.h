/* The GPUs of this machine while they work: temperature and power, from the driver's management library
 * (libnvidia-ml, which nvidia-smi uses too). The driver brings the library, and it is opened at run time. If
 * it is missing, or refuses a question, nothing is known. Source: NVIDIA's "NVML API Reference". One thread.
 */
#ifndef OT_VIEW_GPUS_H
#define OT_VIEW_GPUS_H

enum { OT_GPUS_MAX = 8 };

struct ot_gpu_reading {
    char name[96];
    double celsius, watts, most_watts, busy; /* busy: 0 to 1; NaN: unknown */
    double used_bytes, bytes;
};

struct ot_gpus; /* NULL: no library */

struct ot_gpus *ot_gpus_open(void);
void ot_gpus_close(struct ot_gpus *gpus);
/* Returns how many GPUs it has read. */
int ot_gpus_read(const struct ot_gpus *gpus, struct ot_gpu_reading readings[OT_GPUS_MAX]);

#endif
