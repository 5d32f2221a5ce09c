/* Topics about a run: what is kept of it, and how it ends. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block checkpoints[] = {
    {NULL, "train saves a checkpoint every 30 minutes, or as --save-every says (500 steps, 2h, epoch, "
           "never), while the next steps run. After a kill, a crash or a power cut, start the same "
           "command again: it goes on from the newest checkpoint, and its result has the same bits as "
           "that of a run that never stopped."},
    {"what is in one", "OUT/checkpoints/step-00000120 is a directory. checkpoint.json has the options, "
                       "the model's shape, the step, the place in the rows, and fingerprints of model, "
                       "rows and device. state.bin has weights, masters and AdamW's moments. manifest.bin "
                       "has the place and the CRC-32 of every part. It is written last: a directory "
                       "without it is not a checkpoint."},
    {"with --nvme", "Where OUT is on the same file system as the --nvme directory, state that lives there "
                    "is not copied: the checkpoint's nvme-0.store is a hard link to the store's file."},
    {"space", "A checkpoint takes 12 bytes a parameter (14 with --dtype fp16): 75.3 GiB for 7B. A run "
              "needs room for --keep checkpoints, one more that is being written, and the final model; "
              "one more holds the best. The file OUT/checkpoints/reserved holds this space from before "
              "step 1 on. A disk that is too small is an error before step 1."},
    {"--keep N", "The newest N checkpoints stay (default: 1). An older one goes only when its successor "
                 "is complete."},
    {"the best", "With evaluations, the first checkpoint after the best evaluation stays beside them. "
                 "Where the disk has no room for it, the run does without."},
    {"--resume", "auto (default): from the newest checkpoint of OUT. DIR: from that checkpoint, or from "
                 "the newest in that directory. never: anew; the checkpoints of the run before move to "
                 "OUT/checkpoints.old and go when the new run has its first one."},
    {"what must match", "Options that fix the result (seed, rows, --lr, --dtype, --micro-batch, ...) come "
                        "from the checkpoint. If one is given and differs, the run is refused with both "
                        "values. So are another model and other rows. Everything else is free: budgets, "
                        "tiers, slots, threads, --save-every. --steps and --epochs may grow where all "
                        "learning rates so far stay the same: --schedule constant, or wsd before it falls."},
    {"another device", "Bits also depend on the GPU's model and cuBLASLt, or on the CPU's instruction set "
                       "and its library of matrix products. On a device that differs the run goes on with "
                       "a warning; with --exact it is refused."},
    {"damaged", "A newest checkpoint that is damaged is never passed over in silence. The error names the "
                "file, and the option that goes on from the checkpoint before it."},
    {"rescue", "If a run must end, its state is saved first: in OUT, else in OUT.rescued, else in a "
               "--nvme directory, the working directory, $HOME, or $TMPDIR (/tmp). The last line names "
               "the place. Nothing is saved after a second signal, after --grace is over, or when numbers "
               "are not finite (exit code 7)."},
    {"log.jsonl", "It keeps what was logged up to the checkpoint. Steps after the checkpoint run again, "
                  "so each step is there once."},
    {"finished runs", "The same command, given again after the run has ended, verifies the result and "
                      "ends with exit code 0. With --resume never it trains anew; the old result stays "
                      "until the new one is complete."},
    {NULL, "Look at a checkpoint, or make a model of one before the run ends:"},
    {"", "offload-train verify out/llama-7b-sql\n"
         "offload-train export out/llama-7b-sql --out early"},
    {NULL, "verify reads every byte and checks structure, checksums, shapes and values. If the newest "
           "checkpoint is damaged, verify finds the newest one that is not. export streams: it needs "
           "neither the device nor the memory that trained."},
};
const struct ot_topic ot_topic_checkpoints =
    OT_TOPIC("checkpoints", "What a checkpoint holds, and how a run goes on from it", checkpoints);

/* --help shows the items as they are here: a number, and what it means. */
static const struct ot_topic_block exit_codes[] = {
    {NULL, "Each command ends with one of these codes. If it is not 0, the last line on stderr says why "
           "in one sentence, and names what to change."},
    {"0", "finished"},
    {"1", "internal error (please report)"},
    {"2", "unknown or contradictory options"},
    {"3", "a file says something wrong: config, weights, tokenizer, rows, checkpoint"},
    {"4", "does not fit in the memory budgets"},
    {"5", "operating-system error: open, read, write, space"},
    {"6", "device, driver or library missing or failed"},
    {"7", "training produced numbers that it cannot go on with"},
    {"8", "stopped at once: by a second signal, or by the first of a probe or before step 1"},
    {"9", "nothing went on for --stall-limit: a disk, a driver or a device hangs"},
    {"10", "stopped by a signal, before the last step; what the run has is saved, unless --no-save"},
    {NULL, "For scripts: after 10 (stopped), 9 (stalled) and 5 (a full disk, say), start the same command "
           "again when the cause is gone: it goes on from the newest checkpoint. 2, 3, 4 and 7 need a "
           "change of options or files first. A command that the system kills (SIGKILL, or out of memory) "
           "has the shell's code, 128 and the signal's number; the same command goes on from the last "
           "checkpoint."},
    {NULL, "With --grace, a run that had no time to save and has no checkpoint ends with 8. bench, "
           "stopped by a first signal, writes what it has measured and ends with 10."},
    {NULL, "See also: help signals, help numbers, help checkpoints."},
};
const struct ot_topic ot_topic_exit_codes = OT_TOPIC("exit-codes", "What the exit codes mean", exit_codes);

