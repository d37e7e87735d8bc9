"""Writes a page that shows what a trained agent reads, considers and does, step by step.

    python recipes/watch.py agent=runs/sac_glam/... output=episodes.html
    python recipes/watch.py agent=runs/a beside=runs/b split=test    # two agents, the same scenes
    python recipes/watch.py model=tiny                               # a model before training

The page is one file that opens in any browser, without a network. The page of an agent in its run's
folder goes there, and the run's report links to it. The keys are explained in
recipes/config/watch.yaml.
"""

from datetime import datetime
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig

from torchrl_glam.report import make_page, read_run
from torchrl_glam.runs.config import WatchConfig, read_config
from torchrl_glam.runs.files import replace_file, reserved
from torchrl_glam.runs.program import program
from torchrl_glam.runs.run_folder import METRICS, PAGE
from torchrl_glam.text import describe_env
from torchrl_glam.viewing import (
    choose_game,
    make_game,
    name_apart,
    open_agent,
    record,
    tokenize,
    write_page,
)

ConfigStore.instance().store(name="watch_schema", node=WatchConfig)


@program(config_path="config", config_name="watch")
def main(cfg: DictConfig) -> None:
    config = read_config(WatchConfig, cfg)

    # 1. One agent, or two
    folders, names = [config.agent], ["model" if config.agent is None else "agent"]
    if config.beside is not None:
        folders.append(config.beside)
        names = name_apart([config.agent or config.language_model, config.beside])
    agents = {name: open_agent(config, f) for name, f in zip(names, folders, strict=True)}

    # 2. Their episodes, on the same scenes; an agent's page lies beside the report of its run
    run = Path(config.agent) if config.agent and (Path(config.agent) / METRICS).exists() else None
    name = f"episodes_{datetime.now():%Y-%m-%d_%H-%M-%S}.html"
    output = Path(config.output) if config.output else (run or Path("runs/watch")) / name
    with reserved(output.parent, output.name):
        runs, settings = {}, {name: choose_game(config, agents[name].card) for name in agents}
        for name, agent in agents.items():
            game = make_game(settings[names[0]], num_envs=config.episodes, split=config.split)
            episodes = record(
                agent,
                tokenize(game, agent, settings[name]),
                seed=config.seed,
                deterministic=config.mode == "greedy",
                max_steps=config.longest,
            )
            runs[name] = agent, episodes
            success = sum(episode["success"] for episode in episodes)
            print(f"{name}: {success} of {len(episodes)} episodes reach their goal")

        # 3. The page
        shown = [config.agent or config.language_model, config.beside]
        who = " and ".join(str(name) for name in shown if name)
        about = f"{who}, {config.split} goals, {config.mode}, seed {config.seed}"
        read = [(own.get("memory"), own.get("long_texts", "error")) for own in settings.values()]
        if any(memory or cut != "error" for memory, cut in read):
            about += "; prompts are shown without memory, and texts whole that the agent reads cut"
        write_page(output, runs, describe_env(game).goal_kinds, about)
    if run is not None and output.parent == run:
        replace_file(run / PAGE, make_page(read_run(run)))  # with a link to the episodes
    print(f"Open {output} in a browser")


if __name__ == "__main__":
    main()
