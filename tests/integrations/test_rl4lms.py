"""RL4LMs' semantics case by case: padding, termination, weights, metadata, rewards; and PPO over tokens."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import gavel
from gavel.base.errors import GavelError
from gavel.integrations import rl4lms
from gavel.integrations.rl4lms.texts import reward_of
from gavel.trainer.data.token_sequences import sequences
from gavel.trainer.data.training_batch import fits_its_turns, token_rewards
from gavel.trainer.embedded import EMBEDDED_PATH
from tests.trainer.conftest import attempt, registered, sampled_turn

for library in ("gymnasium", "rouge_score", "sacrebleu"):
    pytest.importorskip(library, reason="pip install 'gavel-rl[rl4lms]'")

WORDS = ["<eos>", "a", "b", "c", "d", "e"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; EOS is 0, and there is no token for padding."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", model_max_length=8)


class Seeing(rl4lms.RewardFunction):
    """Keeps what it is asked, and pays the number of the token; -1 more at the end."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, bool, Any]] = []

    def __call__(self, prev_observation, action, current_observation, done, meta_info=None) -> float:
        self.asked.append((prev_observation.context_text, action, current_observation.context_text, done, meta_info))
        return action - float(done)


SAMPLE = rl4lms.Sample("1", "a b", ["c d", "d"], {"topic": "letters"})


def env_of(tokenizer: Any, reward: Any = None, **settings: Any) -> Any:
    return rl4lms.TextGenEnv(
        tokenizer, reward, [(SAMPLE, 1.0)], **{"max_episode_length": 3, "max_prompt_length": 4, **settings}
    )


def test_everything_is_padded_on_the_left_and_the_input_has_no_gap(tokenizer: Any) -> None:
    env = env_of(tokenizer)
    observation, info = env.reset(SAMPLE)
    assert observation["prompt_or_input_encoded_pt"].tolist() == [0, 0, 1, 2]
    assert observation["prompt_or_input_attention_mask_pt"].tolist() == [0, 0, 1, 1]
    assert observation["context_encoded_pt"].tolist() == [0, 0, 0]
    assert observation["context_attention_mask_pt"].tolist() == [0, 0, 0]
    assert observation["input_encoded_pt"].tolist() == [0, 0, 0, 0, 0, 1, 2]
    assert info["output"] == ""
    observation, _, _, _, info = env.step(3)
    observation, _, _, _, info = env.step(4)
    assert observation["context_encoded_pt"].tolist() == [0, 3, 4]
    assert observation["context_attention_mask_pt"].tolist() == [0, 1, 1]
    assert observation["input_encoded_pt"].tolist() == [0, 0, 0, 1, 2, 3, 4]
    assert observation["input_attention_mask_pt"].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert observation["prompt_or_input_encoded_pt"].tolist() == [0, 0, 1, 2]
    assert env.observation_space.contains(observation)
    assert info == {
        "output": "c d",
        "action_history": ["c", "d"],
        "reference_text": ["c d", "d"],
        "prompt_text": "a b",
        "prev_output": "c",
        "meta_info": {"topic": "letters"},
    }


def test_eos_ends_an_episode_only_where_it_is_asked_to_and_the_length_always(tokenizer: Any) -> None:
    def ends(actions: list[int], **settings: Any) -> list[tuple[bool, bool]]:
        env = env_of(tokenizer, **settings)
        env.reset(SAMPLE)
        return [env.step(action)[2:4] for action in actions]

    assert ends([1, 0], terminate_on_eos=True) == [(False, False), (True, False)]
    assert ends([0, 0, 0]) == [(False, False), (False, False), (False, True)]
    assert ends([1, 2, 0], terminate_on_eos=True)[-1] == (True, False)  # both at once: it is the end of the text
    env = env_of(tokenizer, terminate_on_eos=True)
    env.reset(SAMPLE)
    env.step(0)
    with pytest.raises(GavelError, match="reset"):
        env.step(1)


def test_a_reward_function_sees_the_states_before_and_after_every_action(tokenizer: Any) -> None:
    seeing = Seeing()
    env = env_of(tokenizer, seeing)
    env.reset(SAMPLE)
    assert [env.step(action)[1] for action in (3, 0, 4)] == [3.0, 0.0, 3.0]
    assert seeing.asked == [
        ("", 3, "c", False, {"topic": "letters"}),
        ("c", 0, "c", False, {"topic": "letters"}),  # special tokens are not shown
        ("c", 4, "c d", True, {"topic": "letters"}),
    ]
    env = env_of(tokenizer)
    env.reset(SAMPLE)
    assert env.step(3)[1] == 0.0  # without a function


