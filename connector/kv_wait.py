"""Waiting for KV from elsewhere: when it begins, when it ends, and why what comes does not come."""

from collections.abc import Container
from typing import Any

from pdtrace.connector.leg import DECODE, Leg, read_back
from pdtrace.tracing import events as ev
from pdtrace.tracing import semconv as sc
from pdtrace.tracing.recorder import Recorder


class KvWaits:
    """The legs of one scheduler that wait for KV, or that failed because theirs did not come.

    `mode` is `push`, `pull` or `none`.
    """

    def __init__(self, recorder: Recorder, mode: str) -> None:
        self._recorder = recorder
        self._mode = mode
        self.waiting: dict[str, Leg] = {}
        """By request id, in order of registration."""
        self.failed: list[tuple[Leg, int]] = []
        """Finished by vLLM for a failed load, and when (monotonic ns); what failed is told with the
        same step's output."""
        self.deadlines: Container[str] | None = None
        """vLLM's table of registrations that are waited for; an id leaves it when it is late."""

    def begin(self, leg: Leg, mono_ns: int) -> None:
        """The blocks to load into are there."""
        request_id = leg.request.request_id
        leg.admitted = True
        self.waiting[request_id] = leg
        kind = ev.DECODE_ALLOCATED if leg.role is DECODE else ev.PROMPT_ALLOCATED
        self._recorder.record_at(kind, mono_ns, request_id)

    def end(self, leg: Leg, failed: Container[str] | None) -> None:
        """The scheduler is told that the KV is complete, or that its load failed.

        `failed` is None in versions whose workers report failed loads by their blocks only; one
        that could not send a registration reports nothing.
        """
        request_id = leg.request.request_id
        self.waiting.pop(request_id, None)
        if failed is None:
            leg.load_failed = leg.failure not in ("", sc.ERROR_REGISTRATION_FAILED)
        else:
            leg.load_failed = request_id in failed
        data: dict[str, Any] = {sc.EXTERNAL_TOKENS: leg.external_tokens, **read_back(leg)}
        if leg.load_failed:
            data[sc.ERROR_TYPE] = self.load_error(leg)
        else:
            leg.failure = leg.silence = ""
        self._recorder.record(ev.KV_COMPLETE, request_id, data)

    def load_error(self, leg: Leg) -> str:
        """Why the load of a leg failed; D's own part in push is to register, others read."""
        if leg.failure:
            return leg.failure
        registers = self._mode == sc.MODE_PUSH and leg.role is DECODE
        return sc.ERROR_REGISTRATION_FAILED if registers else sc.ERROR_READ_FAILED

    def take_failed(self) -> list[tuple[Leg, int, str]]:
        """Those that `failed`, and why; each is given out once."""
        taken, self.failed = self.failed, []
        return [(leg, at_ns, self.load_error(leg)) for leg, at_ns in taken]

    def peer_lost(self, engine_id: str) -> None:
        """A message to P could not be delivered. What it wrote before may still be unread, so that
        only the second such message ends the waiting."""
        for leg in list(self.waiting.values()):
            if leg.context.attributes.get(sc.PEER_ENGINE_ID) != engine_id:
                continue
            if leg.silence == sc.ERROR_PEER_LOST:
                self._give_up(leg)
            leg.silence = sc.ERROR_PEER_LOST

    def find_late(self) -> None:
        """vLLM's watchdog only logs and forgets; both tables are in the same order."""
        deadlines, waiting = self.deadlines, self.waiting
        while deadlines is not None and waiting:
            request_id = next(iter(waiting))
            if request_id in deadlines:
                return
            leg = waiting[request_id]
            leg.silence = leg.silence or sc.ERROR_REGISTRATION_EXPIRED
            self._give_up(leg)

    def _give_up(self, leg: Leg) -> None:
        """Nothing that is known can end the waiting well; vLLM goes on with it all the same."""
        request_id = leg.request.request_id
        del self.waiting[request_id]
        data = {sc.ERROR_TYPE: leg.failure or leg.silence}
        self._recorder.record(ev.KV_WAIT_FAILED, request_id, data)
