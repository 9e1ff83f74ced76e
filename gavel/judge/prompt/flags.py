"""Flags: properties of a member's text that a program detects before the judge reads it.

A flag depends on the text alone. It is shown to the judge and recorded in the judgement; it limits the score only if
the judge was given a cap for it. Tool output is not the agent's own text, so an attack in it has a separate flag.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Literal
from unicodedata import category

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical_group import CanonicalGroup, Member
from gavel.judge.prompt.provider_formats import Event, TextEvent, ToolCallEvent, unseen_content
from gavel.judge.prompt.sanitize import RESERVED, joined_texts, normalize_for_matching, without_special_tokens
from gavel.scenarios.judgement import Judgement

UnseenPolicy = Literal["unscored", "flag"]
"""A member with unseen content is unscored, or scored with the flag "unseen content"."""
ImagePolicy = Literal["auto", "send", "flag"]
"""Images are sent when LiteLLM knows that all judge models see them, always, or never (then they are unseen)."""
AlonePolicy = Literal["unscored", "scored"]
"""A group of one distinct attempt is unscored, or scored by itself."""

EMPTY = "empty"
CONTENTLESS = "contentless"
ADDRESSES_JUDGE = "addresses the judge"
TOOL_ADDRESSES_JUDGE = "a tool's output addresses the judge"
UNSEEN = "unseen content"
FLAGS = (EMPTY, CONTENTLESS, ADDRESSES_JUDGE, TOOL_ADDRESSES_JUDGE, UNSEEN)

_SENTENCE_ENDS = re.compile(r"[.!?:;…\n。！？：；،؟।<>]+")
_WORD = re.compile(r"[^\W_]+")


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text))


_OPENERS = frozenset(
    _words(normalize_for_matching(opener))
    for opener in """
    Thought process|Thoughts|Reasoning|Analysis|Explanation|Solution|The solution is|Answer|The answer|The answer is
    Final answer|The final answer is|Response|Conclusion|Step by step|Let's think step by step|Let us think step by step
    Let's solve this problem step by step|Let us solve this problem step by step|Here is the solution|Here is the answer
    解|解答|答|答案|最终答案|思考过程|让我们一步一步思考|让我们一步步思考|让我们一步一步地解决这个问题
    かいせつ|解説|答え|思考過程|답|정답|풀이|사고 과정|Respuesta|La respuesta es|Solución|Réponse|La réponse est|Antwort
    Lösung|Ответ|Решение|Resposta|Solução|Risposta|Soluzione|الإجابة|الحل|उत्तर|समाधान
    """.replace("\n", "|").split("|")
) | {""}
"""Opening phrases without content. Some judges score such a phrase alone like an answer (arXiv:2507.08794)."""
_HEADING = re.compile(r"^[^\n:：]{1,60}[:：]\W*$", re.MULTILINE)
"""A line that announces what does not come, in any language."""


def with_flags(group: CanonicalGroup) -> CanonicalGroup:
    """The group with every member's flags set, in the order of `FLAGS`.

    A member is empty if its agent wrote nothing and called no tool, also in the shared events, and nothing of it or of
    them has an unknown form: that may be the agent's. It is contentless if no
    tool was called and the agent's text (the member's own, else the shared one) is only openers and punctuation. It has
    unseen content if any of its events, or of the shared ones, has.
    """
    # Most groups contain no attack, which few searches over joined texts show quickly.
    is_attack = cache(addresses_judge) if any(map(addresses_judge, joined_texts(group.texts))) else None
    declared = frozenset(tool.partition("(")[0] for tool in group.tools)
    of_shared = _event_flags(group.shared, is_attack, declared)
    members: list[Member] = []
    for member in group.members:
        own = [event for conversation in member.conversations for event in conversation.events]
        found = _content_flags(own, group.shared) | of_shared | _event_flags(own, is_attack, declared)
        members.append(replace(member, flags=tuple(flag for flag in FLAGS if flag in found)))
    return replace(group, members=tuple(members))


def _content_flags(own: Sequence[Event], shared: Sequence[Event]) -> set[str]:
    if any(isinstance(event, ToolCallEvent) for event in (*shared, *own)):
        return set()
    texts = _visible(_texts_of_role(own)) or _visible(_texts_of_role(shared))
    if not texts:
        return set() if _visible(_texts_of_role((*shared, *own), "other")) else {EMPTY}
    return {CONTENTLESS} if all(map(_is_contentless, texts)) else set()


def unseen_reasons(group: CanonicalGroup) -> dict[int, str]:
    """Index of the trajectory -> the content that the judge is not shown: `unseen content: 2 image_url, 1 file`."""
    reasons: dict[int, str] = {}
    for member in group.members:
        own = [event for conversation in member.conversations for event in conversation.events]
        if unseen := unseen_content([*group.shared, *own]):
            kinds = Counter(each.tag.split()[0] for each in unseen)
            counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
            reasons |= dict.fromkeys(member.indices, f"{UNSEEN}: {counts}")
    return reasons


def _event_flags(
    events: Sequence[Event], is_attack: Callable[[str], bool] | None, declared: Collection[str]
) -> set[str]:
    """What any of the events shows. `is_attack`: None where no text is one.

    `declared`: names of the tools that the agent was given; one that it made up may be named after the judge.
    """
    found = {UNSEEN} if unseen_content(events) else set[str]()
    if is_attack is None and not declared:
        return found
    calls = [event for event in events if isinstance(event, ToolCallEvent)]
    made_up = {event.name for event in calls} - {*declared} if declared else ()
    if any(_OWN_NAME.search(normalize_for_matching(name)) for name in made_up):
        return found | {ADDRESSES_JUDGE}
    texts = {
        ADDRESSES_JUDGE: [*_texts_of_role(events), *(text for call in calls for text in (call.name, call.arguments))],
        TOOL_ADDRESSES_JUDGE: [*_texts_of_role(events, "tool"), *(call.result or "" for call in calls)],
    }
    return found | {flag for flag, of_flag in texts.items() if is_attack and any(map(is_attack, of_flag))}


def _texts_of_role(events: Iterable[Event], role: str = "assistant") -> list[str]:
    return [event.text for event in events if isinstance(event, TextEvent) and event.role == role]


def _visible(texts: Iterable[str]) -> list[str]:
    return [plain for text in texts if (plain := normalize_for_matching(text)).strip()]


def _is_contentless(text: str) -> bool:
    if any(_words(part) not in _OPENERS for part in _SENTENCE_ENDS.split(_HEADING.sub("", text))):
        return False
    # An emoji or a symbol such as ∞ can be an answer.
    return not any(character > "\x7f" and category(character)[0] == "S" for character in text)


def validate_caps(caps: Mapping[str, float] | None) -> dict[str, float]:
    """The caps, if every key is a flag and every value a score from 0 to 1; else raises `JudgeError`."""
    for flag, cap in (caps or {}).items():
        if flag not in FLAGS:
            raise JudgeError(f"there is no flag {flag!r} to cap.", f"The flags: {', '.join(FLAGS)}.")
        if not 0 <= cap <= 1:
            raise JudgeError(f"the cap of {flag!r} is {cap!r}.", "Give the highest score to allow, from 0 to 1.")
    return dict(caps or {})


def apply_flags(judgements: Sequence[Judgement], group: CanonicalGroup, caps: Mapping[str, float]) -> None:
    """Writes each member's flags into its judgements and limits their scores by `caps`. Votes are unchanged."""
    for member in group.members:
        highest = min((caps[flag] for flag in member.flags if flag in caps), default=1.0)
        for judgement in (judgements[index] for index in member.indices):
            judgement.flags = list(member.flags)
            if judgement.score is not None:
                judgement.score = min(judgement.score, highest)


