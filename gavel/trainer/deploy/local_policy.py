"""The policy of a checkpoint on this machine, beside the base and other steps, to compare a deployment with.

Loads the base once and every adapter over it; the log-probs are those of transformers' own forward pass.
"""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoTokenizer

from gavel.trainer.config import PolicySettings
from gavel.trainer.policy.chat_format import chat_renderer
from gavel.trainer.policy.loading import BaseModelError, dtype_of, plain_logits
from gavel.trainer.policy.policy import load_base, load_config, source_of

BASE = "the base without an adapter"


class LocalPolicy:
    """The base with several adapters, each by a name; `BASE` is the base alone."""

    def __init__(self, description: Mapping[str, Any], adapters: Mapping[str, Path]) -> None:
        """`description` as in model.json. Raises `BaseModelError` when base or adapters cannot be loaded here."""
        base_model = str(description["base_model"])
        settings = PolicySettings.model_validate(description.get("policy") or {})
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            config, source = load_config(base_model), source_of(base_model)
            tokenizers: Any = AutoTokenizer
            self._tokenizer: Any = tokenizers.from_pretrained(source)
            self._renderer = chat_renderer(
                self._tokenizer,
                config.model_type,
                description.get("renderer"),
                base_model,
                settings.chat_template_kwargs,
            )
            base = load_base(base_model, dtype_of(settings, device), device, settings.quantization)
            (first, directory), *others = adapters.items()
            peft_model: Any = PeftModel
            self._model: Any = peft_model.from_pretrained(base, str(directory), adapter_name=_key(first)).eval()
            for name, each in others:
                self._model.load_adapter(str(each), _key(name))
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError, torch.OutOfMemoryError) as error:
            raise BaseModelError(
                f"{base_model} cannot be loaded here: {str(error).splitlines()[0]}",
                "Deploy from a machine that has it, or without the smoke test.",
            ) from error
        self.chat_template_kwargs = dict(settings.chat_template_kwargs)
        self.candidates = [*adapters, BASE]
        self._by_text: dict[str, int] | None = None

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens that a conversation is rendered as, up to the reply."""
        given: Any = list(messages)
        return list(self._renderer.render_ids(given, tools=None, add_generation_prompt=True))

    def token_ids(self, texts: Sequence[str]) -> list[int]:
        """The ids of tokens that a host names by their texts, up to the first that several ids have."""
        if self._by_text is None:
            decoded: list[str] = self._tokenizer.batch_decode([[id_] for id_ in range(len(self._tokenizer))])
            self._by_text = {}
            for token_id, text in enumerate(decoded):
                self._by_text[text] = -1 if text in self._by_text else token_id
        found: list[int] = []
        for text in texts:
            token_id = self._by_text.get(text, -1)
            if token_id < 0:
                break
            found.append(token_id)
        return found

    def logprobs(self, candidate: str, prompt_ids: Sequence[int], reply_ids: Sequence[int]) -> list[float]:
        """What `candidate` says of a reply's tokens after the prompt. `[T]`, nats"""
        ids = torch.tensor([[*prompt_ids, *reply_ids]], device=self._model.device)
        with self._active(candidate):
            logits: Any = plain_logits(self._model, ids)
        said = logits[0, len(prompt_ids) - 1 : -1].float().log_softmax(-1)
        return said.gather(-1, ids[0, len(prompt_ids) :, None])[:, 0].tolist()

    def greedy_text(self, candidate: str, prompt_ids: Sequence[int], tokens: int) -> str:
        """What `candidate` says greedily after the prompt, without special tokens."""
        ids = torch.tensor([list(prompt_ids)], device=self._model.device)
        with self._active(candidate):
            said = self._model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
            )
        return self._tokenizer.decode(said[0, len(prompt_ids) :], skip_special_tokens=True)

    @contextlib.contextmanager
    def _active(self, candidate: str) -> Generator[None]:
        with torch.inference_mode(), contextlib.ExitStack() as base:
            if candidate == BASE:
                base.enter_context(self._model.disable_adapter())
            else:
                self._model.set_adapter(_key(candidate))
            yield


def _key(candidate: str) -> str:
    """A name that a module of torch can have."""
    return candidate.replace(" ", "_").replace(".", "_")
