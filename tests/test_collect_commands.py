"""`pdtrace collect` and `pdtrace export` as processes."""

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from itertools import count
from pathlib import Path

import pytest
from documents import message, numbers
from recorder_threads import eventually

from pdtrace.analysis.otlp import json_to_protobuf, span_count
from pdtrace.analysis.segments import segment_paths
from pdtrace.analysis.store import StoreWriter, read_spans

DATA = Path(__file__).parent / "data"
CASES = [DATA / f"{name}.otlp.jsonl" for name in ("c01_handshake", "c16_push_modes")]
PDTRACE = [sys.executable, "-c", "import sys; from pdtrace.cli.main import main; sys.exit(main())"]


def pdtrace(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*PDTRACE, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def fill_store(store: Path, *files: Path) -> None:
    with StoreWriter(store) as writer:
        for file in files:
            for line in file.read_text().splitlines():
                writer.append(json_to_protobuf(json.loads(line)))


@contextmanager
def collecting(store: Path, ready: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A collector on free ports that is ready; killed if the test has not stopped it."""
    options = ["--grpc-port", "0", "--http-port", "0", "--ready-file", str(ready), *more]
    command = [*PDTRACE, "collect", str(store), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not ready.exists() and process.poll() is None:
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_collect_until_told_to_stop(tmp_path: Path, number: int) -> None:
    """The ready file has the addresses; a signal ends it with status 0 and the counts."""
    with collecting(tmp_path / "store", tmp_path / "ready") as process:
        addresses = json.loads((tmp_path / "ready").read_text())
        assert set(addresses) == {"grpc", "http"}
        body = CASES[0].read_bytes().splitlines()[0]
        request = urllib.request.Request(
            addresses["http"] + "/v1/traces", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    ready, counts = out.splitlines()
    assert addresses["grpc"] in ready and addresses["http"] in ready
    assert counts.startswith("stored 1 message with 8 spans; rejected 0")


def test_the_collector_starts_without_the_libraries_of_the_analysis() -> None:
    """They are in another extra, and take a second to import."""
    code = (
        "import sys, pdtrace.cli.collect_cmd\n"
        "raise SystemExit(', '.join({'numpy', 'pandas', 'pyarrow'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_killed_collector_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """SIGKILL right after an answer costs nothing."""
    with collecting(tmp_path / "store", tmp_path / "ready") as process:
        url = json.loads((tmp_path / "ready").read_text())["http"] + "/v1/traces"
        lines = CASES[0].read_bytes().splitlines()
        for line in lines:
            request = urllib.request.Request(url, line, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=30).close()
        process.kill()
    assert read_spans([tmp_path / "store"]) == read_spans([CASES[0]])


LIVES = 50


def test_a_collector_that_is_killed_again_and_again_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    """Fifty times, at random points while four senders send as fast as they can."""
    store, acknowledged, number = tmp_path / "store", set[int](), count(1)
    chance = random.Random(50)
    for life in range(LIVES):
        with collecting(store, tmp_path / f"ready-{life}", "--segment-mb", "0.01") as process:
            url = json.loads((tmp_path / f"ready-{life}").read_text())["http"] + "/v1/traces"
            senders = [
                threading.Thread(target=send_until_refused, args=(url, number, acknowledged))
                for _ in range(4)
            ]
            for sender in senders:
                sender.start()
            time.sleep(chance.uniform(0.0, 0.1))
            process.kill()
            for sender in senders:
                sender.join()
    kept = numbers(store)
    assert acknowledged <= set(kept)
    assert len(kept) == len(set(kept))
    # What was written and not acknowledged any more: at most what was under way at each death.
    assert len(kept) - len(acknowledged) <= 4 * LIVES
    assert len(acknowledged) > LIVES


def send_until_refused(url: str, number: Iterator[int], acknowledged: set[int]) -> None:
    kind = {"Content-Type": "application/x-protobuf"}
    while True:
        mine = next(number)
        try:
            request = urllib.request.Request(url, message(mine), kind)
            urllib.request.urlopen(request, timeout=30).close()
        except (OSError, HTTPException):
            return
        acknowledged.add(mine)


def test_the_store_is_kept_small(tmp_path: Path) -> None:
    """With a limit the oldest segments go while the collector runs, and are counted."""
    store = tmp_path / "store"
    more = ("--segment-mb", "0.001", "--keep-gb", "0")
    with collecting(store, tmp_path / "ready", *more) as process:
        url = json.loads((tmp_path / "ready").read_text())["http"] + "/v1/traces"
        for _ in range(3):
            line = CASES[0].read_bytes().splitlines()[0]
            request = urllib.request.Request(url, line, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=30).close()
        eventually(lambda: not segment_paths(store))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == (
        "stored 3 messages with 24 spans; rejected 0, not stored for want of disk 0; "
        "removed 3 old segments"
    )


def test_slow_sender_does_not_hold_the_collector(tmp_path: Path) -> None:
    """A body that is still on its way at the stop is answered 503, with no traceback."""
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
    expect = b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n"
    with collecting(tmp_path / "store", tmp_path / "ready") as process:
        address = json.loads((tmp_path / "ready").read_text())["http"]
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sender:
            sender.sendall(head + expect)
            assert b"100" in sender.recv(100)  # the request is being handled
            process.send_signal(signal.SIGTERM)
            answer = sender.recv(100)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert answer.startswith(b"HTTP/1.1 503")
    assert "Traceback" not in err


def test_collect_says_why_it_cannot_start(tmp_path: Path) -> None:
    """A used port and a directory that is no store: one sentence, status 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = pdtrace("collect", tmp_path / "s", "--grpc-port", port, "--http-port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"pdtrace collect: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    )
    done = pdtrace("collect", DATA, "--grpc-port", "0", "--http-port", "0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "not a pdtrace store" in done.stderr


def test_collect_says_what_is_wrong_with_its_guards(tmp_path: Path) -> None:
    """Half of a pair, and a file that is no token: one sentence, and no store is made."""
    ports = ("--grpc-port", "0", "--http-port", "0")
    done = pdtrace("collect", tmp_path / "s", *ports, "--tls-cert", tmp_path / "c")
    assert (done.returncode, done.stderr) == (
        1,
        "pdtrace collect: TLS needs both --tls-cert and --tls-key\n",
    )
    done = pdtrace("collect", tmp_path / "s", *ports, "--token-file", tmp_path / "t")
    assert (done.returncode, done.stderr) == (
        1,
        f"pdtrace collect: cannot read the token {tmp_path / 't'}: No such file or directory\n",
    )
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("guarded", [True, False])
def test_listening_to_everybody_is_said(tmp_path: Path, guarded: bool) -> None:
    """An address that others reach, without anything that is asked of them."""
    (tmp_path / "token").write_text("secret")
    more = ["--token-file", str(tmp_path / "token")] if guarded else []
    with collecting(tmp_path / "s", tmp_path / "ready", "--host", "0.0.0.0", *more) as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    said = f"pdtrace collect: whoever reaches 0.0.0.0 can write to {tmp_path / 's'}: "
    assert err == ("" if guarded else f"{said}give --token-file\n")


def test_export_round_trip(tmp_path: Path) -> None:
    """Store to JSON lines: one line per message, the same records, and stable when repeated."""
    fill_store(tmp_path / "store", *CASES)
    target, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    done = pdtrace("export", tmp_path / "store", "--otlp-json", target)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(target.read_text().splitlines()) == 7
    assert read_spans([target]) == read_spans([tmp_path / "store"]) == read_spans(CASES)
    assert pdtrace("export", target, "--otlp-json", again).returncode == 0
    assert again.read_bytes() == target.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.jsonl", "out.jsonl", "store"]


def test_export_to_standard_output() -> None:
    """`-` writes the lines to standard output, and notes to standard error."""
    done = pdtrace("export", DATA / "c09_otlp_quirks.jsonl", "--otlp-json", "-")
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum(span_count(json_to_protobuf(line)) for line in lines) == 9
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())
    assert "ends inside a message" in done.stderr


def test_export_failure_leaves_the_old_file(tmp_path: Path) -> None:
    """A source that cannot be read: one sentence, status 1, and the target as it was."""
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    (tmp_path / "text").write_text("hello\n")
    for source, words in (("missing", "does not exist"), ("text", "is not OTLP")):
        done = pdtrace("export", CASES[0], tmp_path / source, "--otlp-json", target)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"pdtrace export: {tmp_path / source} {words}")
        assert done.stderr.count("\n") == 1
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "text"]


def test_export_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """A target in a missing directory: one sentence, status 1."""
    done = pdtrace("export", CASES[0], "--otlp-json", tmp_path / "missing" / "out.jsonl")
    assert done.returncode == 1
    assert done.stderr.startswith("pdtrace export: cannot write")
    assert done.stderr.count("\n") == 1
