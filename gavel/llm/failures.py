"""Classifies a failed request: retry, retry differently or give up; who can fix it, and whether it may have cost
something. A sign is a set of statuses with the codes of a body, and wordings where servers send no code, as most do for
a prompt that is too long. LiteLLM's errors mostly drop the body with the code ("insufficient_quota") that tells an
empty account from a busy minute; it is then found in the error that LiteLLM handled (`__context__`).
"""

import email.utils
import importlib
import math
import os
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
import openai
from tenacity import AsyncRetrying, retry_if_exception

from gavel.base.network import TRANSPORT_ERRORS, exception_types, is_on_this_machine
from gavel.base.secrets import without_secrets
from gavel.llm.errors import ContextError, LlmError, PermanentError, RefusedError
from gavel.llm.types import is_mapping

if TYPE_CHECKING:
    import httpx2 as openai_httpx
    from tenacity.stop import stop_base
else:
    _kind = next(kind for kind in openai.DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    openai_httpx = importlib.import_module(_kind.__module__.partition(".")[0])
    """The HTTP library of OpenAI's client, of which its timeouts, connections, requests and answers must be: httpx2
    from version 3 of the client on, httpx before."""

CONTENT_FILTER = "content_filter"
"""Finish reason of a reply that was refused or filtered."""
PAGE_REMEDY = (
    "A web page came in place of a reply: check the server's address (api_base; it often ends in /v1), and whether a "
    "login or a proxy (HTTP_PROXY, HTTPS_PROXY) stands before it."
)
_PAGE = re.compile(r"<!doctype html|<html[\s>]", re.IGNORECASE)
_MAX_SHOWN = 1000
_BUSY_PAUSE, _BROKEN_PAUSE, _LEAST_PAUSE, _LONGEST_PAUSE = 1.0, 0.25, 0.005, 30.0
"""Base pauses in seconds, doubled with each attempt: for a busy server; for a server that failed once, which says
little about the next request; the least, so that a broken server is not retried in a tight loop; and the longest."""


class _Sign:
    """What tells one kind of rejection; without statuses it may have any."""

    def __init__(self, codes: str, words: str, *statuses: int) -> None:
        self.codes, self.words, self.statuses = frozenset(codes.split()), re.compile(words, re.IGNORECASE), statuses


_QUOTA = _Sign(
    "insufficient_quota billing_hard_limit_reached billing_not_active account_deactivated",
    r"insufficient_quota|credit balance is too low|insufficient (?:balance|credits|funds)|billing hard limit"
    r"|account is not active",
)
"""No credit; a per-minute limit is something else, although both have the status 429."""
_REFUSAL = _Sign(
    "content_filter content_policy_violation responsibleaipolicyviolation invalid_prompt",
    r"content[ _-]?(?:management )?(?:policy|filter)|flagged|usage polic|ContentPolicyViolation|moderation"
    r"|safety (?:system|settings|filter)|prompt (?:was )?blocked|blocked by|responsible ?ai",
    *(400, 403, 422),
)
_UNKNOWN_MODEL = _Sign(
    "model_not_found",
    r"invalid model|unknown model|no such model|model ['\"`]?[\w./:-]+['\"`]? (?:does not exist|is not found|not found)"
    r"|is not a valid model|model_not_found|not a supported model",
    *(400, 404, 422),
)
_PARAMETER = _Sign(
    "unsupported_parameter unsupported_value unknown_parameter",
    r"unsupported|not (?:\w+ )?support|n't support|unknown|unrecogni[sz]ed|not permitted|unexpected|not allowed"
    r"|deprecated|cannot (?:both )?be (?:used|specified)",
    *(400, 422),
)
_TOO_LONG = _Sign(
    "context_length_exceeded",
    r"context[ _](?:length|size|window|limit)|maximum (?:prompt|model|input) length|(?:prompt|input) is too long"
    r"|maximum number of tokens allowed|tokens exceed the configured limit|number of tokens in the prompt cannot exceed"
    r"|`inputs` tokens \+ `max_new_tokens` must be",
)
"""Servers' wordings of a context overflow, of which LiteLLM knows only some."""
_REFUSAL_TEXT = re.compile(
    r"(?:i['\u2019]?m (?:very |really |so )?sorry|i am (?:very |really |so )?sorry|sorry|i apologi[sz]e|unfortunately"
    r"|i (?:can(?:no|['\u2019])t|can not|won['\u2019]t|will not|must decline|decline|am unable|am not able)"
    r"|i['\u2019]m (?:unable|not able))\b"
    r"(?=.{0,160}\b(?:can(?:no|['\u2019])?t|can not|won['\u2019]t|unable|not able|decline|not comfortable|refuse"
    r"|help|assist|comply)\b)|i (?:can(?:no|['\u2019])t|can not|won['\u2019]t|will not|must decline)\b",
    re.IGNORECASE | re.DOTALL,
)
_TOKENS = r"(\d[\d,]*\d)\b"
_LIMITS = [
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"(?:>|<=) {_TOKENS}",
        rf"(?:maximum|available|configured|cannot|context|model's|limit)(?: \w+){{0,6}}? \(?{_TOKENS}",
        rf"{_TOKENS} maximum",
    )
]
"""Patterns of the context length, the most specific first: a rejection also states the length of the prompt."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed request, as its provider describes it."""

    status: int | None
    """HTTP status; None = no response, or an error of the client itself."""
    codes: frozenset[str]
    """The body's `code` and `type`, in lower case."""
    parameter: str
    """The request parameter that the body names, or ""."""
    words: str

    def shows(self, sign: _Sign) -> bool:
        if sign.statuses and self.status not in sign.statuses:
            return False
        return bool(self.codes & sign.codes or sign.words.search(self.words))

    @property
    def is_quota(self) -> bool:
        return self.status == 402 or self.shows(_QUOTA)

    def refused_parameter(self, sent: Collection[str]) -> str | None:
        """The one of the `sent` parameters that the endpoint rejects; None = no parameter is the reason."""
        if not self.shows(_PARAMETER):
            return None
        if self.parameter in sent:
            return self.parameter
        places = {name: found.start() for name in sent if (found := re.search(rf"\b{re.escape(name)}\b", self.words))}
        return min(places, key=places.__getitem__, default=None)


