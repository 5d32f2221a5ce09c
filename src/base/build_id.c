#include "src/base/build_id.h"

#include <link.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static size_t align4(size_t bytes) {
    return (bytes + 3) & ~(size_t)3;
}

/* Searches one segment of notes. Returns 1 if it found the build id. */
static int search_notes(const char *at, size_t bytes, char *text) {
    while (bytes >= sizeof(ElfW(Nhdr))) {
        const ElfW(Nhdr) *note = (const void *)at;
        size_t name = align4(note->n_namesz), body = align4(note->n_descsz), all = sizeof *note + name + body;
        if (all > bytes)
            return 0;
        const unsigned char *id = (const unsigned char *)at + sizeof *note + name;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
            memcmp(at + sizeof *note, "GNU", 4) == 0) {
            for (size_t i = 0; i < note->n_descsz && 2 * i + 2 < OT_BUILD_ID_BYTES; i++)
                snprintf(text + 2 * i, 3, "%02x", id[i]);
            return 1;
        }
        at += all;
        bytes -= all;
    }
    return 0;
}

/* The first object that the loader lists is the program itself. */
static int search_program(struct dl_phdr_info *info, size_t size, void *text) {
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_NOTE &&
            search_notes((const char *)(info->dlpi_addr + segment->p_vaddr), segment->p_memsz, text))
            break;
    }
    return 1;
}

void ot_build_id(char text[OT_BUILD_ID_BYTES]) {
    text[0] = '\0';
    dl_iterate_phdr(search_program, text);
}
