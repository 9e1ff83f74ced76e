"""Replies that must be JSON of a schema: which tokens may come next.

    constraint = Grammars(tokenizer, vocabulary).constraint(Grammar('{"type": "object"}'), prompt_ids, stop_ids)
    constraint.take(token)      # False: the token does not fit here, and nothing has changed
    constraint.allowed()        # `[vocabulary]`: the tokens that do

A sampler draws from the policy and asks `take`. Only a token that does not fit is drawn again among those that do, so
a reply of which no token was drawn again is the policy's own. A thought before the JSON stays free, and a reply may
open a tool call in place of it.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import numpy as np

from gavel.base.extras import install_line
from gavel.trainer.engines.protocol import EngineError, Grammar, SamplingRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_COMPILED = 64
"""Grammars that are kept."""
_JSON = "start: json\njson: %json "
_AFTER_A_THOUGHT = "start: SPACE? json\nSPACE: /[ \\t\\r\\n]{1,4}/\njson: %json "
_LAYOUT = {"whitespace_pattern": "( |\\r?\\n[ \\t]{0,16})?"}
"""Max whitespace between the parts of a JSON text: with unbounded space some policies never reach the end."""
_THOUGHT = ("<think>", "</think>")
_NONE = -1
"""No token: of a model that has no thoughts."""


class GrammarError(EngineError):
    """A schema that no grammar can be made of, or one that is too complex."""


class Grammars:
    """Makes the constraints of requests over the tokens of one model."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        """`tokenizer` is a fast one of transformers; `vocabulary`: logits of the model."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._tokens: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._gate = threading.Lock()
        thought = [tokenizer.get_vocab().get(mark, _NONE) for mark in _THOUGHT]
        self._opens, self._closes = thought if _NONE not in thought else (_NONE, _NONE)

    def constraint(self, grammar: Grammar, prompt_ids: Sequence[int], stop_ids: frozenset[int]) -> "Constraint":
        """Takes up to a second for the first one, and milliseconds for a new schema. Raises `GrammarError`."""
        thoughts = self._opens != _NONE and not grammar.call
        with self._gate:
            matcher = self._make_matcher(grammar.call or _JSON, "" if grammar.call else grammar.schema)
            after = self._make_matcher(_AFTER_A_THOUGHT, grammar.schema) if thoughts else None
        found = Constraint(matcher, after, self._vocabulary, stop_ids, is_blank=self._is_blank)
        if not grammar.call:
            found.opening = grammar.opening
        if thoughts:
            found.opens, found.closes = self._opens, self._closes
            marks = [token for token in prompt_ids if token in (self._opens, self._closes)]
            found.thinks = marks[-1:] == [self._opens]
            if self._closes in grammar.opening:  # of a format that shows an empty thought
                rest = grammar.opening[grammar.opening.index(self._closes) + 1 :]
                found.opening = tuple(dropwhile(self._is_blank, rest))
        return found

    def _is_blank(self, token: int) -> bool:
        return self._tokenizer.decode([token]).isspace()

    def _make_matcher(self, form: str, schema: str = "") -> "LLMatcher":
        """A matcher at the beginning of a reply. `form` ends where the schema follows, if there is one."""
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise GrammarError("replies of a JSON schema need the package llguidance", install_line("train")) from error
        key = form + schema
        known = self._compiled.get(key)
        if known is None:
            if self._tokens is None:
                self._tokens = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary)
            laid_out = json_rule(json.loads(schema)) if schema else ""
            known = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(form + laid_out), log_level=0)
            if known.is_error():
                what = "response_format" if schema else "tool's parameters"
                raise GrammarError(
                    f"no grammar can be made of this {what}: {_reason(known.get_error())}",
                    "Leave that out of the schema.",
                )
            self._compiled[key] = known
        self._compiled.move_to_end(key)
        while len(self._compiled) > _COMPILED:
            self._compiled.popitem(last=False)
        return known.deep_copy()


def json_rule(schema: Mapping[str, Any]) -> str:
    """The schema as a rule of a grammar says it, behind `%json`."""
    return json.dumps({**schema, "x-guidance": _LAYOUT})


def _reason(told: str) -> str:
    return " ".join(told.partition("\n1 | ")[0].split())[:200]  # without the grammar, which is not the user's


def constraint_of(request: SamplingRequest, grammars: Grammars | None) -> "Constraint | None":
    """The constraint of a request; None if its reply is free. Raises `GrammarError`."""
    if request.grammar is None:
        return None
    if grammars is None:
        raise GrammarError("this engine was started without a tokenizer, so it takes no response_format")
    return grammars.constraint(request.grammar, request.prompt_ids, request.stop_ids)


@dataclass(slots=True)
class Constraint:
    """The grammar state of one reply."""

    _matcher: "LLMatcher"
    """Of a reply that begins with the JSON."""
    _after_thought: "LLMatcher | None"
    _vocabulary: int
    _stop_ids: frozenset[int]
    is_blank: Callable[[int], bool]
    opening: tuple[int, ...] = ()
    """The tokens that open a tool call, as long as the reply may be one."""
    opens: int = _NONE
    """The token that opens a thought."""
    closes: int = _NONE
    thinks: bool = False
    _opened: int = 0
    """Tokens of the opening that the reply begins with."""
    _may_think: bool = True
    _may_be_json: bool = True

    @property
    def free(self) -> bool:
        """Whether the reply opens a tool call, and may go on as it likes."""
        return self._opened > 0 and (not self._may_be_json or self._opened == len(self.opening))

    def take(self, token: int) -> bool:
        """Advances by `token`. Returns False if the grammar forbids it."""
        if self.free:
            return True
        if self.thinks:
            if token == self.closes:
                self.thinks, self._may_think = False, False
                self._matcher = self._after_thought or self._matcher
            return token not in self._stop_ids
        if self._may_think and token == self.opens:
            self.thinks = True
            return True
        if token in self._stop_ids:
            return self._may_be_json and self._matcher.is_accepting()
        opens = bool(self.opening) and token == self.opening[self._opened]
        fits = self._may_be_json and self._matcher.try_consume_tokens([token]) == 1
        if fits and not opens and not self._opened and self.is_blank(token):
            return True  # between a thought and what follows
        if opens or fits:
            self._opened = self._opened + 1 if opens else 0
            self.opening = self.opening if opens else ()
            self._may_be_json, self._may_think = fits, False
        return opens or fits

    def allowed(self) -> np.ndarray:
        """The tokens that the reply may go on with. `[vocabulary]`, bool. Raises `GrammarError` for none."""
        if self.free or self.thinks:
            found = np.ones(self._vocabulary, dtype=bool)
            found[sorted(self._stop_ids)] = self.free
            return found
        found = np.zeros(self._vocabulary, dtype=bool)
        if self._may_be_json and not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            found = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(bool)
        found[sorted(self._stop_ids)] = self._may_be_json and self._matcher.is_accepting()
        if self.opening:
            found[self.opening[self._opened]] = True
        if self._matcher.is_error() or not found.any():
            told = _reason(self._matcher.get_error()) or "no token fits"
            raise GrammarError(f"the reply cannot go on by its response_format: {told}", "Simplify the schema.")
        return found
