"""The HTML page in a real browser: it draws, fetches nothing and logs no error."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pdtrace.cli.show_cmd import app as show_app
from pdtrace.cli.split_cmd import app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CASE = Path(__file__).parent / "data" / "c16_push_modes.otlp.jsonl"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"),
    reason="needs Chromium (apt install chromium); CI has it",
)


def chromium(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """One headless run with a profile of its own and no network of its own."""
    assert CHROMIUM is not None, "CI must install Chromium"
    quiet = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --hide-scrollbars"
    ).split()
    return subprocess.run(
        [CHROMIUM, *quiet, f"--user-data-dir={tmp_path / 'profile'}", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The report of a case."""
    path = tmp_path / "report.html"
    app(args=[str(CASE), "--html", str(path)], standalone_mode=False)
    return path


def test_the_page_shows_every_request_and_runs_no_script(page: Path, tmp_path: Path) -> None:
    """What the browser's document holds after loading: bars and waterfalls are there."""
    done = chromium(tmp_path, "--enable-logging=stderr", "--dump-dom", page.as_uri())
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    for number in ("16", "17", "18"):
        assert f"3d2f0f6e-2222-4b4b-8b8b-0000000000{number}" in done.stdout
    assert "<svg" in done.stdout and "<script" not in done.stdout


def test_the_page_of_one_request_draws_its_lanes(tmp_path: Path) -> None:
    """`pdtrace show --html`: a waterfall and a sentence for each phase, no error."""
    path = tmp_path / "one.html"
    wanted = "3d2f0f6e-2222-4b4b-8b8b-000000000018"
    show_app(args=[str(CASE), wanted, "--html", str(path)], standalone_mode=False)
    done = chromium(tmp_path, "--enable-logging=stderr", "--dump-dom", path.as_uri())
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert "<svg" in done.stdout and "no free KV blocks" in done.stdout


def test_the_picture_is_not_blank(page: Path, tmp_path: Path) -> None:
    """A screenshot has text and bars: many colours, the two classes' among them."""
    from PIL import Image

    shot = tmp_path / "shot.png"
    size = "--window-size=1200,1600"
    done = chromium(tmp_path, f"--screenshot={shot}", size, page.as_uri())
    assert done.returncode == 0, done.stderr
    with Image.open(shot) as picture:
        colours = picture.convert("RGB").getcolors(maxcolors=2**24)
    assert colours is not None and len(colours) > 50
    most = max(count for count, _ in colours)
    assert most < 0.97 * 1200 * 1600
