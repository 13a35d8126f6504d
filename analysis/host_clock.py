"""The clock of a process of ours that names none: that of its host, if it names one.

Processes of two hosts share no clock, whether they say so or not.
"""

from typing import Final

import pandas as pd

from pdtrace.analysis.coded import NO_CODE, among, coded, codes, plain
from pdtrace.tracing import semconv

_HOST_CLOCK: Final = "host "


def with_clocks(spans: pd.DataFrame) -> pd.DataFrame:
    """The spans table with a `clock_id` on all of our spans that name a clock or a host."""
    nameless = (codes(spans["clock_id"]) == NO_CODE) & (codes(spans["host"]) != NO_CODE)
    if nameless.any():
        nameless &= among(spans["name"], semconv.OWN_SPANS)
    if not nameless.any():
        return spans
    named = plain(spans["clock_id"]).mask(nameless, _HOST_CLOCK + plain(spans["host"]))
    return spans.assign(clock_id=coded(named))


def clock_of_host(host: str) -> str:
    """The id that `with_clocks` gives to spans of this host, "" where there is none."""
    return _HOST_CLOCK + host if host else ""
