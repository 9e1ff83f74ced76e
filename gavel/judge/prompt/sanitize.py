"""Untrusted text as a judge may be sent it: base64 described, secrets redacted, in a normal and in a safe form.

Attempts are compared by the normal form, and a prompt shows the safe form. The normal form has composed characters
(NFC), line feeds for line ends, and no invisible characters. In the safe form the reserved character of the fence is
replaced, characters that HTTP cannot carry, and the special tokens of chat templates, which a tokenizer would read as
turns of the conversation. Both are idempotent, leave clean text unchanged and take linear time.
"""

import base64
import hashlib
import json
import re
import string
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.resources import files

RESERVED = "¦"
Redact = Callable[[str], str]
"""Makes of a text one that may leave."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BARS = f"{RESERVED}\uffe4"
"""The reserved character, and one that compatibility normalization turns into it."""
_UNSENDABLE = "\x00\ud800-\udfff"
"""Characters that JSON over HTTP cannot carry or that servers reject."""
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Unicode's Default_Ignorable_Code_Point, and interlinear annotation characters."""
_UNSAFE = re.compile(f"[{_BARS}{_UNSENDABLE}]")
_INVISIBLE_RUN = re.compile(f"[{_INVISIBLE}]+")
_NEEDED = re.compile("([\ufe00-\ufe0f\u180b-\u180d\u180f\U000e0100-\U000e01ef]?)([\u200c\u200d]?)")
"""Invisible characters that ordinary text needs: a variation selector, then a joiner or non-joiner."""
_NEVER_NEEDED = re.compile("[^\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]+")
_KEYCAP = "\N{COMBINING ENCLOSING KEYCAP}"
_VIRAMA = 9
"""Combining class of the sign after which a joiner has a meaning in Indic scripts."""
_LINE_END = re.compile("(?<!\r)\r+\n")
_ANY_LINE_END = re.compile("[\r\x85\u2028\u2029]")
_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
"""Unicode's space separators (Zs) beside the space."""
_TRAILING_BLANKS = re.compile("(?<![ \t])[ \t]+(?=\n|\\Z)")
_VARYING = ("\r", "\\r", "\\n", "\\t", ' "', '\t"', " \n", "\t\n")
"""What in ASCII text makes it differ from its comparison form, as do blanks and line feeds at its ends."""
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LONG_RUN = re.compile(r"([^\w\x00-\x7f]{32,})")
"""Runs whose normalization could take quadratic time: it sorts their marks."""

_BRACKETED = re.compile(r"[<＜﹤\[［﹇][^\s<>＜＞﹤﹥‹›\[\]［］﹇﹈⁅⁆]{1,64}[>＞﹥\]］﹈]")
"""Matches neither nest nor share a bracket, so a replacement cannot create a new match."""
_HARMLESS = str.maketrans("<＜﹤>＞﹥[［﹇]］﹈", "‹‹‹›››⁅⁅⁅⁆⁆⁆")
"""Look-alikes that no normalization turns into brackets."""
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
"""Special tokens of Llama, Mistral, Qwen, DeepSeek, Gemma, GLM, Kimi, Phi, Cohere, InternLM, EXAONE, MiniMax etc."""


def normal_form(text: str) -> str:
    """The text composed, with line feeds for line ends, without invisible characters that no script or emoji needs."""
    if not text.isascii():
        text = _composed(_INVISIBLE_RUN.sub(_needed, _composed(text)))
    return _LINE_END.sub("\n", text) if "\r" in text else text


def comparison_form(text: str) -> str:
    """The same for texts that look alike: one kind of blank and of line end, no blanks at the end of a line.

    In JSON each string has this form.
    """
    text = normal_form(text)
    is_varying = text.startswith("\n") or text.endswith((" ", "\t", "\n")) or any(each in text for each in _VARYING)
    if text.isascii() and not is_varying:
        return text
    if text.startswith(("{", "[")):
        return _JSON_STRING.sub(_comparable_string, text)
    lines = _BLANK.sub(" ", _ANY_LINE_END.sub("\n", text))
    return _TRAILING_BLANKS.sub("", lines).strip("\n")


def _comparable_string(found: re.Match[str]) -> str:
    try:
        value: str = json.loads(found[0])
    except ValueError:
        return found[0]
    return json.dumps(comparable(value), ensure_ascii=False)


def comparable(value: str) -> str:
    """The comparison form of a string in JSON, of which blank lines at the beginning stay."""
    return comparison_form(f" {value}")[1:] if value else ""


def sanitize(text: str) -> str:
    """The text in its normal form, safe for a prompt. Brackets of special tokens become look-alikes: `‹|im_start|›`."""
    return without_special_tokens(text.replace("\0", _REPLACEMENT) if text.isascii() else _UNSAFE.sub(_replaced, text))


def without_special_tokens(text: str) -> str:
    """The text in its normal form, with look-alikes for the brackets of special tokens."""
    text = _BRACKETED.sub(_replace_special, normal_form(text))
    return _MINIMAX.sub(_replace_brackets, text) if "~" in text else text


