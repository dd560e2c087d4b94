"""A headless Chromium, driven through its DevTools pipe. Standard library only.

  tests/chromium.py report.html#trees/0/38/21/8 picture.png 1440x620        a picture of one place of a report

Messages are JSON that ends with NUL, on the child's file descriptors 3 (in) and 4 (out). What a page logs as an
error, throws or asks of the network is kept in `complaints`.
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time


def find():
    """Path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    def __init__(self, width=1440, height=900):
        self.profile = tempfile.mkdtemp(prefix="grove-chromium-")
        to_read, self.to = os.pipe()
        self.back, from_write = os.pipe()

        def wire():  # above 4 first, so that neither dup2 closes the other's source
            a, b = os.dup(to_read), os.dup(from_write)
            a, b = (os.dup(a) if a < 5 else a), (os.dup(b) if b < 5 else b)
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--no-first-run", "--force-color-profile=srgb", "--hide-scrollbars", f"--user-data-dir={self.profile}",
             f"--window-size={width},{height}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.number, self.session, self.complaints = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height)

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, timeout):
        while b"\0" not in self.buffer:
            if not select.select([self.back], [], [], timeout)[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.back, 1 << 20)
            if not part:
                raise RuntimeError("Chromium ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, event):
        method, p = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.complaints.append(d.get("exception", {}).get("description") or d["text"])
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.complaints.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"log: {p['entry']['text']} {p['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent" and not p["request"]["url"].startswith(("file:", "data:", "about:", "blob:")):
            self.complaints.append("network: " + p["request"]["url"])

    def call(self, method, timeout=180, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.receive(timeout)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def open(self, path, fragment=""):
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url="file://" + os.path.abspath(path) + fragment)
        self.wait("document.documentElement?.dataset.ready === 'true'")

    def js(self, code):
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(code + ": " + json.dumps(answer["exceptionDetails"].get("exception", {}).get("description")))
        return answer["result"].get("value")

    def wait(self, condition, seconds=120):
        """Waits until the JavaScript condition holds."""
        end = time.monotonic() + seconds
        while not self.js(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError("never: " + condition)
            time.sleep(0.03)

    def click(self, selector, index=0):
        box = self.js(f"""(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{index}];
            e.scrollIntoView({{ block: 'nearest', inline: 'nearest' }});
            const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
        self.settle()

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def key(self, key):
        """One key by its name in KeyboardEvent.key."""
        text = {"text": key} if len(key) == 1 else {}
        code = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27, "Enter": 13}.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def settle(self):
        """Two frames later what was asked for is drawn."""
        self.js("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))")

    def screenshot(self, path):
        self.settle()
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def main():
    page, picture, size = sys.argv[1:]
    path, _, fragment = page.partition("#")
    browser = Browser(*(int(n) for n in size.split("x")))
    try:
        browser.open(path, "#" + fragment)
        browser.wait("document.querySelector('main svg')")
        browser.screenshot(picture)
    finally:
        browser.close()
    sys.exit("\n".join(browser.complaints) or 0)


if __name__ == "__main__":
    main()
