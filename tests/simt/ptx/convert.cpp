/* convert.cpp - cvt: between integers, between floats, and across (PTX ISA, cvt). */
#include "tests/simt/ptx/program.h"

#include <limits>
#include <math.h>
#include <string.h>

namespace simt {
namespace ptx {

/* To a whole number, the way the rounding says: nearest even, towards zero, down, up. */
enum Rounding { NEAREST, ZERO, DOWN, UP };
template <class T> static T whole(T x, int rounding)
{
    switch (rounding) {
    case ZERO:
        return std::trunc(x);
    case DOWN:
        return std::floor(x);
    case UP:
        return std::ceil(x);
    default:
        return std::nearbyint(x);
    }
}

/* Beyond the range: its end; NaN: 0. */
template <class To, class From> static To saturate(From x)
{
    if (x != x) return 0;
    if (x <= (From)std::numeric_limits<To>::min()) return std::numeric_limits<To>::min();
    if (x >= (From)std::numeric_limits<To>::max()) return std::numeric_limits<To>::max();
    return (To)x;
}

template <class To, class From> static void plain(Thread* t, const Instruction& i)
{
    put<To>(t, i.slot[0], (To)get<From>(t, i.slot[1]));
}
template <class To, class From> static void to_integer(Thread* t, const Instruction& i)
{
    put<To>(t, i.slot[0], saturate<To>(whole(get<From>(t, i.slot[1]), i.mode)));
}
template <class T> static void to_whole(Thread* t, const Instruction& i)
{
    put<T>(t, i.slot[0], whole(get<T>(t, i.slot[1]), i.mode));
}

/* rni, rzi, rmi, rpi; -1 without. */
static int rounding_of(const Parts& part)
{
    for (const std::string& p : part) {
        if (p == "rni") return NEAREST;
        if (p == "rzi") return ZERO;
        if (p == "rmi") return DOWN;
        if (p == "rpi") return UP;
    }
    return -1;
}

template <class From> static Run from(const std::string& to, int rounding)
{
    const bool real = std::is_floating_point<From>::value;
    if (to[0] == 'f' && rounding >= 0) {
        if (!real || to != (sizeof(From) == 4 ? "f32" : "f64")) return nullptr;
        return for_float(to, [](auto x) -> Run { return to_whole<decltype(x)>; });
    }
    if (to[0] == 'f') return for_float(to, [](auto x) -> Run { return plain<decltype(x), From>; });
    if (real && rounding < 0) return nullptr;
    return for_integer(to, [real](auto x) -> Run {
        typedef decltype(x) To;
        return real ? to_integer<To, From> : plain<To, From>;
    });
}

/* To nearest, ties to even; a NaN is the one NaN of the instruction. */
static uint32_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
/* Two floats to one word; the first one goes up. */
static void pack_bf16(Thread* t, const Instruction& i)
{
    const uint32_t high = bf16_of(get<float>(t, i.slot[1])),
                   low = bf16_of(get<float>(t, i.slot[2]));
    put(t, i.slot[0], high << 16 | low);
}

Run decode_convert(const Parts& part, Instruction* out)
{
    if (part == Parts{"cvt", "rn", "bf16x2", "f32"}) return pack_bf16;
    const std::string& to = part[part.size() - 2];
    const int rounding = rounding_of(part);
    out->mode = rounding;
    for (size_t i = 1; i + 2 < part.size(); i++)
        if (part[i] != "rn" && rounding < 0) return nullptr;
    return for_any(part.back(), [&](auto x) -> Run { return from<decltype(x)>(to, rounding); });
}

} // namespace ptx
} // namespace simt
