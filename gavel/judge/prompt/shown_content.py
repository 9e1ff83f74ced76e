"""What a judge is shown of content: which images are sent, and what is replaced in text before it leaves."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.base64_text import decode, describe_base64
from gavel.judge.prompt.events import Attachment, Image, Unseen
from gavel.judge.prompt.sanitize import normal_form
from gavel.llm.providers import ImageSupport
from gavel.prompts import content_hash

Redact = Callable[[str], str]
"""A text as it may leave."""

IMAGE_TAG = "image_url"
_EMBEDDED = "data:image/"
_REMOTE = ("https://", "http://")


@dataclass(frozen=True)
class View:
    """How content is shown. One view serves one group: it processes each distinct text once."""

    images: ImageSupport = "none"
    """Which images all judge models can be sent."""
    redact: Redact | None = None

    @cached_property
    def _texts(self) -> dict[str, tuple[str, tuple[Unseen, ...]]]:
        return {}

    def text(self, text: str) -> str:
        """The text with base64 described, redacted, and in its normal form: what is shown alike is equal.

        Raises `JudgeError` when the redaction fails.
        """
        return self.text_and_media(text)[0]

    def text_and_media(self, text: str) -> tuple[str, tuple[Unseen, ...]]:
        """The same, and the images, sounds, videos and PDFs that base64 in it held."""
        if text not in self._texts:
            described, media = describe_base64(text)
            shown = described if self.redact is None else _redacted(described, self.redact)
            self._texts[text] = normal_form(shown).rstrip().lstrip("\n"), tuple(map(Unseen, media))
        return self._texts[text]

    def image(self, url: Any) -> Attachment | None:
        """The image of a data URL or an address; None for anything else."""
        if not isinstance(url, str):
            return None
        if url.startswith(_EMBEDDED):
            return self._embedded(url)
        if not url.startswith(_REMOTE):
            return None
        tag = f"{IMAGE_TAG} {content_hash(url)}"
        is_private = self.redact is not None and _redacted(url, self.redact) != url
        return Image(tag, url) if self.images == "any" and not is_private else Unseen(tag)

    def _embedded(self, url: str) -> Attachment | None:
        kind, marker, body = url.partition(";base64,")
        letters = "".join(body.split())
        if not marker or not letters or not letters.rstrip("=").replace("-", "+").replace("_", "/").isascii():
            return None
        try:
            data = decode(letters)
        except ValueError:
            return None
        tag = f"{IMAGE_TAG} {content_hash(f'{kind} {letters.rstrip(chr(61))}')}"
        return Unseen(tag) if self.images == "none" or not data else Image(tag, f"{kind};base64,{letters}")


def _redacted(text: str, redact: Redact) -> str:
    untyped = cast("Callable[[str], Any]", redact)  # it is the user's
    try:
        redacted = untyped(text)
    except Exception as error:  # the user's function: whatever it raises, the text must not leave
        raise JudgeError(
            f"redact failed: {type(error).__name__}: {error}; nothing was sent.", "Mend the function given as redact=."
        ) from error
    if not isinstance(redacted, str):
        raise JudgeError(f"redact returned {type(redacted).__name__}, not a text; nothing was sent.")
    return redacted
