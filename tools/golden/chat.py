"""Texts and tokens of conversations as the models' own Jinja templates write them.

    python tools/golden/chat.py TEMPLATES        # writes tests/golden/chat.jsonl

TEMPLATES holds NAME.jinja for qwen2.5, qwen3, smollm2, llama2, llama3 and llama3.1: the chat templates in the
repositories of Qwen2.5-7B-Instruct, Qwen3-8B, SmolLM2-135M-Instruct, Llama-2-7b-chat, Meta-Llama-3-8B-Instruct and
Llama-3.2-3B-Instruct. Rendered by transformers; encoded with the little vocabularies of tools/golden/tokenizer.py.

A conversation is a list of parts (what is appended at once) with the assistant's answers between them, spelled as
a model samples them. Only conversations are kept for which a template keeps earlier answers as they were: Qwen3's
drops the thoughts before the last question.
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

sys.path.insert(0, os.path.dirname(__file__))
from tokenizer import ADDED, HERE, hash_ids  # noqa: E402

VOCABULARY = {"qwen2.5": "qwen", "qwen3": "qwen", "smollm2": "smollm2", "llama2": "llama2", "llama3": "llama3",
              "llama3.1": "llama3"}
BOS = {"llama2": "<s>", "llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>"}
EOS = {"llama2": "</s>"}
SAYS = ["Where is the goal?", "P__H\n____\n_H__\n___G", "Go on.", "caf\u00e9 \u6c34 \U0001f600", "a  b\tc", "1 + 1 = ?",
        "two\n\nparagraphs", "<b>not a token</b>"]
PADDED = ["  spaces around  ", "\n\nlines around\n", "\u3000wide space\u2003"]
ANSWERS = ["right", "Down, then right.", "42", "I do not know.\nPerhaps left?", "\u6c34"]
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "What is \"there\"?\nA caf\u00e9/lake.",
     "parameters": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": -1.5}},
                    "required": ["x"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "wait", "description": "", "parameters": {"type": "object", "properties": {},
                                                                                       "enum": [None, True, 3e-05, []]}}},
]


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def spelled(form, content, calls):
    """An answer with calls of tools as the model samples it."""
    if form == "llama3.1" and calls:
        f = calls[0]["function"]
        return '{"name": "%s", "parameters": %s}' % (f["name"], json.dumps(f["arguments"], ensure_ascii=False))
    for i, c in enumerate(calls):
        f = c["function"]
        content += "\n" if content or i > 0 else ""
        content += '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>' % (
            f["name"], json.dumps(f["arguments"], ensure_ascii=False))
    return content


def conversation(r, form):
    """(messages for Jinja, parts and answers for grove, tools, no_think)"""
    padded = form.startswith("llama")
    says = lambda: r.choice(SAYS + (PADDED if padded else []))  # noqa: E731
    tools = TOOLS[:r.randint(1, 2)] if form in ("qwen2.5", "qwen3", "llama3.1") and r.random() < 0.5 else None
    messages, parts = [], []
    part = {"messages": []}

    def add(role, text):
        messages.append({"role": role, "content": text})
        part["messages"].append([role, text])

    if r.random() < 0.5:
        add("system", says())
    add("user", says())
    for _ in range(r.randrange(4)):
        answer, calls = r.choice(ANSWERS), []
        if tools and r.random() < 0.6:
            n = 1 if form == "llama3.1" else r.randint(1, 3)
            calls = [call(r.choice(["look", "wait"]), r.choice([{}, {"x": 3, "to": "n\u00f6rd \"a\""}])) for _ in range(n)]
            answer = "" if form in ("llama3.1", "qwen3") and r.random() < 0.5 else answer
        messages.append({"role": "assistant", "content": answer, **({"tool_calls": calls} if calls else {})})
        parts.append({**part, "reply": spelled(form, answer, calls)})
        part = {"messages": []}
        if calls:
            for _ in calls:
                add("tool", r.choice(["ok", "a \"quoted\"\tline\n\u6c34", "{\"wet\": true}"]))
        elif form == "smollm2" and r.random() < 0.3:
            add("tool", "wet")
        else:
            add("user", says())
        if not calls and form in ("qwen2.5", "qwen3", "smollm2") and r.random() < 0.2:
            add("user", says())
    parts.append(part)
    return messages, parts, tools


def thoughts(r):
    """Qwen3 keeps the thoughts of the answers since the last question."""
    messages = [{"role": "user", "content": r.choice(SAYS)}]
    parts = [{"messages": [["user", messages[0]["content"]]]}]
    for _ in range(r.randint(1, 3)):
        thought, calls = r.choice(["It is cold.", "One\n\ntwo."]), [call("look", {"x": r.randrange(9)})]
        messages.append({"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": calls})
        parts[-1]["reply"] = spelled("qwen3", "<think>\n%s\n</think>\n\n" % thought, calls).replace("\n\n\n<tool", "\n\n<tool")
        messages.append({"role": "tool", "content": "ice"})
        parts.append({"messages": [["tool", "ice"]]})
    return messages, parts, TOOLS


def render(template, form, messages, tools, **more):
    out, _ = render_jinja_template([messages], tools=tools, chat_template=template, bos_token=BOS.get(form, ""),
                                   eos_token=EOS.get(form, ""), date_string="3 May 2025", **more)
    return out[0]


def vocabulary(name):
    """Without the added tokens that no model has: they would be found in what users say."""
    with open(os.path.join(HERE, name + ".json")) as f:
        spec = json.load(f)
    spec["added_tokens"] = [a for a in spec["added_tokens"] if a["special"] or a["content"] in ADDED[:9]]
    return Tokenizer.from_str(json.dumps(spec))


def main(folder):
    r = random.Random(11)
    with open(os.path.join(HERE, "..", "chat.jsonl"), "w") as f:
        for form in VOCABULARY:
            with open(os.path.join(folder, form + ".jinja")) as t:
                template = t.read()
            tokenizer = vocabulary(VOCABULARY[form])
            for k in range(40):
                with_thoughts = form == "qwen3" and k >= 30
                messages, parts, tools = thoughts(r) if with_thoughts else conversation(r, form)
                no_think = form == "qwen3" and k % 3 == 0 and len(parts) == 1
                text = render(template, form, messages, tools, add_generation_prompt=True,
                              **({"enable_thinking": False} if no_think else {}))
                line = {"format": form, "parts": parts, "text": text, "no_think": no_think}
                if tools:
                    line["tools"] = json.dumps(tools, ensure_ascii=r.random() < 0.5, indent=r.choice([None, 1]))
                if form != "llama2" or len(parts) == 1:  # an answer joins its question's last word there
                    line["vocabulary"] = VOCABULARY[form]
                    line["hash"] = hash_ids(tokenizer.encode(text, add_special_tokens=False).ids)
                f.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
