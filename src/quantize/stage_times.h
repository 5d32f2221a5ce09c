/* The stages of a quantization: their time, and the largest memory of the process while they ran. Exactly one
 * stage runs at any time, so the times add up to the time of the whole. */
#ifndef OT_QUANTIZE_STAGE_TIMES_H
#define OT_QUANTIZE_STAGE_TIMES_H

#include <stdint.h>

enum ot_stage {
    OT_STAGE_READ,    /* rows and weights */
    OT_STAGE_FORWARD, /* of layers and head, with the copies to and from the device */
    OT_STAGE_HESSIAN, /* the products x x^T, and their copy to the host */
    OT_STAGE_SOLVE,   /* choosing the codes */
    OT_STAGE_WRITE,
    OT_STAGES
};

struct ot_stage_times {
    enum ot_stage now;
    double began; /* the present stage */
    double seconds[OT_STAGES];
    int64_t peak_bytes[OT_STAGES]; /* 0: the stage did not run, or the peak is unknown */
};

const char *ot_stage_name(enum ot_stage stage);
void ot_stage_times_begin(struct ot_stage_times *stages, enum ot_stage first);
void ot_stage_times_enter(struct ot_stage_times *stages, enum ot_stage stage); /* ends the present one */
/* Moves seconds of the present stage to another. */
void ot_stage_times_move(struct ot_stage_times *stages, enum ot_stage to, double seconds);
/* Ends the present stage. Returns the sum of all. */
double ot_stage_times_end(struct ot_stage_times *stages);

#endif
