"""Dynamo's frontend, Coordinators and echo workers as child processes."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from echo_worker import BLOCK
from sim_model import make_graph
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ampd.config import dump_graph

HERE = Path(__file__).parent
MODEL = "echo"
CONTEXT = 600
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DATA = {"nvext": {"extra_fields": ["engine_data"]}}


def make_tokenizer(folder: Path) -> None:
    """A model folder without a model: bytes as tokens, and ChatML's way to write a chat."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=259, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["a"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[2], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    shape = {
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": 259,
        "max_position_embeddings": CONTEXT,
    }
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": 2, **shape}
    (folder / "config.json").write_text(json.dumps(config))


def free_port() -> int:
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port


class ApiGraph:
    """Start it, ask it over HTTP, read what its workers heard."""

    def __init__(self, folder: Path, redis_url: str, **sections: Any) -> None:
        self.folder, self.redis_url = folder, redis_url
        self.port = free_port()
        self.status_ports = [free_port(), free_port()]  # Dynamo 1.6.1 reads them as 16-bit signed numbers
        self.record = folder / "heard.jsonl"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        make_tokenizer(folder / "model")
        self.graph = make_graph(
            name=f"api-{self.port}",
            model={"path": str(folder / "model"), "served_name": MODEL, "block_size": BLOCK, "max_model_len": CONTEXT},
            state={"url": redis_url, "stale_after_s": 2, "deadline_ms": 2000},
            **sections,
        )
        (folder / "graph.yaml").write_text(dump_graph(self.graph))

    def start(self, **counts: int) -> None:
        """Start everything and wait until a round can be served."""
        for role in ("prefill", "decode"):
            for n in range(counts.get(role, 1)):
                self.spawn(
                    f"{role}-{n}", str(HERE / "echo_worker.py"), role, "ns", self.redis_url, self.graph.name, str(self.record)
                )
        self.spawn(
            "frontend", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(self.port), "--namespace", "ns-api"
        )
        for n in range(counts.get("coordinator", 1)):
            config = (
                "--config",
                str(self.folder / "graph.yaml"),
                "--namespace",
                "ns",
                "--ready-file",
                str(self.folder / f"ready-{n}"),
            )
            self.spawn(f"coordinator-{n}", "-m", "ampd.coordinator", *config, DYN_SYSTEM_PORT=str(self.status_ports[n]))
        deadline = time.monotonic() + 60
        while not self._ready():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def _ready(self) -> bool:
        """A round can be served, and remotely too."""
        extra = {"nvext": {"extra_fields": ["engine_data"]}}
        status, answer = self.post("/v1/completions", {"prompt": "ready?", "max_tokens": 1, **extra})
        return status == 200 and answer["nvext"]["engine_data"]["ampd"]["reason"] != "only_local"

    def spawn(self, name: str, *argv: str, **variables: str) -> subprocess.Popen[bytes]:
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "AMPD_"))},
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            "DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS": "1000",
            "DYN_METADATA_HEADER": "x-slo-",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            **variables,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen([sys.executable, *argv], stdout=log, stderr=log, env=env, cwd=self.folder)
        return self.children[name]

    def stop(self) -> None:
        for child in self.children.values():
            child.send_signal(signal.SIGTERM)
        for child in self.children.values():
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))

    def connect(self, path: str, body: dict[str, Any] | str, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
        """Send a request; the answer is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        text = body if isinstance(body, str) else json.dumps({"model": MODEL, **body})
        connection.request("POST", path, text, {"content-type": "application/json", **(headers or {})})
        return connection.getresponse()

    def post(self, path: str, body: dict[str, Any] | str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and decoded body; (0, None) while nobody listens."""
        try:
            response = self.connect(path, body, headers)
            text = response.read().decode()
        except ConnectionRefusedError:
            return 0, None
        return response.status, json.loads(text) if text.startswith("{") else text

    def heard(self, what: str) -> list[dict[str, Any]]:
        """What the workers noted, in order."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [event for event in map(json.loads, lines) if event["what"] == what]

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The Coordinators' structured lines of one kind, in order for each Coordinator."""
        logs = "".join(path.read_text() for path in sorted(self.folder.glob("coordinator-*.log")))
        return [json.loads(line[line.index("{") :]) for line in logs.splitlines() if f'"event":"{event}"' in line]

    def wait_logged(self, event: str, id_not_in: set[str]) -> dict[str, Any]:
        """The first line of a kind with an id that is new."""
        deadline = time.monotonic() + 10
        while not (found := [line for line in self.logged(event) if line["id"] not in id_not_in]):
            assert time.monotonic() < deadline, f"no {event}: {self.logs()}"
            time.sleep(0.05)
        return found[0]

    def wait_heard(self, what: str, more_than: int = 0, **fields: Any) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 10
        while len(found := [e for e in self.heard(what) if fields.items() <= e.items()]) <= more_than:
            assert time.monotonic() < deadline, f"no {what}: {self.record.read_text()[-2000:]}"
            time.sleep(0.05)
        return found


def session(id: str, **more: str) -> dict[str, str]:
    return {"x-dynamo-session-id": id, **more}


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **DATA, **more}


def events(response: http.client.HTTPResponse) -> list[dict[str, Any]]:
    """All server-sent events of a streamed answer."""
    lines = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
