"""What a run leaves at its end: the trained model, and its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from torchrl_glam.models import AgentCard, export_agent, write_model_card
from torchrl_glam.runs.config import ENVIRONMENT, RecipeConfig
from torchrl_glam.runs.environments import OWN_ENV, make_reference_env, of_evaluations
from torchrl_glam.runs.evaluation import play_randomly
from torchrl_glam.runs.records.metrics import MetricsTable
from torchrl_glam.runs.records.process import describe_process
from torchrl_glam.runs.success import ALL, Result
from torchrl_glam.text import describe_env

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_results(
    folder: Path,
    table: MetricsTable,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    env: EnvBase,
    critics: TensorDictBase,
    config: RecipeConfig,
) -> dict[str, float]:
    """Writes ``model/`` to the folder of a run, and its ``report.html`` for the last time.

    The last row of the table has the results of
    :func:`~torchrl_glam.runs.evaluation.evaluate_splits`; ``env`` is the training environment of
    evaluations, where other games than Playground-Text play at random. Returns success of the
    sampled policy at the end, by split of goals; see also
    :meth:`torchrl_glam.runs.run.Run.finish`.
    """
    config = of_evaluations(config)
    card = AgentCard(
        environment=config.pick(*ENVIRONMENT),
        template=config.template(tokenizer),
        normalisation=config.normalisation,
        critic=getattr(config, "critic_input", "state"),
        hidden_sizes=tuple(config.critic_hidden_sizes),
        num_actions=describe_env(env).num_actions,
        num_critics=len(critics),
        model=config.language_model,
        load_in_4bit=config.load_in_4bit,
        pretraining=getattr(model.config, "pretraining", ""),
    )
    export_agent(folder / "model", model, tokenizer, critics, card=card, overwrite=True)
    last, episodes, results = table.rows[-1], config.eval_episodes, []
    for key, rate in last.items():
        match key.split("/"):
            case ["eval", split, mode, "success"]:
                length = last[f"eval/{split}/{mode}/length"]
                reached = round(rate * episodes)
                results.append(Result(mode, split, 0, ALL, episodes, reached, length))
    write_model_card(folder / "model", results=results, origin=describe_process(), overwrite=True)
    if config.env_class == OWN_ENV:
        chance = play_randomly(make_reference_env(config))
    else:  # which may be slow: for a twentieth of the run's time
        chance = play_randomly(env, seconds=0.05 * last.get("seconds", 0.0))
    table.write_page({chance.policy: [chance.success, *chance.interval]})
    return {result.split: result.success for result in results if result.policy == "sampled"}
