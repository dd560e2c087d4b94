/* decode.cpp - arithmetic, comparisons, moves and branches. A row of `families` gives the first part of
 * an opcode and how to choose the function by the others (PTX ISA, chapter 9). */
#include "tests/simt/ptx/program.h"

#include <algorithm>
#include <math.h>
#include <sstream>

namespace simt {
namespace ptx {

#define DECODE(name) static Run name(const Parts& part, Instruction* out)

/* ---- two operands ---------------------------------------------------------------------------------- */

struct Add {
    template <class T> T operator()(T a, T b) const { return (T)(a + b); }
};
struct Sub {
    template <class T> T operator()(T a, T b) const { return (T)(a - b); }
};
struct Mul {
    template <class T> T operator()(T a, T b) const { return (T)(a * b); }
};
struct Div { /* by zero: all bits set, as on a GPU */
    template <class T> T operator()(T a, T b) const
    {
        if (std::is_integral<T>::value && b == 0) return (T)-1;
        return (T)(a / b);
    }
};
struct Rem {
    template <class T> T operator()(T a, T b) const { return b == 0 ? a : (T)(a % b); }
};
struct Min {
    float operator()(float a, float b) const { return fminf(a, b); }
    double operator()(double a, double b) const { return fmin(a, b); }
    template <class T> T operator()(T a, T b) const { return std::min(a, b); }
};
struct Max {
    float operator()(float a, float b) const { return fmaxf(a, b); }
    double operator()(double a, double b) const { return fmax(a, b); }
    template <class T> T operator()(T a, T b) const { return std::max(a, b); }
};
struct And {
    template <class T> T operator()(T a, T b) const { return (T)(a & b); }
};
struct Or {
    template <class T> T operator()(T a, T b) const { return (T)(a | b); }
};
struct Xor {
    template <class T> T operator()(T a, T b) const { return (T)(a ^ b); }
};

template <class T, class F> static void two(Thread* t, const Instruction& i)
{
    put<T>(t, i.slot[0], F()(get<T>(t, i.slot[1]), get<T>(t, i.slot[2])));
}
/* Shifts take a 32-bit count; beyond the width, nothing but the sign is left. */
template <class T> static void shl(Thread* t, const Instruction& i)
{
    const uint32_t n = get<uint32_t>(t, i.slot[2]);
    put<T>(t, i.slot[0], n < 8 * sizeof(T) ? (T)(get<T>(t, i.slot[1]) << n) : (T)0);
}
template <class T> static void shr(Thread* t, const Instruction& i)
{
    const uint32_t n = std::min(get<uint32_t>(t, i.slot[2]), (uint32_t)(8 * sizeof(T) - 1));
    const T x = get<T>(t, i.slot[1]);
    const bool gone = get<uint32_t>(t, i.slot[2]) >= 8 * sizeof(T) && !std::is_signed<T>::value;
    put<T>(t, i.slot[0], gone ? (T)0 : (T)(x >> n));
}

template <class F> DECODE(integer_two)
{
    (void)out;
    return for_integer(part.back(), [](auto x) -> Run { return two<decltype(x), F>; });
}
/* add.s32, add.rn.f32, min.f32: what only rounds to nearest. */
template <class F> DECODE(any_two)
{
    const bool is_float = part.back()[0] == 'f';
    if (part.size() > 2 && !(is_float && part.size() == 3 && part[1] == "rn")) return nullptr;
    if (!is_float) return integer_two<F>(part, out);
    return for_float(part.back(), [](auto x) -> Run { return two<decltype(x), F>; });
}
DECODE(logic_not)
{
    (void)out;
    if (part[1] == "pred")
        return [](Thread* t, const Instruction& i) { put(t, i.slot[0], !get<bool>(t, i.slot[1])); };
    return for_integer(part[1], [](auto x) -> Run {
        typedef decltype(x) T;
        return
            [](Thread* t, const Instruction& i) { put<T>(t, i.slot[0], (T)~get<T>(t, i.slot[1])); };
    });
}
template <class F> DECODE(logic)
{
    if (part[1] == "pred")
        return [](Thread* t, const Instruction& i) {
            put(t, i.slot[0],
                (bool)F()((int)get<bool>(t, i.slot[1]), (int)get<bool>(t, i.slot[2])));
        };
    return integer_two<F>(part, out);
}
DECODE(shift_left)
{
    (void)out;
    return for_integer(part[1], [](auto x) -> Run { return shl<decltype(x)>; });
}
DECODE(shift_right)
{
    (void)out;
    return for_integer(part[1], [](auto x) -> Run { return shr<decltype(x)>; });
}

/* ---- products -------------------------------------------------------------------------------------- */

template <class T> struct wider;
template <> struct wider<int16_t> {
    typedef int32_t type;
};
template <> struct wider<uint16_t> {
    typedef uint32_t type;
};
template <> struct wider<int32_t> {
    typedef int64_t type;
};
template <> struct wider<uint32_t> {
    typedef uint64_t type;
};
template <> struct wider<int64_t> {
    typedef __int128 type;
};
template <> struct wider<uint64_t> {
    typedef unsigned __int128 type;
};

/* The product, twice as wide; ADD: plus the third operand, as wide as the result. */
template <class T, class R, bool ADD, bool HIGH>
static void product(Thread* t, const Instruction& i)
{
    typedef typename wider<T>::type W;
    W x = (W)get<T>(t, i.slot[1]) * (W)get<T>(t, i.slot[2]);
    if (HIGH) x >>= 8 * sizeof(T);
    put<R>(t, i.slot[0], (R)((R)x + (ADD ? get<R>(t, i.slot[3]) : (R)0)));
}
template <class T, bool ADD> static Run product_of(const std::string& which)
{
    if (which == "lo") return product<T, T, ADD, false>;
    if (which == "hi") return product<T, T, ADD, true>;
    if (which != "wide" || sizeof(T) == 8) return nullptr;
    return product<T, typename std::conditional<sizeof(T) == 8, T, typename wider<T>::type>::type,
                   ADD, false>;
}
template <bool ADD> DECODE(integer_product)
{
    (void)out;
    const std::string which = part[1], type = part.back();
    if (part.size() != 3) return nullptr;
    if (type == "s16") return product_of<int16_t, ADD>(which);
    if (type == "u16") return product_of<uint16_t, ADD>(which);
    if (type == "s32") return product_of<int32_t, ADD>(which);
    if (type == "u32") return product_of<uint32_t, ADD>(which);
    if (type == "s64") return product_of<int64_t, ADD>(which);
    if (type == "u64") return product_of<uint64_t, ADD>(which);
    return nullptr;
}
DECODE(mul)
{
    return part.back()[0] == 'f' ? any_two<Mul>(part, out) : integer_product<false>(part, out);
}
DECODE(fused)
{
    (void)out;
    if (part.size() != 3 || part[1] != "rn") return nullptr;
    return for_float(part[2], [](auto x) -> Run {
        typedef decltype(x) T;
        return [](Thread* t, const Instruction& i) {
            put<T>(t, i.slot[0],
                   std::fma(get<T>(t, i.slot[1]), get<T>(t, i.slot[2]), get<T>(t, i.slot[3])));
        };
    });
}

/* ---- one operand ----------------------------------------------------------------------------------- */

struct Neg {
    template <class T> T operator()(T a) const { return (T)-a; }
};
struct Abs {
    float operator()(float a) const { return fabsf(a); }
    double operator()(double a) const { return fabs(a); }
    template <class T> T operator()(T a) const { return a < 0 ? (T)-a : a; }
};
struct SquareRoot {
    template <class T> T operator()(T a) const { return std::sqrt(a); }
};
struct Reciprocal {
    template <class T> T operator()(T a) const { return 1 / a; }
};
template <class T, class F> static void one(Thread* t, const Instruction& i)
{
    put<T>(t, i.slot[0], F()(get<T>(t, i.slot[1])));
}
template <class F> DECODE(any_one)
{
    (void)out;
    return for_any(part.back(), [](auto x) -> Run { return one<decltype(x), F>; });
}
template <class F> DECODE(rounded_one) { return part[1] == "rn" ? any_one<F>(part, out) : nullptr; }
/* rcp.approx.ftz.f64 gives the upper half; the division that nvcc writes refines it. */
static void rough_reciprocal(Thread* t, const Instruction& i)
{
    const double y = 1 / get<double>(t, i.slot[1]);
    uint64_t bits;
    memcpy(&bits, &y, sizeof bits);
    t->slot[i.slot[0]] = bits & 0xffffffff00000000u;
}
DECODE(reciprocal)
{
    if (part == Parts{"rcp", "approx", "ftz", "f64"}) return rough_reciprocal;
    return rounded_one<Reciprocal>(part, out);
}
/* Two units in the last place on a GPU (PTX ISA, ex2 and lg2); the nearest float here. */
DECODE(exp2_approx)
{
    (void)out;
    if (part.back() != "f32") return nullptr;
    return
        [](Thread* t, const Instruction& i) { put(t, i.slot[0], exp2f(get<float>(t, i.slot[1]))); };
}
DECODE(log2_approx)
{
    (void)out;
    if (part.back() != "f32") return nullptr;
    return
        [](Thread* t, const Instruction& i) { put(t, i.slot[0], log2f(get<float>(t, i.slot[1]))); };
}
DECODE(population)
{
    (void)out;
    if (part[1] == "b32")
        return [](Thread* t, const Instruction& i) {
            put<uint32_t>(t, i.slot[0], (uint32_t)__builtin_popcount(get<uint32_t>(t, i.slot[1])));
        };
    return nullptr;
}
DECODE(leading_zeros)
{
    (void)out;
    if (part[1] == "b32")
        return [](Thread* t, const Instruction& i) {
            const uint32_t x = get<uint32_t>(t, i.slot[1]);
            put<uint32_t>(t, i.slot[0], x == 0 ? 32 : (uint32_t)__builtin_clz(x));
        };
    return nullptr;
}
/* Bytes of {b, a} by the nibbles of c; a nibble's top bit asks for the sign of its byte. */
static void permute(Thread* t, const Instruction& i)
{
    const uint64_t bytes =
        (uint64_t)get<uint32_t>(t, i.slot[2]) << 32 | get<uint32_t>(t, i.slot[1]);
    const uint32_t how = get<uint32_t>(t, i.slot[3]);
    uint32_t x = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t nibble = how >> 4 * k & 15;
        uint32_t byte = (uint32_t)(bytes >> 8 * (nibble & 7)) & 255;
        if (nibble & 8) byte = byte & 128 ? 255 : 0;
        x |= byte << 8 * k;
    }
    put(t, i.slot[0], x);
}

/* The lowest `length` bits of a in b, from `first` on. */
static void insert_bits(Thread* t, const Instruction& i)
{
    const uint64_t a = get<uint32_t>(t, i.slot[1]), b = get<uint32_t>(t, i.slot[2]);
    const uint32_t first = get<uint32_t>(t, i.slot[3]) & 255,
                   length = get<uint32_t>(t, i.slot[4]) & 255;
    uint64_t mask = length >= 32 ? 0xffffffffu : ((uint64_t)1 << length) - 1;
    mask = first >= 32 ? 0 : mask << first;
    put(t, i.slot[0], (uint32_t)((b & ~mask) | (first >= 32 ? 0 : a << first & mask)));
}
static Run bit_field_insert(const Parts& part, Instruction*)
{
    return part == Parts{"bfi", "b32"} ? insert_bits : nullptr;
}

/* ---- comparisons ----------------------------------------------------------------------------------- */

struct Equal {
    template <class T> bool operator()(T a, T b) const { return a == b; }
};
struct Less {
    template <class T> bool operator()(T a, T b) const { return a < b; }
};
struct LessEqual {
    template <class T> bool operator()(T a, T b) const { return a <= b; }
};
struct Unordered {
    template <class T> bool operator()(T a, T b) const { return a != a || b != b; }
};

/* SWAP: of b and a. NOT: the opposite. A NaN makes ordered comparisons false, the others true: gtu is
 * "not less or equal", gt is "less" the other way round. */
template <class T, class F, bool SWAP, bool NOT>
static void compare(Thread* t, const Instruction& i)
{
    const T a = get<T>(t, i.slot[1]), b = get<T>(t, i.slot[2]);
    put(t, i.slot[0], (SWAP ? F()(b, a) : F()(a, b)) != NOT);
}
template <class T> static Run comparison(const std::string& name)
{
    const bool real = std::is_floating_point<T>::value;
    if (name == "eq") return compare<T, Equal, false, false>;
    if (name == "lt" || name == "lo") return compare<T, Less, false, false>;
    if (name == "le" || name == "ls") return compare<T, LessEqual, false, false>;
    if (name == "gt" || name == "hi") return compare<T, Less, true, false>;
    if (name == "ge" || name == "hs") return compare<T, LessEqual, true, false>;
    if (name == (real ? "neu" : "ne")) return compare<T, Equal, false, true>;
    if (!real) return nullptr;
    if (name == "nan") return compare<T, Unordered, false, false>;
    if (name == "num") return compare<T, Unordered, false, true>;
    if (name == "ltu") return compare<T, LessEqual, true, true>;
    if (name == "leu") return compare<T, Less, true, true>;
    if (name == "gtu") return compare<T, LessEqual, false, true>;
    if (name == "geu") return compare<T, Less, false, true>;
    return nullptr;
}
DECODE(set_predicate)
{
    (void)out;
    if (part.size() != 3) return nullptr;
    const std::string& name = part[1];
    return for_any(part[2], [&](auto x) -> Run { return comparison<decltype(x)>(name); });
}
DECODE(select)
{
    (void)out;
    return for_any(part[1], [](auto x) -> Run {
        typedef decltype(x) T;
        return [](Thread* t, const Instruction& i) {
            put<T>(t, i.slot[0], get<T>(t, i.slot[get<bool>(t, i.slot[3]) ? 1 : 2]));
        };
    });
}

/* ---- moves and branches ---------------------------------------------------------------------------- */

/* Vector to register or register to vector, low element first. */
template <class T> static void pack(Thread* t, const Instruction& i)
{
    uint64_t x = 0;
    for (int e = 0; e < i.elements; e++)
        x |= (uint64_t)get<T>(t, i.slot[1 + e]) << 8 * (int)sizeof(T) * e;
    t->slot[i.slot[0]] = x;
}
template <class T> static void unpack(Thread* t, const Instruction& i)
{
    const uint64_t x = t->slot[i.slot[i.elements]];
    for (int e = 0; e < i.elements; e++) put(t, i.slot[e], (T)(x >> 8 * (int)sizeof(T) * e));
}
static Run move_vector(const Parts& part, bool packs, int elements)
{
    const int bits = atoi(part[1].c_str() + 1) / elements;
    if (bits == 8) return packs ? pack<uint8_t> : unpack<uint8_t>;
    if (bits == 16) return packs ? pack<uint16_t> : unpack<uint16_t>;
    if (bits == 32) return packs ? pack<uint32_t> : unpack<uint32_t>;
    return nullptr;
}
static Run decode_move(const Parts& part, const std::vector<Operand>& operands, Instruction* out)
{
    if (operands.size() != 2) return nullptr;
    const size_t to = operands[0].slots.size(), from = operands[1].slots.size();
    if (to == 0 || from == 0 || (to > 1 && from > 1)) return nullptr;
    out->elements = (int)std::max(to, from);
    if (out->elements > 1) return move_vector(part, from > 1, out->elements);
    if (part[1] == "pred") /* from a register, or a constant that is any number but 0 */
        return [](Thread* t, const Instruction& i) { put(t, i.slot[0], t->slot[i.slot[1]] != 0); };
    return for_any(part[1], [](auto x) -> Run {
        typedef decltype(x) T;
        return [](Thread* t, const Instruction& i) { put<T>(t, i.slot[0], get<T>(t, i.slot[1])); };
    });
}

DECODE(branch)
{
    (void)part, (void)out;
    return [](Thread* t, const Instruction& i) { t->next = (int)i.offset; };
}
DECODE(leave)
{
    (void)part, (void)out;
    return [](Thread* t, const Instruction&) { t->next = -1; };
}

/* ---- all ------------------------------------------------------------------------------------------- */

static const struct Family {
    const char* name;
    size_t slots; /* operands, at least */
    Run (*decode)(const Parts&, Instruction*);
} families[] = {
    {"add", 3, any_two<Add>},
    {"sub", 3, any_two<Sub>},
    {"mul", 3, mul},
    {"mad", 4, integer_product<true>},
    {"fma", 4, fused},
    {"div", 3, any_two<Div>},
    {"rem", 3, integer_two<Rem>},
    {"min", 3, any_two<Min>},
    {"max", 3, any_two<Max>},
    {"and", 3, logic<And>},
    {"or", 3, logic<Or>},
    {"xor", 3, logic<Xor>},
    {"not", 2, logic_not},
    {"shl", 3, shift_left},
    {"shr", 3, shift_right},
    {"neg", 2, any_one<Neg>},
    {"abs", 2, any_one<Abs>},
    {"sqrt", 2, rounded_one<SquareRoot>},
    {"rcp", 2, reciprocal},
    {"ex2", 2, exp2_approx},
    {"lg2", 2, log2_approx},
    {"popc", 2, population},
    {"clz", 2, leading_zeros},
    {"prmt", 4, [](const Parts&, Instruction*) -> Run { return permute; }},
    {"bfi", 5, bit_field_insert},
    {"setp", 3, set_predicate},
    {"selp", 4, select},
    {"cvt", 2, decode_convert},
    {"cvta", 2, decode_memory},
    {"bra", 0, branch},
    {"ret", 0, leave},
    {"ld", 2, decode_memory},
    {"st", 2, decode_memory},
    {"atom", 3, decode_memory},
    {"cp", 0, decode_memory},
    {"membar", 0, decode_memory},
    {"fence", 0, decode_memory},
    {"bar", 1, decode_warp},
    {"shfl", 6, decode_warp},
    {"vote", 3, decode_warp},
    {"ldmatrix", 5, decode_warp},
    {"mma", 14, decode_warp},
};

Run decode(const std::string& opcode, const std::vector<Operand>& operands, Instruction* out)
{
    Parts part;
    std::stringstream all(opcode);
    for (std::string p; std::getline(all, p, '.');) part.push_back(p);
    size_t n = 0;
    for (const Operand& o : operands) {
        if (o.kind == Operand::ADDRESS && o.offset != 0) out->offset = o.offset;
        for (const int s : o.slots) {
            if (n == sizeof out->slot / sizeof out->slot[0]) return nullptr;
            out->slot[n++] = s;
        }
    }
    const bool bare = part[0] == "ret" || part[0] == "bra";
    if (part.size() < 2 && !bare) return nullptr;
    if (part[0] == "bra" && (operands.size() != 1 || operands[0].kind != Operand::LABEL))
        return nullptr;
    if (part[0] == "mov") return decode_move(part, operands, out);
    for (const Family& f : families)
        if (part[0] == f.name) return n >= f.slots ? f.decode(part, out) : nullptr;
    return nullptr;
}

} // namespace ptx
} // namespace simt
