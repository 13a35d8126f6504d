"""Of all spans the few that triage asks for; the rows of a split say the rest.

A large source is split in parts, and the spans of all parts together would not fit into memory.
"""

from typing import Final

import numpy as np
import pandas as pd

from pdtrace.analysis.attempts import SIDE_DECODE
from pdtrace.analysis.coded import among, codes, decoded, dense
from pdtrace.analysis.grouped import ends
from pdtrace.analysis.handoffs import Handoffs
from pdtrace.analysis.split import Split
from pdtrace.tracing import semconv

COLUMNS: Final = [
    "request_id", "id", "name", "side", "engine_id", "role", "instance_id", "config", "start_ns",
    "end_ns", "preemptions",
]  # fmt: skip
"""What triage reads of a span, as in `Handoffs.spans`."""


def asked_for(handoffs: Handoffs, split: Split) -> pd.DataFrame:
    """`COLUMNS` of our own spans that triage asks for, texts as such.

    What D was loading and generating, registrations, preemptions; all spans of requests without a
    first token; and of each process the first one, the last one, and those with its configuration.
    """
    own = handoffs.spans
    waits = among(own["name"], [semconv.SPAN_KV_WAIT]) & (own["side"] == SIDE_DECODE)
    wanted = waits | among(own["name"], [semconv.SPAN_DECODE, semconv.SPAN_REGISTRATION])
    wanted |= own["preemptions"].fillna(0) > 0
    requests = split.requests
    wanted |= own["request_id"].isin(requests.index[requests["t1_ns"].isna()])
    process = dense([codes(own[name]) for name in ("engine_id", "role", "instance_id")])
    start, end = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    count = int(process.max(initial=-1)) + 1
    first, last = ends(start, process, count)[0], ends(end, process, count)[1]
    wanted |= (start == first[process]) | (end == last[process])
    wanted |= ~among(own["config"], [""])
    return decoded(own.loc[wanted, COLUMNS])
