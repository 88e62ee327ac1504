from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sse_server import Server, sse_server
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with sse_server() as running:
        yield running


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE tokenizer trained on this repository's own sources."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train([str(p) for p in sorted(Path(__file__).parent.glob("*.py"))], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
