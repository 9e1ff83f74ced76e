"""Text from outside, made harmless for a prompt and still readable.

What is replaced: the reserved character of the fence, what HTTP cannot carry, characters that nobody sees, and the
special tokens of chat templates, which a tokenizer would read as turns of the conversation. What stands in their
place is never replaced again, so sanitising twice is sanitising once; text without them comes back as it is, and no
text takes more than linear time.
"""

import re
import unicodedata
from functools import lru_cache

RESERVED = "¦"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BARS = f"{RESERVED}\uffe4"
"""The reserved character, and the one that compatibility normalisation makes into it."""
_UNSENDABLE = "\x00\ud800-\udfff"
"""Characters that JSON over HTTP cannot carry, or that servers refuse."""
_UNSEEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's Default_Ignorable_Code_Point, and the marks of interlinear notes."""
_UNSAFE = re.compile(f"[{_BARS}{_UNSENDABLE}{_UNSEEN}](?:(?<=[{_UNSEEN}])[{_UNSEEN}]+)?")
"""One character, or a run of unseen ones. It begins with one class, because only so is the search for it quick."""
_IS_UNSEEN = re.compile(f"[{_UNSEEN}]")
_NEEDED = re.compile("([\ufe00-\ufe0f\u180b-\u180d\u180f\U000e0100-\U000e01ef]?)([\u200c\u200d]?)")
"""The unseen characters that ordinary text needs: a variation selector, then a joiner or non-joiner."""
_FLAGS = {"".join(chr(0xE0000 + ord(c)) for c in land) + "\U000e007f" for land in ("gbeng", "gbsct", "gbwls")}
"""What follows the black flag in those of England, Scotland and Wales."""
_LONGEST_NEEDED = max(map(len, _FLAGS))
_SPELT_OUT = 4
"""Of a longer run of unseen characters, the rest is only counted: no text grows by more than five times."""

_BRACKETED = re.compile(r"[<＜﹤\[［﹇][^\s<>＜＞﹤﹥‹›\[\]［］﹇﹈⁅⁆]{1,64}[>＞﹥\]］﹈]")
"""No match lies in another or shares a bracket with it, so what is replaced uncovers nothing."""
_HARMLESS = str.maketrans("<＜﹤>＞﹥[［﹇]］﹈", "‹‹‹›››⁅⁅⁅⁆⁆⁆")
"""Look-alikes that no normalisation turns into brackets."""
_MINIMAX = re.compile(r"\]~!?b[\[\]]|\[e~\[")
_SPECIAL = re.compile(
    r"""</?(?:s|unk|pad|bos|eos|eot|eod|eoh|eoa|sep|cls|sop|eop|SYS|think|thinking|image|escape|endoftext|role|tools
    |tool_(?:calls?|response|result|sep)|arg_(?:key|value)|function_call|image_soft_token|empty_output
    |(?:start|end)_of_(?:turn|image|audio)|(?:start|end)_function_(?:call|response|declaration)
    |audio_soft_token|(?:beginning|end)_of_sentence|(?:BOS|EOS|EOP|PAD|UNK|CLS|SEP|MASK)(?:_TOKEN)?
    |fim_(?:prefix|middle|suffix|pad)|(?:file|commit)_(?:sep|before|msg|after)|repo_?name|gh_stars
    |issue_(?:start|comment|closed)|jupyter_(?:start|text|code|output)
    |(?:unused|reserved_|extra_id_|SPECIAL_|TOKENS_UNUSED_|mask:)[0-9]+|(?:seed:|minimax:|longcat_)\w+)>
    |<[|].*[^\W_].*>|<.*[^\W_].*[|]>|<[|]"[|]>
    |\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|ARGS|CALL_ID|THINK|IMG(?:_BREAK|_END)?
    |(?:BEGIN_)?AUDIO|PREFIX|MIDDLE|SUFFIX|CLS|SEP|MASK|PAD|UNK|BOS|EOS|[gs]MASK|UNUSED_TOKEN_[0-9]+)\]
    |\[[|]\w+[|]\]""",
    re.VERBOSE,
)
"""Of Llama, Mistral, Qwen, DeepSeek, Gemma, GLM, Kimi, Phi, Cohere, InternLM, EXAONE, MiniMax and their kin."""


