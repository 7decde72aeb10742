"""The page in headless Chromium: every worker's row is drawn, the choice of a step works, no script fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mpcpipe.report.events import read_run
from mpcpipe.report.page import Facts, page
from tests.report.html import Element, parse
from tests.report.runs import NAMES, make_run
from tests.report.test_page import LAYERS, simple_plan

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; on Debian: apt install chromium")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
PROBE = """
<script>
const choice2 = document.getElementById("step");
choice2.value = "0";
choice2.dispatchEvent(new Event("change"));
document.querySelectorAll("g.lane").forEach(lane => {
  const box = lane.getBoundingClientRect();
  lane.dataset.drawn = box.width > 100 && box.height > 10 ? "yes" : "no";
});
document.querySelectorAll("svg").forEach(svg => {
  const all = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
  const texts = all.filter(box => box.width > 0);
  const beside = (a, b) => a.right - 0.5 <= b.left || b.right - 0.5 <= a.left;
  const above = (a, b) => a.bottom - 4 <= b.top || b.bottom - 4 <= a.top;
  const crossing = texts.filter((a, i) => texts.slice(i + 1).some(b => !beside(a, b) && !above(a, b)));
  svg.dataset.crossing = crossing.length;
});
document.documentElement.dataset.overflow = document.documentElement.scrollWidth > innerWidth ? "yes" : "no";
</script>
"""


def dom(file: Path, profile: Path, width: int) -> Element:
    """The page after its scripts have run."""
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={profile}", f"--window-size={width},1000", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    return parse(done.stdout)


@pytest.mark.parametrize("width", [1280, 500])
def test_in_a_browser(tmp_path: Path, width: int) -> None:
    run = read_run(make_run(tmp_path / "run"))
    text = page(run, Facts("3 parties, semi-honest", simple_plan(), LAYERS))
    file = tmp_path / "report.html"
    file.write_text(text.replace("</body>", f"{PROBE}</body>"))
    root = dom(file, tmp_path / "profile", width).one("html")
    assert "data-error" not in root.attributes
    assert root.attributes["data-ready"] == "yes"
    assert root.attributes["data-overflow"] == "no"
    (shown,) = [figure for figure in root.all("figure") if "hidden" not in figure.attributes]
    assert shown.attributes["data-step"] == "1"  # chosen by the probe; the page opens with the median
    groups = shown.all("g", class_="group")
    assert [group.attributes["data-party"] for group in groups] == ["predicted", *NAMES]
    for group in groups:
        lanes = group.all("g", class_="lane")
        assert [lane.attributes["data-worker"] for lane in lanes] == ["0.0", "1.0"]
        assert all(lane.attributes["data-drawn"] == "yes" for lane in lanes)
    assert {svg.attributes["data-crossing"] for svg in root.all("svg")} == {"0"}


def test_errors_of_scripts_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    text = page(read_run(make_run(tmp_path / "run")), Facts())
    file.write_text(text.replace("</body>", "<script>nowhere()</script></body>"))
    assert "nowhere" in dom(file, tmp_path / "profile", 800).one("html").attributes["data-error"]
