"""Runs of real engines whose hooks fail on demand and whose messages are kept (`engine_rig`).

The same requests go to traced and to untraced engines, so that one can be held against the other.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from multi_connector import multi_flags

from pdtrace.connector.cluster import Cluster
from pdtrace.connector.cluster_settings import ClusterSettings
from pdtrace.connector.processes import EngineServer

Mode = Literal["push", "pull"]

SECRETS = {
    "prompt": "canary-prompt-7f3a",
    "api key, in argv and the Authorization header": "canary-key-91bc",
    "environment": "canary-environment-40de",
    "API key of the environment": "canary-environment-key-c2f8",
    "header": "canary-header-5e61",
    "cookie": "canary-cookie-ab07",
}
KEY = SECRETS["api key, in argv and the Authorization header"]
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {KEY}",
    "X-Canary": SECRETS["header"],
    "Cookie": f"session={SECRETS['cookie']}",
}
PROMPTS = [f"{number} {SECRETS['prompt']} grey heron " * (6 + 4 * number) for number in range(3)]
OUTPUT_TOKENS = 6
AT_THE_END = ("shutdown.", "release_dlist_handle.")
"""Hooks that only a stopping engine calls."""
WITHOUT_HYBRID_MEMORY = "request_finished."
"""Hooks that vLLM calls only where a neighbour in a MultiConnector has no hybrid memory."""
ALL = "*"
NONE = ""


@dataclass
class Rigged:
    """What came of one run. `answers`: status and text by label, beside the prompt's number."""

    mode: Mode
    traced: bool
    directory: Path
    answers: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    """`kv_transfer_params` that P gives to a router."""

    def say(self, failing: str) -> None:
        """Name the hooks that fail from now on."""
        fresh = self.directory / "failing.new"
        fresh.write_text(failing, encoding="utf-8")
        fresh.replace(self.directory / "failing")

    def lines(self, name: str) -> list[str]:
        """A file of the rig."""
        path = self.directory / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def hooks(self) -> list[str]:
        """Names of all hooks of both engines."""
        return sorted(set(self.lines("installed")))

    def sent(self, kind: str) -> list[bytes]:
        """The messages of one kind, in order."""
        found = [json.loads(line) for line in self.lines("sent")]
        return [bytes.fromhex(one["message"]) for one in found if one["kind"] == kind]

    def logs(self) -> dict[str, str]:
        """What each process wrote, by its name."""
        return {
            path.stem: path.read_text(encoding="utf-8", errors="replace")
            for path in (self.directory / "run").glob("*.log")
        }


