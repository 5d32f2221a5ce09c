/* Topics about a run: its checkpoints and files, and how it ends. */
#include <stddef.h>

#include "src/options/topics.h"

static const struct ot_topic_block checkpoints[] = {
    {NULL, "train saves a checkpoint every 30 minutes, or as --save-every says (500 steps, 2h, epoch, "
           "never), while the next steps run. After a kill, a crash or a power cut, start the same command "
           "again: it continues from the newest checkpoint. The result has the same bits as the result of a "
           "run that never stopped."},
    {"contents",
     "A checkpoint is a directory such as OUT/checkpoints/step-00000120. checkpoint.json has the "
     "options, the model's shape, the step, the position in the rows, and fingerprints. state.bin "
     "has weights, masters and AdamW's moments. manifest.bin, written last, has the place and the "
     "CRC-32 of every part; without it, the directory is no checkpoint."},
    {"with --nvme", "If OUT is on the same file system as the --nvme directory, the state on it is not "
                    "copied: the checkpoint's nvme-0.store is a hard link to the store."},
    {"space",
     "A checkpoint takes 12 bytes per parameter: 75.3 GiB for 7B. With --dtype fp16 it takes 2 more, with "
     "--state 16bit 4 less, with 8bit 6 less, with --master-weights none 2 less. A run needs room for --keep "
     "checkpoints, for one more while it is written, and for the final model; with evaluations, also for the "
     "best checkpoint. Before step 1, the file OUT/checkpoints/reserved reserves this space, or the run ends "
     "with an error."},
    {"--keep N",
     "The run keeps the newest N (default: 1). It deletes an old one only when a newer one is complete."},
    {"--save-local",
     "For hosts that share no directory: each keeps the parts of its own ranks in its --out. "
     "Continue with the same ranks on the same hosts. For other ranks, verify or export, copy "
     "the checkpoint's directory of every host into one."},
    {"best checkpoint", "Of the best evaluation, saved at once (not with --save-every never). If "
                        "that takes too long, evaluate less often. export OUT --best makes its model."},
    {"--resume",
     "auto (default): continue from the newest checkpoint of OUT. DIR: continue from that checkpoint, or "
     "from the newest in that directory. never: start from the beginning; the checkpoints of the earlier run "
     "move to OUT/checkpoints.old and are deleted when the new run has its first checkpoint."},
    {"what must match",
     "Options that fix the result (seed, rows, --lr, --dtype, ...) come from the checkpoint. If you give "
     "one of them with another value, the run ends with an error that names both values. Another model, "
     "other weights of it or other rows are errors too. All other options may change: budgets, tiers, "
     "slots, --save-every. --steps and --epochs may grow if all learning rates so far stay the same: "
     "--schedule constant, or wsd before the rate falls."},
    {"another device",
     "Bits also depend on the device and on its libraries. On another device the run continues "
     "with a warning; with --exact it ends with an error."},
    {"damaged", "If the newest checkpoint is damaged, the run ends with an error, which names the damaged "
                "file and the option that continues from an older one."},
    {"rescue", "Before a run ends with an error, it saves its state: in OUT, else in OUT.rescued, a --nvme "
               "directory, the working directory, $HOME, or $TMPDIR (/tmp). The last line names the place. "
               "Nothing is saved after a second signal, after --grace, or if numbers are not finite (exit "
               "code 7)."},
    {"log.jsonl", "A resumed run keeps the log up to its checkpoint. Later steps run again, so the log has "
                  "each step once."},
    {"finished runs",
     "If you repeat the command of a finished run, it verifies the result and ends with exit code 0. With "
     "--resume never it trains again; the old result stays until the new one is complete."},
    {NULL, "Check a checkpoint, or make a model from it before the run ends:"},
    {"", "offload-train verify out/llama-7b-sql\n"
         "offload-train export out/llama-7b-sql --best --out best"},
    {NULL, "verify reads every byte and checks structure, checksums, shapes and values. If the newest "
           "checkpoint is damaged, verify looks for the newest intact one. export streams the weights: it "
           "needs no GPU and little memory."},
};
const struct ot_topic ot_topic_checkpoints =
    OT_TOPIC("checkpoints", "What a checkpoint contains, and how a run resumes from it", checkpoints);

