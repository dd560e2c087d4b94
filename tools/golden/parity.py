#!/usr/bin/env python3
"""Writes what transformers computes with a model, for tests/test_parity.c to compare with.

    pip install -r tools/golden/parity.txt
    python tools/golden/parity.py tests/golden/parity         # tiny random models of every family
    python tools/golden/parity.py FOLDER MODEL.gguf           # one real model; FOLDER then links to it

A folder holds the model as transformers saved it and expected.safetensors, all in fp32:

    tokens   (2, 24)       a batch of two rows
    logits   (48, v)       one row's below the other's
    greedy   (7 + 64)      the first tokens of row 0 and their greedy continuation
    loss     (1)           mean cross entropy over every token but the first of each row
    grad.*                 its gradient by each parameter (not of smollm2_gguf, which differs from
                           smollm2 in nothing that gradients would show)
"""
import os
import pathlib
import sys

import numpy
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

ROWS, N = 2, 24
PROMPT = 7
CONTINUATION = 64
MARGIN = 2e-3  # between the two best tokens: far above the differences of fp32 arithmetic

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.2,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
)
SMOLLM = dict(  # rows of whole blocks of Q8_0
    vocab_size=64,
    hidden_size=96,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=3,
    num_key_value_heads=1,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)


def families():
    """Name, config, how it is saved."""
    qwen2 = transformers.Qwen2Config
    qwen3 = transformers.Qwen3Config
    llama = transformers.LlamaConfig
    return {
        "qwen2": (qwen2(**SHAPE, tie_word_embeddings=True, rope_theta=1e6), {}),
        "qwen2_untied": (
            qwen2(**{**SHAPE, "num_key_value_heads": 1}, tie_word_embeddings=False, rope_theta=1e6),
            dict(max_shard_size="30KB"),
        ),
        "qwen3": (qwen3(**SHAPE, head_dim=16, tie_word_embeddings=True, rope_theta=1e6), {}),
        "llama2": (
            llama(**{**SHAPE, "num_key_value_heads": 4}, tie_word_embeddings=False),
            {},
        ),
        "llama3": (
            llama(**SHAPE, tie_word_embeddings=True, rope_parameters=LLAMA3),
            {},
        ),
        "smollm2": (
            llama(
                **{**SHAPE, **SMOLLM},
                tie_word_embeddings=True,
                rope_theta=100000.0,
            ),
            {},
        ),
    }


def randomise(model, seed):
    """Norms and biases too, which begin at ones and zeros; bf16 values, so that the files are short."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.copy_(torch.randn_like(p) * 0.2 + (1 if "norm" in name else 0))
            p.copy_(p.bfloat16().float())


def greedy(model, prompt):
    """The continuation and the least lead of a chosen token over the next best."""
    tokens = list(prompt)
    lead = float("inf")
    with torch.no_grad():
        for _ in range(CONTINUATION):
            logits = model(torch.tensor([tokens])).logits[0, -1]
            best = logits.topk(2)
            lead = min(lead, (best.values[0] - best.values[1]).item())
            tokens.append(best.indices[0].item())
    return tokens, lead


def expect(model, tokens):
    """Everything but the continuation; tokens (ROWS, N)."""
    model.zero_grad()
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)
    )
    loss.backward()
    out = {
        "tokens": tokens.float(),
        "logits": logits.detach().reshape(-1, logits.shape[-1]),
        "loss": loss.detach().reshape(1),
    }
    for name, p in model.named_parameters():
        out["grad." + name] = p.grad.detach()
    return out


def add_greedy(out, model, prompt):
    tokens, lead = greedy(model, prompt)
    out["greedy"] = torch.tensor(tokens).float()
    return lead


def save(folder, out):
    out = {k: v.contiguous().float() for k, v in out.items()}
    save_file(out, folder / "expected.safetensors")


def make(folder, config, how):
    """A random model whose choices are clear."""
    for seed in range(100):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        randomise(model, seed)
        rng = numpy.random.default_rng(seed)
        tokens = torch.tensor(rng.integers(3, config.vocab_size, (ROWS, N)))
        out = expect(model, tokens)
        lead = add_greedy(out, model, tokens[0, :PROMPT].tolist())
        distinct = len(set(out["greedy"].tolist()[PROMPT:]))
        if lead > MARGIN and distinct > 8:
            break
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder, **how)
    save(folder, out)
    print(f"{folder.name}: seed {seed}, least lead {lead:.4f}, {distinct} distinct tokens")
    return model.float(), out


# ---- GGUF ---------------------------------------------------------------------------------------

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def pair_neighbours(weight, heads):
    """Rows (head, half, i) -> (head, i, half): the order of rotary pairs in llama's GGUF files."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def block_type(data):
    """Q8_0 where rows are whole blocks of it."""
    whole = data.ndim == 2 and data.shape[1] % 32 == 0
    return GGMLQuantizationType.Q8_0 if whole else GGMLQuantizationType.F32


