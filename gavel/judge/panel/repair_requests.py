"""Repair requests: a reply that cannot be read goes back to the judge with its problem, and is asked for again.

    system, user                                                   {"A": 0.9, "B": "good"}      cannot be read
    system, user, assistant: the reply, user: "B has no number"    {"A": 0.9, "B": 0.7}         the ballot's scores

The last invalid reply alone is shown again. A reply of which nothing can be read after `content_retries` requests is
the ballot's problem, never a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gavel.judge.panel.ballot import Ballot
from gavel.judge.panel.requested_reply import ReplyForm
from gavel.judge.prompt.call_prompt import Prompt
from gavel.judge.reply.attempts import name_attempts
from gavel.judge.reply.criteria import ids_to_score
from gavel.judge.reply.verdict import Verdict, VerdictError
from gavel.judge.rubric import Rubric
from gavel.llm.client import Client
from gavel.llm.errors import ContextError, LlmError, NotAskedError, RefusedError
from gavel.llm.failures import CONTENT_FILTER, filtered, is_refusal_text
from gavel.llm.loop_turns import next_turn
from gavel.llm.prompt_cache import CachedPrefix
from gavel.llm.prompt_cut import PromptCutError
from gavel.llm.types import Message, Reply

_MAX_ECHO = 4_000
"""Max characters of an invalid reply echoed in the repair prompt."""


@dataclass(frozen=True, slots=True)
class RepairRequests:
    """How replies are read, and how often one that cannot be read is asked for again."""

    form: ReplyForm
    rubric: Rubric
    content_retries: int

    async def ask_with_repair(
        self,
        ballot: Ballot,
        prompt: Prompt,
        prefix: CachedPrefix,
        indices: Mapping[str, Sequence[int]],
        client: Client,
    ) -> None:
        """Asks and reads the reply; an invalid reply is sent back with its problem, `content_retries` times.

        `indices`: by label, in the order shown, the member's trajectories in the group; what is stored names them in
        place of labels.
        """
        labels = list(indices)
        ids, schema = ids_to_score(self.rubric, labels), self.form.schema(self.rubric, labels)
        repair: list[Message] = []
        unusable: list[tuple[list[Message], Reply]] = []
        refusal = ""

        @cache  # a reply is read to decide whether a cassette keeps it, and again for its scores
        def read_text(text: str, cut_off: bool) -> Verdict:
            return self.form.read(text, self.rubric, labels, cut_off=cut_off)

        def read(reply: Reply) -> Verdict:
            try:
                return read_text(reply.text, reply.finish_reason == "length")
            except VerdictError as error:
                if reply.repairs["reasoning"]:
                    raise VerdictError("it is reasoning without an answer") from error
                raise

        def can_be_used(reply: Reply) -> bool:
            try:
                read(reply)
            except VerdictError:
                return False
            return reply.finish_reason != CONTENT_FILTER

        for _ in range(1 + self.content_retries * self.form.can_be_repaired):
            ballot.calls += 1
            try:
                reply = await client.ask(prompt.messages + repair, schema, can_be_used, unusable, prefix)
                await next_turn()  # reading takes time; the calls that waited for this one's place are sent first
            except PromptCutError as error:
                ballot.replies.append(error.reply)
                raise
            except ContextError:
                ballot.calls -= 1  # a refused prompt is not judged, and costs nothing
                raise
            except RefusedError as error:
                ballot.free_calls += not error.may_be_paid
                ballot.refusal = ballot.problem = error.message
                return
            except LlmError as error:
                if isinstance(error, NotAskedError):
                    ballot.calls -= 1
                else:
                    ballot.free_calls += not error.may_be_paid
                ballot.problem = error.message
                return
            ballot.replies.append(reply)
            if reply.finish_reason == CONTENT_FILTER:
                ballot.refusal = ballot.problem = filtered(client.name, reply.text)
                return
            try:
                verdict = read(reply)
            except VerdictError as error:
                cut_off = "it was cut off at the token limit; " if reply.finish_reason == "length" else ""
                problem = cut_off + error.message
                ballot.problem = f"the reply cannot be used: {name_attempts(problem, indices)}"
                refusal = filtered(client.name, reply.text) if is_refusal_text(reply.text) else ""
                request = ballot.render("judge/repair.j2", problem=problem, labels=ids)
                unusable.append((prompt.messages + repair, reply))
                repair = [
                    {"role": "assistant", "content": reply.text.strip()[:_MAX_ECHO] or "(no reply)"},
                    {"role": "user", "content": request},
                ]
            else:
                ballot.scores = {
                    member: replace(scored, explanation=name_attempts(scored.explanation, indices))
                    for member, label in zip(ballot.shown, labels, strict=True)
                    if (scored := verdict.scores.get(label))
                }
                by_label = dict(zip(labels, ballot.shown, strict=True))
                ballot.unread = {by_label[label]: problem for label, problem in verdict.unread.items()}
                ballot.reply_key = reply.key
                ballot.repairs = reply.repairs + verdict.repairs
                return
        ballot.refusal = refusal
