"""OTLP protobuf to span records, and between protobuf and strict OTLP JSON.

The only file that knows the protobuf classes. Strict OTLP JSON: ids lower-case hex, 64-bit
integers as strings, enums as numbers.
"""

import base64
from collections.abc import Iterable, Iterator
from sys import intern
from typing import Any, Final

import orjson
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.analysis.ids import SPAN_ID_BYTES, TRACE_ID_BYTES, hex_id
from pdtrace.analysis.intake import (
    TOO_LARGE,
    OtlpError,
    Tally,
    in_words,
    is_of_this_age,
    refusal,
)
from pdtrace.analysis.otlp_json import (
    as_attribute,
    camel,
    number,
    parse_object,
    resource_spans,
)
from pdtrace.analysis.records import AttributeValue, EventRecord, SpanRecord

__all__ = [
    "OtlpError",
    "Tally",
    "json_to_protobuf",
    "parse_object",
    "parse_request",
    "protobuf_to_json",
    "span_count",
    "status_message",
]

_ID_SIZES: Final = {
    "traceId": TRACE_ID_BYTES,
    "spanId": SPAN_ID_BYTES,
    "parentSpanId": SPAN_ID_BYTES,
}


def parse_request(data: bytes, tally: Tally) -> list[SpanRecord]:
    """Span records of one ExportTraceServiceRequest; refused spans are counted in `tally`.

    Raises `OtlpError` when the bytes are not such a message.
    """
    measure = len(data) > tally.span_bytes
    records: list[SpanRecord] = []
    for group in _decode(data).resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope_spans in group.scope_spans:
            scope = intern(scope_spans.scope.name)
            for span in scope_spans.spans:
                if measure and span.ByteSize() > tally.span_bytes:
                    tally.refuse(TOO_LARGE)
                    continue
                record = _record(span, resource, scope, tally)
                if record is not None:
                    records.append(record)
    return records


def span_count(data: bytes) -> int:
    """Spans in one ExportTraceServiceRequest; `OtlpError` when the bytes are no such message."""
    groups = (scope for entry in _decode(data).resource_spans for scope in entry.scope_spans)
    return sum(len(group.spans) for group in groups)


def json_to_protobuf(obj: object) -> bytes:
    """One decoded OTLP JSON object as ExportTraceServiceRequest bytes.

    Raises `OtlpError` when it is no trace export or a value does not fit its field.
    """
    try:
        document = camel({"resourceSpans": resource_spans(obj)})
        for holder in _id_holders(document):
            _rewrite_ids(holder, _id_to_base64)
        request = ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)
        return bytes(request.SerializeToString())
    except (ParseError, AttributeError, TypeError, RecursionError) as error:
        raise OtlpError(f"OTLP JSON with a value that does not fit: {error}") from error


def protobuf_to_json(data: bytes) -> bytes:
    """One ExportTraceServiceRequest as strict OTLP JSON on one line, without the line's end."""
    document = MessageToDict(_decode(data), use_integers_for_enums=True)
    for holder in _id_holders(document):
        _rewrite_ids(holder, _id_to_hex)
    return orjson.dumps(document)


def status_message(code: int, message: str) -> bytes:
    """A google.rpc.Status (code 1, message 2), the body of an OTLP/HTTP error answer.

    Written by hand, because its class is in a package that is nobody's direct dependency.
    """
    text = message.encode()[:120].decode(errors="ignore").encode()
    return bytes((0x08, code, 0x12, len(text))) + text


def _decode(data: bytes) -> Any:
    try:
        return ExportTraceServiceRequest.FromString(data)
    except DecodeError as error:
        raise OtlpError("bytes that are not an ExportTraceServiceRequest") from error


def _record(
    span: Any, resource: dict[str, AttributeValue], scope: str, tally: Tally
) -> SpanRecord | None:
    trace_id = _hex(span.trace_id, TRACE_ID_BYTES)
    span_id = _hex(span.span_id, SPAN_ID_BYTES)
    parent_id = _hex(span.parent_span_id, SPAN_ID_BYTES)
    name = intern(span.name)
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    reason = refusal(trace_id, span_id, start_ns, end_ns)
    if reason is not None:
        tally.refuse(reason, (trace_id, span_id, parent_id), in_words(name, start_ns, end_ns))
        return None
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        kind=span.kind,
        start_ns=start_ns,
        end_ns=end_ns,
        attributes=_attributes(span.attributes),
        events=tuple(_events(span.events, tally)),
        status=span.status.code,
        resource=resource,
        scope=scope,
    )


def _events(events: Iterable[Any], tally: Tally) -> Iterator[EventRecord]:
    for event in events:
        if not is_of_this_age(event.time_unix_nano):
            tally.dropped_events += 1
            continue
        attributes = _attributes(event.attributes)
        yield EventRecord(intern(event.name), event.time_unix_nano, attributes)


def _hex(raw: bytes, size: int) -> str:
    return raw.hex() if len(raw) == size and any(raw) else ""


def _attributes(pairs: Iterable[Any]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    for pair in pairs:
        value = _plain(pair.value)
        if value is not None:
            attributes[intern(pair.key)] = (
                as_attribute(value) if isinstance(value, (dict, list)) else value
            )
    return attributes


def _plain(any_value: Any) -> Any:
    """The Python value of an AnyValue, as `otlp_json` gives it; None when it has none."""
    which = any_value.WhichOneof("value")
    if which in ("string_value", "int_value", "bool_value"):
        return getattr(any_value, which)
    if which == "double_value":
        return number(any_value.double_value)
    if which == "array_value":
        items = (_plain(item) for item in any_value.array_value.values)
        return [item for item in items if item is not None]
    if which == "kvlist_value":
        pairs = ((pair.key, _plain(pair.value)) for pair in any_value.kvlist_value.values)
        return {key: value for key, value in pairs if value is not None}
    if which == "bytes_value":
        return base64.b64encode(any_value.bytes_value).decode()
    return None


def _id_holders(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every span and link of a camel-case document."""
    for entry in document.get("resourceSpans") or ():
        for group in entry.get("scopeSpans") or ():
            for span in group.get("spans") or ():
                yield span
                yield from span.get("links") or ()


def _rewrite_ids(holder: dict[str, Any], rewrite: Any) -> None:
    for name, size in _ID_SIZES.items():
        if holder.get(name):
            holder[name] = rewrite(holder[name], size)


def _id_to_base64(text: object, size: int) -> str:
    digits = hex_id(text, size)
    if not digits:
        raise OtlpError(f"OTLP JSON with an unreadable id {str(text)[:64]!r}")
    return base64.b64encode(bytes.fromhex(digits)).decode()


def _id_to_hex(text: str, _size: int) -> str:
    return base64.b64decode(text).hex()
