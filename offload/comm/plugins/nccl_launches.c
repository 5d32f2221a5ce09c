/* The deadline of work on the stream. NCCL's kernels wait on the GPU for other ranks, for ever. So events
 * surround each launch. Once the stream has reached the first event, the launch runs and waits only for other
 * ranks. Earlier work on the stream does not count. */
#include "offload/comm/plugins/nccl_state.h"

#include "src/base/clock.h"

void ot_nccl_launches_open(struct ot_nccl_context *c) {
    for (size_t i = 0; i < OT_NCCL_LAUNCHES; i++)
        if (c->cuda.event_create(&c->launches[i].begin, OT_CUDA_EVENT_NO_TIMING) != OT_CUDA_SUCCESS ||
            c->cuda.event_create(&c->launches[i].end, OT_CUDA_EVENT_NO_TIMING) != OT_CUDA_SUCCESS) {
            c->log(c->host, OT_COMM_LOG_WARN, "no events, so work on the GPU has no deadline");
            ot_nccl_launches_close(c);
            return;
        }
}

void ot_nccl_launches_close(struct ot_nccl_context *c) {
    for (size_t i = 0; i < OT_NCCL_LAUNCHES; i++) {
        if (c->launches[i].begin)
            c->cuda.event_destroy(c->launches[i].begin);
        if (c->launches[i].end)
            c->cuda.event_destroy(c->launches[i].end);
        c->launches[i] = (struct ot_nccl_launch){0};
    }
}

static void retire(struct ot_nccl_context *c) {
    while (c->n_launches > 0 && c->cuda.event_query(c->launches[c->first_launch].end) != OT_CUDA_NOT_READY) {
        c->first_launch = (c->first_launch + 1) % OT_NCCL_LAUNCHES;
        c->n_launches--;
    }
}

struct ot_nccl_launch *ot_nccl_launch_begin(struct ot_nccl_context *c, void *stream) {
    struct ot_nccl_launch *launch = NULL;
    pthread_mutex_lock(&c->launches_mutex);
    retire(c);
    if (c->n_launches < OT_NCCL_LAUNCHES) { /* else the stream is far behind, and older launches show that */
        launch = &c->launches[(c->first_launch + c->n_launches) % OT_NCCL_LAUNCHES];
        launch->began_ns = 0;
        if (!launch->begin || c->cuda.event_record(launch->begin, stream) != OT_CUDA_SUCCESS)
            launch = NULL;
    }
    pthread_mutex_unlock(&c->launches_mutex);
    return launch;
}

void ot_nccl_launch_end(struct ot_nccl_context *c, struct ot_nccl_launch *launch, void *stream) {
    pthread_mutex_lock(&c->launches_mutex);
    if (launch && c->cuda.event_record(launch->end, stream) == OT_CUDA_SUCCESS)
        c->n_launches++;
    pthread_mutex_unlock(&c->launches_mutex);
}

double ot_nccl_launches_seconds(struct ot_nccl_context *c) {
    double seconds = 0;
    pthread_mutex_lock(&c->launches_mutex);
    retire(c);
    struct ot_nccl_launch *oldest = &c->launches[c->first_launch];
    if (c->n_launches > 0) {
        if (oldest->began_ns == 0 && c->cuda.event_query(oldest->begin) == OT_CUDA_SUCCESS)
            oldest->began_ns = ot_clock_ns();
        if (oldest->began_ns != 0)
            seconds = 1e-9 * (double)(ot_clock_ns() - oldest->began_ns);
    }
    pthread_mutex_unlock(&c->launches_mutex);
    return seconds;
}
