/* report.cpp - defects as text, and as the error of the CUDA runtime. A report that no one claims
 * makes the program fail at its end, whatever it checked on the way. */
#include "tests/simt/claim.h"
#include "tests/simt/emulator.h"

#include <elf.h>
#include <map>
#include <set>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

extern "C" const Elf64_Ehdr __ehdr_start; /* from the linker */

namespace simt {

static cudaError_t error_code = cudaSuccess;
static std::string first_text, unclaimed;
static std::set<std::pair<std::string, const void*>> seen;

uint32_t pack_pc(const void* pc)
{
    return (uint32_t)((const char*)pc - (const char*)&__ehdr_start);
}
const void* unpack_pc(uint32_t offset) { return (const char*)&__ehdr_start + offset; }

static bool is_own_header(const std::string& path)
{
    for (const char* name : {"simt.h", "warp.h", "atomic.h", "intrinsic.h", "port_simt.h"})
        if (path.find(std::string("tests/simt/") + name) != std::string::npos) return true;
    return false;
}

/* addr2line prints the innermost inlined frame first. */
std::string place(const void* pc)
{
    static std::map<const void*, std::string> known;
    std::string& text = known[pc];
    if (!text.empty()) return text;
    text = other_place(pc);
    if (!text.empty()) return text;
    const bool fixed = __ehdr_start.e_type == ET_EXEC;
    const uintptr_t base = fixed ? 0 : (uintptr_t)&__ehdr_start;
    char command[96], line[512];
    (void)snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%zx 2>/dev/null",
                   (int)getpid(), (size_t)((uintptr_t)pc - 1 - base));
    text = "?";
    FILE* pipe = popen(command, "r");
    if (pipe == nullptr) return text;
    for (bool found = false; fgets(line, sizeof line, pipe) != nullptr;) {
        const std::string frame(line, strcspn(line, " \n"));
        if (found) continue;
        found = !is_own_header(frame);
        text = frame.substr(frame.rfind('/') + 1);
    }
    (void)pclose(pipe);
    return text;
}

void set_error(cudaError_t error, const std::string& text)
{
    (void)fprintf(stderr, "simt: %s\n", text.c_str());
    unclaimed += text + "\n";
    if (error_code != cudaSuccess) return;
    error_code = error;
    first_text = text;
}

/* One report per kind and place, until it is claimed. */
void defect(const void* pc, const char* kind, const char* fmt, ...)
{
    if (!seen.insert({kind, pc}).second) return;
    char detail[512];
    va_list arguments;
    va_start(arguments, fmt);
    (void)vsnprintf(detail, sizeof detail, fmt, arguments);
    va_end(arguments);
    set_error(cudaErrorLaunchFailure,
              place(pc) + ": " + kind + ": " + detail + " (kernel " + grid.name + ")");
}

cudaError_t pending_error() { return error_code; }
void clear_error() { error_code = cudaSuccess; }
const char* error_text() { return first_text.c_str(); }

static std::string take_reports()
{
    std::string text;
    text.swap(unclaimed);
    seen.clear();
    return text;
}

/* Destroyed before the text above it. */
static struct AtExit {
    ~AtExit()
    {
        if (unclaimed.empty()) return;
        (void)fprintf(stderr, "simt: this program fails, no test claimed:\n%s", unclaimed.c_str());
        (void)fflush(nullptr);
        _exit(EXIT_FAILURE);
    }
} at_exit;

} // namespace simt

extern "C" const char* simt_claim(void)
{
    static std::string text;
    text = simt::take_reports();
    return text.empty() ? nullptr : text.c_str();
}
