"""Every name pdtrace emits or reads: spans, attributes, events, metrics (schema version 1).

The only module all others may import; it imports nothing. Times are integer nanoseconds.
"""

from typing import Final

SCHEMA_VERSION: Final = 1
SCOPE_NAME: Final = "pdtrace"

# --- Resource attributes, once per process ---
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
HOST_NAME: Final = "host.name"
HOST_ID: Final = "host.id"
PROCESS_PID: Final = "process.pid"
SCHEMA: Final = "pd.schema.version"
ROLE: Final = "pd.role"
"""`prefill`, `decode`, `both` or `router`."""
ENGINE_ID: Final = "pd.engine.id"
TP_RANK: Final = "pd.tp.rank"
"""Integer, worker processes only; absent means rank 0."""
PP_RANK: Final = "pd.pp.rank"
DP_RANK: Final = "pd.dp.rank"
CLOCK_ID: Final = "pd.clock.id"
"""Kernel boot id: two processes with the same value share one clock."""
CLOCK_ANCHOR_NS: Final = "pd.clock.anchor_ns"
"""Integer ns: Unix time less the host's monotonic time, by which the process placed its spans. On a
span where it is another one, since the wall clock was stepped."""
CONNECTOR: Final = "pd.connector"
CONFIG: Final = "pd.config"
"""JSON object of versions and sizes; never environment, argv, keys or prompts."""

ROLE_PREFILL: Final = "prefill"
ROLE_DECODE: Final = "decode"
ROLE_BOTH: Final = "both"
ROLE_ROUTER: Final = "router"

# --- Attributes on every span ---
REQUEST_ID: Final = "pd.request.id"
"""Base request id (see `pdtrace.tracing.ids.base_request_id`)."""
ENGINE_REQUEST_ID: Final = "pd.request.engine_id"
"""vLLM's full internal id."""
MODE: Final = "pd.transfer.mode"
PEER_ENGINE_ID: Final = "pd.peer.engine.id"
PEER_ENGINE_REQUEST_ID: Final = "pd.peer.request.engine_id"
"""The peer leg's `pd.request.engine_id`: on D in pull, on P from the match on in push."""
MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
ERROR_TYPE: Final = "error.type"

MODE_PUSH: Final = "push"
MODE_PULL: Final = "pull"
MODE_NONE: Final = "none"

# --- Spans ---
SPAN_REQUEST: Final = "pd.request"
SPAN_LEG: Final = "pd.leg"
SPAN_PREFILL_QUEUE: Final = "pd.prefill_queue"
SPAN_PREFILL: Final = "pd.prefill"
SPAN_PREFILL_END: Final = "pd.prefill_end"
SPAN_MATCH: Final = "pd.match"
SPAN_HANDSHAKE: Final = "pd.handshake"
SPAN_WRITE_SUBMIT: Final = "pd.write_submit"
SPAN_WRITE_COMPLETE: Final = "pd.write_complete"
SPAN_DECODE_ADMISSION: Final = "pd.decode_admission"
SPAN_REGISTRATION: Final = "pd.registration"
SPAN_READ_SUBMIT: Final = "pd.read_submit"
SPAN_READ_COMPLETE: Final = "pd.read_complete"
SPAN_KV_WAIT: Final = "pd.kv_wait"
SPAN_DECODE_START: Final = "pd.decode_start"
SPAN_FIRST_DECODE: Final = "pd.first_decode"
SPAN_DECODE: Final = "pd.decode"
SPAN_LEASE: Final = "pd.lease"

ENGINE_SPANS: Final = (
    SPAN_PREFILL_QUEUE,
    SPAN_PREFILL,
    SPAN_PREFILL_END,
    SPAN_MATCH,
    SPAN_HANDSHAKE,
    SPAN_WRITE_SUBMIT,
    SPAN_WRITE_COMPLETE,
    SPAN_DECODE_ADMISSION,
    SPAN_REGISTRATION,
    SPAN_READ_SUBMIT,
    SPAN_READ_COMPLETE,
    SPAN_KV_WAIT,
    SPAN_DECODE_START,
    SPAN_FIRST_DECODE,
    SPAN_DECODE,
    SPAN_LEASE,
)
OWN_SPANS: Final = (SPAN_REQUEST, SPAN_LEG, *ENGINE_SPANS)

