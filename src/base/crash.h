/* Turns a crash inside a library into an error. hwloc, and oneDNN while it is set up, crash or abort when
 * memory runs out.
 *
 * After a crash, everything that the call held stays held: memory, locks, half-made objects. The caller must
 * not call into the library again. Only for set-up, with one such call at a time: the call replaces the
 * handlers of SIGSEGV, SIGBUS and SIGABRT while it runs. A crash in another thread ends the process as
 * always.
 */
#ifndef OT_BASE_CRASH_H
#define OT_BASE_CRASH_H

/* Calls fn and returns its result. Errors: OT_E_BUDGET: fn crashed; the sentence names the library. */
int ot_crash_contain(const char *library, int (*fn)(void *context), void *context);

#endif