def read_failure(error: BaseException) -> Failure:
    """Parses `error`, an exception of LiteLLM or of the OpenAI client."""
    chain = [one for one in _causes(error) if one is error or getattr(one, "status_code", None) is not None]
    status = next((code for one in chain if isinstance(code := getattr(one, "status_code", None), int)), None)
    if any(type(one) is openai.OpenAIError for one in _causes(error)):  # it has no key; LiteLLM makes that a 500
        status = 401
    bodies = [body for one in chain if is_mapping(body := getattr(one, "body", None))]
    parts = [inner if is_mapping(inner := body.get("error")) else body for body in bodies]
    codes = {str(part[key]).lower() for part in parts for key in ("code", "type") if part.get(key)}
    parameter = next((str(part["param"]) for part in parts if part.get("param")), "")
    return Failure(status, frozenset(codes), parameter, str(error))


_NO_ANSWER = (openai.APIConnectionError, openai.APIResponseValidationError, *TRANSPORT_ERRORS)
"""No connection, a timeout, a reply that broke off, or an HTML page."""
Kind = Literal["temporary", "permanent", "too long", "refused", "rejected", "failed"]
"""What may come of a failure. temporary: the same request may succeed later. permanent: no other request to this
endpoint can succeed (invalid key, empty account, unknown model). too long: the prompt, or it and its reply, exceeds the
model's context. refused: for the prompt's content. rejected: perhaps for its reply format; servers word that in many
ways. failed: anything else, for this request."""


def kind_of(error: BaseException) -> Kind:
    failure, name, is_of_server = read_failure(error), type(error).__name__, isinstance(error, openai.OpenAIError)
    exceeds = "ContextWindow" in name or failure.shows(_TOO_LONG)
    if exceeds and is_of_server and not isinstance(error, openai.RateLimitError):
        return "too long"
    if isinstance(error, _NO_ANSWER):
        return "failed" if isinstance(error.__cause__, aiohttp.InvalidURL) else "temporary"
    if is_of_server and ("ContentPolicy" in name or failure.shows(_REFUSAL)):
        return "refused"
    if failure.status in (401, 403, 404) or failure.is_quota or failure.shows(_UNKNOWN_MODEL):
        return "permanent"
    if failure.status in (408, 409, 429) or (failure.status or 0) >= 500:
        return "temporary"
    return "rejected" if failure.status in (400, 422) else "failed"


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    return kind_of(error) == "temporary"


