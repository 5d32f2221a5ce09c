/* Names of addresses, from the symbol table of the running program's file. The dynamic table lacks static
 * functions, and kernels are static functions. Only the emulator's files include this header. */
#ifndef OT_EMU_SYMBOLS_H
#define OT_EMU_SYMBOLS_H

#include <string>

namespace ot_emu {

/* The demangled name of the function that contains `address`, without arguments. If unknown, the address in
 * hex. */
std::string symbol_name(const void *address);
/* "file:line" from addr2line; "" if that tool is missing or knows no line. */
std::string source_line(const void *address);

} // namespace ot_emu

#endif
