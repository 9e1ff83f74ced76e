"""Why a group or a trajectory is not trained: the keys of the metrics `left_out/<key>`, and a sentence for each.

    LeftOut.NO_SIGNAL            "no_signal"
    LeftOut.NO_SIGNAL.sentence   "groups whose members all have the same score"

Nothing is left out without being counted under one of these keys. docs/metrics.md lists them all.
"""

from enum import StrEnum


class LeftOut(StrEnum):
    """A reason, as its key; `sentence` says what it counts, to be read after a number."""

    sentence: str

    def __new__(cls, key: str, sentence: str) -> "LeftOut":
        member = str.__new__(cls, key)
        member._value_ = key
        member.sentence = sentence
        return member

    NO_SIGNAL = "no_signal", "groups whose members all have the same score"
    NEAR_TIE = "near_tie", "groups whose scores differ by no more than the minimal spread"
    UNRELIABLE_SCORES = "unreliable_scores", "groups whose scores differ no more than the judge's votes do"
    IDENTICAL_MEMBERS = "identical_members", "groups whose members are all identical"
    ONE_MEMBER = "one_member", "groups with fewer than two scored members"
    NO_TRAINABLE_MEMBER = "no_trainable_member", "groups without a member that can be trained"
    STALE = "stale", "groups whose policy became too old before they were done"

    UNSCORED = "unscored", "members without a score"
    REWARD_NOT_FINITE = "reward_not_finite", "members whose reward is not a finite number"
    STEP_REWARDS_MISMATCH = (
        "step_rewards_mismatch",
        "members whose step rewards are not one finite number for each sampled turn",
    )
    NOTHING_SAMPLED = "nothing_sampled", "members with nothing sampled"
    INVALID_LOGPROBS = "invalid_logprobs", "members whose sampler gave invalid log-probs"
    SHAPED_SAMPLING = (
        "shaped_sampling",
        "members with a turn of another distribution than the policy's (top_p, penalties, the base model)",
    )
    RAN_OUT = "ran_out", "members that ran out of tokens or turns"
    TOO_LONG = "too_long", "members longer than the model's context"
    RETOKENISATION = "retokenisation", "members whose sampled text came back in other tokens"
    TRUNCATION = "truncation", "members whose earlier turns were cut out of a later prompt"
    CLIENT_EDIT = "client_edit", "members whose sampled turns were edited before the next prompt"

    NO_ASSISTANT_TURN = "no_assistant_turn", "trajectories without an assistant turn"
    NOT_RENDERABLE = "not_renderable", "trajectories with a turn that the chat format cannot express"

    @property
    def metric(self) -> str:
        """Its name in metrics.jsonl."""
        return f"left_out/{self.value}"


def sentence_of(key: str) -> str:
    """The sentence of a key; a key that is not known (of another version's run) is returned as it is."""
    return next((reason.sentence for reason in LeftOut if reason.value == key), key)


def counted_left_out(key: str, count: int) -> str:
    """Returns the number with the sentence of a key, such as `1 group without a member that can be trained`."""
    noun, _, rest = sentence_of(key).partition(" ")
    if count == 1:
        noun = {"groups": "group", "members": "member", "trajectories": "trajectory"}.get(noun, noun)
    return f"{count:,} {noun} {rest}".rstrip()
