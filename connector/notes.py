"""What the worker side tells the scheduler side, through vLLM's own channel for it."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from pdtrace.connector.compat import graver


@dataclass
class WorkerNotes(KVConnectorWorkerMetadata):
    """Notes of one engine step; vLLM merges those of several ranks with `aggregate`.

    `seen`: (request id, Unix ns, rank of the peer or -1) of completion notifications drained.
    `outcomes`: request id to the lease's outcome, or `UNREPORTED`.
    `failures`: (request id, `error.type`) of what failed on the worker.
    `lost`: ids of engines that a message could not be delivered to, because they are gone.
    """

    seen: list[tuple[str, int, int]] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerNotes":
        """Both together. A rank whose lease ran out overrules those that have evidence."""
        if not isinstance(other, WorkerNotes):
            return self
        outcomes = dict(self.outcomes)
        for request_id, outcome in other.outcomes.items():
            outcomes[request_id] = graver(outcome, outcomes.get(request_id, outcome))
        return WorkerNotes(
            self.seen + other.seen,
            outcomes,
            self.failures + other.failures,
            self.lost + other.lost,
        )
