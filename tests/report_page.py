#!/usr/bin/env python3
"""The report in a browser: trains a small run, opens its page in headless Chromium, uses it, keeps screenshots.

  tests/report_page.py GROVE SCREENSHOT_DIR

Exit status 77 (skipped) without Chromium. Fails on any error or warning in the console, and on any request but
for the page itself.
"""
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
        print(("ok    " if value else "FAILED ") + what)
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
        browser.open(report(grove, folder, run))
        learning(page)
        for theme in ("light", "dark"):
            browser.theme(theme)
            page.shot("learning-" + theme)
        page.check("no complaint of the browser", not browser.complaints)
        print("\n".join(browser.complaints))
    finally:
        browser.close()
        shutil.rmtree(folder)
    return 1 if page.bad else 0


if __name__ == "__main__":
    sys.exit(main())
