"""The judge as the reward of other trainers: one function for each framework, which makes what its reward hook takes.

    trainer = GRPOTrainer(model, reward_funcs=gavel.rewards.trl("openai/gpt-5-mini"), train_dataset=rows, args=args)

    trl_reward       TRL, and Axolotl and Unsloth, which use its GRPOTrainer
    verl_reward      verl's compute_score; verl_manager: its reward manager

    scorer           scores groups with a judge, a service or a model's name, also from code without an event loop
    members          prompts and completions, in a framework's shape -> trajectories
    unscored         what the reward hook is given for members without a score
    all_ranks        groups whose members are spread over the processes of a run
    images           decoded images -> data URLs
    background_loop  the event loop that judges are asked on
    ruler            `ruler_score_group` stands here too, where code written for ART looks for it

No framework is imported before its trainer has imported it.
"""

from gavel.judge.ruler import ruler, ruler_score_group
from gavel.rewards.trl_reward import trl
from gavel.rewards.verl_reward import verl

__all__ = ["ruler", "ruler_score_group", "trl", "verl"]
