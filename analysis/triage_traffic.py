"""What triage looks at: requests with their phases, and how far each one may be compared."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pandas as pd

from pdtrace.analysis.evidence import LEASE_EXPIRED, MISPAIRED
from pdtrace.analysis.split import Split

RANKED: Final = "ranked"
COLD: Final = "cold"
"""Waited for the first handshake of its pair of engines."""
INCOMPLETE: Final = "incomplete"
NO_TOKEN: Final = "no first token"
OPEN: Final = "open"
"""No first token, and nothing says how it ended."""
DOUBTFUL: Final = "doubtful"
"""Its answer may be wrong: see `CORRECTNESS`."""
STANDINGS: Final = (RANKED, COLD, INCOMPLETE, NO_TOKEN, OPEN, DOUBTFUL)

CORRECTNESS: Final = (LEASE_EXPIRED, MISPAIRED)
"""Flags of answers that may be wrong; in front of everything that is merely slow."""
EVIDENCE_MISSING: Final = ("missing_prefill", "missing_decode", "missing_transfer", "partial_trace")
COLD_HANDSHAKE: Final = "cold_handshake"


@dataclass(frozen=True)
class Traffic:
    """`requests`: rows of a split, with `standing`. `exposed`, `hidden`, `drag`: ns by phase,
    of those that have a split. `spans`: those of `triage_spans`, for what the rows do not hold.
    """

    requests: pd.DataFrame
    exposed: pd.DataFrame
    hidden: pd.DataFrame
    drag: pd.DataFrame
    spans: pd.DataFrame

    @classmethod
    def of(cls, split: Split, spans: pd.DataFrame) -> Self:
        """Everything that a split says, each request with its standing."""
        rows = split.requests
        rows = rows.assign(standing=standing(rows, split.splittable))
        return cls(rows, split.exposed, split.hidden, split.drag, spans)

    def pick(self, keep: pd.Series) -> Self:
        """Only these requests: a bool series over `requests`. All spans stay."""
        rows = self.requests[keep]
        whole = keep.reindex(self.exposed.index).to_numpy(np.bool_)
        return type(self)(
            rows, self.exposed[whole], self.hidden[whole], self.drag[whole], self.spans
        )

    def of_standing(self, name: str) -> Self:
        """The requests of one standing."""
        return self.pick(self.requests["standing"] == name)

    def __len__(self) -> int:
        return len(self.requests)


def standing(rows: pd.DataFrame, splittable: pd.Index) -> pd.Series:
    """Text by request, one of `STANDINGS`; the gravest that holds."""
    said = pd.Series(RANKED, index=rows.index, dtype="str")
    answered = rows["t1_ns"].notna()
    whole = rows.index.isin(splittable) & ~flagged(rows, *EVIDENCE_MISSING)
    said = said.mask(_cold(rows), COLD).where(whole, INCOMPLETE)
    unanswered = rows["outcome"].map(lambda outcome: NO_TOKEN if outcome else OPEN)
    return said.where(answered, unanswered).mask(flagged(rows, *CORRECTNESS), DOUBTFUL)


def flagged(rows: pd.DataFrame, *names: str) -> pd.Series:
    """Does the request have one of these flags? (bool)"""
    wanted = frozenset(names)
    held = [not wanted.isdisjoint(flags) for flags in rows["flags"]]
    return pd.Series(held, index=rows.index, dtype="bool")


def _cold(rows: pd.DataFrame) -> pd.Series:
    """Waited for a handshake, and its pair of engines had not made a first token before.

    A pair that shakes hands again later is not cold: that is a fault to be found.
    """
    pair = rows.groupby(["prefill_engine", "decode_engine"])
    warm = (pair["t1_ns"].transform("min") <= rows["t0_ns"]).fillna(False).astype("bool")
    return flagged(rows, COLD_HANDSHAKE) & ~warm


def share_of(mask: pd.Series) -> float:
    """The share that is True; 0 of nothing."""
    return float(np.mean(mask.to_numpy(np.bool_))) if len(mask) else 0.0