class Batched(rl4lms.BatchedRewardFunction):
    def __init__(self, given: Any) -> None:
        self.given = given

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        assert (prompt_texts, ref_texts, meta_infos) == (["a b"], [["c d", "d"]], [{"topic": "letters"}])
        return [self.given if done else 0.0 for done in dones]


def test_a_batched_function_is_asked_with_one_text_and_gives_a_finite_number(tokenizer: Any) -> None:
    env = env_of(tokenizer, Batched(3))
    env.reset(SAMPLE)
    assert [env.step(2)[1] for _ in range(3)] == [0.0, 0.0, 3.0]
    for given in ("0.5", None, math.nan, math.inf):
        env = env_of(tokenizer, Batched(given), max_episode_length=1)
        env.reset(SAMPLE)
        with pytest.raises(GavelError, match="the reward function gave"):
            env.step(1)


def test_samples_are_drawn_by_weight_to_the_power_of_the_scale(tokenizer: Any) -> None:
    def probabilities(scale: float, *weights: float) -> list[float]:
        sampler = rl4lms.PrioritySampler[int](scale)
        for at, weight in enumerate(weights):
            sampler.add(at, weight)
        return sampler.probabilities

    assert probabilities(0.0, 1.0, 9.0, 0.0) == pytest.approx([1 / 3] * 3)
    assert probabilities(1.0, 1.0, 3.0) == pytest.approx([0.25, 0.75])
    assert probabilities(0.5, 1.0, 9.0) == pytest.approx([0.25, 0.75])
    assert probabilities(2.0, 1.0, 3.0) == pytest.approx([0.1, 0.9])
    with pytest.raises(GavelError, match="no sample to draw"):
        probabilities(1.0, 0.0)
    first, second = rl4lms.TextGenPool([rl4lms.Sample(str(at), "a", []) for at in range(10)]).split([0.25, 0.7])
    assert ([each.id for each, _ in first], len(second)) == (["0", "1"], 7)
    samples = [(rl4lms.Sample(str(at), "a", []), weight) for at, weight in enumerate((1.0, 3.0))]
    env = rl4lms.TextGenEnv(tokenizer, None, samples, 2, priority_scale=1.0, max_prompt_length=2)
    drawn = [env.sampler_for_replaying.sample(1, random.Random(seed))[0].id for seed in range(2000)]
    assert drawn.count("1") / 2000 == pytest.approx(0.75, abs=0.05)


def test_wrong_settings_are_refused(tokenizer: Any) -> None:
    with pytest.raises(GavelError, match="no settings"):
        env_of(tokenizer, max_episode_length=0)
    tokenizer.model_max_length = int(1e30)
    with pytest.raises(GavelError, match="max_prompt_length"):
        env_of(tokenizer, max_prompt_length=None)
    env = env_of(tokenizer)
    env.reset()
    with pytest.raises(GavelError, match="no token"):
        env.step(17)


def observed(tokenizer: Any, text: str, references: list[str]) -> Any:
    sample = rl4lms.Sample("1", "a", references)
    observation = rl4lms.Observation.init_from_sample(sample, env_of(tokenizer).tokenizer, 4, 3)
    return replace(observation, context_text=text)


def test_text_rewards_are_those_of_their_libraries_at_the_end_alone(tokenizer: Any) -> None:
    after = observed(tokenizer, "the cat sat", ["the cat sat down", "a cat"])
    before = observed(tokenizer, "", [])
    one = reward_of(rl4lms.RougeReward("rouge1"), before, 1, after, True)
    assert one == pytest.approx(2 * 1 * 0.75 / 1.75)  # precision 1, recall 3/4
    assert reward_of(rl4lms.RougeReward("rouge1"), before, 1, after, False) == 0
    best = observed(tokenizer, "a cat", ["the cat sat down", "a cat"])
    assert reward_of(rl4lms.RougeReward("rougeL", use_single_ref=False), before, 1, best, True) == pytest.approx(1.0)
    assert reward_of(rl4lms.SacreBleuReward(effective_order=True), before, 1, best, True) == pytest.approx(1.0)
    parts = [reward_of(rl4lms.RougeReward(each), before, 1, after, True) for each in ("rouge1", "rouge2", "rougeL")]
    assert reward_of(rl4lms.RougeCombinedReward(), before, 1, after, True) == pytest.approx(sum(parts) / 3)
    shaped = rl4lms.RougeReward("rouge1", shaping_fn=Seeing())
    assert reward_of(shaped, before, 4, after, True) == pytest.approx(one + 3)


def test_increasing_numbers_count_as_long_as_they_increase(tokenizer: Any) -> None:
    reward, before = rl4lms.IncreasingNumbersReward(min_tokens=4), observed(tokenizer, "", [])
    texts = {"1 2 7 3": 0.75, "1 2 3 4 5 6": 1.0, "x 1 2": 0.0, "": 0.0, "5 5": 0.25, "1 nan 3": 0.25}
    for text, value in texts.items():
        assert reward_of(reward, before, 1, observed(tokenizer, text, []), True) == value, text


