"""Writes a page that shows what a trained agent reads, considers and does, step by step.

    python recipes/watch.py agent=runs/sac_glam/... output=episodes.html
    python recipes/watch.py agent=runs/a beside=runs/b split=test    # two agents, the same scenes
    python recipes/watch.py model=tiny                               # a model before training

The page is one file that opens in any browser, without a network. The keys are explained in
recipes/config/watch.yaml.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from torchrl_glam.envs import describe_env
from torchrl_glam.models import load_agent, zero_shot_agent
from torchrl_glam.training.build import choose_device
from torchrl_glam.training.config import WatchConfig, read_config
from torchrl_glam.training.program import program
from torchrl_glam.viewing import choose_game, make_game, record, tokenize, write_page

ConfigStore.instance().store(name="watch_schema", node=WatchConfig)


@program
@hydra.main(version_base=None, config_path="config", config_name="watch")
def main(cfg: DictConfig) -> None:
    config = read_config(WatchConfig, cfg)

    # 1. One agent, or two
    device = choose_device(config.device)
    options = {"device": device, "max_tokens_per_pass": config.max_tokens_per_pass}
    if config.agent is None:
        agents = {"model": zero_shot_agent(config.model, config.chat_template, **options)}
    else:
        agents = {"agent": load_agent(config.agent, **options)}
    if config.beside is not None:
        folders = {Path(config.agent or config.model): agents.popitem()[1]}
        folders[Path(config.beside)] = load_agent(config.beside, **options)
        agents = named_apart(folders)

    # 2. Their episodes, on the same scenes
    runs, settings = {}, choose_game(config, next(iter(agents.values())))
    for name, agent in agents.items():
        game = make_game(settings, num_envs=config.episodes, split=config.split, device=device)
        episodes = record(
            agent,
            tokenize(game, agent, settings),
            seed=config.seed,
            deterministic=config.mode == "greedy",
            max_steps=config.longest,
        )
        runs[name] = agent, episodes
        success = sum(episode["success"] for episode in episodes)
        print(f"{name}: {success} of {len(episodes)} episodes reach their goal")

    # 3. The page
    who = " and ".join(str(p) for p in (config.agent or config.model, config.beside) if p)
    about = f"{who}, {config.split} goals, {config.mode}, seed {config.seed}"
    write_page(config.output, runs, describe_env(game).goal_kinds, about)
    print(f"Open {config.output} in a browser")


def named_apart(folders: dict) -> dict:
    """Agents by the last parts of their folders that differ."""
    (first, one), (second, other) = folders.items()
    for mine, its in zip(reversed(first.parts), reversed(second.parts), strict=False):
        if mine != its:
            return {mine: one, its: other}
    return {str(first): one, str(second): other}


if __name__ == "__main__":
    main()
