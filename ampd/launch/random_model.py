"""Small models with random weights for tests: real architecture, real tokenizer, no download.

`tiny` (3.4 M parameters) is for correctness, `small` (34 M) for timing. With transformers' usual 0.02 initialisation greedy
output ignores the context, so that an equality test could not fail; weights are therefore scaled to keep the variance of
activations, and the embeddings are not tied.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Size = Literal["tiny", "small"]

_SHAPES: dict[Size, dict[str, int]] = {
    "tiny": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192},
}
_HEAD_DIM = 64
_CONTEXT = 32768
_SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_random_model(folder: Path, size: Size = "tiny", seed: int = 0) -> Path:
    """Build the model in `folder` unless it is there already; concurrent builders do not disturb each other.

    Returns the folder. The same size and seed give the same weights and the same tokenizer.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tokenizer = _tokenizer(_SHAPES[size]["vocab_size"])
        tokenizer.save_pretrained(building)
        _model(size, seed, tokenizer).save_pretrained(building)
        os.replace(building, folder)
    except OSError:
        if not (folder / "config.json").exists():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the sources of the standard library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_training_text(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=_SPECIALS[2], pad_token=_SPECIALS[0])
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.model_max_length = _CONTEXT
    return tokenizer


def _training_text() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:60]:
        yield path.read_text(encoding="utf-8", errors="ignore")


def _model(size: Size, seed: int, tokenizer: PreTrainedTokenizerFast) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = _SHAPES[size]
    config = Qwen3Config(
        **shape,
        head_dim=_HEAD_DIM,
        intermediate_size=2 * shape["hidden_size"],
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim != 2:
                continue
            std = 1.0 if name.endswith("embed_tokens.weight") else 1.2 / weight.shape[1] ** 0.5
            weight.normal_(0.0, std, generator=generator)
    return model.to(torch.bfloat16) if size == "small" else model
