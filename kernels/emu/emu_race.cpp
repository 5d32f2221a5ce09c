#include "kernels/emu/emu_check.h"

namespace ot_emu {

void check_begin_grid() {}
void check_begin_block() {}
void check_next_interval() {}
void check_end_grid() {}
void check_access(Access, const void *, size_t, ot_emu_site) {}
void check_copy_begin(void *, size_t, ot_emu_site) {}
void check_copy_end(void *, size_t) {}

} // namespace ot_emu