static const struct ot_topic_block signals[] = {
    {NULL, "train answers signals as follows. It says in a line on stderr what it does."},
    {"SIGINT, SIGTERM", "Ctrl-C, or what a scheduler sends. The run finishes its step, saves a checkpoint "
                        "and ends with exit code 10. The same command goes on from there. Before step 1 "
                        "there is nothing to save: the run ends at once with exit code 8."},
    {"a second one", "The run ends at once with exit code 8. What was not saved is lost; the last "
                     "checkpoint stays. The same signal again within 0.2 seconds counts as the first, "
                     "because some programs send a signal to the process and to its group."},
    {"SIGUSR1", "The run saves a checkpoint after the step that is running, and goes on. With "
                "--save-every never this is the only way to get one before the run is stopped."},
    {"SIGHUP", "Ignored: a run survives its terminal. Use nohup or tmux all the same, for what it prints."},
    {"SIGPIPE", "Ignored by train: a run does not end because the reader of its output is gone. The other "
                "commands end, as filters do."},
    {"SIGXFSZ", "Ignored: a write beyond `ulimit -f` fails like any other write, with a sentence."},
    {NULL, "A step that is long is not waited for without end: if it is still running 2 seconds after the "
           "signal, or a quarter of --grace if that is less, the run drops it and saves the state after "
           "the step before. The step runs again later, with the same bits."},
    {NULL, "--grace TIME says how long the machine lets the process live after the signal, such as 30s on "
           "a rented spot machine. The run saves only what fits into this time: a checkpoint if its usual "
           "time fits, else the weights alone if they fit, else nothing beyond the last checkpoint. "
           "Without --grace it takes as long as it takes."},
    {NULL, "A signal that is ignored when the program starts (nohup, a job in the background of a script) "
           "stays ignored, where it is SIGINT or SIGTERM."},
    {"bench", "The first signal ends it with what is measured (exit code 10), the second at once (exit "
              "code 8)."},
    {"probe", "The first signal ends it after the row that is being measured (exit code 8); rates are not "
              "kept."},
    {"generate, eval, ...", "They have nothing to save. A signal ends them as it ends any program."},
    {NULL, "Examples:"},
    {"", "kill -USR1 $(pgrep -n offload-train)     # a checkpoint now\n"
         "timeout -s TERM -k 120 8h offload-train --model llama-7b --data sql.jsonl --grace 2m"},
};
const struct ot_topic ot_topic_signals =
    OT_TOPIC("signals", "How to stop a run, and how to ask for a checkpoint", signals);

