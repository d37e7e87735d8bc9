"""Plays a text environment by hand, in the terminal.

    python recipes/play.py env=playground                        # or playground_simple
    python recipes/play.py env=playground goal="Grow red lion then grasp blue chair"
    python recipes/play.py agent=runs/sac_glam/...               # whose probabilities "h" shows

The keys are explained in recipes/config/play.yaml.
"""

import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from torchrl_glam.runs.config import PlayConfig, read_config
from torchrl_glam.runs.program import program
from torchrl_glam.text import describe_env
from torchrl_glam.viewing import choose_game, make_game, nearest_goals, open_agent, play, tokenize

ConfigStore.instance().store(name="play_schema", node=PlayConfig)


@program(config_path="config", config_name="play")
def main(cfg: DictConfig) -> None:
    config = read_config(PlayConfig, cfg)

    # 1. Who can be asked for a hint
    agent = open_agent(config, config.agent)

    # 2. The game, with the goal that was asked for
    settings = choose_game(config, agent.card)
    where = {"num_envs": 1, "split": config.split, "seed": config.seed}
    game = make_game(settings, **where)
    if config.goal is not None:
        if (goals := describe_env(game).goal_texts) is None:
            raise ValueError(f"goal ({config.goal!r}) cannot be chosen: there is no table of goals")
        goal = nearest_goals(config.goal, goals)
        game.close()
        game = make_game(settings, **where, goal_sampler=lambda _, n: torch.full((n,), goal))

    # 3. Play
    play(tokenize(game, agent, settings), agent)


if __name__ == "__main__":
    main()
