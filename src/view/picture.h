/* The picture of `watch`: a run as it is now, in any number of rows and columns. State, progress and losses
 * come first, then curves, then lines, of which the less important ones are left out where there is no room.
 */
#ifndef OT_VIEW_PICTURE_H
#define OT_VIEW_PICTURE_H

#include "src/view/gpus.h"
#include "src/view/history.h"
#include "src/view/screen.h"

struct ot_picture {
    const struct ot_history *history;
    enum ot_run_state state;
    double now; /* Unix time */
    const struct ot_gpu_reading *gpus;
    int n_gpus;
    const char *hint; /* for the last row: "q leaves"; "": none */
};

/* The screen is blank. */
void ot_picture_draw(const struct ot_picture *picture, struct ot_screen *screen);

#endif
