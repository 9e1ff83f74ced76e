"""What a provider says of a request that failed: its HTTP status, its error code and its words.

LiteLLM's errors keep the status, but drop the body for most kinds, and with it the code ("insufficient_quota") that
tells an empty account from a busy minute. The body is then found in the error that LiteLLM handled (`__context__`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request."""

    status: int | None
    """HTTP status; None = no response, or an error of the client itself."""
    codes: frozenset[str]
    """The `code` and `type` of the body, in lower case."""
    parameter: str
    """The request's parameter that the body names, or ""."""
    words: str

    @property
    def is_quota(self) -> bool:
        """Whether the account is empty; a limit per minute is not that, although both have the status 429."""
        return bool(self.codes & _QUOTA_CODES) or bool(_QUOTA.search(self.words))

    @property
    def is_refusal(self) -> bool:
        """Whether the provider refuses this prompt for its content."""
        coded = bool(self.codes & _REFUSAL_CODES)
        return self.status in (400, 403, 422) and (coded or bool(_REFUSAL.search(self.words)))

    @property
    def is_unknown_model(self) -> bool:
        return self.status in (400, 404, 422) and (
            "model_not_found" in self.codes or bool(_NO_MODEL.search(self.words))
        )

    def refused_parameter(self, sent: Collection[str]) -> str | None:
        """The one of the parameters `sent` that the endpoint does not take; None = none of them is the reason."""
        if self.status not in (400, 422) or not (self.codes & _PARAMETER_CODES or _UNSUPPORTED.search(self.words)):
            return None
        if self.parameter in sent:
            return self.parameter
        places = {name: found.start() for name in sent if (found := re.search(rf"\b{re.escape(name)}\b", self.words))}
        return min(places, key=places.__getitem__, default=None)


def read_failure(error: BaseException) -> Failure:
    """What is known of `error`, an error of LiteLLM or of the OpenAI client."""
    chain = list(_chain(error))
    status = next((code for one in chain if isinstance(code := getattr(one, "status_code", None), int)), None)
    bodies = [body for one in chain if _is_mapping(body := getattr(one, "body", None))]
    parts = [inner if _is_mapping(inner := body.get("error")) else body for body in bodies]
    codes = {str(part[key]).lower() for part in parts for key in ("code", "type") if part.get(key)}
    parameter = next((str(part["param"]) for part in parts if part.get("param")), "")
    return Failure(status, frozenset(codes), parameter, str(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that LiteLLM was handling when it raised it, as far as they come from a response."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen and (one is error or getattr(one, "status_code", None) is not None):
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "account_deactivated"}
_QUOTA = re.compile(
    r"insufficient_quota|credit balance is too low|insufficient (?:balance|credits|funds)|billing hard limit"
    r"|account is not active",
    re.IGNORECASE,
)
_REFUSAL_CODES = {"content_filter", "content_policy_violation", "responsibleaipolicyviolation", "invalid_prompt"}
_REFUSAL = re.compile(
    r"content[ _-]?(?:management )?(?:policy|filter)|flagged|usage polic|ContentPolicyViolation|moderation"
    r"|safety (?:system|settings|filter)|prompt (?:was )?blocked|blocked by|responsible ?ai",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"invalid model|unknown model|no such model|model ['\"`]?[\w./:-]+['\"`]? (?:does not exist|is not found|not found)"
    r"|is not a valid model|model_not_found|not a supported model",
    re.IGNORECASE,
)
_PARAMETER_CODES = {"unsupported_parameter", "unsupported_value", "unknown_parameter"}
_UNSUPPORTED = re.compile(
    r"unsupported|not (?:\w+ )?support|n't support|unknown|unrecogni[sz]ed|not permitted|unexpected|not allowed"
    r"|deprecated|cannot (?:both )?be (?:used|specified)",
    re.IGNORECASE,
)
