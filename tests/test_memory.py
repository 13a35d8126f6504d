"""Reading a large input takes less memory than its size: records do not outlive their batch."""

import re
import subprocess
import sys
from pathlib import Path

LINES = (Path(__file__).parent / "data" / "c16_push_modes.otlp.jsonl").read_text().splitlines()
SPANS = sum(line.count('"spanId"') for line in LINES)
PEAK = """
import resource, sys
from pdtrace.analysis.tabulate import tabulate
spans = len(tabulate([sys.argv[1]]).table.spans)
print(spans, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def write(path: Path, times: int) -> Path:
    """The three requests of a case many times over, each time with other ids of spans."""
    with open(path, "w") as file:
        for number in range(times):
            again = re.compile(r'(Id": ?")[0-9a-f]{8}').sub
            file.writelines(again(rf"\g<1>{number:08x}", line) + "\n" for line in LINES)
    return path


def peak(path: Path) -> tuple[int, int]:
    """Spans, and the greatest resident size in bytes of a process that reads the file."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    spans, size = done.stdout.split()
    return int(spans), int(size)


def test_memory_grows_by_less_than_the_input(tmp_path: Path) -> None:
    """Of 47 MB more no more than nine tenths (records would take several times as much)."""
    small = write(tmp_path / "small.jsonl", 500)
    large = write(tmp_path / "large.jsonl", 1500)
    (few, low), (many, high) = peak(small), peak(large)
    assert (few, many) == (500 * SPANS, 1500 * SPANS)
    assert high - low < 0.9 * (large.stat().st_size - small.stat().st_size)
