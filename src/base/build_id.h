/* Identifies the build of the program. */
#ifndef OT_BASE_BUILD_ID_H
#define OT_BASE_BUILD_ID_H

enum { OT_BUILD_ID_BYTES = 65 };

/* The linker's build id of the running program, a hash of its content, in hexadecimal digits. "" if the
 * linker made none. Source: elf(5), NT_GNU_BUILD_ID. */
void ot_build_id(char text[OT_BUILD_ID_BYTES]);

#endif
