"""Whether clocks allow a phase to be blamed: between hosts a wait is known within a half-width."""

from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from pdtrace.analysis import phases
from pdtrace.analysis.triage_traffic import Traffic
from pdtrace.tracing import semconv

BETWEEN_HOSTS: Final = (
    phases.INGRESS,
    phases.HOP,
    phases.REGISTRATION,
    phases.TRANSFER,
    phases.LANDED_TO_SEEN,
    phases.EGRESS,
)
"""Phases whose two ends can lie on two clocks; the rest lie on one."""
BEHIND_P: Final = (phases.ADMISSION, phases.DECODE_CAPACITY)
"""D's own, but where it had the request while P still computed only what comes after P's end is
exposed: that begins on another clock."""


class Resolution(NamedTuple):
    """`halfwidth_ns`: how wrong the phase can be; `together_ns`: d of all phases between hosts.

    Their sum is known although the points between them are not: its ends lie on one clock.
    """

    resolved: bool
    halfwidth_ns: int
    together_ns: float


def resolution(phase: str, ledger: pd.DataFrame, slow: Traffic, reference: Traffic) -> Resolution:
    """Can this phase's d be told from the error of the clocks? Half-widths: the larger mean."""
    d = ledger["d_ns"]
    rows = slow.requests
    pull = bool((rows["mode"] == semconv.MODE_PULL).all())
    between = [name for name in BETWEEN_HOSTS if not (pull and name == phases.REGISTRATION)]
    if bool((rows["dispatch"] == semconv.DISPATCH_CONCURRENT).any()):
        between += BEHIND_P
    together = float(d[between].sum())
    if phase not in between:
        return Resolution(True, 0, together)
    width = max(_mean_halfwidth(slow), _mean_halfwidth(reference))
    return Resolution(float(d[phase]) > width, width, together)


def _mean_halfwidth(traffic: Traffic) -> int:
    """Rounded up (ns); 0 where all requests lie on one clock or nothing is known."""
    known = traffic.requests["clock_halfwidth_ns"].dropna().to_numpy(np.float64)
    return int(np.ceil(known.mean())) if len(known) else 0
