"""Decoding beside llama.cpp and training beside PyTorch: one run, one machine, the same shape and threads.

    python bench/peers.py decode MODEL.gguf [THREADS [ROUNDS]]
    python bench/peers.py train [THREADS [STEPS]]

Needs bench/peers.txt (llama-cpp-python builds from source: some minutes) and a release build.

decode: MODEL is SmolLM2-135M (tools/get_model.sh smollm2-135m), which llama.cpp rewrites in fp32 and fp16 first. Batches of
1, 8 and 32 paths from context 32 to 80, then 32 leaves over one prefix of 1,000 tokens; llama.cpp shares it by copying
sequences in its unified cache. It is timed without sampling, grove with it, greedy. Its better attention setting
counts. The programs take turns, the best round of each counts. grove's weights are random: only their shape matters here.

train: one optimizer step, every token predicted. PyTorch runs the Llama of `transformers` (SDPA attention, fused AdamW) on
8 x 564 tokens in two micro-batches, as grove does; grove also trains a tree of 8 leaves of 64 tokens over 500.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
STEPS, START, PREFIX, LEAVES = 48, 32, 1000, 32
CASES = {"1 path": 1, "8 paths": 8, "32 paths": 32, "32 leaves of one prefix": LEAVES}
SHAPE = dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
             vocab_size=49152, max_position_embeddings=2048, tie_word_embeddings=True)


def bench(*args):
    out = subprocess.run([os.path.join(HERE, "build/release/bench"), *args], capture_output=True, check=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


class Llama:
    """llama.cpp through its C interface: no sampler, no text, only llama_decode."""

    def __init__(self, path, threads):
        import llama_cpp.llama_cpp as api
        self.api, self.threads = api, threads
        self.model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())

    def tokens_per_second(self, case, flash):
        api, paths, shared = self.api, CASES[case], case.endswith("prefix")
        p = api.llama_context_default_params()
        start = PREFIX if shared else START
        p.n_ctx = start + paths * STEPS + 64 if shared else paths * (start + STEPS + 16)
        p.n_batch = p.n_ubatch = max(512, paths)
        p.n_seq_max, p.kv_unified = paths, True
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = api.llama_init_from_model(self.model, p)
        batch = api.llama_batch_init(512, 0, 1)

        def decode(rows):  # rows of (sequence, position, wants logits)
            for at in range(0, len(rows), 512):
                part = rows[at:at + 512]
                batch.n_tokens = len(part)
                for i, (sequence, position, wanted) in enumerate(part):
                    batch.token[i] = (7919 * position + 31 * sequence) % 49152
                    batch.pos[i], batch.n_seq_id[i], batch.logits[i] = position, 1, wanted
                    batch.seq_id[i][0] = sequence
                if api.llama_decode(context, batch) != 0:
                    sys.exit(f"llama.cpp cannot decode {case}")
            api.llama_synchronize(context)

        if shared:
            decode([(0, t, t == PREFIX - 1) for t in range(PREFIX)])
            for s in range(1, paths):
                api.llama_memory_seq_cp(api.llama_get_memory(context), 0, s, -1, -1)
        else:
            for s in range(paths):
                decode([(s, t, t == start - 1) for t in range(start)])
        begin = time.perf_counter()
        for i in range(STEPS):
            decode([(s, start + i, True) for s in range(paths)])
        seconds = time.perf_counter() - begin
        if not api.llama_get_logits_ith(context, paths - 1):
            sys.exit("llama.cpp made no logits")
        api.llama_batch_free(batch)
        api.llama_free(context)
        return paths * STEPS / seconds


def rewrite(source, target, ftype):
    import llama_cpp.llama_cpp as api
    p = api.llama_model_quantize_default_params()
    p.ftype, p.allow_requantize, p.nthread = ftype, True, 2
    if api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(p)) != 0:
        sys.exit(f"llama.cpp cannot rewrite {source}")


def decode(model, threads, rounds):
    import llama_cpp
    quiet = llama_cpp.llama_log_callback(lambda *_: None)  # lives as long as the library may call it
    llama_cpp.llama_log_set(quiet, None)
    best = {}
    with tempfile.TemporaryDirectory() as folder:
        llamas = {}
        for dtype, ftype in ("fp32", llama_cpp.LLAMA_FTYPE_ALL_F32), ("fp16", llama_cpp.LLAMA_FTYPE_MOSTLY_F16):
            path = os.path.join(folder, dtype + ".gguf")
            rewrite(model, path, ftype)
            llamas[dtype] = Llama(path, threads)
        for _ in range(rounds):
            for dtype in "fp32", "bf16":
                for line in bench("decode", f"dtype={dtype}", f"threads={threads}", "repeats=1"):
                    if line["sampling"] == "greedy":
                        key = "grove " + dtype, line["case"]
                        best[key] = max(best.get(key, 0), line["tokens_per_s"])
            for case in CASES:
                for dtype, llama in llamas.items():
                    for flash in False, True:
                        key = "llama.cpp " + dtype, case
                        best[key] = max(best.get(key, 0), llama.tokens_per_second(case, flash))
    names = ["llama.cpp fp32", "llama.cpp fp16", "grove fp32", "grove bf16"]
    print("| case |", " | ".join(f"{n}, tokens/s" for n in names), "| fp32 : fp32 | bf16 : fp16 | better : better |")
    print("|---|" + "---|" * (len(names) + 3))
    for case in CASES:
        l32, l16, g32, g16 = (best[n, case] for n in names)
        print(f"| {case} | {l32:.0f} | {l16:.0f} | {g32:.0f} | {g16:.0f} | {g32 / l32:.2f} | {g16 / l16:.2f} |"
              f" {max(g32, g16) / max(l32, l16):.2f} |")


def torch_step(threads, steps):
    """Seconds of each optimizer step of PyTorch on 8 x 564 tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="sdpa"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    tokens = torch.randint(0, 49152, (8, 564))
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for part in tokens.split(4):
            logits = model(part, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
            (loss / tokens.numel()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return times


def train(threads, steps):
    how = [f"threads={threads}", f"repeats={steps}"]
    flat = bench("step", *how, "batches=2")[0]
    theirs = min(torch_step(threads, steps + 1)[1:])  # the first one warms up
    tree = bench("step", *how, "fork=500")[0]
    base = 8 * 564 / theirs
    print("| step | seconds | flat-equivalent tokens/s | ratio |\n|---|---|---|---|")
    for name, seconds in ("PyTorch, flat", theirs), ("grove, flat", flat["best_s"]), ("grove, tree", tree["best_s"]):
        rate = 8 * 564 / seconds
        print(f"| {name} | {seconds:.2f} | {rate:.0f} | {rate / base:.2f} |")


if __name__ == "__main__":
    what, args = (sys.argv + [""])[1], sys.argv[2:]
    if what == "decode" and 1 <= len(args) <= 3:
        decode(args[0], *map(int, args[1:2] or ["2"]), *map(int, args[2:3] or ["3"]))
    elif what == "train" and len(args) <= 2:
        train(*map(int, args[:1] or ["2"]), *map(int, args[1:2] or ["2"]))
    else:
        sys.exit(__doc__)
