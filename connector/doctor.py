"""What `pdtrace doctor` finds out, as one flat list of findings; each part has a module of its own.

Nothing here changes anything: one empty export goes to the collector and, where an engine's side
channel is given, one handshake question to it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pdtrace.tracing.clock import clock_id
from pdtrace.tracing.settings import ConfigurationError, Settings, read_settings, variable

_CLOCK_SOURCE: Final = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_SLOW_CLOCKS: Final = ("hpet", "acpi_pm", "jiffies")


class Verdict(StrEnum):
    """What a finding means; only `PROBLEM` makes the command fail."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "not known"
    FACT = "-"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table: `topic` groups, `value` is a word, a number or a sentence."""

    topic: str
    item: str
    value: str
    verdict: Verdict = Verdict.FACT


def as_json(findings: list[Finding]) -> dict[str, Any]:
    """`problems` is how many; `findings` in the order in which they were made."""
    return {
        "problems": sum(finding.verdict is Verdict.PROBLEM for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def clock_findings() -> Iterator[Finding]:
    """The clock that events are read from, and the boot that it belongs to."""
    try:
        source = _CLOCK_SOURCE.read_text(encoding="utf-8").strip()
    except OSError:
        yield Finding("clock", "source", "not readable", Verdict.UNKNOWN)
    else:
        slow = source in _SLOW_CLOCKS
        value = (
            f"{source}: a reading takes microseconds, and so does each event" if slow else source
        )
        yield Finding("clock", "source", value, Verdict.PROBLEM if slow else Verdict.OK)
    yield Finding("clock", "boot id", clock_id())


def settings_findings(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Settings that differ from their defaults; a wrong one is a problem."""
    try:
        settings = read_settings(environment)
    except ConfigurationError as error:
        yield Finding("settings", "PDTRACE_*", str(error), Verdict.PROBLEM)
        return
    changed = {
        name: value
        for name, value in asdict(settings).items()
        if value != getattr(Settings(), name)
    }
    for name, value in changed.items():
        yield Finding("settings", variable(name), str(value), Verdict.OK)
    if not changed:
        yield Finding("settings", "PDTRACE_*", "all at their defaults", Verdict.OK)
