"""Which requests of a split are looked at: by time of arrival, model, mode, engine, id."""

from dataclasses import dataclass, fields, replace

import pandas as pd

from pdtrace.analysis.split import Split


@dataclass(frozen=True)
class Selection:
    """A request is selected when it meets every condition that is given; () and None give none.

    `since_ns` <= arrival < `until_ns`, Unix ns. `engines`: it names P's or D's engine.
    `request_ids`: base ids, every instance of them.
    """

    since_ns: int | None = None
    until_ns: int | None = None
    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    request_ids: tuple[str, ...] = ()

    @property
    def selects_all(self) -> bool:
        """Whether no condition is given."""
        return all(getattr(self, one.name) in ((), None) for one in fields(self))


def selected(requests: pd.DataFrame, chosen: Selection) -> pd.Series:
    """For each request of a split, whether it is selected (bool).

    A request whose time of arrival is not known is in no span of time.
    """
    keep = pd.Series(True, index=requests.index)
    arrival = requests["t0_ns"]
    if chosen.since_ns is not None:
        keep &= (arrival >= chosen.since_ns).fillna(False).astype("bool")
    if chosen.until_ns is not None:
        keep &= (arrival < chosen.until_ns).fillna(False).astype("bool")
    for column, wanted in (
        ("model", chosen.models), ("mode", chosen.modes), ("id", chosen.request_ids),
    ):  # fmt: skip
        if wanted:
            keep &= requests[column].isin(wanted)
    if chosen.engines:
        keep &= requests[["prefill_engine", "decode_engine"]].isin(chosen.engines).any(axis=1)
    return keep


def select(split: Split, chosen: Selection) -> Split:
    """The same split with the selected requests only; no number of theirs changes."""
    keep = selected(split.requests, chosen)
    if keep.all():
        return split
    rows = split.requests[keep]
    whole = split.splittable.intersection(rows.index, sort=False)
    return replace(
        split,
        requests=rows,
        exposed=split.exposed.loc[whole],
        hidden=split.hidden.loc[whole],
        drag=split.drag.loc[whole],
        classes=split.classes.loc[whole],
        known=split.known[split.known.index.isin(rows.index)],
    )
