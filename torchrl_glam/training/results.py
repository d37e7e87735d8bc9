"""What a run leaves at its end: the trained model and its learning curve."""

from __future__ import annotations

from pathlib import Path

from tensordict import TensorDictBase
from torchrl.envs import EnvBase
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from torchrl_glam.models import export_agent
from torchrl_glam.training.evaluation import EVAL_SEED, evaluate
from torchrl_glam.training.metrics import MetricsTable
from torchrl_glam.training.plotting import plot_learning_curves


def save_results(
    folder: Path,
    table: MetricsTable,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    env: EnvBase,
    critics: TensorDictBase,
    export: str = "auto",
) -> dict[str, float]:
    """Writes ``model/`` and ``learning_curve.png`` to the folder of a run.

    Args:
        folder: the run's.
        table: metrics, with the results of
            :func:`~torchrl_glam.training.evaluation.evaluate_splits` in the last row.
        model: the trained language model, or its adapters.
        tokenizer: its tokenizer.
        env: training environment of the evaluations, for random play beside the curve.
        critics: parameters of the value heads, stacked.
        export: ``kind`` of :func:`~torchrl_glam.models.export_agent`, or ``"none"``, which leaves
            out ``model/``. Default: ``"auto"``.

    Returns:
        Success of the sampled policy at the end, by split of goals.
    """
    if export != "none":
        export_agent(folder / "model", model, tokenizer, critics, kind=export)
    splits = [key.split("/")[1] for key in table.rows[-1] if key.endswith("/sampled/success")]
    names = {f"{split} goals": f"eval/{split}/sampled" for split in splits}
    plot_learning_curves(
        {label: [table.column(f"{name}/success")] for label, name in names.items()},
        folder / "learning_curve.png",
        references={"random play": evaluate(None, env, seed=EVAL_SEED)["success"]},
    )
    return {name: table.rows[-1][f"{name}/success"] for name in names.values()}
