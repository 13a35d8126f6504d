"""What the connector promises to trace right: the rows of `docs/coverage.md`.

A test names the row it proves with `@pytest.mark.covers(key, *modes, on=…)`. `on` is `engines`
(real vLLM engines on CPU with real NIXL) or `classes` (vLLM's real classes, with real NIXL agents
where blocks move); with `classes` the test also gives `why` the engines cannot do it here.
"""

from typing import Final, NamedTuple

PUSH: Final = ("push",)
PULL: Final = ("pull",)
BOTH: Final = ("push", "pull")
NONE: Final = ("none",)


class Row(NamedTuple):
    """One path; `modes` are those in which it exists (`none`: without a handoff by NIXL)."""

    key: str
    title: str
    modes: tuple[str, ...]


GROUPS: Final[dict[str, tuple[Row, ...]]] = {
    "Order and dispatch": (
        Row("registration-first", "the registration is there before the blocks", PUSH),
        Row("blocks-first", "the blocks are there before the registration", PUSH),
        Row("sequential", "sequential dispatch", BOTH),
        Row("concurrent", "concurrent dispatch", PUSH),
        Row("cold-decode", "first request of a pair: D's handshake with P", BOTH),
        Row("cold-prefill", "first request of a pair: P's handshake with D", PUSH),
        Row("warm", "a warm pair", BOTH),
        Row("one-process", "scheduler and worker in one process", BOTH),
        Row("many-processes", "scheduler and workers in processes of their own", BOTH),
        Row("tp-2-1", "P on two tensor-parallel ranks, D on one", BOTH),
        Row("tp-1-2", "P on one rank, D on two", BOTH),
        Row("n-by-m", "several P and several D", BOTH),
        Row("pp-prefill", "pipeline-parallel prefill", PUSH),
        Row("bidirectional", "a later turn reads back from D to P", PULL),
    ),
    "What a request can be": (
        Row("hit-on-decode", "prefix-cache hit on D, partial", BOTH),
        Row("full-hit-on-decode", "prefix-cache hit on D, complete", BOTH),
        Row("hit-on-prefill", "prefix-cache hit on P", BOTH),
        Row("chunked", "chunked prefill", BOTH),
        Row("preempted-prefill", "preemption on P", BOTH),
        Row("preempted-decode", "preemption on D", BOTH),
        Row("choices", "several choices (n > 1)", BOTH),
        Row("completions", "completions", BOTH),
        Row("chat", "chat", BOTH),
        Row("computed-on-decode", "a request that D also computes itself", BOTH),
        Row("phantom", "the request that vLLM submits after a failed or aborted one", BOTH),
        Row("no-handoff", "no handoff at all: one engine for both", NONE),
    ),
    "Failure": (
        Row("handshake-refused", "handshake refused (a wrong port)", BOTH),
        Row("registration-lost", "registration lost", PUSH),
        Row("transfer-failed", "WRITE or READ failed", BOTH),
        Row("transfer-stopped", "P or D stands still in the middle of a transfer", BOTH),
        Row("rank-failed", "one of several ranks failed", BOTH),
        Row("lease-expired", "lease expired before the transfer", BOTH),
        Row("registration-expired", "registration watchdog", PUSH),
        Row("abort-before", "client leaves before the transfer", BOTH),
        Row("abort-during", "client leaves during the transfer", BOTH),
        Row("abort-after", "client leaves after the transfer", BOTH),
        Row("prefill-killed", "P killed after the registration or before the READ", BOTH),
        Row("decode-killed", "D killed after prefill", BOTH),
        Row("recompute", "a failed load, computed again on D", BOTH),
        Row("span-limit", "an open span that nothing ends", BOTH),
        Row("write-unreported", "vLLM 0.30.0: a WRITE's success is never reported on P", PUSH),
    ),
    "Neighbours": (
        Row("untraced-prefill", "P is not traced", BOTH),
        Row("untraced-decode", "D is not traced", BOTH),
        Row("no-traceparent", "the router forwards no traceparent", BOTH),
        Row("changed-id", "the router changes or prefixes the request id", BOTH),
        Row("reused-id", "a retry reuses the X-Request-Id", BOTH),
        Row("any-connector", "another connector (Example, DecodeBench)", NONE),
        Row("multi-connector", "MultiConnector with NIXL children", BOTH),
        Row("mooncake", "Mooncake over tcp", NONE),
    ),
    "Not in the way": (
        Row("failing-hook", "every hook fails in turn: same tokens, same status", BOTH),
        Row("no-secrets", "no prompt, answer, header, environment or argv in any span", BOTH),
        Row("plain-messages", "a peer is sent nothing that an untraced one cannot read", BOTH),
        Row("exporter-down", "endpoint down, refusing, hanging, slow or returning errors", BOTH),
        Row("terminated", "SIGTERM: spans are sent within 2 s", BOTH),
        Row("sampled", "P and D sample the same requests; errors and slow ones are kept", BOTH),
        Row("missing-hook", "a hook point is missing: named in log and pd.config", BOTH),
        Row("vllm-0.31", "vLLM 0.31: every hook point (on engines: docs/versions.md)", BOTH),
    ),
}  # fmt: skip