def context_limit(words: str) -> int | None:
    """The context length, in tokens, that a server states in a rejection; None if it states none."""
    found = next((found for form in _LIMITS if (found := form.search(words))), None)
    return int(found[1].replace(",", "")) if found else None


def is_refusal_text(text: str) -> bool:
    """Whether an unreadable reply begins like a refusal in plain text; a guess."""
    return _REFUSAL_TEXT.match(text.strip()) is not None


def filtered(model: str, text: str) -> str:
    """A sentence about a refusal, with the model's words if there are any."""
    said = " ".join(text.split())
    return f"{model} said: {said[:200]}" if said else f"{model} gave an empty reply, stopped by a content filter"


def is_rate_limit(error: BaseException) -> bool:
    """Whether the server reports a rate limit, rather than being broken."""
    return isinstance(error, openai.RateLimitError) or read_failure(error).status == 529


def pause(error: BaseException, attempt: int) -> float:
    """Seconds until the next attempt: the server's `Retry-After`, or exponential backoff with jitter."""
    response = getattr(error, "response", None)
    headers = getattr(error, "litellm_response_headers", None) or getattr(response, "headers", {})
    asked = _seconds(headers.get("retry-after", ""))
    doubled = 2 ** min(attempt, 16)
    if asked is not None:
        return max(asked, min(_LEAST_PAUSE * doubled, _LONGEST_PAUSE))
    is_busy = is_rate_limit(error) or read_failure(error).status == 503
    return backoff(min((_BUSY_PAUSE if is_busy else _BROKEN_PAUSE) * doubled / 2, _LONGEST_PAUSE))


def backoff(longest: float) -> float:
    """A random pause up to the given seconds."""
    return random.uniform(0, longest)


def retrying(stop: "stop_base") -> AsyncRetrying:
    """Retries temporary failures until `stop`, with pauses."""

    def pause_of(state: Any) -> float:
        return pause(state.outcome.exception(), state.attempt_number)

    return AsyncRetrying(retry=retry_if_exception(may_pass), wait=pause_of, stop=stop, reraise=True)


_ANSWERED = exception_types("HTTPStatusError")
_LOST = (
    *exception_types("ReadError", "ReadTimeout", "RemoteProtocolError"),
    *(openai.APITimeoutError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionResetError),
)
"""The connection broke, or timed out, after the request was sent."""
_NOT_SENT = (
    *exception_types("ConnectError", "ConnectTimeout", "PoolTimeout"),
    *(aiohttp.ClientConnectorError, aiohttp.InvalidURL, ConnectionRefusedError),
)


def may_be_paid(error: BaseException) -> bool:
    """Whether a failed request may be charged: it was sent, and the server did not return an error.

    Ambiguous failures, such as a truncated body, count as charged.
    """
    causes = list(_causes(error))
    for kinds, is_paid in ((_ANSWERED, False), (_LOST, True), (_NOT_SENT, False)):
        if any(isinstance(cause, kinds) for cause in causes):
            return is_paid
    return not any(map(_is_answer, causes))


def _is_answer(error: BaseException) -> bool:
    """Whether the error is the server's response. LiteLLM reports the lack of one as a 500."""
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and 400 <= status < (600 if type(error).__module__.startswith("openai") else 500)


def status_error(
    status: int, words: str, body: object = None, url: str = "https://batch", headers: Mapping[str, str] | None = None
) -> openai.APIStatusError:
    """The error of OpenAI's client for a response with this status."""
    request = openai_httpx.Request("POST", url)
    response = openai_httpx.Response(status, headers=list((headers or {}).items()), request=request)
    own = [kind for kind in openai.APIStatusError.__subclasses__() if kind.__module__.startswith("openai")]
    kinds = {getattr(kind, "status_code", None): kind for kind in own}
    kind = kinds.get(status, openai.InternalServerError if status >= 500 else openai.APIStatusError)
    return kind(words, response=response, body=body)