def write_gguf(path, model):
    """A llama model; the rows of a matrix keep their values wherever they stand."""
    c = model.config
    out = GGUFWriter(path, "llama")
    out.add_block_count(c.num_hidden_layers)
    out.add_context_length(c.max_position_embeddings)
    out.add_embedding_length(c.hidden_size)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_head_count(c.num_attention_heads)
    out.add_head_count_kv(c.num_key_value_heads)
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    out.add_rope_freq_base(c.rope_parameters["rope_theta"])
    out.add_rope_dimension_count(c.head_dim)
    out.add_key_length(c.head_dim)
    out.add_value_length(c.head_dim)
    out.add_vocab_size(c.vocab_size)
    for name, p in model.named_parameters():
        data = p.detach().numpy()
        theirs = name
        for a, b in TENSORS.items():
            theirs = theirs.replace(a, b)
        theirs = theirs.replace("model.layers", "blk")
        if "q_proj" in name:
            data = pair_neighbours(data, c.num_attention_heads)
        if "k_proj" in name:
            data = pair_neighbours(data, c.num_key_value_heads)
        kind = block_type(data)
        out.add_tensor(theirs, quantize(data, kind), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def load_gguf(path):
    path = pathlib.Path(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


def make_gguf(folder, model):
    """The same model out of a GGUF file, as transformers reads it: its rows come back in order."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.gguf"
    write_gguf(path, model)
    read = load_gguf(path)
    for (name, a), (_, b) in zip(read.named_parameters(), model.named_parameters()):
        kind = block_type(b)
        want = dequantize(quantize(b.detach().numpy(), kind), kind)
        assert (a.detach().numpy() == want.reshape(a.shape)).all(), name
    rng = numpy.random.default_rng(3)
    tokens = torch.tensor(rng.integers(3, model.config.vocab_size, (ROWS, N)))
    out = expect(read, tokens)
    lead = add_greedy(out, read, tokens[0, :PROMPT].tolist())
    out = {k: v for k, v in out.items() if not k.startswith("grad.")}
    save(folder, out)
    print(f"{folder.name}: least lead {lead:.4f}")


# ---- a real model -------------------------------------------------------------------------------

TEXT = (
    "The capital of France is Paris. It lies on the Seine, and about two million people live there. The city has been"
    " a centre of trade, science and the arts for many centuries, and visitors come from all over"
    " the world to see its museums, its bridges and its many gardens in every season of the year."
)


def real(folder, path):
    path = pathlib.Path(path).resolve()
    model = load_gguf(path)
    encode = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    row = encode(TEXT)["input_ids"]
    out = expect(model, torch.tensor([row[:N], row[N : 2 * N]]))
    lead = add_greedy(out, model, row[:PROMPT])
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "model.gguf"
    if link.is_symlink():
        link.unlink()
    os.symlink(path, link)
    save(folder, out)
    print(f"{path.name}: least lead {lead:.4f}")
    print(encode.decode(out["greedy"].long().tolist()))


def main():
    torch.set_num_threads(1)
    folder = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        real(folder, sys.argv[2])
        return
    for name, (config, how) in families().items():
        model, _ = make(folder / name, config, how)
        if name == "smollm2":
            make_gguf(folder / "smollm2_gguf", model)


main()
