#!/usr/bin/env python3
"""Writes tests/golden/quants.gguf with the reference library: values of every kind, and for each
type of block a tensor of random blocks beside what the library makes of it (`TYPE.f32`).

    pip install -r tools/golden/quants.txt
    python tools/golden/quants.py tests/golden/quants.gguf
"""
import sys

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFWriter
from gguf.quants import dequantize

# Bytes at which a block keeps numbers in fp16: these must be finite.
HALVES = {
    Type.F16: [0],
    Type.Q8_0: [0],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
}


def half(rng):
    """Any finite fp16, the small ones and zeros of both signs among them."""
    while True:
        bits = rng.integers(0, 1 << 16)
        if rng.random() < 0.2:
            bits &= 0x83FF
        if bits >> 10 & 31 != 31:
            return int(bits)


def blocks(rng, kind, n):
    size = GGML_QUANT_SIZES[kind][1]
    data = rng.integers(0, 256, (n, size), dtype=numpy.uint8)
    for block in data:
        for at in HALVES.get(kind, []):
            block[at : at + 2] = numpy.frombuffer(half(rng).to_bytes(2, "little"), numpy.uint8)
        if kind == Type.BF16 and block[1] & 0x7F == 0x7F:
            block[1] ^= 0x10
        if kind == Type.F32 and block[3] & 0x7F == 0x7F:
            block[3] ^= 0x10
    return data


def main():
    rng = numpy.random.default_rng(5)
    out = GGUFWriter(sys.argv[1], "golden")
    out.add_uint8("u8", 200)
    out.add_int8("i8", -100)
    out.add_uint16("u16", 60000)
    out.add_int16("i16", -30000)
    out.add_uint32("u32", 4000000000)
    out.add_int32("i32", -2000000000)
    out.add_uint64("u64", 1 << 62)
    out.add_int64("i64", -(1 << 62))
    out.add_float32("f32", 0.1)
    out.add_float64("f64", 0.1)
    out.add_bool("bool", True)
    out.add_string("text", "Füße 🌳\n")
    out.add_array("texts", ["one", " ", "zwei", "三"])
    out.add_array("wholes", [3, -1, 4])
    out.add_array("reals", [0.5, -0.25])
    for kind in [Type.F32, Type.BF16, *HALVES]:
        elements, size = GGML_QUANT_SIZES[kind]
        n = {1: 64, 32: 16, 256: 4}[elements]
        data = blocks(rng, kind, n).reshape(2, -1)
        want = dequantize(data, kind).reshape(2, n * elements // 2)
        out.add_tensor(kind.name, data, raw_dtype=kind)
        out.add_tensor(f"{kind.name}.f32", want.astype(numpy.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


main()
