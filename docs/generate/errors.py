"""`reference/errors.md`: every error that a user may meet, with its remedy, read from the source.

An error is a class under `GavelError`; a message is what a `raise` of it says, with `…` where a value stands. The
source is parsed and not run, so an error of an extra that is not installed is listed too.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from .commands import cell

PACKAGE = Path(__file__).parents[2] / "gavel"
ROOT = "GavelError"
HEAD = """# Errors

Every error that Gavel raises for something that a user can mend, with what to do about it; `…` stands for a value. All are classes under
`gavel.GavelError`: `error.message` says what happened, `error.remedy` what to type next. The command line prints both and ends with status 1.
The page is made from the source. Search it for the words of your message; [troubleshooting](../troubleshooting.md) begins with symptoms.
"""


@dataclass(frozen=True, slots=True)
class ErrorClass:
    """A class of errors."""

    name: str
    module: str
    bases: tuple[str, ...]
    about: str


@dataclass(frozen=True, slots=True)
class Message:
    """What one `raise` says."""

    error: str
    text: str
    remedy: str


def page() -> str:
    """The page: a section for each floor, a table for each class."""
    classes, messages = found()
    by_class: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_class[message.error].append(message)
    floors: dict[str, list[ErrorClass]] = defaultdict(list)
    for each in sorted(classes.values(), key=lambda one: (one.module, one.name)):
        floors[_floor(each.module)].append(each)
    lines = [HEAD]
    for floor, inside in sorted(floors.items()):
        lines += [f"## {floor}", ""]
        for each in inside:
            lines += [f"### {each.name}", "", f"{each.about} `{each.module}`, a `{each.bases[0]}`.", ""]
            if by_class[each.name]:
                lines += ["| what happened | what to do |", "|---|---|"]
                rows = dict.fromkeys((one.text, one.remedy) for one in by_class[each.name])
                lines += [f"| {cell(text)} | {cell(remedy)} |" for text, remedy in rows]
                lines.append("")
    return "\n".join(lines)


def found(package: Path = PACKAGE) -> tuple[dict[str, ErrorClass], list[Message]]:
    """The classes under `GavelError` by name, and all messages with which they are raised."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    every: dict[str, ErrorClass] = {}
    own_messages: dict[str, ast.Call] = {}
    for path, tree in trees.items():
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.bases:
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                about = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                every.setdefault(node.name, ErrorClass(node.name, module, bases, about))
                for call in filter(_is_message_of_class, ast.walk(node)):
                    own_messages[node.name] = call
    root = every.pop(ROOT, None)
    classes = {name: each for name, each in every.items() if _is_under(name, every)}
    if root is not None:
        classes[ROOT] = root
    own = [_message(name, call, {}) for name, call in own_messages.items() if name in classes]
    raised = [message for tree in trees.values() for message in _messages(tree, classes.keys() - own_messages.keys())]
    return classes, [message for message in (*own, *raised) if message is not None]


def _is_message_of_class(node: ast.AST) -> TypeGuard[ast.Call]:
    """`super().__init__(message, …)`: whoever raises such an error gives parts of the message."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "super().__init__"
        and bool(node.args and _text(node.args[0]))
    )


def _is_under(name: str, every: dict[str, ErrorClass]) -> bool:
    each = every.get(name)
    return each is not None and any(base == ROOT or _is_under(base, every) for base in each.bases if base != name)


def _floor(module: str) -> str:
    parts = module.split(".")
    return "gavel." + parts[1] if len(parts) > 2 else "gavel"


def _messages(tree: ast.Module, names: Set[str]) -> Iterator[Message]:
    constants = {
        target.id: _text(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name not in names:
            continue
        message = _message(name, node, constants)
        if message is not None:
            yield message


def _message(name: str, call: ast.Call, constants: Mapping[str, str]) -> Message | None:
    given = [*call.args[:2], *(each.value for each in call.keywords if each.arg == "remedy")]
    texts = [_text(each) or constants.get(ast.unparse(each), "") for each in given]
    if not _says_something(texts[0]):
        return None
    return Message(name, _sentence(texts[0]), _sentence(texts[1]) or "*told with it*" if len(texts) > 1 else "")


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "…" for part in parts)
        case ast.FormattedValue(value=ast.Call() as call):
            return _text(call)
        case ast.Call(func=ast.Name(id="install_line"), args=[extra]):
            return f"pip install '.[{_text(extra) or '…'}]'"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "…") + (_text(right) or "…")
        case ast.IfExp(body=body, orelse=orelse):
            return _text(body) or _text(orelse)
        case _:
            return ""


def _says_something(text: str) -> bool:
    return len(re.findall(r"\w+", text)) >= 2


def _sentence(text: str) -> str:
    text = " ".join(text.split()).replace("`", "").replace("*", "\\*").replace("[", "\\[").replace("_", "\\_")
    return text if not text or text[-1] in ".!?:…" else f"{text}."