# --- Span events ---
EVENT_FIRST_TOKEN: Final = "pd.first_token"
"""On `pd.request`: the first chunk that carries content left the router."""
EVENT_FIRST_BYTE: Final = "pd.first_byte"
EVENT_FIRST_ATTEMPT: Final = "pd.first_attempt"
EVENT_REGISTRATION_RECEIVED: Final = "pd.registration_received"
EVENT_NOTIFICATION_SEEN: Final = "pd.notification_seen"
EVENT_REFUSED: Final = "pd.refused"

# --- Attributes of single spans and events ---
DISPATCH: Final = "pd.dispatch"
"""`concurrent` or `sequential`."""
DISPATCH_CONCURRENT: Final = "concurrent"
DISPATCH_SEQUENTIAL: Final = "sequential"
ROUTER_POLICY: Final = "pd.router.policy"
HTTP_STATUS: Final = "http.response.status_code"
LEG: Final = "pd.leg"
"""`prefill` or `decode`."""
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ATTEMPT: Final = "pd.attempt"
PREFILL_STEPS: Final = "pd.prefill.steps"
PREFILL_GAP_NS: Final = "pd.prefill.gap_ns"
PREFILL_CACHED_TOKENS: Final = "pd.prefill.cached_tokens"
PREEMPTIONS: Final = "pd.preemptions"
BLOCK_COUNT: Final = "pd.block_count"
MATCH_FIRST: Final = "pd.match.first"
"""`registration` or `blocks`: which of the two was there first."""
MATCH_REGISTRATION: Final = "registration"
MATCH_BLOCKS: Final = "blocks"
HANDSHAKE_COLD: Final = "pd.handshake.cold"
CLOCK_SENT_NS: Final = "pd.clock.sent_ns"
CLOCK_REMOTE_NS: Final = "pd.clock.remote_ns"
CLOCK_RECEIVED_NS: Final = "pd.clock.received_ns"
TRANSFER_BYTES: Final = "pd.transfer.bytes"
TRANSFER_DESCRIPTORS: Final = "pd.transfer.descriptors"
PEER_TP_RANKS: Final = "pd.peer.tp.ranks"
PEER_TP_RANK: Final = "pd.peer.tp.rank"
NIXL_POST_US: Final = "nixl.post_us"
NIXL_XFER_US: Final = "nixl.xfer_us"
OBSERVED_BY: Final = "pd.observed_by"
"""`step` (an engine step looked) or `poll` (a thread of its own looked)."""
OBSERVED_BY_STEP: Final = "step"
OBSERVED_BY_POLL: Final = "poll"
REGISTRATION_BYTES: Final = "pd.registration.bytes"
EXTERNAL_TOKENS: Final = "pd.external_tokens"
TRANSFER_DIRECTION: Final = "pd.transfer.direction"
"""`read_back` on the spans of a transfer from D to P before a later turn; a handoff has none."""
DIRECTION_READ_BACK: Final = "read_back"
RECOMPUTED_TOKENS: Final = "pd.recomputed_tokens"
LEASE_OUTCOME: Final = "pd.lease.outcome"
LEASE_WRITTEN: Final = "written"
LEASE_READ: Final = "read"
LEASE_EXPIRED: Final = "expired"
LEASE_ABORTED: Final = "aborted"
LEASE_NOTE: Final = "pd.lease.note"
"""Text: what is known of a lease besides its outcome."""
NOTE_UNREPORTED: Final = "the transfer was complete, but vLLM did not report it (a bug of 0.30.0)"

