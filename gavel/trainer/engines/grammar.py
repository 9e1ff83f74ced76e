"""Replies that must be JSON of a schema: which tokens may come next.

    constraint = Grammars(tokenizer, vocabulary).constraint(Grammar('{"type": "object"}'), prompt_ids, stop_ids)
    constraint.take(token)      # False: the token does not fit here, and nothing has changed
    constraint.allowed()        # `[vocabulary]`: the tokens that do

A sampler draws from the policy and asks `take`. Only a token that does not fit is drawn again among those that do, so
a reply of which no token was drawn again is the policy's own. A thought before the JSON stays free, and a reply may
open a tool call in place of it, which is free from there on: all of this is one grammar of llguidance.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile, pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel.base.extras import install_line
from gavel.trainer.engines.protocol import EngineError, Grammar, SamplingRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher

_COMPILED = 64
"""Grammars that are kept."""
_LAYOUT = {"whitespace_pattern": "( |\\r?\\n[ \\t]{0,16})?"}
"""Max whitespace between the parts of a JSON text: with unbounded space some policies never reach the end."""
_BEGINS_JSON = '{["-0123456789tfn'
_THOUGHT = ("<think>", "</think>")


class GrammarError(EngineError):
    """A schema that no grammar can be made of, or one that is too complex."""


class Grammars:
    """Makes the constraints of requests over the tokens of one model."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """`tokenizer` is a fast one of transformers; `vocabulary`: logits of the model."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._tokens: Any = None
        self._compiled = lru_cache(_COMPILED)(self._compile)
        self._gate = threading.Lock()
        marks = [tokenizer.get_vocab().get(mark) for mark in _THOUGHT]
        self._thought: list[int] = [] if None in marks else marks
        """The tokens that open and close a thought; none of a model without thoughts."""

    def constraint(self, grammar: Grammar, prompt_ids: Sequence[int], stop_ids: frozenset[int]) -> "Constraint":
        """Takes up to a second for the first one, and milliseconds for a new schema. Raises `GrammarError`."""
        marks = [token for token in prompt_ids if token in self._thought]
        with self._gate:
            matcher = self._compiled(self._in_lark(grammar, stop_ids, thinks=marks[-1:] == self._thought[:1] != []))
        return Constraint(matcher.deep_copy(), self._vocabulary, stop_ids, self._thought[:1])

    def _in_lark(self, grammar: Grammar, stop_ids: frozenset[int], *, thinks: bool) -> str:
        """The reply in llguidance's dialect of Lark. `thinks`: the prompt has opened a thought."""
        opening = grammar.opening
        start, rules = "body", [f"json: %json {json.dumps({**json.loads(grammar.schema), 'x-guidance': _LAYOUT})}"]
        if self._thought:
            opens, closes = self._thought
            start = "thought body" if thinks else f"(<[{opens}]> thought)? body"
            rules.append(f"thought: {self._all_but({*stop_ids, closes})}* <[{closes}]> SPACE?")
            rules.append("SPACE: /[ \\t\\r\\n]{1,4}/")
            if closes in opening:  # of a format that shows an empty thought
                opening = tuple(dropwhile(self._is_blank, opening[opening.index(closes) + 1 :]))
        rules.append("body: json | call" if opening else "body: json")
        if opening:
            mark = sum(1 for _ in takewhile(self._is_blank, opening[:-1]))
            if self._tokenizer.decode([opening[mark]]).strip()[:1] not in _BEGINS_JSON:
                opening = opening[: mark + 1]  # tells a call apart by itself
            rules.append(f"call: {' '.join(f'<[{token}]>' for token in opening)} {self._all_but(stop_ids)}*")
        return "\n".join([f"start: {start}", *rules])

    def _all_but(self, tokens: Iterable[int]) -> str:
        """Any other token."""
        bounds = [-1, *sorted(tokens), self._vocabulary]
        spans = [f"{low + 1}-{high - 1}" for low, high in pairwise(bounds) if high - low > 1]
        return f"<[{','.join(spans)}]>"

    def _is_blank(self, token: int) -> bool:
        return self._tokenizer.decode([token]).isspace()

    def _compile(self, lark: str) -> "LLMatcher":
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise GrammarError("replies of a JSON schema need the package llguidance", install_line("train")) from error
        if self._tokens is None:
            self._tokens = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary)
        made = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(lark), log_level=0)
        if made.is_error():
            raise GrammarError(
                f"no grammar can be made of this response_format: {_reason(made.get_error())}",
                "Leave that out of the schema.",
            )
        return made


def _reason(told: str) -> str:
    return " ".join(told.partition("\n1 | ")[0].split())[:200]  # without the grammar, which is not the user's


def constraint_of(request: SamplingRequest, grammars: Grammars | None) -> "Constraint | None":
    """The constraint of a request; None if its reply is free. Raises `GrammarError`."""
    if request.grammar is None:
        return None
    if grammars is None:
        raise GrammarError("this engine was started without a tokenizer, so it takes no response_format")
    return grammars.constraint(request.grammar, request.prompt_ids, request.stop_ids)


@dataclass(frozen=True, slots=True)
class Constraint:
    """The grammar state of one reply."""

    _matcher: "LLMatcher"
    _vocabulary: int
    _stop_ids: frozenset[int]
    _opens: Sequence[int]
    """The token that opens a thought, which the policy alone may choose."""

    def take(self, token: int) -> bool:
        """Advances by `token`. Returns False if the grammar forbids it."""
        if token in self._stop_ids:
            return self._matcher.is_accepting()
        return self._matcher.try_consume_tokens([token]) == 1

    def allowed(self) -> np.ndarray:
        """The tokens that the reply may go on with. `[vocabulary]`, bool. Raises `GrammarError` for none."""
        found = np.zeros(self._vocabulary, dtype=bool)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            found = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        found[self._opens] = False
        found[sorted(self._stop_ids)] = self._matcher.is_accepting()
        if self._matcher.is_error() or not found.any():
            told = _reason(self._matcher.get_error()) or "no token fits"
            raise GrammarError(f"the reply cannot go on by its response_format: {told}", "Simplify the schema.")
        return found
