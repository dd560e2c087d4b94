#!/usr/bin/env python3
"""The report in a browser: trains a small run, opens its page in headless Chromium, uses it, keeps screenshots.

  tests/report_page.py GROVE SCREENSHOT_DIR

Exit status 77 (skipped) without Chromium. Fails on any error or warning in the console, and on any request but
for the page itself.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import chromium

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TINY = ["run.steps=6", "budget.tokens=0", "rollout.tokens_per_step=0", "rollout.groups_per_step=8", "warmstart.steps=60",
        "warmstart.batch=16", "warmstart.lr=1e-2", "model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=1",
        "model.mlp=48", "frozenlake.hole_prob=0.25", "frozenlake.demo_noise=0.3", "eval.tasks=30", "eval.every_share=0.3",
        "log.quiet=true", "device.threads=1", "checkpoint.every=0"]


def train(grove, folder, name, *more):
    subprocess.run([grove, "train", "configs/frozenlake_patr.json", f"run.dir={folder}", f"run.name={name}", *TINY, *more],
                   cwd=ROOT, check=True)
    return os.path.join(folder, name)


def report(grove, folder, *runs):
    path = os.path.join(folder, "report.html")
    subprocess.run([grove, "report", *runs, "-o", path], check=True, stdout=subprocess.DEVNULL)
    return path


class Page:
    """The browser at one page; every check is a line of its own in the output."""

    def __init__(self, browser, shots):
        self.b, self.shots, self.bad = browser, shots, 0

    def check(self, what, condition):
        value = condition if isinstance(condition, bool) else bool(self.b.js(condition))
        print(("ok    " if value else "FAILED ") + what, flush=True)
        self.bad += not value

    def shot(self, name):
        self.b.screenshot(os.path.join(self.shots, name + ".png"))


def learning(page):
    b = page.b
    b.js("location.hash = 'learning'")
    b.wait("document.querySelector('.view-learning .chart .line')")
    before = b.js("document.querySelector('.chart .line').getAttribute('d')")
    for value in ("tokens", "minutes", "steps", "turns"):
        b.click(f".choice [data-value={value}]")
        page.check(f"against {value}", f"document.querySelector('[data-value={value}]').getAttribute('aria-checked') === 'true'")
    page.check("back at turns the curve is the same", b.js("document.querySelector('.chart .line').getAttribute('d')") == before)
    b.click(".choice [data-value=true]")
    page.check("greedy is another curve", b.js("document.querySelector('.chart .line').getAttribute('d')") != before)
    b.click(".choice [data-value=false]")
    page.check("every chart has a line or a layer",
               "[...document.querySelectorAll('.chart')].every((c) => c.querySelector('.line, .layer, .label'))")
    box = b.js("(() => { const r = document.querySelector('.plot').getBoundingClientRect(); return [r.x + r.width / 2, r.y + 80]; })()")
    b.move(*box)
    page.check("pointing at a chart reads all", "[...document.querySelectorAll('.cross')].every((c) => c.getAttribute('visibility') === 'visible')")


def trees(page):
    b = page.b
    b.js("location.hash = 'trees'")
    b.wait("document.querySelector('.node.selected')")
    chosen = "Number(document.querySelector('.node.selected').dataset.id)"
    head = "document.querySelector('.panel-head h2').textContent"
    b.click(".tree-list button", 3)
    b.wait("document.querySelectorAll('.tree-list button')[3].getAttribute('aria-selected') === 'true'")
    page.check("a tree is chosen from the list", f"{chosen} === 0")
    steps = b.js("Number(document.querySelector('#step').max)")
    b.click("#step-before")
    b.wait(f"Number(document.querySelector('#step').value) === {steps - 1}")
    b.key(".")
    b.wait(f"Number(document.querySelector('#step').value) === {steps}")
    page.check("a tree of many nodes is first", "document.querySelectorAll('.node').length > 5")
    for _ in range(3):
        b.key("ArrowRight")
    page.check("right goes down the tree", f"{head}.startsWith('Turn 3')")
    b.key("ArrowLeft")
    page.check("left goes back", f"{head}.startsWith('Turn 2')")
    row = "document.querySelector('.node.selected').getAttribute('transform')"
    before = b.js(row)
    b.key("ArrowDown")
    page.check("down goes to another node of the turn", f"{row} !== {before!r} && {head}.startsWith('Turn 2')")
    b.key("e")
    page.check("e goes to an end", "document.querySelector('.node.selected .end') !== null")
    page.check("an end has a chip in words", "document.querySelector('.chip').textContent.length > 3")
    page.check("the lake is a map with the way walked", "document.querySelector('.panel .map .way') !== null")
    page.check("a token a letter, each with its probability",
               "document.querySelectorAll('.token').length === document.querySelectorAll('.token small').length"
               " && document.querySelectorAll('.token').length > 1")
    fills = "[...document.querySelectorAll('.node .pill')].map((p) => p.getAttribute('fill')).join()"
    seen = {b.js(fills)}
    for measure in ("advantage", "reward", "score"):
        b.click(f".toolbar [data-value={measure}]")
        seen.add(b.js(fills))
    page.check("three measures, three colourings", len(seen) == 3)
    whole = b.js("""[...document.querySelectorAll('.node')].findIndex((n) => {
        const r = n.getBoundingClientRect(), box = document.querySelector('.forest-scroll').getBoundingClientRect();
        return r.left > box.left && r.right < box.right && r.top > box.top + 30 && !n.classList.contains('selected'); })""")
    want = b.js(f"Number(document.querySelectorAll('.node')[{whole}].dataset.id)")
    b.click(".node", whole)
    page.check("a click chooses a node", f"{chosen} === {want}")
    page.check("the replay command names it",
               f"document.querySelector('.replay code')?.textContent.endsWith(':' + {chosen}) || {chosen} === 0")
    b.js("location.hash = location.hash.split('/').slice(0, 4).join('/')")
    b.key("f")
    b.key("ArrowRight")
    if b.js("document.querySelector('#compare') !== null"):
        b.key("d")
        page.check("siblings stand side by side", "document.querySelectorAll('dialog[open] .sibling').length > 1")
        page.shot("siblings-light")
        b.key("Escape")
        page.check("Escape closes", "!document.querySelector('dialog').open")


def ledger(page):
    b = page.b
    b.key("3")
    b.wait("document.querySelector('.view-ledger table')")
    page.check("every bar is whole", "[...document.querySelectorAll('.bar-parts')].every((bar) => "
               "Math.abs([...bar.children].reduce((w, i) => w + parseFloat(i.style.width), 0) - 100) < 0.01)")
    page.shot("ledger-light")
    b.key("4")
    b.wait("document.querySelector('.view-settings table')")
    page.check("settings are listed", "document.body.textContent.includes('rollout.strategy')")


def repositories(page, grove, folder):
    """A run on the tiny repository tasks: turns are text of a terminal."""
    out = subprocess.run([grove, "train", "configs/swe_tiny.json", f"run.dir={folder}", "run.name=swe", "run.steps=1", "eval.tasks=0",
                          "log.quiet=true", "device.threads=1"], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    if out.returncode != 0:
        print("left out: repository tasks do not run here: " + out.stderr.strip())
        return
    b = page.b
    b.open(report(grove, folder, os.path.join(folder, "swe")), "#trees")
    b.wait("document.querySelector('.node.selected')")
    page.check("a task of a repository opens as text", "document.querySelector('.panel .terminal').textContent.length > 100")
    b.key("ArrowRight")
    page.check("and so does what the model typed", "document.querySelector('.panel .terminal .prompt') !== null")
    page.check("a world without a map has none", "document.querySelector('.panel .map') === null")
    page.shot("repository-light")


EVIL = ["</script><script>window.pwned = 1</script>", "<img src=x onerror='window.pwned = 1'>", "<!-- ", "&lt;b&gt;",
        "\u202egnp.exe", "\x1b[31mred\x1b[0m \x1b[1mbold\x1b[0m \x1b]0;title\x07", "${window.pwned = 1}", "a\x00b"]


def write_run(folder, name, nodes, config=None):
    """A run made by hand: one step with one tree."""
    path = os.path.join(folder, name)
    os.makedirs(path)
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config or {"run": {"name": name}, "env": {"name": "shell"}, "model": {"vocab": 32000}}, f)
    with open(os.path.join(path, "metrics.jsonl"), "w") as f:
        f.write('{"step": 0, "eval/success": 0.1}\n{"step": 1, "eval/success": 0.2, "budget/env_turns": 9}\n')
    with open(os.path.join(path, "trees.jsonl"), "w") as f:
        f.write(json.dumps({"step": 1, "group": 0, "attempt": 0, "task": 7, "signals": [EVIL[0], "tests"], "nodes": nodes}) + "\n")
    return path


def node(i, parent, turn, **more):
    return {"id": i, "parent": parent, "turn": turn, "branch": 0, "ordinal": 0, "kind": "policy", "status": "inner", "action": "ls\n",
            "observation": "ok\n", "score": 0.5, "reward": 0, "success": False, "stepped": True, "valid": True, "train": True,
            "signals": [0.5, 0.25], "advantage": 0.1, "leaves": 1, "a_pos": 0.1, "a_neg": 0, "tokens": [5, 6],
            "logp": [-0.1, -2.5], "obs_tokens": [1], "uid": "0", **more}


def hostile(page, grove, folder):
    """What a model and a world wrote stays text, in every place that shows it."""
    b = page.b
    nodes = [node(0, -1, 0, observation="\n".join(EVIL), tokens=[], logp=[])]
    for i, evil in enumerate(EVIL):
        nodes.append(node(i + 1, 0, 1, action=evil, observation="\n".join(EVIL[i:] + ["same"] * 3), branch=i,
                          status="terminal" if i else "error"))
    name = "<b onclick='window.pwned = 1'>run</b>"
    config = {"run": {"name": name}, "env": {"name": EVIL[1]}, "rollout": {"strategy": EVIL[0]}, "model": {"vocab": 32000}}
    b.open(report(grove, folder, write_run(folder, "evil", nodes, config)))
    for view in ("learning", "ledger", "settings", "trees"):
        b.js(f"location.hash = '{view}'")
        b.settle()
    b.wait("document.querySelector('.node.selected')")
    for i in range(1, len(EVIL) + 1):
        b.js(f"location.hash = '#trees/0/1/0/{i}'")
        b.wait(f"document.querySelector('.panel-head small').textContent.includes('node {i} ')")
        b.key("d")
        b.key("Escape")
    page.check("no script of a run ran", "window.pwned === undefined")
    page.check("no element out of a text", "document.querySelector('main img, main script, main b[onclick], header b[onclick], dialog img') === null")
    b.js("location.hash = '#trees/0/1/0/1'")
    b.wait("document.querySelector('.terminal .prompt')")
    page.check("the text itself is shown", "document.querySelector('.panel').textContent.includes('</script><script>window.pwned = 1</script>')")
    page.check("nothing reorders text", "!/[\\u202a-\\u202e\\u001b]/.test(document.querySelector('.panel').textContent)")
    b.key("d")
    page.shot("terminal-light")
    b.key("Escape")


def key_and_door(page, grove, folder):
    """The map above the line of coordinates, with what lies on it."""
    first, then = "P__\n_H_\nK_D\nP00 K20\n", "___\nPH_\nK_D\nP10 K20\n"
    page.b.open(report(grove, folder, write_run(folder, "door", [node(0, -1, 0, observation=first, tokens=[], logp=[]),
                                                                  node(1, 0, 1, action="down\n", observation=then)])), "#trees/0/1/0/1")
    page.b.wait("document.querySelector('.node.selected')")
    page.check("a lake with a key is a map of its cells", "document.querySelectorAll('.panel .map .ice').length === 9")
    page.check("key, door and hole lie on it", "['key', 'door', 'hole', 'way'].every((c) => "
               "document.querySelectorAll(`.panel .map .${c}`).length === 1)")


def damaged(page, grove, folder):
    """Lines that are JSON but no trees are told, not drawn."""
    for name, nodes in (("no-nodes", []), ("holes", [node(0, -1, 0), node(2, 0, 1)])):
        page.b.open(report(grove, folder, write_run(folder, name, nodes)), "#trees")
        page.b.wait("document.querySelector('main .empty')")
        page.check(f"{name}: said in a sentence", "document.querySelector('main').textContent.includes('damaged')")


def many_nodes(page, grove, folder):
    """10,000 nodes: only those in sight are in the document, and a scroll through the tree leaves none out."""
    b = page.b
    nodes, fringe = [node(0, -1, 0, tokens=[], logp=[])], [0]
    while len(nodes) < 10000:
        parent = fringe.pop(0)
        for _ in range(3):
            nodes.append(node(len(nodes), parent, nodes[parent]["turn"] + 1, score=len(nodes) % 97 / 97))
            fringe.append(len(nodes) - 1)
    for i in fringe:
        nodes[i].update(status="loop", success=False)
    b.open(report(grove, folder, write_run(folder, "wide", nodes)), "#trees")
    b.wait("document.querySelector('.node.selected')")
    page.check("only what is in sight is drawn", "document.querySelectorAll('.node').length < 400")
    page.check("the whole is in the overview", "!document.querySelector('.overview').hidden")
    seen, slowest, frames = b.js("""(async () => {
        const box = document.querySelector('.forest-scroll'), seen = new Set(), frame = () => new Promise(requestAnimationFrame);
        const script = [];
        for (box.scrollTop = 0; ; box.scrollTop += box.clientHeight - 60) {
          await frame();
          const start = performance.now();
          await frame();
          script.push(performance.now() - start);
          for (const n of document.querySelectorAll('.node')) seen.add(n.dataset.id);
          if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1)
            return [seen.size, Math.max(...script), script.length];
        } })()""")
    print(f"      a page of the tree per frame: {frames} frames, the slowest took {slowest:.0f} ms")
    last = int(b.js("[...document.querySelectorAll('.heads text')].pop().textContent").split()[1])
    upto = [sum(n["turn"] <= last + more for n in nodes) for more in (0, 1)]  # one column may lie just beyond the edge
    page.check(f"a scroll from top to bottom meets all {seen} nodes of the columns in sight", seen in upto and seen > 3000)
    page.shot("many-nodes-light")


def killed(page, grove, folder, run):
    """A run killed in the middle of a line, its marker gone."""
    cut = os.path.join(folder, "killed")
    os.makedirs(cut)
    shutil.copy(os.path.join(run, "config.json"), cut)
    for name, keep in (("metrics.jsonl", 0.6), ("trees.jsonl", 0.7)):
        with open(os.path.join(run, name), "rb") as f:
            data = f.read()
        n = int(len(data) * keep)
        while data[n - 1:n] in (b"\n", b"}"):
            n -= 1
        with open(os.path.join(cut, name), "wb") as f:
            f.write(data[:n])
    page.b.open(report(grove, folder, cut, run), "#trees/0")
    page.b.wait("document.querySelector('.node.selected')")
    page.check("a killed run has trees", "document.querySelectorAll('.node').length > 2")
    page.b.open(report(grove, folder, cut))
    page.check("and says that it stopped", "document.querySelector('.state').textContent === 'stopped'")


def main():
    grove, shots = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if chromium.find() is None:
        print("skipped: no Chromium here (Debian: apt-get install chromium)")
        return 77
    os.makedirs(shots, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="grove-report-")
    browser = chromium.Browser()
    page = Page(browser, shots)
    try:
        run = train(grove, folder, "patr_1")
        browser.open(report(grove, folder, run, train(grove, folder, "patr_2", "run.seed=2"),
                            train(grove, folder, "flat_1", "rollout.strategy=flat", "rollout.group=8")))
        learning(page)
        page.shot("learning-light")
        trees(page)
        page.shot("trees-light")
        ledger(page)
        browser.theme("dark")
        for view in ("trees", "learning"):
            browser.js(f"location.hash = '{view}'")
            browser.wait(f"document.querySelector('.view-{view} svg')")
            page.shot(view + "-dark")
        browser.theme("light")
        repositories(page, grove, folder)
        hostile(page, grove, folder)
        key_and_door(page, grove, folder)
        damaged(page, grove, folder)
        many_nodes(page, grove, folder)
        killed(page, grove, folder, run)
        page.check("no complaint of the browser", not browser.complaints)
        print("\n".join(browser.complaints))
    finally:
        browser.close()
        shutil.rmtree(folder)
    return 1 if page.bad else 0


if __name__ == "__main__":
    sys.exit(main())
