"""Measures the success of trained agents, or of a language model without training.

    python recipes/evaluate.py agent=runs/sac_glam/...
    python recipes/evaluate.py agent=[runs/seed0,runs/seed1,runs/seed2]      # same settings
    python recipes/evaluate.py agent=runs/sac_glam/... objects=[3,6,10,20,30] splits=[test]
    python recipes/evaluate.py model=google/flan-t5-base             # zero-shot

By goal kind, split of goals and number of objects, sampled and greedy, with 95 % intervals; also
of random play, and of the oracle where the environment has one. Intervals of an agent are over
episodes (Wilson), those of the mean of several are over agents (bootstrap). Prints a table and
writes results.csv and results.png to `output`. The keys are explained in
recipes/config/evaluate.yaml.
"""

from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from torchrl.envs import EnvBase
from tqdm import tqdm

from torchrl_glam.models.card import AgentCard, find_export
from torchrl_glam.runs.config import EvaluateConfig, read_config
from torchrl_glam.runs.files import reserved
from torchrl_glam.runs.program import program
from torchrl_glam.runs.success import Result
from torchrl_glam.text import describe_env
from torchrl_glam.viewing import (
    choose_game,
    format_results,
    make_game,
    measure,
    name_apart,
    open_agent,
    plot_results,
    pool,
    tokenize,
    write_results,
)

ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)


@program(config_path="config", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    config = read_config(EvaluateConfig, cfg)

    # 1. What is to be measured: agents trained in one environment, or a language model
    folders = config.agents
    several = len(folders) > 1
    names = name_apart(folders) if several else ["agent" if folders else "zero-shot"]
    cards = [AgentCard.read(find_export(Path(folder))) for folder in folders] or [None]
    settings, *others = [choose_game(config, card) for card in cards]
    for folder, other in zip(folders[1:], others, strict=True):
        if keys := [k for k in {**settings, **other} if settings.get(k) != other.get(k)]:
            raise ValueError(
                f"agent ({folder}) was trained with another {', '.join(keys)} than {folders[0]} "
                f"({other}, {settings}): evaluate them one by one, or give these keys (env= is the "
                "environment)"
            )
    splits = config.splits or list(settings["eval_splits"])
    sizes = [{"num_objects": number} for number in config.objects or []] or [{}]
    places = [(split, size) for split in splits for size in sizes]
    number = {"num_envs": config.episodes}
    try:
        games = [make_game(settings, **number, split=split, **size) for split, size in places]
    except ValueError as error:
        if config.objects and "num_objects" in str(error):
            raise ValueError(f"objects ({config.objects}): {error}") from error
        raise

    # 2. Every figure: each agent sampled and greedy, random play, the oracle
    figures = len(places) * (len(names) * len(config.modes) + (2 if config.references else 0))
    bar = tqdm(total=figures, desc="evaluate", delay=0.1)
    results: list[Result] = []

    def add(label: str, policy, env: EnvBase, split: str, size: dict, greedy=False) -> None:
        bar.set_postfix_str(f"{label}, {split} goals")
        own = getattr(env, "num_objects", 0)  # of a SerialEnv a list
        objects = size.get("num_objects", own if isinstance(own, int) else 0)
        options = {"split": split, "objects": objects, "seed": config.seed}
        results.extend(measure(policy, env, label, deterministic=greedy, **options))
        bar.update()

    folder, single = Path(config.output), [f"{n}, {mode}" for n in names for mode in config.modes]
    with reserved(folder, "results.csv", "results.png"):
        try:
            for name, agent_folder in zip(names, folders or [None], strict=True):
                agent = open_agent(config, agent_folder)  # one at a time is in memory
                for (split, size), game in zip(places, games, strict=True):
                    env = tokenize(game, agent, settings)
                    for mode in config.modes:
                        add(f"{name}, {mode}", agent.policy, env, split, size, mode == "greedy")
            for mode in config.modes if several else ():
                own = [r for r in results if r.policy in {f"{name}, {mode}" for name in names}]
                results += pool(own, f"{len(names)} agents, {mode}")
            for (split, size), game in zip(places, games, strict=True) if config.references else ():
                add("random play", None, game, split, size)
                if (oracle := describe_env(game).make_oracle) is not None:
                    add("oracle", oracle(), game, split, size)
        finally:  # what was measured is printed, whatever happened
            bar.close()
            results.sort(key=lambda r: (splits.index(r.split), r.objects))
            if results:
                print(format_results(results))

        # 3. CSV, picture
        write_results(results, folder / "results.csv")
        shown = [r for r in results if not several or r.policy not in single]
        plot_results(shown, folder / "results.png")
    if several:
        print("Each agent's interval is over episodes; that of their mean is over agents.")
    print(f"Results in {folder}")


if __name__ == "__main__":
    main()
