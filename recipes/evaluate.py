"""Measures the success of a trained agent, or of a language model as it is.

    python recipes/evaluate.py agent=runs/sac_glam/...
    python recipes/evaluate.py agent=runs/sac_glam/... objects=[3,6,10,20,30] splits=[test]
    python recipes/evaluate.py model=google/flan-t5-base             # zero-shot

By goal kind, split of goals and number of objects, sampled and greedy, with 95 % intervals
(Wilson), beside random play and the oracle where the environment has one. Prints a table and writes
results.csv and results.png to `output`. The keys are explained in recipes/config/evaluate.yaml.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from tqdm import tqdm

from torchrl_glam.envs import describe_env
from torchrl_glam.models import load_agent, zero_shot_agent
from torchrl_glam.training.build import choose_device
from torchrl_glam.training.config import EvaluateConfig, read_config
from torchrl_glam.training.program import program
from torchrl_glam.viewing import (
    choose_game,
    format_results,
    make_game,
    measure,
    plot_results,
    tokenize,
    write_results,
)

ConfigStore.instance().store(name="evaluate_schema", node=EvaluateConfig)


@program
@hydra.main(version_base=None, config_path="config", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    config = read_config(EvaluateConfig, cfg)

    # 1. The agent
    device = choose_device(config.device)
    options = {"device": device, "max_tokens_per_pass": config.max_tokens_per_pass}
    if config.agent is not None:
        agent, name = load_agent(config.agent, **options), "agent"
    else:
        agent, name = zero_shot_agent(config.model, config.chat_template, **options), "zero-shot"
    settings = choose_game(config, agent)
    splits = config.splits or list(settings["eval_splits"])
    sizes = [{"num_objects": number} for number in config.objects or []] or [{}]

    # 2. Every figure: the agent sampled and greedy, random play, the oracle
    yardsticks = 2 if config.references else 0
    measurements = len(splits) * len(sizes) * (len(config.modes) + yardsticks)
    bar = tqdm(total=measurements * config.episodes, desc="evaluate", unit="episode")
    results = []
    for split in splits:
        for size in sizes:
            game = make_game(settings, num_envs=config.episodes, split=split, device=device, **size)
            env, oracle = tokenize(game, agent, settings), describe_env(game).make_oracle
            modes = config.modes
            played = [(f"{name}, {mode}", env, agent.policy, mode == "greedy") for mode in modes]
            if config.references:
                played += [("random play", game, None, False)]
                played += [("oracle", game, oracle(), False)] if oracle else []
            objects = getattr(game, "num_objects", 0)
            for label, place, policy, deterministic in played:
                bar.set_postfix_str(f"{label}, {split} goals")
                before = bar.n
                results += measure(
                    policy,
                    place,
                    label,
                    split=split,
                    objects=objects,
                    seed=config.seed,
                    deterministic=deterministic,
                    progress=lambda over, before=before: bar.update(before + over - bar.n),
                )
    bar.close()

    # 3. Table, CSV, picture
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    write_results(results, folder / "results.csv")
    plot_results(results, folder / "results.png")
    print(format_results(results))
    print(f"Results in {folder}")


if __name__ == "__main__":
    main()
