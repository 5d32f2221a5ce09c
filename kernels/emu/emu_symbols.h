/* Inside the emulator: names of addresses, from the symbol table of the file that is running. The dynamic
 * table would lack static functions, which kernels are. */
#ifndef OT_EMU_SYMBOLS_H
#define OT_EMU_SYMBOLS_H

#include <string>

namespace ot_emu {

/* The demangled function that `address` lies in, without arguments; its address in hex where unknown. */
std::string symbol_name(const void *address);
/* "file:line", as addr2line knows it; "" where there is no such tool or no line. */
std::string source_line(const void *address);

} // namespace ot_emu

#endif
