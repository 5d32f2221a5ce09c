/* Calls into libraries that crash or abort where memory runs out (hwloc, oneDNN's set-up): an error
 * instead.
 *
 * What such a call held stays held: memory, locks, half-made objects. The caller gives up what the library
 * was setting up and does not call into it again. For set-up alone, where one thread calls at a time: the
 * handlers of SIGSEGV, SIGBUS and SIGABRT are replaced meanwhile. A crash in another thread ends the
 * process as always.
 */
#ifndef OT_BASE_CRASH_H
#define OT_BASE_CRASH_H

/* What fn returns. Errors: OT_E_BUDGET: it crashed; the sentence names the library. */
int ot_crash_contain(const char *library, int (*fn)(void *context), void *context);

#endif
