#include "tests/emu/emu_symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fstream>
#include <link.h>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace ot_emu {

struct Image {
    std::string path;
    uintptr_t base; /* offset between the file's addresses and the process's */
};

static bool find_image(const void *address, Image *out) {
    Dl_info info;
    link_map *map = nullptr;
    if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
        return false;
    *out = {map->l_name[0] ? map->l_name : "/proc/self/exe", map->l_addr};
    return true;
}

/* The file's bytes; none if it cannot be read. They stay in memory, because tests that break kernels ask for
 * hundreds of names, and a test program has 18 MB. */
static const std::vector<char> &bytes_of(const std::string &path) {
    static std::mutex mutex;
    static std::map<std::string, std::vector<char>> files;
    std::lock_guard<std::mutex> lock(mutex);
    auto found = files.find(path);
    if (found != files.end())
        return found->second;
    std::vector<char> &bytes = files[path];
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    if (stream && stream.tellg() > 0) {
        bytes.resize((size_t)stream.tellg());
        stream.seekg(0);
        stream.read(bytes.data(), (std::streamsize)bytes.size());
    }
    return bytes;
}

/* The mangled name of the function that contains `address`, counted from the image's start. */
static std::string find_symbol(const std::vector<char> &file, uintptr_t address) {
    auto *header = (const ElfW(Ehdr) *)file.data();
    auto *sections = (const ElfW(Shdr) *)(file.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const char *names = file.data() + sections[sections[i].sh_link].sh_offset;
        auto *symbols = (const ElfW(Sym) *)(file.data() + sections[i].sh_offset);
        for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++)
            if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC && symbols[k].st_value <= address &&
                address < symbols[k].st_value + symbols[k].st_size)
                return names + symbols[k].st_name;
    }
    return "";
}

static std::string demangled(const std::string &name) {
    int status;
    char *plain = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
    if (!plain)
        return name;
    std::string result = plain;
    free(plain);
    size_t arguments = result.rfind('(');
    if (arguments != std::string::npos)
        result.resize(arguments);
    if (result.compare(0, 5, "void ") == 0) /* names of templates begin with their return type */
        result.erase(0, 5);
    return result;
}

std::string symbol_name(const void *address) {
    char hex[32];
    snprintf(hex, sizeof hex, "%p", address);
    Image image;
    if (!find_image(address, &image))
        return hex;
    const std::vector<char> &file = bytes_of(image.path);
    if (file.size() < sizeof(ElfW(Ehdr)) || memcmp(file.data(), ELFMAG, SELFMAG) != 0)
        return hex;
    std::string name = find_symbol(file, (uintptr_t)address - image.base);
    return name.empty() ? hex : demangled(name);
}

std::string source_line(const void *address) {
    Image image;
    if (!find_image(address, &image))
        return "";
    char path[4096], command[4352], line[4096] = "";
    if (!realpath(image.path.c_str(), path))
        return "";
    snprintf(command, sizeof command, "addr2line -e '%s' %#zx 2>/dev/null", path,
             (size_t)((uintptr_t)address - image.base));
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return "";
    if (!fgets(line, sizeof line, pipe) || strncmp(line, "??", 2) == 0)
        line[0] = 0;
    pclose(pipe);
    line[strcspn(line, " \n")] = 0;                /* a discriminator may follow the line */
    const char *from_build = strstr(line, "/../"); /* the compiler's path was ../folder/file */
    return from_build ? from_build + 4 : line;
}

} // namespace ot_emu