def _composed(text: str) -> str:
    """The text in Unicode's form NFC, but for runs of 32 marks and more."""
    pieces = enumerate(_LONG_RUN.split(text))
    return "".join(piece if number % 2 else unicodedata.normalize("NFC", piece) for number, piece in pieces)


def _replaced(found: re.Match[str]) -> str:
    return "|" if found[0] in _BARS else _REPLACEMENT


def _needed(run: re.Match[str]) -> str:
    before, after = run.string[run.start() - 1 : run.start()], run.string[run.end() : run.end() + 1]
    return _needed_between(before, _NEVER_NEEDED.sub("", run[0])[:3], after)


@lru_cache(4096)
def _needed_between(before: str, run: str, after: str) -> str:
    """The run if it has a meaning here, else nothing: a selector after what is visible, a joiner beside emoji or
    letters without case, or after an Indic virama."""
    if (found := _NEEDED.fullmatch(run)) is None:
        return ""
    selector, joiner = found.groups()
    if selector and not (_is_visible(before) or (before in {*"0123456789#*"} and after == _KEYCAP)):
        return ""
    one, other = _is_shaped(before), _is_shaped(after)
    joins = (one or other) and (one or before.isalnum()) and (other or after.isalnum())
    return run if not joiner or joins or (before and unicodedata.combining(before) == _VIRAMA) else ""


def _is_visible(character: str) -> bool:
    return character > "\x7f" and character not in _BARS and unicodedata.category(character)[0] in "LMNPS"


