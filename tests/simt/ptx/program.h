/* program.h - PTX kernels as the interpreter runs them, and what its files share.
 *
 * A thread has one array of 64-bit slots: registers, constants and special registers alike, so an
 * operand is the number of a slot. A register holds its value in the low bytes. */
#pragma once
#include "tests/simt/emulator.h"

#include <stdint.h>
#include <string>
#include <unordered_map>
#include <vector>

namespace simt {
namespace ptx {

struct Thread;
struct Instruction;
typedef void (*Run)(Thread*, const Instruction&);

/* Operands from left to right, vectors as their elements; an address is its base. */
struct Instruction {
    Run run;
    int guard = -1; /* slot of the predicate that must be true, or false if `negated` */
    bool negated = false;
    int slot[16];
    int64_t offset = 0; /* of the address; of a branch: where to */
    int elements = 1;   /* of a vector */
    int mode = 0;       /* of shuffles */
};

enum Special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANE,
    SPECIALS
};

struct Parameter {
    int size, offset;
};

struct Kernel {
    std::string name;
    uint32_t first_pc; /* of the program: numbers of instructions are unique */
    std::vector<Parameter> parameters;
    int parameter_bytes = 0;
    size_t static_bytes = 0;     /* of shared memory */
    std::vector<uint64_t> start; /* what the slots hold when a thread starts; specials come first */
    std::vector<Instruction> code;
    std::vector<std::string> places; /* file:line of each instruction */
};

struct Thread {
    uint64_t* slot;
    int next; /* instruction; -1: the thread has returned */
    const void* pc;
    const char* parameters;
    const Kernel* kernel;
};

/* An operand as written. */
struct Operand {
    enum Kind { SLOTS, ADDRESS, LABEL } kind;
    std::vector<int> slots;
    int64_t offset; /* of an address */
    std::string label;
};

/* ---- decode.cpp: the instruction of an opcode such as "add.s64", run NULL if there is none ---- */
Run decode(const std::string& opcode, const std::vector<Operand>& operands, Instruction* out);
typedef std::vector<std::string> Parts;                  /* of the opcode, between its dots */
Run decode_convert(const Parts& part, Instruction* out); /* convert.cpp */
Run decode_memory(const Parts& part, Instruction* out);  /* memory.cpp */
Run decode_warp(const Parts& part, Instruction* out);    /* warp.cpp */

/* ---- parse.cpp: throws std::runtime_error with file, line and reason ---------------------------- */
std::vector<Kernel> parse(const std::string& path, const std::string& text);

/* ---- static shared memory of the running kernel ------------------------------------------------- */
constexpr size_t MAX_STATIC = 48 << 10;
extern char static_shared[MAX_STATIC];
static inline uint32_t shared_address(const char* p) { return (uint32_t)(p - __start_simt_shared); }

/* ---- values ---------------------------------------------------------------------------------------- */

template <class T> static inline T get(const Thread* t, int slot)
{
    T value;
    memcpy(&value, &t->slot[slot], sizeof value);
    return value;
}
/* Signed integers fill the slot with their sign, everything else with zeros. */
template <class T> static inline void put(Thread* t, int slot, T value)
{
    if (std::is_integral<T>::value && std::is_signed<T>::value) {
        t->slot[slot] = (uint64_t)(int64_t)value;
        return;
    }
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    t->slot[slot] = bits;
}

/* f(a value of the type that `name` stands for, such as "u16"), or NULL. */
template <class F> static inline Run for_integer(const std::string& name, F f)
{
    if (name == "s8") return f(int8_t());
    if (name == "u8" || name == "b8") return f(uint8_t());
    if (name == "s16") return f(int16_t());
    if (name == "u16" || name == "b16") return f(uint16_t());
    if (name == "s32") return f(int32_t());
    if (name == "u32" || name == "b32") return f(uint32_t());
    if (name == "s64") return f(int64_t());
    if (name == "u64" || name == "b64") return f(uint64_t());
    return nullptr;
}
template <class F> static inline Run for_float(const std::string& name, F f)
{
    if (name == "f32") return f(float());
    if (name == "f64") return f(double());
    return nullptr;
}
template <class F> static inline Run for_any(const std::string& name, F f)
{
    const Run run = for_integer(name, f);
    return run != nullptr ? run : for_float(name, f);
}

} // namespace ptx
} // namespace simt
