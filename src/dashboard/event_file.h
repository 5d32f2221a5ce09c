/* An event file of TensorBoard.
 *
 * The file is a sequence of records: u64 length, u32 checksum of the length, the bytes, u32 checksum of the
 * bytes, little-endian (TensorFlow, "TFRecord and tf.train.Example"). The checksum is CRC-32C, rotated right
 * by 15 bits, plus 0xa282ead8. The bytes are an Event in the wire format of protocol buffers (tensorboard's
 * compat/proto/event.proto and summary.proto, plugins/hparams/plugin_data.proto; names and numbers of fields
 * are from there):
 *
 *   Event  1 wall_time double · 2 step int64 · 3 file_version string · 5 summary · 7 session_log
 *
 * The first record has the version "brain.Event:2". All records are written at once, so the file of a killed
 * run ends with its last step, and TensorBoard shows each step when it comes.
 */
#ifndef OT_DASHBOARD_EVENT_FILE_H
#define OT_DASHBOARD_EVENT_FILE_H

#include <stdint.h>

#include "src/base/json.h"

struct ot_event_file;

/* Makes DIR/events.out.tfevents.SECONDS.HOST.PID.0 for a session whose first step is `step`. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_event_file_open(const char *dir, int64_t step, struct ot_event_file **out);
void ot_event_file_close(struct ot_event_file *file); /* NULL is fine */

/* A record has all values of one step: begin it, add the values, end it. Errors of end: OT_E_IO,
 * OT_E_BUDGET. */
void ot_event_begin(struct ot_event_file *file, int64_t step);
void ot_event_add_scalar(struct ot_event_file *file, const char *tag, double value);
/* text: in Markdown. */
void ot_event_add_text(struct ot_event_file *file, const char *tag, const char *text, size_t bytes);
/* For the page "hparams": the members of an object that are numbers, words, or true and false. */
void ot_event_add_hparams(struct ot_event_file *file, const struct ot_json *values);
/* The same page: the run has ended well. */
void ot_event_add_success(struct ot_event_file *file);
int ot_event_end(struct ot_event_file *file);

#endif
