"""The gate: what a program can tell of a member's text before a judge reads it.

Flags depend on the text alone. They are shown to the judge, recorded with the judgement, and cap a score only where
the owner of the judge asked for it. What a tool returned is no doing of the agent, so it has a flag of its own.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from unicodedata import category

from gavel.judge.errors import JudgeError
from gavel.judge.prompt.canonical import CanonicalGroup, Event, Member, TextEvent, ToolCallEvent
from gavel.judge.prompt.injection import addresses_judge
from gavel.judge.prompt.sanitize import normalize_for_matching
from gavel.scenarios.judgement import Judgement

EMPTY = "empty"
CONTENTLESS = "contentless"
ADDRESSES_JUDGE = "addresses the judge"
TOOL_ADDRESSES_JUDGE = "a tool's output addresses the judge"
FLAGS = (EMPTY, CONTENTLESS, ADDRESSES_JUDGE, TOOL_ADDRESSES_JUDGE)

_SENTENCE_ENDS = re.compile(r"[.!?:;…\n。！？：；،؟।<>]+")
_WORD = re.compile(r"[^\W_]+")


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text))


_OPENERS = frozenset(
    _words(normalize_for_matching(opener))
    for opener in """
    Thought process|Thoughts|Thought|Thinking|Think|Reasoning|My reasoning|Reasoning process|Analysis|Explanation
    Solution|The solution|The solution is|Here is the solution|Here's the solution|Answer|The answer|The answer is
    Final answer|The final answer is|My answer|Here is my answer|Here's my answer|Here is the answer|Response
    Conclusion|Step 1|Great question|Hmm|Um|Assistant
    Let's solve this problem step by step|Let us solve this problem step by step|Let's solve this step by step
    Let's think step by step|Let us think step by step|Let's think|Let me think|Let me think about this|Let's begin
    Let me think step by step|Let's start|Let's see|Let's work through this step by step|Let's break it down
    I will solve this problem step by step|I'll solve this step by step|To solve this problem|Step by step
    To solve this problem, we need to|I need to think about this|I'd be happy to help|I'm happy to help with that
    解|解答|解法|答|答案|回答|最终答案|思考过程|思路|分析|推理过程|让我们一步一步思考|让我们一步步思考|让我们逐步思考
    让我们一步一步地解决这个问题|让我们一步步解决这个问题|让我们逐步解决这个问题
    かいせつ|解説|かいとう|こたえ|答え|最終回答|思考過程|考え方|ステップバイステップで考えましょう|段階的に考えましょう
    답|정답|답변|해답|풀이|해설|해결|사고 과정|단계별로 생각해 봅시다|차근차근 생각해 봅시다
    Respuesta|La respuesta es|Respuesta final|Solución|Proceso de pensamiento|Razonamiento|Pensemos paso a paso
    Resolvamos este problema paso a paso|Vamos a resolver este problema paso a paso
    Réponse|La réponse est|Réponse finale|Processus de réflexion|Raisonnement|Réfléchissons étape par étape
    Résolvons ce problème étape par étape|Antwort|Die Antwort ist|Lösung|Gedankengang|Denkprozess
    Denken wir Schritt für Schritt|Lösen wir dieses Problem Schritt für Schritt
    Ответ|Решение|Ход мыслей|Рассуждение|Давайте подумаем шаг за шагом|Давайте решим эту задачу шаг за шагом
    Відповідь|Розв'язання|Хід думок|Resposta|Solução|A resposta é|Vamos pensar passo a passo|Risposta|Soluzione
    La risposta è|Pensiamo passo dopo passo|Antwoord|Oplossing|Odpowiedź|Rozwiązanie|Cevap|Çözüm|Đáp án|Lời giải
    الإجابة|الجواب|الحل|عملية التفكير|دعونا نفكر خطوة بخطوة|لنفكر خطوة بخطوة|پاسخ|راه حل|उत्तर|समाधान|हल
    Jawaban|Solusi|Svar|Lösning|Vastaus|Odpověď|Řešení|Απάντηση|Λύση|תשובה|פתרון|คำตอบ
    """.replace("\n", "|").split("|")
) | {""}
"""With which an answer begins and says nothing yet. Judges are known to score such a beginning alone as an answer."""


def with_flags(group: CanonicalGroup) -> CanonicalGroup:
    """The group with the flags of every member, in the order of `FLAGS`.

    A member is empty when its agent neither spoke nor called a tool, what the group shares included. It is contentless
    when no tool was called and all that was said, in the member's own part if there is any, is openers and
    punctuation.
    """
    nobody_appeals = not addresses_judge("\n".join(dict.fromkeys(group.texts)))  # usual, and quickly found out
    is_appeal = (lambda text: False) if nobody_appeals else cache(addresses_judge)
    of_shared = _appeals(group.shared, is_appeal)

    def flags(member: Member) -> tuple[str, ...]:
        own = [event for conversation in member.conversations for event in conversation.events]
        found = _silences(own, group.shared) | of_shared | _appeals(own, is_appeal)
        return tuple(flag for flag in FLAGS if flag in found)

    return replace(group, members=tuple(replace(member, flags=flags(member)) for member in group.members))


def _silences(own: Sequence[Event], shared: Sequence[Event]) -> set[str]:
    if any(isinstance(event, ToolCallEvent) for event in (*shared, *own)):
        return set()
    said = _visible(_said(own)) or _visible(_said(shared))
    if not said:
        return {EMPTY}
    return {CONTENTLESS} if all(map(_says_nothing, said)) else set()


def _appeals(events: Sequence[Event], is_appeal: Callable[[str], bool]) -> set[str]:
    calls = [event for event in events if isinstance(event, ToolCallEvent)]
    texts = {
        ADDRESSES_JUDGE: [*_said(events), *(text for call in calls for text in (call.name, call.arguments))],
        TOOL_ADDRESSES_JUDGE: [*_said(events, "tool"), *(call.result or "" for call in calls)],
    }
    return {flag for flag, of_one in texts.items() if any(map(is_appeal, of_one))}


def _said(events: Iterable[Event], role: str = "assistant") -> list[str]:
    return [event.text for event in events if isinstance(event, TextEvent) and event.role == role]


def _visible(texts: Iterable[str]) -> list[str]:
    return [plain for text in texts if (plain := normalize_for_matching(text)).strip()]


def _says_nothing(text: str) -> bool:
    if any(_words(part) not in _OPENERS for part in _SENTENCE_ENDS.split(text)):
        return False
    # An emoji, or a sign such as ∞, can be an answer.
    return not any(character > "\x7f" and category(character)[0] == "S" for character in text)


def validate_caps(caps: Mapping[str, float] | None) -> dict[str, float]:
    """The highest score by flag. Raises `JudgeError` for a flag that is none, and for a cap that is no score."""
    for flag, cap in (caps or {}).items():
        if flag not in FLAGS:
            raise JudgeError(f"there is no flag {flag!r} to cap.", f"The flags: {', '.join(FLAGS)}.")
        if isinstance(cap, bool) or not isinstance(cap, int | float) or not 0 <= cap <= 1:
            raise JudgeError(f"the cap of {flag!r} is {cap!r}.", "Give the highest score to allow, from 0 to 1.")
    return dict(caps or {})


def apply_flags(judgements: Sequence[Judgement], group: CanonicalGroup, caps: Mapping[str, float]) -> None:
    """Writes the flags of the group's members into their judgements, and lowers scores to what the flags allow.

    Votes stay what they were.
    """
    for member in group.members:
        highest = min((caps[flag] for flag in member.flags if flag in caps), default=1.0)
        for judgement in (judgements[index] for index in member.indices):
            judgement.flags = list(member.flags)
            if judgement.score is not None:
                judgement.score = min(judgement.score, highest)
