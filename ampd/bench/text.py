"""`ampd bench text`: replay recorded agent text through a graph and, if asked, through a plain engine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ampd.bench.client import Client, Dialect
from ampd.bench.plain import plain_server
from ampd.bench.replay import Replayed, Script, compare, judge, replay
from ampd.bench.rounds import RoundResult
from ampd.bench.target import Target
from ampd.bench.terminal import rounds_progress
from ampd.bench.text_report import Summary, summarize
from ampd.bench.text_trace import TextSession, fit_session, load_tokenizer
from ampd.config import Graph
from ampd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How to replay. `max_context` bounds prompt plus answer, tokens; None takes the graph's context length."""

    max_tokens: int = 16
    max_context: int | None = None
    concurrency: int = 2


def make_scripts(sessions: Sequence[TextSession], graph: Graph, model: Path, options: TextOptions) -> list[Script]:
    """Tokenise and fit every prompt. Session keys are new for each run, so a run never meets the KV of an earlier one.

    Raises ConfigError when the context leaves no room for a prompt, SetupError without a tokenizer.
    """
    context = min(options.max_context or graph.model.max_model_len, graph.model.max_model_len)
    limit = context - options.max_tokens
    if limit < 2 * graph.model.block_size:
        raise ConfigError(
            f"--max-context {context} less --max-tokens {options.max_tokens} leaves {limit} tokens for a prompt; "
            f"at least two KV blocks ({2 * graph.model.block_size}) are needed"
        )
    tokenizer, run = load_tokenizer(model), uuid.uuid4().hex[:8]
    return [Script(f"{s.name}-{run}", fit_session(s.prompts, tokenizer, limit)) for s in sessions]


async def run_text(
    target: Target, scripts: Sequence[Script], options: TextOptions, console: Console
) -> tuple[list[Replayed], Summary]:
    """Replay through the target's graph."""
    started = time.monotonic()
    results = await _play(target.url, target.graph, "dynamo", scripts, options, console, "graph")
    rounds = judge(scripts, results, target.graph.model.block_size)
    return rounds, summarize(rounds, time.monotonic() - started)


async def run_reference(
    graph: Graph, model: Path, scripts: Sequence[Script], options: TextOptions, console: Console, rounds: Sequence[Replayed]
) -> Summary:
    """Replay through a plain engine and lay its answers beside `rounds`."""
    started = time.monotonic()
    console.print("starting a plain vLLM engine as the reference")
    async with plain_server(graph, model) as url:
        results = await _play(url, graph, "vllm", scripts, options, console, "plain engine")
    compare(rounds, results)
    return summarize(rounds, time.monotonic() - started)


async def _play(
    url: str, graph: Graph, dialect: Dialect, scripts: Sequence[Script], options: TextOptions, console: Console, label: str
) -> list[list[RoundResult]]:
    async with Client(url, graph.model.served_name, dialect=dialect) as client:
        with rounds_progress(console) as progress:
            task = progress.add_task(label, total=sum(len(s.prompts) for s in scripts))
            return await replay(
                client, scripts, max_tokens=options.max_tokens, concurrency=options.concurrency,
                done=lambda: progress.advance(task),
            )  # fmt: skip