/* --help prints the items of this topic whose term is a number. */
static const struct ot_topic_block exit_codes[] = {
    {NULL, "Each command ends with one of these codes. If it is not 0, the last line on stderr says why "
           "in one sentence, and names what to change."},
    {"0", "finished"},
    {"1", "internal error (please report)"},
    {"2", "unknown or contradictory options; ranks that differ, on all ranks (help ranks)"},
    {"3", "a file has wrong content: config, weights, tokenizer, rows, checkpoint"},
    {"4", "does not fit in the memory budgets"},
    {"5", "operating-system error: open, read, write, space"},
    {"6", "device, driver or library missing or failed"},
    {"7", "training cannot continue: losses or gradients are not finite"},
    {"8", "stopped at once: by a second signal, or by the first signal in probe or before step 1"},
    {"9", "no progress for the time of --stall-limit: a disk, a driver or a device hangs"},
    {"10", "stopped by a signal before the last step; the run's state is saved, unless --no-save"},
    {"11", "another rank, or the network between ranks, failed"},
    {NULL,
     "For scripts: after 10 (stopped), 11 (a rank failed), 9 (no progress) and 5 (for example a full disk), "
     "remove the cause and start the same command again: it continues from the newest checkpoint. After 2, "
     "3, 4 and 7, change options or files first. If the system kills a command (SIGKILL, or out of memory), "
     "the shell reports 128 plus the number of the signal; the same command continues from the newest "
     "checkpoint."},
    {NULL, "With --grace, a run that has no checkpoint and no time to save one ends with 8. After a first "
           "signal, bench writes the points measured so far and ends with 10."},
    {NULL, "See also: help signals, help numbers, help checkpoints."},
};
const struct ot_topic ot_topic_exit_codes = OT_TOPIC("exit-codes", "What the exit codes mean", exit_codes);

static const struct ot_topic_block signals[] = {
    {NULL, "train reacts to signals as follows. A line on stderr says what it does."},
    {"SIGINT, SIGTERM", "Sent by Ctrl-C or by a scheduler. The run finishes its step, saves a checkpoint and "
                        "ends with exit code 10. The same command continues from there. Before step 1 there "
                        "is nothing to save: the run ends at once with exit code 8."},
    {"second signal", "The run ends at once with exit code 8. The newest checkpoint stays; all progress "
                      "since then is lost. The same signal again within 0.2 seconds counts as the first one, "
                      "because some programs send a signal to the process and to its group."},
    {"SIGUSR1", "The run saves a checkpoint after the current step, and continues. With --save-every never, "
                "this is the only way to get a checkpoint before the run stops."},
    {"SIGHUP", "Ignored: a run continues when its terminal closes. Use nohup or tmux all the same, to keep "
               "its output."},
    {"SIGPIPE", "Ignored by train: the run continues when the reader of its output has ended. All other "
                "commands end then, as filters do."},
    {"SIGXFSZ", "Ignored: a write beyond `ulimit -f` fails with an error message, like any other write."},
    {NULL, "The run does not wait long for its last step. If the step still runs 2 seconds after the signal "
           "(or after a quarter of --grace, if that is less), the run abandons it and saves the state of the "
           "step before. The resumed run repeats the step, with the same bits."},
    {NULL, "--grace TIME says how long the process may run after the signal, such as 30s on a rented spot "
           "machine. The run saves only what it can write in this time: a checkpoint, if the usual time for "
           "one is short enough; else the weights alone, if there is time for them; else nothing, and the "
           "newest checkpoint stays. Without --grace there is no limit."},
    {NULL, "If SIGINT or SIGTERM is ignored when the program starts (nohup, or a background job of a "
           "script), it stays ignored."},
    {"bench", "The first signal ends the bench after the current step and keeps the points measured so far "
              "(exit code 10). The second signal ends it at once (exit code 8)."},
    {"probe",
     "The first signal ends the probe after the current measurement (exit code 8). The rates are not kept."},
    {"generate, eval, ...",
     "These commands have nothing to save. A signal ends them like any other program."},
    {NULL, "Examples:"},
    {"", "kill -USR1 $(pgrep -n offload-train)     # a checkpoint now\n"
         "timeout -s TERM -k 120 8h offload-train --model llama-7b --data sql.jsonl --grace 2m"},
};
const struct ot_topic ot_topic_signals =
    OT_TOPIC("signals", "How to stop a run, and how to ask for a checkpoint", signals);