def test_metrics_give_a_value_for_each_text_and_one_for_all() -> None:
    texts, references = ["the cat", "dogs"], [["the cat sat"], ["dogs", "a dog"]]
    rouge = rl4lms.RougeMetric().compute([], texts, references)
    values, whole = rouge["lexical/rouge1"]
    assert values == pytest.approx([0.8, 1.0])
    assert whole == pytest.approx(0.9)
    found: Any = rl4lms.SacreBleuMetric().compute([], ["a b c d e", "a b c d f"], [["a b c d e"]] * 2)
    each, bleu = found["lexical/sacrebleu"]
    assert (each[0], each[1] < bleu < 1) == (pytest.approx(1.0), True)


def test_token_rewards_are_paid_at_their_tokens_and_the_rest_of_the_reward_at_the_end() -> None:
    trajectory = attempt(sampled_turn([1, 2], [3, 4, 5], token_rewards=[0.5, 0.25, 2.0]), reward=2.75)
    (tokens,) = sequences(trajectory)
    assert token_rewards(trajectory, tokens) == pytest.approx([0.5, 0.25, 2.0])
    trajectory.reward = 3.75
    assert token_rewards(trajectory, tokens) == pytest.approx([0.5, 0.25, 3.0])
    assert fits_its_turns(trajectory)
    for wrong in ([0.5], [0.5, math.nan, 1.0]):
        assert not fits_its_turns(attempt(sampled_turn([1], [3, 4, 5], token_rewards=wrong), reward=1.0))


class EveryToken(rl4lms.RewardFunction):
    """Pays a tenth for each token of an even number."""

    def __call__(self, prev_observation, action, current_observation, done, meta_info=None) -> float:
        return 0.1 * (int(action) % 2 == 0)


def test_tasks_of_a_step_are_drawn_by_their_weights() -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(EMBEDDED_PATH))
    samples = [(rl4lms.Sample(str(at), "word", []), 1.0 if at < 5 else 0.0) for at in range(40)]
    arguments: dict[str, Any] = {"max_episode_length": 4, "max_prompt_length": 8, "held_out": []}
    weighted = rl4lms.text_scenario("w", tokenizer, EveryToken(), samples, priority_scale=1.0, **arguments)
    assert {task.id for task in weighted.sample("train", 16, seed=0, step=3)} == {str(at) for at in range(5)}
    uniform = rl4lms.text_scenario("w", tokenizer, EveryToken(), samples, **arguments)
    assert len(uniform.sample("train", 16, seed=0, step=3)) == 16
    with pytest.raises(GavelError, match="an id of its own"):
        rl4lms.text_scenario("w", tokenizer, EveryToken(), [samples[0], samples[0]], **arguments)


@pytest.mark.slow
async def test_ppo_over_single_tokens_improves_the_return(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(EMBEDDED_PATH))
    samples = [rl4lms.Sample(str(at), f"I want a refund for order {7000 + at}.", ["It is done."]) for at in range(40)]
    settings: dict[str, Any] = {"max_episode_length": 12, "max_prompt_length": 32, "held_out": 0.4}
    metrics = [rl4lms.RougeMetric()]
    scenario = rl4lms.text_scenario("words", tokenizer, EveryToken(), samples, metrics=metrics, **settings)
    loop = gavel.LoopConfig(
        steps=10, tasks_per_step=8, group_size=4, reward={"hand": 1.0}, evaluate_every=10, final_tasks=16
    )
    train = rl4lms.ppo(learning_rate=4e-3, epochs=2, kl_in_reward=0.0)
    async with registered(tmp_path, max_context=256) as (model, backend):
        await gavel.train_scenario(model, scenario, None, loop, train)
        held_out = backend.history(model, "held_out")
        stored = [each for group in await backend.logged(model, "train", 1) for each in group]
        steps = backend.history(model, "train")
    assert held_out[-1]["return"] > held_out[0]["return"] + 0.2
    assert "value_loss" in steps[0]
    for trajectory in stored:
        (choice,) = trajectory.choices()
        extra: dict[str, Any] = choice.model_extra or {}
        assert 0 < len(extra["token_ids"]) <= 12
        assert extra["token_rewards"] == pytest.approx([0.1 * (token % 2 == 0) for token in extra["token_ids"]])
        assert trajectory.reward == pytest.approx(sum(extra["token_rewards"]))
        assert tokenizer.decode(extra["prompt_token_ids"]) == str(trajectory.messages()[0]["content"])
        assert np.isfinite(extra["token_logprobs"]).all()