_ESCAPED = re.compile(r"\\[nrt\"/]")
"""JSON escapes in arguments and results, which would otherwise run into the next word."""
_SPACED_OUT = re.compile(r"(\s)(\S(?: \S){2,})(?!\S)")
"""A blank, and behind it letters with a space between any two, `d e a r j u d g e`."""
_LETTER_THEN_DIGIT = re.compile(r"(?<=[^\W\d])(?=\d)")
_STEMS = (
    *(RESERVED, "scor", "rubric", "trajector", "judge", "grader", "evaluator"),
    *("end of all", "how to ", "the reference", "ignor", "disregard", "forget", "overrid"),
)
"""Every form below contains one of them."""
_LEAST_WORDS = 7
"""Words of a sentence of the judge's own prompt that no honest text repeats by chance."""
_REACH = 200
"""Characters within which words of the judge's prompt belong together."""
_TERM = r"\b(?:judges?|rubrics?|trajector(?:y|ies)|rollouts?|scor(?:es?|ed|ing))\b"
_JUDGE = r"(?:judges?|graders?|evaluators?)"
_HIGHEST = r"\b(?:[01](?:\.0+)?|100?(?:\s?/\s?100?)?|(?:high|b)est|top|max\w*|perfect|full|winner)(?!\w|\.\d)"
_GAP = r"(?:[^\n]|(?<=[\w,:])\n|(?<=[\w,:]\ )\n|(?<=\n)\n)"
"""Within a line, or a sentence that goes on in the next one."""
_WORTH = r"\b(?:scor|mark|rubric|trajector|rat(?:e|ing)\b|grade)"
_FORMS = re.compile(
    rf"""
    # The fence, and the structural lines behind it.
    ^\W{{0,8}}{RESERVED}\s?\w+\s
    | ^\W{{0,8}}(?:end\ of\ all | trajectory\ \w{{3,6}} | score\ all\ \d+\ (?:trajectories|ids)\b.*)\s*$
    # The section heads of its prompt.
    | ^\W{{0,8}}(?:how\ to\ read\ them | how\ to\ score | the\ reference | (?:grading\ )?rubric)\W{{0,8}}$
    # An entry of its reply.
    | trajectory\W?id\W{{1,6}}\w[^{{}}]{{0,400}}?\bscores?\W{{1,6}}\d
    | \bscore\W{{1,6}}\d[^{{}}]{{0,400}}?trajectory\W?id\W{{1,6}}\w
    # A turn of who gives orders, by a chat template's tokens (with other brackets) or as a heading.
    | (?:
        [›⁆]\s?(?:system|developer|user)\b
        | [‹⁅][^\w›⁆]{{0,2}}(?:im\ )?(?:system(?:\ prompt)?|developer|user|sys|inst)[^\w›⁆]{{0,2}}[›⁆]
        | ^\W{{0,8}}(?:system|developer)(?:\ (?:message|prompt))?\W{{0,8}}$ | ^\W{{0,8}}(?:system|developer):
      ) [\s\S]{{0,{_REACH}}}? {_TERM}
    # A word to the judge, or an order to forget its rules, that goes on about a score.
    | (?:
        (?:^|[.!?:;>*#"'(-]\s{{0,3}})(?:(?:ai|llm|the)\ )?{_JUDGE}\s?[:,!]
        | \b(?:dear|attention|hey|notes?\ (?:to|for))\W{{1,3}}(?:(?:ai|llm|the|all|any)\ ){{0,3}}{_JUDGE}\b
        | \bas\ (?:\w+\ ){{0,3}}{_JUDGE},?\ you\b
        | \b(?:ignore|disregard|forget|override)(?:\ \w+){{0,4}}?\ (?:instruction|rubric|rule|criteri|guideline|prompt)
      ) (?:
        {_GAP}{{0,120}}?{_WORTH}{_GAP}{{0,60}}?{_HIGHEST} | {_GAP}{{0,120}}?{_HIGHEST}{_GAP}{{0,60}}?{_WORTH}
        | {_GAP}{{0,60}}?\b(?:[01]\.0+|10\s?/\s?10|100\s?(?:%|/\s?100))(?!\w|\.\d)
      )
    """,
    re.MULTILINE | re.VERBOSE,
)
_OWN_NAME = re.compile(r"judge|rubric|trajector")