static const struct ot_topic_block numbers[] = {
    {NULL,
     "What the program does when the loss is not finite, when it jumps, and when there is no progress."},
    {"skipped steps", "With clipping (--clip above 0), a step is skipped if its loss or gradient is not "
                      "finite: weights, optimizer state and the optimizer's step count stay unchanged. With "
                      "--dtype fp16 the loss scale is halved too. log.jsonl says why a step was skipped."},
    {"--max-skips N",
     "After N skipped steps in a row (default: 20), the run ends with exit code 7. Steps in which fp16 "
     "searches for its loss scale do not count. One more forward pass then finds the first block whose "
     "output is not finite; the error names this block and the rows of the step."},
    {"spikes",
     "A loss more than six standard deviations above its running mean is a spike. Spikes are counted and "
     "logged. --skip-spikes X skips steps whose loss is more than X deviations above the mean."},
    {"--clip 0", "Without clipping, updates overlap with backward, so the program may find a gradient that "
                 "is not finite after it has updated other blocks. Then the run ends with exit code 7. If no "
                 "block is updated yet, the step is skipped."},
    {"hanging", "A watchdog looks at every wait for a step, an evaluation or a disk. If nothing "
                "progresses for a minute, a line says what each lane is at. After --stall-limit (default: "
                "10m) the run ends with exit code 9 and the name of what hangs."},
    {NULL, "Examples of what it says:"},
    {"", "error: step 36 was skipped, the last of 20 in a row, because its loss is not finite: layer.1\n"
         "is the first block whose output is not finite (its weights are); start over with a lower\n"
         "--lr or with --dtype bf16, or look at rows 58, 35, 47 and 1 more of rows.jsonl\n"
         "\n"
         "lane nvme_read is running nvme read layer.1"},
};
const struct ot_topic ot_topic_numbers =
    OT_TOPIC("numbers", "When numbers are not finite, or there is no progress", numbers);

static const struct ot_topic_block files[] = {
    {NULL,
     "--out (default: out/MODEL-DATA, from the names of both) becomes a Hugging Face directory. If that "
     "is the output of another model of the same name, the default is out/MODEL-DATA-PRINT, with the "
     "fingerprint of the weights."},
    {"*.safetensors", "The weights, in the model's own dtype, in shards of at most --max-shard-size."},
    {"config.json, ...", "The config and tokenizer files of the base model, with its licences, processor "
                         "settings and .py files. A line names the files that are not copied. If the rows "
                         "used a chat template and the model had none, it is added."},
    {"adapter_*", "With --lora, in place of config and weights: adapter_config.json and "
                  "adapter_model.safetensors, as PEFT reads them (help lora)."},
    {"README.md", "A model card that names the base model."},
    {"run.json",
     "The options of the run, with the values that the program chose. \"sources\" names the source of each "
     "value: you gave it on the command line (command line) or in a --config file (config), it came from the "
     "checkpoint (checkpoint), the program chose it (program), or it is the default (default). --config "
     "OUT/run.json repeats the run. generate and eval read the chat template from it."},
    {"log.jsonl",
     "One JSON object per line, for each step (loss, norms, learning rate, tokens, bytes on each tier, "
     "reason for skipping it), evaluation, checkpoint and other event. src/run/run_log.h in the source code "
     "lists every key. --json prints the same objects to stdout."},
    {"finished.json", "Marks the run as finished. The same command then only verifies the result."},
    {"offload-train.json",
     "Marks OUT as an output of this program and lists its files. If --out is neither empty nor marked, the "
     "run ends with an error. Other files that you put into OUT stay."},
    {"checkpoints/", "See help checkpoints."},
    {"stdout, stderr",
     "Slow output never delays training or a stop. If nobody reads the output (a terminal after Ctrl-S, a "
     "full pipe), lines of progress are dropped, and a note says how many. At its end, a run waits up to 5 "
     "seconds for such a reader. log.jsonl has every step."},
    {NULL, "The result is written to a new directory, which then replaces OUT by a rename, so a reader sees "
           "either the old result or the new one. If a rename is impossible (OUT is a mount point, or on a "
           "container's lower layer), OUT is replaced file by file. If that is interrupted, the next command "
           "that writes to OUT completes it."},
    {NULL, "Only one command at a time writes to an --out: train and export take its lock first, and end "
           "with an error if another command has the lock. --no-save and --dry-run write nothing there."},
    {NULL,
     "Outside --out, the --nvme directories have the files of the third tier while a run lasts; the next run "
     "removes files that a killed run left there. ~/.cache/offload-train (or $XDG_CACHE_HOME/offload-train) "
     "keeps measured rates and the choices of GPU kernels. You may delete it: the next run measures again "
     "for a few seconds, and the planner may then choose another micro-batch (see help bits)."},
};
const struct ot_topic ot_topic_files = OT_TOPIC("files", "Which files a run writes", files);
