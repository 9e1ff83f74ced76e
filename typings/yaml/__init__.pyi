"""What Gavel uses of PyYAML: the types that are published for it leave some of its parameters open."""

from collections.abc import Callable, Iterable
from typing import Any

class YAMLError(Exception): ...

class SafeDumper:
    def ignore_aliases(self, data: Any) -> bool: ...
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None: ...
    @classmethod
    def add_representer(cls, data_type: type[Any], representer: Callable[[Any, Any], Any]) -> None: ...

def safe_load(stream: str | bytes) -> Any: ...
def safe_dump(
    data: Any, *, sort_keys: bool = True, allow_unicode: bool | None = None, width: int | None = None
) -> str: ...
def dump_all(
    documents: Iterable[Any],
    *,
    Dumper: type[SafeDumper],
    sort_keys: bool = True,
    width: int | None = None,
    allow_unicode: bool | None = None,
) -> str: ...
