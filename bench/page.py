"""The page's first paint on loopback, in Chromium, and what Lighthouse says of it where npx can run that.

The whole graph but for an engine serves it, which no visit asks. Each visit is a new context: nothing is cached.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from playwright.sync_api import sync_playwright

from assay.serve_config import load
from bench.report import Row, at_least, at_most, options, publish
from deployments.local import LocalGraph

ROOT = Path(__file__).parents[1]
LIGHTHOUSE = "lighthouse@12.2.3"  # the last line of it that Node 20 runs
CATEGORIES = ("accessibility", "best-practices")  # a performance trace of so new a browser it cannot read
PORT = 8766
_PAINTS = "Object.fromEntries(performance.getEntriesByType('paint').map((each) => [each.name, each.startTime]))"
_BYTES = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize ?? 0), 0)"


def visits(url: str, browser: str, times: int) -> list[Row]:
    paints, sizes = [], []
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=browser)
        for _ in range(times + 1):  # the first one starts the browser's own processes
            page = program.new_context().new_page()
            page.goto(url, wait_until="networkidle")
            paints.append(page.evaluate(_PAINTS)["first-contentful-paint"] / 1000)
            sizes.append(page.evaluate(_BYTES) / 1000)
            page.context.close()
        program.close()
    return [
        at_most(f"first contentful paint, median of {times}", statistics.median(paints[1:]), "s", 1),
        at_most("first contentful paint, slowest", max(paints[1:]), "s", 1),
        Row("sent to a browser that has nothing of it", sizes[-1], "kB"),
    ]


def lighthouse(url: str, browser: str, folder: Path) -> list[Row]:
    out = folder / "lighthouse.json"
    command = ["npx", "--yes", LIGHTHOUSE, url, "--quiet", "--output=json", f"--output-path={out}"]
    command += [f"--only-categories={','.join(CATEGORIES)}", "--chrome-flags=--headless=new --no-sandbox"]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "CHROME_PATH": browser})
    found = json.loads(out.read_text())["categories"]
    rows = [Row(f"Lighthouse, {name}", 100 * found[name]["score"], "of 100") for name in CATEGORIES]
    return [at_least(rows[0].name, rows[0].value, rows[0].unit, 95), *rows[1:]]


def measure(folder: Path, quick: bool) -> list[Row]:
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("there is no chromium: install Debian's package of that name")
    command = ["-m", "assay", "ingest", "docs", "README.md", "--index", str(folder / "index"), "--bucket", "docs"]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    raw = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text())
    application = raw["applications"][0]
    application["import_path"] = "bench.search_http:build_app"
    application["args"]["index"] = {"uri": str(folder / "index")}
    (folder / "page.yaml").write_text(yaml.safe_dump(raw))
    with LocalGraph(load(folder / "page.yaml"), log=folder / "serve.log", port=PORT) as graph:
        graph.wait_ready(240)
        rows = visits(graph.url, browser, 3 if quick else 10)
        if shutil.which("npx"):
            rows += lighthouse(graph.url, browser, folder)
    return rows


def main() -> None:
    args = options(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), args.quick)
    publish("The page", rows, args, "a measurement of Assay alone; goals from the issue")


if __name__ == "__main__":
    main()
