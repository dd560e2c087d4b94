/* launch.cpp - finds the PTX of a launched kernel, and runs it on the emulator's threads.
 *
 * Each CUDA thread interprets the program by itself and meets the others in the emulator's barriers and
 * collectives, so both layers have the same checks and counters. SIMT_PTX names a folder of .ptx files:
 * with it a program starts in the mode `check`. */
#include "tests/simt/ptx/program.h"
#include "tests/simt/ptx/ptx.h"

#include <algorithm>
#include <dirent.h>
#include <elf.h>
#include <fstream>
#include <map>
#include <math.h>
#include <set>
#include <sstream>
#include <stdexcept>
#include <stdlib.h>

namespace simt {
namespace ptx {

/* The address of element i stands for instruction i, one more because a place is looked up before it. */
static char counters[1 << 20];

static std::map<std::string, const Kernel*> kernels;
static std::vector<const Kernel*> by_pc; /* ascending */
static simt_ptx_mode mode;
static const Kernel* running;

/* ---- kernels of the program ------------------------------------------------------------------------- */

static std::string read_file(const std::string& path)
{
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": cannot be read");
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
}

extern "C" const Elf64_Ehdr __ehdr_start; /* from the linker */

/* Functions of this program, by address. */
static std::map<const void*, std::string> read_symbols()
{
    std::map<const void*, std::string> names;
    const std::string file = read_file("/proc/self/exe");
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)file.data();
    const Elf64_Shdr* section = (const Elf64_Shdr*)(file.data() + header->e_shoff);
    const char* base = header->e_type == ET_EXEC ? nullptr : (const char*)&__ehdr_start;
    for (int i = 0; i < header->e_shnum; i++) {
        if (section[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym* symbol = (const Elf64_Sym*)(file.data() + section[i].sh_offset);
        const char* text = file.data() + section[section[i].sh_link].sh_offset;
        for (size_t n = section[i].sh_size / sizeof *symbol; n-- > 0; symbol++)
            if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC)
                names[base + symbol->st_value] = text + symbol->st_name;
    }
    return names;
}

/* nvcc mangles a static kernel as if it were none. */
static std::string name_in_ptx(const void* kernel)
{
    static const std::map<const void*, std::string> names = read_symbols();
    const auto n = names.find(kernel);
    if (n == names.end()) return "";
    return n->second.compare(0, 3, "_ZL") == 0 ? "_Z" + n->second.substr(3) : n->second;
}

static const Kernel* find(const void* kernel)
{
    const auto k = kernels.find(name_in_ptx(kernel));
    return k == kernels.end() ? nullptr : k->second;
}

/* ---- running ---------------------------------------------------------------------------------------- */

static void set_specials(uint64_t* slot)
{
    const simt::Thread* c = current;
    const uint32_t value[SPECIALS] = {
        c->thread_index.x, c->thread_index.y, c->thread_index.z, block_size.x,     block_size.y,
        block_size.z,      c->block_index.x,  c->block_index.y,  c->block_index.z, grid_size.x,
        grid_size.y,       grid_size.z,       (uint32_t)c->lane};
    std::copy(value, value + SPECIALS, slot);
}

static void run_thread(void* parameters)
{
    static std::vector<uint64_t> slots[MAX_THREADS];
    std::vector<uint64_t>& slot = slots[current->linear];
    slot = running->start;
    set_specials(slot.data());
    Thread t = {slot.data(), 0, nullptr, (const char*)parameters, running};
    while (t.next >= 0) {
        const Instruction& i = running->code[(size_t)t.next];
        t.pc = counters + running->first_pc + t.next + 1;
        t.next++;
        if (i.guard >= 0 && get<bool>(&t, i.guard) == i.negated) continue;
        i.run(&t, i);
    }
}

static bool start(const Kernel* k, const Argument* arguments, int count, char* parameters)
{
    if ((size_t)count != k->parameters.size()) return false;
    for (int i = 0; i < count; i++) {
        if (arguments[i].bytes != (size_t)k->parameters[(size_t)i].size) return false;
        memcpy(parameters + k->parameters[(size_t)i].offset, arguments[i].at, arguments[i].bytes);
    }
    running = k;
    return true;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

static void load(const std::string& path)
{
    for (Kernel& k : parse(path, read_file(path))) {
        const Kernel* kept = new Kernel(std::move(k)); /* for the life of the program */
        if (kept->first_pc + kept->code.size() >= sizeof counters)
            throw std::runtime_error(path + ": more instructions than the interpreter numbers");
        kernels[kept->name] = kept;
        by_pc.push_back(kept);
    }
}

static std::vector<std::string> ptx_files(const std::string& folder)
{
    std::vector<std::string> all;
    DIR* d = opendir(folder.c_str());
    for (const dirent* e; d != nullptr && (e = readdir(d)) != nullptr;) {
        const std::string name = e->d_name;
        if (name.size() > 4 && name.substr(name.size() - 4) == ".ptx")
            all.push_back(folder + "/" + name);
    }
    if (d != nullptr) (void)closedir(d);
    std::sort(all.begin(), all.end());
    return all;
}

static void report_checks();

static bool start_by_environment()
{
    const char* folder = getenv("SIMT_PTX");
    if (folder == nullptr) return false;
    const std::vector<std::string> files = ptx_files(folder);
    if (files.empty()) set_error(cudaErrorInvalidValue, std::string(folder) + ": no .ptx files");
    for (const std::string& f : files) {
        const char* why = simt_ptx_load(f.c_str());
        if (why != nullptr) set_error(cudaErrorInvalidValue, why);
    }
    mode = SIMT_PTX_CHECK;
    (void)atexit(report_checks);
    return true;
}

/* ---- both ways -------------------------------------------------------------------------------------- */

constexpr int CHECKED_LAUNCHES = 3; /* of a kernel: the first, and small ones */
constexpr uint64_t CHECKED_THREADS = 4096;

static std::map<const void*, int> launches;

static bool wants_check(const void* kernel)
{
    const uint64_t threads =
        (uint64_t)grid_size.x * grid_size.y * grid_size.z * (uint64_t)block.threads;
    int* checked = &launches[kernel];
    if (*checked > 0 && (*checked == CHECKED_LAUNCHES || threads > CHECKED_THREADS)) return false;
    ++*checked;
    return true;
}

/* At the end of a program under SIMT_PTX. */
static void report_checks()
{
    (void)fprintf(stderr, "simt: %zu kernels ran from source and from PTX alike\n",
                  launches.size());
}

/* Functions of libdevice may differ from those of the C library in the last bits: words must be the same
 * floats, or doubles, to that. */
template <class T> static bool close(const char* a, const char* b, T tolerance)
{
    T x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return std::fabs(x - y) <= tolerance * std::fabs(x);
}

static void compare(const Memory& source, const void* pc)
{
    for (const auto& m : source) {
        const char *mine = m.second.data(), *theirs = m.first;
        for (size_t i = 0; i < m.second.size(); i += 4) {
            const size_t n = std::min<size_t>(4, m.second.size() - i), at = i / 8 * 8;
            if (memcmp(mine + i, theirs + i, n) == 0) continue;
            if (n == 4 && close<float>(mine + i, theirs + i, 2e-7f)) continue;
            if (at + 8 <= m.second.size() && close<double>(mine + at, theirs + at, 1e-14)) continue;
            defect(pc, "PTX and source disagree", "byte %zu of %zu of device memory", i,
                   m.second.size());
            return;
        }
    }
}

static Runner runner(const void* kernel, const Argument* arguments, int count)
{
    static const bool started = start_by_environment();
    (void)started;
    static char parameters[sizeof simt::arguments];
    const bool check = mode == SIMT_PTX_CHECK;
    if (mode == SIMT_PTX_OFF || (check && !wants_check(kernel))) return {};
    const Kernel* k = find(kernel);
    if (k == nullptr || !start(k, arguments, count, parameters)) {
        defect(kernel, "no PTX", "of this name and these parameters");
        return {};
    }
    if (!check) grid.name = k->name.c_str(); /* tells instances of a template apart */
    return {run_thread, parameters, check ? compare : nullptr};
}

static std::string place_of(const void* pc)
{
    const char* p = (const char*)pc;
    if (p <= counters || p >= counters + sizeof counters) return "";
    const uint32_t number = (uint32_t)(p - counters) - 1;
    const auto k = std::upper_bound(by_pc.begin(), by_pc.end(), number,
                                    [](uint32_t n, const Kernel* x) { return n < x->first_pc; });
    return (*(k - 1))->places[number - (*(k - 1))->first_pc];
}

} // namespace ptx

Runner other_runner(const void* kernel, const Argument* arguments, int count)
{
    return ptx::runner(kernel, arguments, count);
}
std::string other_place(const void* pc) { return ptx::place_of(pc); }

} // namespace simt

extern "C" const char* simt_ptx_load(const char* path)
{
    static std::string why;
    try {
        simt::ptx::load(path);
    } catch (const std::exception& e) {
        why = e.what();
        return why.c_str();
    }
    return nullptr;
}

extern "C" void simt_ptx_set_mode(simt_ptx_mode mode) { simt::ptx::mode = mode; }
