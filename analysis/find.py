"""Finding one request by what people have at hand: its id, a part of it, or a trace id."""

import os
import re
from collections.abc import Sequence
from heapq import nlargest
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from pdtrace.analysis.arrays import Bools

NEAREST: Final = 3
_NUMBERED: Final = re.compile(r"^(.+)#(\d+)$", re.DOTALL)
_TRACE_ID: Final = re.compile(r"[0-9a-f]{1,32}")


class NotFound(LookupError):
    """No request goes by that name; the message is a sentence with the nearest ids."""


class SeveralFound(LookupError):
    """Several requests go by that name: `labels`, in the order of `requests`."""

    def __init__(self, why: str, labels: list[str]) -> None:
        super().__init__(why)
        self.labels = labels


class Names(NamedTuple):
    """`wanted`: what is looked for. `same`: other spellings, as the caller's id inside vLLM's."""

    wanted: str
    same: Sequence[str] = ()

    def called(self, texts: pd.Series) -> Bools:
        """Are spans with these ids of a request that `find` would find? (bool, shape (n,))

        Ids of requests, legs or traces. True for all that may be, and for some that are not.
        """
        match = _NUMBERED.match(self.wanted)
        numbered = [match[1]] if match else []
        names = [self.wanted, *self.same, *numbered, *_traces(self.wanted)]
        return texts.isin(names).to_numpy(np.bool_)

    def begun(self, column: str, texts: pd.Series) -> Bools:
        """The same for the beginnings of ids (`column` is request_id) and trace ids (trace_id)."""
        if not self.wanted or column == "engine_request_id":
            return np.zeros(len(texts), dtype=np.bool_)
        begins = texts.str.startswith(self.wanted)
        if column == "trace_id":
            begins |= _trace_begins(texts, self.wanted)
        return begins.to_numpy(np.bool_)


def find(requests: pd.DataFrame, spans: pd.DataFrame, sought: Names) -> str:
    """The label of the request that the names mean.

    `requests`: label → `id`, `instance`, `trace_id`. `spans`: our spans, with the labels as
    `request_id`, `engine_request_id` and `trace_id`. Tried in this order, and the first that fits
    anything counts: an id, `id#2` for the second request with an id, vLLM's own id of a leg, a
    trace id (also without its leading zeros), the beginning of an id or of a trace id.

    Raises `NotFound` and `SeveralFound`.
    """
    wanted, same = sought
    ids, traces = requests["id"], spans["trace_id"]
    names = list(dict.fromkeys((wanted, *same)))
    for why, found in (
        (f"{wanted} was used by", requests.index[ids.isin([wanted])]),
        (f"{wanted} was used by", _numbered(requests, wanted)),
        (f"{wanted} is a leg of", _labels(spans, spans["engine_request_id"].isin([wanted]))),
        (f"{wanted} was used by", requests.index[ids.isin(names)]),
        (
            f"trace {wanted} holds",
            _labels(spans, traces.isin(_traces(wanted))).union(
                requests.index[requests["trace_id"].isin(_traces(wanted))]
            ),
        ),
        (f"{wanted} begins the ids of", requests.index[ids.str.startswith(wanted)]),
        (f"{wanted} begins the trace ids of", _labels(spans, _trace_begins(traces, wanted))),
    ):
        labels = requests.index[requests.index.isin(found)].tolist() if wanted else []
        if len(labels) == 1:
            return str(labels[0])
        if labels:
            raise SeveralFound(f"{why} {len(labels)} requests", labels)
    raise NotFound(not_found(ids, wanted))


def request_name(request_id: str, instance: int, again: bool) -> str:
    """What `find` takes for this one request; `again`: others have the same id."""
    return f"{request_id}#{instance}" if again else request_id


def _numbered(requests: pd.DataFrame, wanted: str) -> pd.Index:
    """The request that `id#2` means."""
    match = _NUMBERED.match(wanted)
    if match is None:
        return requests.index[:0]
    one = (requests["id"] == match[1]) & (requests["instance"] == int(match[2]))
    return requests.index[one]


def _labels(spans: pd.DataFrame, where: pd.Series) -> pd.Index:
    labels = spans.loc[where & ~spans["phantom"], "request_id"].unique()
    found: pd.Index = pd.Index(labels, dtype="str")
    return found


def _traces(wanted: str) -> list[str]:
    low = wanted.lower()
    return [low.zfill(32)] if _TRACE_ID.fullmatch(low) else []


def _trace_begins(digits: pd.Series, wanted: str) -> pd.Series:
    low = wanted.lower()
    begins = digits.str.startswith(low) | digits.str.lstrip("0").str.startswith(low)
    return begins & (_TRACE_ID.fullmatch(low) is not None)


def not_found(ids: pd.Series, wanted: str) -> str:
    """A sentence with the nearest ones of the ids that there are."""
    unique = ids.unique().tolist()
    near = nlargest(NEAREST, unique, lambda name: _likeness(name, wanted))
    near = [name for name in near if 2 * _likeness(name, wanted) >= len(wanted)] or near
    what = "1 request is" if len(unique) == 1 else f"{len(unique)} requests are"
    return f"no request or trace is called {wanted!r}; {what} there, nearest by name: " + ", ".join(
        near
    )


def _likeness(name: str, wanted: str) -> int:
    """How many characters agree at the beginning and at the end."""
    front = len(os.path.commonprefix([name, wanted]))
    back = len(os.path.commonprefix([name[front:][::-1], wanted[front:][::-1]]))
    return front + back
