"""RL4LMs' text-generation parts over Gavel: samples, the one-token environment, reward functions, metrics, and PPO.

    from gavel.integrations import rl4lms

    env = rl4lms.TextGenEnv(tokenizer, rl4lms.RougeReward("rougeL"), [(sample, 1.0)], max_episode_length=48,
                            max_prompt_length=64, terminate_on_eos=True)
    scenario = rl4lms.text_scenario("titles", tokenizer, reward, samples, max_episode_length=48, max_prompt_length=64)
    await gavel.train_scenario(model, scenario, None, gavel.LoopConfig(reward={"hand": 1.0}), rl4lms.ppo())

Observations and ends of episodes follow the published source (allenai/RL4LMs, 2023), in the API of Gymnasium 1;
docs/bridges.md maps its YAML files.
"""

import lazy_loader

_PARTS = {
    "environment": ["TextGenEnv", "ppo", "text_scenario"],
    "texts": [
        "BatchedRewardFunction",
        "IncreasingNumbersReward",
        "Observation",
        "PrioritySampler",
        "RewardFunction",
        "RougeCombinedReward",
        "RougeMetric",
        "RougeReward",
        "SacreBleuMetric",
        "SacreBleuReward",
        "Sample",
        "TextGenPool",
        "TextMetric",
    ],
}

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_PARTS)