def sanitize(text: str) -> str:
    """The text without reserved, unsendable, unseen or special tokens' characters; clean text comes back as it is.

    Joiners and variation selectors stay where scripts and emoji need them. Brackets of special tokens become
    look-alikes, unseen characters their code points: `‹|im_start|›`, `[U+202E]`.
    """
    return _sanitised_once(text) if len(text) <= _REMEMBERED else _sanitised(text)


def _sanitised(text: str) -> str:
    text = text.replace("\0", _REPLACEMENT) if text.isascii() else _UNSAFE.sub(_safe, text)
    text = _BRACKETED.sub(_defused_token, text)
    return _MINIMAX.sub(_defused, text) if "~" in text else text


_REMEMBERED = 50_000
"""Characters of the longest text that is remembered: a group's texts are shown once for each order."""
_sanitised_once = lru_cache(256)(_sanitised)


def _safe(run: re.Match[str]) -> str:
    if run[0] in _BARS:
        return "|"
    if not _IS_UNSEEN.match(run[0]):
        return _REPLACEMENT
    before, after = run.string[run.start() - 1 : run.start()], run.string[run.end() : run.end() + 1]
    if len(run[0]) <= _LONGEST_NEEDED and _is_needed(before, run[0], after):
        return run[0]
    shown = " ".join(f"U+{ord(character):04X}" for character in run[0][:_SPELT_OUT])
    more = len(run[0]) - _SPELT_OUT
    return f"[{shown} and {more} more]" if more > 0 else f"[{shown}]"


@lru_cache(4096)
def _is_needed(before: str, run: str, after: str) -> bool:
    if run in _FLAGS:
        return before == "\N{WAVING BLACK FLAG}"
    found = _NEEDED.fullmatch(run)
    if found is None:
        return False
    selector, joiner = found.groups()
    drawn = _is_drawn(before) or (before in {*"0123456789#*"} and after == "\N{COMBINING ENCLOSING KEYCAP}")
    return (not selector or drawn) and (not joiner or _joins(before, after))


def _is_drawn(character: str) -> bool:
    return character > "\x7f" and character not in _BARS and unicodedata.category(character)[0] in "LMNPS"


def _joins(before: str, after: str) -> bool:
    """Whether a joiner or non-joiner tells something here: between letters or emoji that are not all ASCII, and
    behind the sign that kills an Indic vowel."""
    if before and unicodedata.combining(before) == 9:
        return True
    drawn = [_is_drawn(character) and unicodedata.category(character)[0] != "P" for character in (before, after)]
    return any(drawn) and all(one or character.isalnum() for one, character in zip(drawn, (before, after), strict=True))


def _defused_token(found: re.Match[str]) -> str:
    return _defused(found) if _SPECIAL.fullmatch(unicodedata.normalize("NFKC", found[0])) else found[0]


def _defused(found: re.Match[str]) -> str:
    return found[0].translate(_HARMLESS)


class _Reveal(dict[int, str]):
    """Each character as `normalize_for_matching` reads it, worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        whole = unicodedata.normalize("NFKD", _IS_UNSEEN.sub("", chr(code)))
        plain = "".join(part for part in whole if not "\u0300" <= part <= "\u036f")
        self[code] = unicodedata.normalize("NFKC", plain).casefold()
        return self[code]


_REVEAL = _Reveal()


def normalize_for_matching(text: str) -> str:
    """The text as tricks cannot hide it: caseless, in compatibility form, without unseen characters and accents.

    Character by character: normalising whole texts takes quadratic time on long runs of accents.
    """
    return text.lower() if text.isascii() else text.translate(_REVEAL)
