/* The first step of a command with several ranks: which rank this process is, and the start of others. */
#ifndef OT_CLI_LAUNCH_H
#define OT_CLI_LAUNCH_H

#include "src/cli/ranks.h"
#include "src/options/options.h"
#include "src/session/session.h"

/* Reads the launch from the options and the environment. Errors: OT_E_USAGE. */
int ot_launch_find(const struct ot_options *options, struct ot_launch *out);

/* The number of ranks that the command will have (ot_rank_counter). migrate: of a run with its --gpus,
 * wherever that is: no launcher counts, and any number of GPUs may be there. Errors: as ot_launch_find. */
int ot_launch_count(const struct ot_options *options, int *ranks);

/* Opens the world of this rank, with the secret of the environment. Errors: as ot_world_open. */
int ot_launch_world(const struct ot_options *options, const struct ot_launch *launch,
                    struct ot_world **world);
/* Connects this process with the other ranks of its run, as `session` will need them. Rank 0 alone logs more
 * than warnings. *world stays NULL with one rank. Errors: as ot_launch_find and ot_world_open. */
int ot_launch_join(const struct ot_options *options, struct ot_world **world);
/* Ends a command: if it failed (rc < 0), tells the other ranks why. Closes the session, then the world (NULL:
 * one rank). Returns rc, or the error of the rank that failed first. */
int ot_launch_leave(struct ot_session *session, struct ot_world *world, int rc);
/* For a command whose words are wrong (rc: the error of ot_options_parse): tells the other ranks of the run,
 * if there are any, so that they do not wait for this one. Takes up to 10 seconds. */
void ot_launch_tell(int argc, char *const *argv, struct ot_options *options, int rc);

/* Finds out which rank of the run this process is, and logs it. If it has to start ranks, starts them with
 * the words of argv and waits for them: returns 1, and the run's exit code in *exit_code. Else returns 0, as
 * for a command that always has one rank. Call it before threads are started. Errors: OT_E_USAGE, OT_E_IO,
 * OT_E_BUDGET. */
int ot_launch_command(const struct ot_options *options, char **argv, int *exit_code);

/* ---- ranks of this host ---- */

/* Ranks that this process starts on its host: for --gpus, and for launchers that start one process a host.
 *
 * Each rank is a process of the same program with the same words, and knows its rank from an environment
 * variable (OT_RANKS_VARIABLE). The first rank keeps stdin, stdout and stderr. The output of the others goes
 * through pipes to the parent, which keeps the last 64 KiB of each: if such a rank fails, they become the
 * file rank-N.log.
 *
 * The parent passes on SIGINT, SIGTERM, SIGHUP and SIGUSR1, but not those that a terminal sends, because
 * the ranks get these themselves. If a rank fails, the others have a moment to end by themselves, because
 * they know why (offload/comm/world.h). Then they get SIGTERM, and after a grace period SIGKILL. If all
 * ranks that are left are stopped (SIGSTOP), no other rank notices their silence: the parent kills them. If
 * the parent dies, the kernel sends SIGTERM to the ranks. So no process stays. */

struct ot_local_config {
    const struct ot_launch *launch; /* n_start ranks */
    char *const *argv;              /* of each rank, as main got it */
    const char *log_dir;            /* where rank-N.log goes; if it is NULL or no such directory: to stderr */
    const char *program;            /* NULL: this program */
    double notice_seconds;          /* from the first failure to SIGTERM; 0: 5 s */
    double grace_seconds;           /* from SIGTERM to SIGKILL; 0: 60 s */
    double silence_seconds;         /* from the stop of the last ranks to SIGKILL; 0: 30 s */
};

/* Starts the ranks, and waits until all have ended. Call it before threads are started. *exit_code: the code
 * for the exit of this process. If no rank failed, it is the code of the first rank. Else it is the code of
 * the rank that failed first; a rank that says that another one failed (OT_E_COMM) counts only if no rank
 * says more. A rank that a signal killed has OT_E_COMM. An error in the log names the rank and its reason. If
 * the rank with the terminal has said that already, the log only gets a note with the facts that the parent
 * alone knows. Errors: OT_E_IO, OT_E_BUDGET: the ranks could not be started; none is left. */
int ot_launch_local(const struct ot_local_config *config, int *exit_code);

#endif