_UNSHAPED = frozenset({"Lu", "Ll", "Lt", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"})


def _is_shaped(character: str) -> bool:
    return _is_visible(character) and unicodedata.category(character) not in _UNSHAPED


def _replace_special(found: re.Match[str]) -> str:
    return _replace_brackets(found) if _SPECIAL.fullmatch(unicodedata.normalize("NFKC", found[0])) else found[0]


def _replace_brackets(found: re.Match[str]) -> str:
    return found[0].translate(_HARMLESS)


_JOINED = 100_000
"""Characters of small texts that are searched at once, and of a long one that are translated at once."""


@cache
def _look_alikes() -> dict[str, str]:
    """Letters of other scripts by the lower-case ASCII letters that they look like (Unicode's UTS 39)."""
    from confusable_homoglyphs.confusables import confusables_data

    return {
        alike["c"]: letter.lower()
        for letter in string.ascii_letters
        for alike in confusables_data.get(letter, ())
        if not alike["c"].isascii() and alike["c"].isalpha()
    }


class _NormalForms(dict[int, str]):
    """The normal form of each character, computed on first use."""

    def __missing__(self, code: int) -> str:
        whole = unicodedata.normalize("NFKD", _INVISIBLE_RUN.sub("", chr(code)))
        plain = "".join(part for part in whole if not "\u0300" <= part <= "\u036f")
        plain = plain if plain.isascii() else "".join(_look_alikes().get(part, part) for part in plain)
        self[code] = unicodedata.normalize("NFKC", plain).casefold()
        return self[code]


_NORMAL_FORMS = _NormalForms()


def normalize_for_matching(text: str) -> str:
    """The text for pattern matching: case-folded, in compatibility form, without invisible characters and accents, and
    with ASCII letters for those that look alike.

    It works character by character: normalizing whole texts takes quadratic time on long runs of accents.
    """
    if text.isascii():
        return text.lower()
    pieces = range(0, len(text), _JOINED)  # other threads wait while one is translated
    return "".join(text[start : start + _JOINED].translate(_NORMAL_FORMS) for start in pieces)


def joined_texts(texts: Iterable[str]) -> Iterator[str]:
    """The different texts, small ones joined by lines: few searches for many texts, and none over very much text, since
    other threads wait while a string is searched."""
    joined: list[str] = []
    size = 0
    for text in dict.fromkeys(texts):
        joined.append(text)
        size += len(text)
        if size >= _JOINED:
            yield "\n".join(joined)
            joined, size = [], 0
    if joined:
        yield "\n".join(joined)


_SHORTEST = 256
"""Characters. Shorter base64 stays as it is, except in data URLs."""
_STRIDE = _SHORTEST // 2
_DISTINCT = 32
"""Base64 of so many characters has more different ones than this; words in one alphabet, or of digits, have fewer."""
_ALPHABET = r"A-Za-z0-9+/_\-"
_BREAK = r"(?:\r?\n|\\r\\n|\\n)"
_TYPE = r"(?P<type>[\w.+-]{1,64}/[\w.+-]{1,64})"
_DENSE = re.compile(rf"[{_ALPHABET}=\r\n\\]{{{_STRIDE}}}")
_RUN = re.compile(
    rf"(?<![{_ALPHABET}])(?P<body>"
    rf"(?:[{_ALPHABET}]{{{_SHORTEST},}}|[{_ALPHABET}]{{60,}}(?:{_BREAK}[{_ALPHABET}]{{60,}}){{3,}})"
    rf"(?:{_BREAK}[{_ALPHABET}]{{60,}})*(?:(?:{_BREAK}[{_ALPHABET}]*)?={{1,2}})?)"
)
"""In lines of at least 60 characters; a shorter last line belongs to it only if padding ends it: it may be a word."""
_DATA_URL = re.compile(rf"data:{_TYPE}?(?:;[\w=.-]{{1,64}})*;base64,(?P<body>[{_ALPHABET}]{{16,}}={{0,2}})")
_NEITHER = re.compile(rf"\\r|\\n|[^{_ALPHABET}]")
_TO_STANDARD = str.maketrans("-_", "+/")
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image",
    b"\xff\xd8\xff": "image",
    b"GIF8": "image",
    b"RIFF": "media",
    b"ID3": "audio",
    b"OggS": "audio",
    b"fLaC": "audio",
    b"%PDF-": "file",
}
"""First bytes of a file -> its kind."""


def describe_base64(text: str) -> tuple[str, Sequence[str]]:
    """The text with each data URL and each long run of base64 replaced by a mark, in linear time.

        data:image/png;base64,iVBORw0…     ->  [base64 image/png data, 48,213 bytes, sha256 ab12cd34ef56]

    The mark is the same for the same bytes, in either alphabet. Long words that are not base64 (hexadecimal digits,
    DNA, a repeated letter) stay. Also gives a tag for each replaced image, sound, video or PDF: `image ab12cd34ef56`.
    """
    media: list[str] = []
    if ";base64," in text:
        text = _DATA_URL.sub(lambda found: _mark(found["body"], media, found["type"]), text)
    if any(_DENSE.match(text, start) for start in range(0, len(text), _STRIDE)):  # covered wherever a run begins
        text = _RUN.sub(lambda found: _mark_if_base64(found, media), text)
    return text, media


def _mark_if_base64(found: re.Match[str], media: list[str]) -> str:
    letters = _NEITHER.sub("", found["body"])
    kinds = (str.isupper, str.islower, str.isdigit)
    is_base64 = len(set(letters)) >= _DISTINCT and all(any(map(kind, letters)) for kind in kinds)
    return _mark(found["body"], media) if is_base64 else found[0]


def _mark(body: str, media: list[str], kind: str | None = None) -> str:
    """The mark; if the data is media, its tag is added to `media`."""
    letters = _NEITHER.sub("", body)
    whole = len(letters) - (len(letters) % 4 == 1)  # one letter alone holds no byte: the text was cut off
    data = decode_base64(letters[:whole])
    if media_kind := _media_kind(data, (kind or "").casefold()):
        media.append(f"{media_kind} {_hash(data)}")
    return f"[base64 {kind or ''}{' ' if kind else ''}data, {len(data):,} bytes, sha256 {_hash(data)}]{letters[whole:]}"


def _media_kind(data: bytes, kind: str) -> str | None:
    major = kind.partition("/")[0]
    if major in ("image", "audio", "video"):
        return major
    if kind == "application/pdf":
        return "file"
    return next((found for magic, found in _MAGIC.items() if data.startswith(magic)), None)


def decode_base64(letters: str) -> bytes:
    """The bytes of base64 in either alphabet, padded or not, without other characters."""
    letters = letters.rstrip("=").translate(_TO_STANDARD)
    return base64.b64decode(letters + "=" * (-len(letters) % 4))


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


@cache
def _secrets() -> list[tuple[str, Sequence[str], re.Pattern[str], bool]]:
    """Of each kind: its name, stems in lower case of which every match contains one (none = always tried), the pattern,
    whose group `secret` or whole match is replaced, and whether a match needs the check digit of a card number."""
    source = files("gavel.judge.prompt").joinpath("redaction_patterns.toml").read_text(encoding="utf-8")
    return [
        (entry["name"], entry.get("stems", ()), re.compile(entry["pattern"]), "check" in entry)
        for entry in tomllib.loads(source)["secret"]
    ]


def redact_secrets(text: str) -> str:
    """The text with keys, e-mail addresses and card numbers replaced: `key [OpenAI key]`.

    The patterns are in `redaction_patterns.toml`; each is tried only where one of its stems occurs.
    """
    lower = text.lower()
    for name, stems, pattern, has_check_digit in _secrets():

        def replacement(found: re.Match[str], name: str = name, checked: bool = has_check_digit) -> str:
            if checked and not _has_check_digit(found[0]):
                return found[0]
            start, end = found.span("secret" if "secret" in found.re.groupindex else 0)
            return f"{found[0][: start - found.start()]}[{name}]{found[0][end - found.start() :]}"

        if not stems or any(stem in lower for stem in stems):
            text = pattern.sub(replacement, text)
    return text


def _has_check_digit(number: str) -> bool:
    """Whether the digits satisfy Luhn's formula."""
    digits = [int(character) for character in reversed(number) if character.isdigit()]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0
