"""Numbers and truth values of requests, taken as what they are: pydantic would make 1 of `true`, and 3 of `"3"`.

expected: Integer = Field(ge=1)          3 and 3.0, as in JSON Schema; no true, no "3"
"""

from typing import Annotated

from pydantic import AllowInfNan, BeforeValidator, Strict


def _no_other_kind(value: object) -> object:
    if isinstance(value, bool | str | bytes):
        raise ValueError(f"a number is wanted here, not {'true or false' if isinstance(value, bool) else 'a text'}")
    return value


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is wanted here, not true or false")
    return value


Integer = Annotated[int, BeforeValidator(_no_other_kind)]
Number = Annotated[float, BeforeValidator(_no_other_kind), AllowInfNan(False)]
Boolean = Annotated[bool, Strict()]
SetInteger = Annotated[int, BeforeValidator(_no_truth_value)]
"""Of settings, which are texts in the environment."""
SetNumber = Annotated[float, BeforeValidator(_no_truth_value), AllowInfNan(False)]
