"""The judge as the reward of other trainers: one function for each framework, which makes what its reward hook takes.

    trainer = GRPOTrainer(model, reward_funcs=gavel.rewards.trl("openai/gpt-5-mini"), train_dataset=rows, args=args)

    trl_reward       TRL, and Axolotl and Unsloth, which use its GRPOTrainer
    verl_reward      verl's compute_score; verl_manager: its reward manager
    verifiers_reward (also prime-rl; verifiers_rubric_reward: before 0.2), tinker_reward, slime_reward,
    eval_protocol_reward, skyrl_reward, areal_reward, nemo_rl_reward     the frameworks of these names

    scorer           scores groups with a judge, a service or a model's name, also from code without an event loop
    members          prompts and completions, in a framework's shape -> trajectories
    unscored         what the reward hook is given for members without a score
    baseline         a number for them where a framework needs one
    token_turns      the turns of a token sequence, for frameworks that keep no messages
    all_ranks        groups whose members are spread over the processes of a run
    framework_parts  classes of a framework, looked up when its trainer calls a hook
    images           decoded images -> data URLs
    background_loop  the event loop that judges are asked on
    ruler            `ruler_score_group` stands here too, where code written for ART looks for it

No framework is imported before its trainer has imported it.
"""

from gavel.judge.ruler import ruler, ruler_score_group
from gavel.rewards.areal_reward import areal
from gavel.rewards.eval_protocol_reward import eval_protocol
from gavel.rewards.nemo_rl_reward import nemo_rl
from gavel.rewards.skyrl_reward import skyrl
from gavel.rewards.slime_reward import slime
from gavel.rewards.tinker_reward import tinker
from gavel.rewards.trl_reward import trl
from gavel.rewards.verifiers_reward import verifiers
from gavel.rewards.verifiers_rubric_reward import verifiers_rubric
from gavel.rewards.verl_reward import verl

__all__ = [
    "areal",
    "eval_protocol",
    "nemo_rl",
    "ruler",
    "ruler_score_group",
    "skyrl",
    "slime",
    "tinker",
    "trl",
    "verifiers",
    "verifiers_rubric",
    "verl",
]
