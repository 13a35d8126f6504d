"""What people use today, as a baseline: the critical path of one trace at a time, by recursion.

The method of CRISP and of Jaeger's critical path: from the end of a span backwards, the child that
ended last owns the time until its start, and so on inside it; what no child covers is the span's.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Span = tuple[str, str, str, int, int]
"""Id, parent's id, name, start and end (ns)."""


def spans_of(document: dict[str, Any]) -> Iterable[tuple[str, Span]]:
    """Trace id and span of each span of a decoded OTLP JSON document."""
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield (
                    span["traceId"],
                    (
                        span["spanId"],
                        span.get("parentSpanId", ""),
                        span["name"],
                        int(span["startTimeUnixNano"]),
                        int(span["endTimeUnixNano"]),
                    ),
                )


def critical_paths(documents: Iterable[dict[str, Any]]) -> list[dict[str, int]]:
    """For each trace: time on its critical path by name of span, ns."""
    traces: dict[str, list[Span]] = defaultdict(list)
    for document in documents:
        for trace_id, span in spans_of(document):
            traces[trace_id].append(span)
    return [critical_path(spans) for spans in traces.values()]


def critical_path(spans: list[Span]) -> dict[str, int]:
    """Of one trace, from its earliest span without a parent in it."""
    known = {span[0] for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        children[span[1]].append(span)
    root = min((s for s in spans if s[1] not in known), key=lambda s: s[3])
    owned: dict[str, int] = defaultdict(int)

    def walk(span: Span, until: int) -> None:
        at = min(span[4], until)
        for child in sorted(children[span[0]], key=lambda s: s[4], reverse=True):
            end = min(child[4], at)
            if end <= child[3]:
                continue
            owned[span[2]] += at - end
            walk(child, end)
            at = child[3]
        owned[span[2]] += max(0, at - span[3])

    walk(root, root[4])
    return owned