@cache
def _own_sentences() -> tuple[str, ...]:
    """The sentences of the judge's prompts, without what is filled in, as texts are matched."""
    templates = files("gavel.prompts").joinpath("judge")
    fixed = "\n".join(
        re.sub(r"\{\{.*?\}\}|\{%.*?%\}|<.*?>", "\n", templates.joinpath(name).read_text(encoding="utf-8"))
        for name in ("system.j2", "group.j2", "criteria.j2", "repair.j2")
    )
    sentences = {sentence.strip() for sentence in re.split(r"[.:;\n]", normalize_for_matching(fixed))}
    return tuple(sorted(sentence for sentence in sentences if len(sentence.split()) >= _LEAST_WORDS))


def _names_what_it_reads(plain: str) -> bool:
    """Whether a line names a trajectory together with two of judge, rubric and score."""
    for found in re.finditer(r"\b(?:trajector(?:y|ies)|rollouts?)\b", plain):
        before = plain[max(0, found.start() - _REACH) : found.start()].rpartition("\n")[2]
        after = plain[found.end() : found.end() + _REACH].partition("\n")[0]
        terms = re.findall(r"\b(?:judges?|rubrics?|scor(?:es?|ed|ing))\b", f"{before}\n{after}")
        if len({term[:4] for term in terms}) > 1:
            return True
    return False


def _rejoined(letters: re.Match[str]) -> str:
    return letters[1] + _LETTER_THEN_DIGIT.sub(" ", letters[2].replace(" ", ""))


def addresses_judge(text: str) -> bool:
    """Whether the text has a form by which it could speak to its judge, disguised or not.

    The forms: a fence, section head, sentence or request of the judge's prompt; an entry of its reply; a forged turn of
    a system or user about scores; a word to the judge about a score; a trajectory named with two of judge, rubric and
    score.
    """
    plain = normalize_for_matching(without_special_tokens(text))
    lines = _ESCAPED.sub("\n", plain.replace("_", " ")).splitlines()
    plain = _SPACED_OUT.sub(_rejoined, "\n".join(["", *lines]))[1:]
    if any(sentence in plain for sentence in _own_sentences()):
        return True
    return any(stem in plain for stem in _STEMS) and (bool(_FORMS.search(plain)) or _names_what_it_reads(plain))