def post(
    url: str, body: dict[str, Any], request_id: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and decoded answer, also of an error."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {**HEADERS, **(headers or {}), "X-Request-Id": request_id},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


class Driver:
    """Sends the requests of one run."""

    def __init__(self, cluster: Cluster, run: Rigged) -> None:
        self._cluster = cluster
        self._run = run

    def all(self) -> None:
        """A cold pair with every hook failing, each hook alone, then none."""
        self.ask("cold", 0)
        self.refuse("refused")
        self.ask("without key", 0, headers={"Authorization": "Bearer nobody"})
        self.hand_over("unknown peer", remote_engine_id="nobody")
        for hook in self._run.hooks if self._run.traced else ():
            self._run.say(hook)
            self.ask(hook, len(self._run.answers) % len(PROMPTS))
        self._run.say(NONE)
        for number in range(len(PROMPTS)):
            self.ask(f"healthy-{number}", number)

    def beside_a_store(self) -> None:
        """All hooks at once, then those that no other engines call. No prompt comes twice."""
        self.ask("cold", 0)
        rare = [hook for hook in self._run.hooks if hook.startswith(WITHOUT_HYBRID_MEMORY)]
        for number, hook in enumerate(rare, start=1):
            self._run.say(hook)
            self.ask(hook, number)

    def ask(
        self, label: str, number: int, headers: dict[str, str] | None = None, **more: Any
    ) -> None:
        """One request through the router."""
        url = self._cluster.router_url
        assert url is not None
        body = self._body(number, **more)
        self._keep(label, number, post(url, body, rigged_id(label), headers))

    def refuse(self, label: str) -> None:
        """One request that D refuses; of P, which would hold blocks for it, nothing is asked."""
        body = self._body(0, max_tokens=-1)
        self._keep(label, 0, post(self._cluster.decodes[0].url, body, rigged_id(label)))

    def hand_over(self, label: str, **changed: Any) -> None:
        """One request leg by leg, D being told something else than what P said."""
        one, ask = rigged_id(label), {"do_remote_decode": True, "do_remote_prefill": False}
        prefill, decode = self._cluster.prefills[0].url, self._cluster.decodes[0].url
        body = self._body(0, max_tokens=1, kv_transfer_params=ask)
        status, first = post(prefill, body, one)
        assert status == 200
        self._run.parameters = first["kv_transfer_params"]
        told = {**first["kv_transfer_params"], **changed}
        self._keep(label, 0, post(decode, self._body(0, kv_transfer_params=told), one))
        # P holds the blocks until somebody takes them, and will not stop before.
        told = first["kv_transfer_params"]
        self._keep("known peer", 0, post(decode, self._body(0, kv_transfer_params=told), one))

    def _body(self, number: int, **more: Any) -> dict[str, Any]:
        return {
            "model": self._cluster.model,
            "prompt": PROMPTS[number],
            "temperature": 0,
            "max_tokens": OUTPUT_TOKENS,
            **more,
        }

    def _keep(self, label: str, number: int, answered: tuple[int, dict[str, Any]]) -> None:
        status, answer = answered
        text = answer["choices"][0]["text"] if "choices" in answer else ""
        self._run.answers[label] = (number, status, text)


def rigged_id(label: str) -> str:
    """The request id of a label."""
    return "rigged-" + re.sub(r"\W+", "-", label)


class RiggedRuns:
    """Makes each run once."""

    def __init__(self, directory: Path, server: EngineServer) -> None:
        self._directory = directory
        self._server = server
        self._made: dict[str, Rigged] = {}

    def get(self, mode: Mode, traced: bool) -> Rigged:
        """The run of one mode, traced or not."""
        name = f"{mode}-{'traced' if traced else 'untraced'}"
        if name not in self._made:
            self._made[name] = self._make(name, mode, Driver.all, traced=traced)
        return self._made[name]

    def get_beside_a_store(self, mode: Mode) -> Rigged:
        """The traced run of one mode in a MultiConnector."""
        name = f"{mode}-multi"
        if name not in self._made:
            child = {
                "kv_connector": f"Nixl{mode.capitalize()}Connector",
                "kv_connector_module_path": f"pdtrace.connector.{mode}",
            }
            flags = multi_flags(self._directory / name, child)
            self._made[name] = self._make(name, mode, Driver.beside_a_store, **flags)
        return self._made[name]

    def _make(self, name: str, mode: Mode, drive: Callable[[Driver], None], **more: Any) -> Rigged:
        directory = self._directory / name
        directory.mkdir()
        settings = ClusterSettings(
            mode=mode,
            run_dir=directory / "run",
            store=directory / "store",
            prefix_caching=False,
            engine_setup=Path(__file__).with_name("engine_rig.py"),
            flags=(f"--api-key={KEY}",),
            env={
                "TEST_RIG": str(directory),
                "TEST_SECRET": SECRETS["environment"],
                "VLLM_API_KEY": SECRETS["API key of the environment"],
                "PDTRACE_HOOK_ERROR_LIMIT": "1000000",
            },
            **more,
        )
        run = Rigged(mode, bool(settings.traced), directory)
        run.say(ALL)
        with Cluster(settings, self._server) as cluster:
            drive(Driver(cluster, run))
            run.say("\n".join(hook for hook in run.hooks if hook.startswith(AT_THE_END)))
        return run
