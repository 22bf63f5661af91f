"""The report in a real browser, where Chromium is installed: apt-get install chromium."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from spark_dist.report import write_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    """browse(page, *flags): opens a page and returns what the browser prints."""

    def run(page: Path, *flags: str) -> str:
        assert BROWSER is not None
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [BROWSER, *FLAGS, profile, *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    return run


def test_the_browser_shows_every_section(
    make_run: Callable[..., Path], browse: Callable[..., str]
) -> None:
    dom = browse(write_report(make_run()), "--dump-dom")
    for name in ("summary", "loss", "throughput", "sparsity", "time", "sample", "configuration"):
        assert f'<section id="{name}">' in dom
    assert dom.count("<svg ") == 8
    assert "shall we &lt;b&gt;march&lt;/b&gt; &amp; go?" in dom
    assert "<b>march" not in dom


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [500, 1200])
def test_the_page_is_drawn(
    make_run: Callable[..., Path],
    browse: Callable[..., str],
    tmp_path: Path,
    width: int,
    dark: bool,
) -> None:
    picture = tmp_path / "page.png"
    flags = [f"--window-size={width},2400", f"--screenshot={picture}", *([DARK] if dark else [])]
    browse(write_report(make_run()), *flags)
    image = Image.open(picture).convert("RGB")
    assert image.size == (width, 2400)
    colors = image.getcolors(maxcolors=1 << 24)
    assert colors is not None
    pixels = {color: count for count, color in colors}
    page = (0x11, 0x15, 0x1B) if dark else (0xF7, 0xF8, 0xFA)
    card = (0x1A, 0x20, 0x29) if dark else (0xFF, 0xFF, 0xFF)
    line = (0x6C, 0xA8, 0xF7) if dark else (0x21, 0x66, 0xC4)
    cell = (0x32, 0x3A, 0x46) if dark else (0xE6, 0xE8, 0xEC)
    everything = width * 2400
    assert pixels[page] > 0.05 * everything
    assert pixels[card] > 0.2 * everything
    assert pixels[line] > 300  # the loss and the throughput are drawn
    assert pixels[cell] > 0.01 * everything  # and the heat map
    assert len(pixels) > 200  # and text, with its soft edges