# --- Values of error.type ---
ERROR_HANDSHAKE_FAILED: Final = "handshake_failed"
ERROR_REGISTRATION_FAILED: Final = "registration_failed"
ERROR_WRITE_FAILED: Final = "write_failed"
ERROR_READ_FAILED: Final = "read_failed"
ERROR_LEASE_EXPIRED: Final = "lease_expired"
ERROR_REGISTRATION_EXPIRED: Final = "registration_expired"
ERROR_ABORTED: Final = "aborted"
ERROR_LOAD_FAILED_RECOMPUTE: Final = "load_failed_recompute"
ERROR_PEER_LOST: Final = "peer_lost"
ERROR_ABANDONED: Final = "abandoned"
ERROR_TIMEOUT: Final = "timeout"
"""Router only, beside HTTP status codes as text: nothing came in time."""
ERROR_NO_TRANSFER_PARAMS: Final = "no_transfer_params"
"""Router only: a prefill engine answered without saying where its KV cache is."""

# --- What the analysis writes on a span that it reads; no exporter sends these ---
READ_ADJUSTED: Final = "pdtrace.read.adjusted"
"""True: the trace store moved the times of this span and said so."""
READ_REASON: Final = "pdtrace.read.reason"
"""Why a value of this span is not used."""
READ_EVENT: Final = "pdtrace.read."
"""Before the name of an instant that another producer's span tells, as the name of an event."""
READ_QUEUED: Final = READ_EVENT + "queued"
READ_SCHEDULED: Final = READ_EVENT + "scheduled"
READ_FIRST_TOKEN: Final = READ_EVENT + "first_token"
READ_COMPUTED: Final = READ_EVENT + "computed"
"""The prompt was computed, as a router saw it."""
READ_LEG_END: Final = READ_EVENT + "leg_end"
"""P's answer was there, as a router saw it."""

# --- Counters kept in the engine process ---
METRIC_EVENTS_RECORDED: Final = "pd_events_recorded_total"
METRIC_EVENTS_DROPPED: Final = "pd_events_dropped_total"
METRIC_HOOK_ERRORS: Final = "pd_hook_errors_total"
METRIC_SPANS_RECEIVED: Final = "pd_spans_received_total"
METRIC_SPANS_DROPPED: Final = "pd_spans_dropped_total"

# --- Carriers of context ---
PARAM_TRACEPARENT: Final = "traceparent"
"""Key inside `kv_transfer_params`, and header name."""
REGISTRATION_KEY: Final = "pdtrace"
"""Extra key of vLLM's registration message; unknown keys are ignored by an untraced peer."""
REGISTRATION_TP_RANK: Final = "tp_rank"
"""Key inside that: the rank of D that registers."""

# --- vLLM's proposed lifecycle log of KV connectors (another producer, lower grade) ---
KV_LOG_SCHEMA: Final = "vllm-kv-connector-v1"
KV_LOG_SPAN: Final = "vllm_kv_connector."
"""Before an event's name, as the name of the record that the analysis makes of it."""
KV_LOG_HASH_KEY: Final = "vllm-kv-trace"
"""Its ids are BLAKE2b of 8 bytes with this as `person`."""

# --- Attributes of vLLM's own `llm_request` span (another producer, lower grade) ---
VLLM_SPAN: Final = "llm_request"
VLLM_REQUEST_ID: Final = "gen_ai.request.id"
VLLM_TTFT_S: Final = "gen_ai.latency.time_to_first_token"
VLLM_QUEUE_S: Final = "gen_ai.latency.time_in_queue"
VLLM_PREFILL_S: Final = "gen_ai.latency.time_in_model_prefill"
VLLM_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
VLLM_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
VLLM_MAX_TOKENS: Final = "gen_ai.request.max_tokens"

# --- Dynamo's spans and request traces (another producer, lower grade) ---
DYNAMO_SPAN: Final = "http-request"
DYNAMO_REQUEST_ID: Final = "request_id"
DYNAMO_CALLER_ID: Final = "x_request_id"
DYNAMO_TTFT_MS: Final = "ttft_ms"
DYNAMO_TRACE_SCHEMA: Final = "dynamo.request.trace.v1"

# --- Spans of llm-d's sidecar (another producer, lower grade) ---
LLMD_PREFIX: Final = "llm_d.pd_proxy"
LLMD_REQUEST_ID: Final = "llm_d.pd_proxy.request_id"
LLMD_TRUE_TTFT_MS: Final = "llm_d.pd_proxy.true_ttft_ms"
"""Ends where decode is dispatched: never the time to first token."""
