"""Tools for a ChatML model whose own chat template shows none, such as SmolLM2-135M-Instruct.

The tools are described in the system turn, calls are JSON between `<tool_call>` tags and results are user turns. A
conversation without tools is rendered by the model's own template, token for token.
"""

import copy
import re
from pathlib import Path
from typing import Any

import gavel.prompts

_MARKS = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = Path(gavel.prompts.__file__).with_name("trainer") / "chatml_tools.j2"


def with_tools(tokenizer: Any) -> Any | None:
    """A copy of the tokenizer whose template also shows tools.

    None where the template's turns are not ChatML's, or where it has a word of its own on tools, be it a refusal.
    """
    own: str = tokenizer.get_chat_template()
    is_chatml = all(mark in own and mark in tokenizer.get_vocab() for mark in _MARKS)
    if not is_chatml or re.search(r"\btools?\b", own):
        return None
    shown = copy.copy(tokenizer)
    tools = _TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    shown.chat_template = f"{{% if tools %}}{tools}{{% else %}}{own}{{% endif %}}"
    return shown