static const struct ot_topic_block numbers[] = {
    {NULL, "What happens when the loss is not finite, when it jumps, and when nothing goes on."},
    {"skipped steps", "With clipping (--clip above 0), a step whose loss or gradient is not finite is "
                      "skipped as a whole: weights, optimizer state and the optimizer's step count stay "
                      "as they were. With --dtype fp16 the loss scale is halved too. log.jsonl says why a "
                      "step was skipped."},
    {"--max-skips N", "After N skipped steps in a row (default: 20) the run ends with exit code 7. Steps "
                      "in which fp16 looks for its loss scale do not count. One more forward pass then "
                      "finds the first block whose output is not finite, and the error names it, with the "
                      "rows of the step."},
    {"spikes", "A loss more than six standard deviations above its running mean is a spike: it is counted "
               "and logged. --skip-spikes X skips such steps from X deviations on."},
    {"--clip 0", "Without clipping, updates overlap backward, so a gradient that is not finite may be "
                 "found after other blocks were updated. Then the run ends with exit code 7; where "
                 "nothing was updated yet, the step is skipped."},
    {"hanging", "A watchdog looks at every wait for a step, an evaluation or a disk. If nothing "
                "progresses for a minute, a line says what each lane is at. After --stall-limit (default: "
                "10m) the run ends with exit code 9 and the name of what hangs."},
    {NULL, "Examples of what it says:"},
    {"", "error: step 36 was skipped, the last of 20 in a row, for a loss that is not finite: layer.1\n"
         "is the first block whose output is not finite (its weights are); begin anew with a lower\n"
         "--lr or with --dtype bf16, or look at rows 58, 35, 47 and 1 more of rows.jsonl\n"
         "\n"
         "lane nvme_read is at nvme read layer.1"},
};
const struct ot_topic ot_topic_numbers =
    OT_TOPIC("numbers", "When numbers go wrong, or nothing goes on", numbers);

static const struct ot_topic_block files[] = {
    {NULL, "--out (default: out/MODEL-DATA, from their names) becomes a Hugging Face directory:"},
    {"*.safetensors", "The weights, in the model's own dtype, in shards of at most --max-shard-size."},
    {"config.json, ...", "The base model's config and tokenizer files. Its licences, a processor's "
                         "settings and its .py files go along. Other files are named in a line as not "
                         "copied. A chat_template is added where the rows used one and the model had none."},
    {"README.md", "A model card that names the base model."},
    {"run.json", "The options of the run, also those that the program chose. --config OUT/run.json "
                 "repeats the run; generate and eval read the chat template from it."},
    {"log.jsonl", "One JSON object a line, for each step (loss, norms, learning rate, tokens, bytes on "
                  "each tier, why it was skipped), evaluation, checkpoint and so on. src/run/run_log.h in "
                  "the sources lists every key. --json writes the same to stdout."},
    {"finished.json", "Says that the run came to its end. The same command then verifies the result and "
                      "trains nothing."},
    {"offload-train.json", "Marks OUT as an output of this program and names its files. An --out that is "
                           "neither empty nor marked is refused. Other files that you put into OUT stay."},
    {"checkpoints/", "See help checkpoints."},
    {"stdout, stderr", "No output delays training or a stop: a terminal after Ctrl-S, or a pipe that "
                       "nobody reads, loses lines of progress, and a note says how many. At its end a run "
                       "waits up to 5 seconds for such a reader. log.jsonl has every step."},
    {NULL, "The directory is written beside its place and exchanged by rename, so a reader sees the old "
           "result or the new one. Where that is impossible (a mount point, a container's lower layer) it "
           "is replaced file by file; a replacement that is cut short is finished by the next command "
           "that writes there."},
    {NULL, "One command at a time writes into an --out: train and export take its lock first, and are "
           "refused where another command has it. --no-save writes nothing; --dry-run prints the plan and "
           "writes nothing."},
    {NULL, "Outside --out: --nvme directories hold the third tier's files while a run lasts (what a "
           "killed run left there, the next one removes), and ~/.cache/offload-train (or $XDG_CACHE_HOME) "
           "keeps measured rates and the GPU's choices of kernels. Deleting that cache costs a few "
           "seconds, and the planner may then choose another micro-batch (see help bits)."},
};
const struct ot_topic ot_topic_files = OT_TOPIC("files", "Which files a run writes", files);