def as_llm_error(error: Exception, model: str, timeout: float, attempts: int = 1) -> LlmError:
    """Converts to an `LlmError` whose class decides what happens next, with its remedy.

    `timeout`: max seconds of an attempt. `attempts`: number of requests to the model.
    """
    if isinstance(error, TimeoutError) and not str(error):  # an attempt of a callable
        return LlmError(f"{model} did not answer within {timeout:g} s.")
    what = str(error) if isinstance(error, openai.OpenAIError) else f"{type(error).__name__}: {error}"
    often = f" {attempts} times, the last time" if attempts > 1 else ""
    message = f"{model} failed{often}: {shorten_words(what)}"
    help_ = remedy(error, model)
    if not help_ and not isinstance(error, openai.OpenAIError):
        help_ = f"It was raised inside {model}: call that alone, with a prompt of its own, to see the traceback."
    kind = kind_of(error)
    if kind == "too long":
        return ContextError(message, help_, context_limit(what))
    if kind == "refused":
        return RefusedError(message)
    if kind == "permanent":
        return PermanentError(message, help_)
    if is_rate_limit(error):
        message = f"{model} is rate limited, for longer than a call may wait: {shorten_words(what)}"
    return LlmError(message, help_)


def is_page(text: str) -> bool:
    """Whether a reply is, or an error quotes, an HTML page, such as a login page."""
    return _PAGE.search(text) is not None


def with_remedy(error: Exception, model: str) -> str:
    """The error of an agent's model in one sentence, with its remedy."""
    return " ".join(filter(None, (f"{type(error).__name__}: {shorten_words(str(error))}", remedy(error, model))))


def remedy(error: Exception, model: str = "") -> str:
    """The remedy for an error of `model`, or an empty text."""
    failure, causes = read_failure(error), list(_causes(error))
    if failure.is_quota:
        return "Add credit to the account of this API key, or use another key or model; then run the same again."
    if failure.status == 401:
        variable = f"{model.partition('/')[0].upper()}_API_KEY"
        where = f" ({variable}, unless another is given as api_key)" if "/" in model else ""
        return f"Check the API key of {model or 'the model'}{where}, or name another model."
    if failure.status == 403:
        return "The key may not use this model: check its rights and its region, or pick another model."
    if failure.status == 404 or failure.shows(_UNKNOWN_MODEL):
        return "Check the model's name, and the address of its server (api_base): most end in /v1."
    if kind_of(error) == "too long":
        return "Pick a model with a longer context, or judge smaller groups."
    if any(is_page(f"{one} {getattr(one, 'doc', '')}") for one in causes):  # `doc` of a JSONDecodeError
        return PAGE_REMEDY
    if any(isinstance(one, (openai.APIConnectionError, *TRANSPORT_ERRORS)) for one in causes):
        return f"Check that its server runs, and its address (api_base); then run the same again.{_past_proxy(causes)}"
    if "/" not in model:  # a custom judge has a plain name
        return ""
    shown = f"`gavel doctor --judge {model}`, with the same --judge-param, shows how it answers"
    return f"{shown}; then run the same again."


def _past_proxy(causes: list[BaseException]) -> str:
    """How the request that did not get through passes the proxy through which it was sent. None is asked for this
    machine. LiteLLM's own errors hold a request that was never made."""
    sent = (one for one in causes if isinstance(one, TRANSPORT_ERRORS) or type(one).__module__[:6] == "openai")
    requests = (vars(one).get("request") or vars(one).get("_request") for one in sent)
    url: Any = next((request.url for request in requests if request is not None), None)
    if url is None or is_on_this_machine(str(url)):
        return ""
    proxies = (f"{url.scheme.upper()}_PROXY", "ALL_PROXY")
    named = next((name for name in proxies if os.environ.get(name) or os.environ.get(name.lower())), "")
    return named and f" It is asked through {named}, unless NO_PROXY names its host."


def shorten_words(words: str, most: int = _MAX_SHOWN) -> str:
    """The message without keys, tracebacks (LiteLLM includes one for an unreadable reply) and most of an HTML page."""
    words = without_secrets(words).partition("Traceback (most recent call last)")[0].rstrip()
    return words if len(words) <= most else f"{words[:most]} …"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _seconds(retry_after: str) -> float | None:
    """Parses `Retry-After`, a number or a date, into seconds; None for anything else, such as "nan"."""
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
