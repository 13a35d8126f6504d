"""The phases: their order of priority, their classes, and from where to where each one goes."""

from typing import Final, NamedTuple

COMPUTE: Final = "compute"
COORDINATION: Final = "coordination"
EDGE: Final = "edge"
UNATTRIBUTED: Final = "unattributed"
CLASSES: Final = (COMPUTE, COORDINATION, EDGE, UNATTRIBUTED)


class Phase(NamedTuple):
    """A phase: name, class, group of compute ("" otherwise), what it waits for, from and to."""

    name: str
    class_: str
    group: str
    interval: str


FIRST_DECODE: Final = "first_decode"
PREFILL: Final = "prefill"
PREFILL_QUEUE: Final = "prefill_queue"
INGRESS: Final = "ingress"
DECODE_QUEUE: Final = "decode_queue"
DECODE_CAPACITY: Final = "decode_capacity"
TRANSFER: Final = "transfer"
SUBMIT: Final = "submit"
HANDSHAKE: Final = "handshake"
REGISTRATION: Final = "registration"
MATCH: Final = "match"
ADMISSION: Final = "admission"
HOP: Final = "hop"
LANDED_TO_SEEN: Final = "landed_to_seen"
REQUEUE: Final = "requeue"
RETRY: Final = "retry"
EGRESS: Final = "egress"

EXECUTE: Final = "execute"
QUEUE: Final = "queue"

# In order of priority: at each instant the first active one owns the time.
PHASES: Final = (
    Phase(FIRST_DECODE, COMPUTE, EXECUTE, "scheduled on D → first token on D"),
    Phase(PREFILL, COMPUTE, EXECUTE, "first scheduled on P → prefill end (also a recompute on D)"),
    Phase(PREFILL_QUEUE, COMPUTE, QUEUE, "P's engine has the request → first scheduled"),
    Phase(INGRESS, EDGE, "", "request received → first engine has it"),
    Phase(DECODE_QUEUE, COMPUTE, QUEUE, "refused for capacity on D, KV complete → scheduled"),
    Phase(DECODE_CAPACITY, COMPUTE, QUEUE, "D's scheduler first tried it → KV blocks allocated"),
    Phase(TRANSFER, COORDINATION, "", "posted → completion observed (upper bound: polled)"),
    Phase(SUBMIT, COORDINATION, "", "descriptors built and posted, without a handshake inside"),
    Phase(HANDSHAKE, COORDINATION, "", "handshake asked for → usable, for this request"),
    Phase(
        REGISTRATION, COORDINATION, "", "D's blocks allocated → P (push) or D's worker (pull) knows"
    ),
    Phase(MATCH, COORDINATION, "", "prefill end → blocks handed over; both there → submit begins"),
    Phase(ADMISSION, COORDINATION, "", "D's engine has it → D's scheduler first tried it"),
    Phase(HOP, COORDINATION, "", "second leg on its way to D's engine"),
    Phase(LANDED_TO_SEEN, COORDINATION, "", "data landed → D's scheduler knows"),
    Phase(REQUEUE, COORDINATION, "", "D's scheduler knows → next scheduling pass"),
    Phase(RETRY, COORDINATION, "", "start of a lost attempt → start of the next one"),
    Phase(EGRESS, EDGE, "", "first token on D → first token at the observer"),
    Phase(UNATTRIBUTED, UNATTRIBUTED, "", "no evidence"),
)
NAMES: Final = tuple(phase.name for phase in PHASES)
CLASS_OF: Final = {phase.name: phase.class_ for phase in PHASES}
MEMBERS: Final = {
    class_: tuple(phase.name for phase in PHASES if phase.class_ == class_) for class_ in CLASSES
}
PRIORITY: Final = {name: place for place, name in enumerate(NAMES)}

# The order in which a request usually lives through them: for reading, not for deciding.
READING_ORDER: Final = (
    INGRESS,
    RETRY,
    PREFILL_QUEUE,
    PREFILL,
    MATCH,
    HOP,
    ADMISSION,
    DECODE_CAPACITY,
    REGISTRATION,
    HANDSHAKE,
    SUBMIT,
    TRANSFER,
    LANDED_TO_SEEN,
    REQUEUE,
    DECODE_QUEUE,
    FIRST_DECODE,
    EGRESS,
    UNATTRIBUTED,
)
