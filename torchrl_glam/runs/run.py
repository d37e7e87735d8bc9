"""Everything of a training run that is not its algorithm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from tensordict import TensorDictBase
from torchrl._utils import timeit

from torchrl_glam.models import Trunk, check_gradients
from torchrl_glam.objectives import UpdateFailedError
from torchrl_glam.runs.checkpoints.manager import CheckpointManager
from torchrl_glam.runs.config import RecipeConfig
from torchrl_glam.runs.device import choose_device
from torchrl_glam.runs.environments import make_probe
from torchrl_glam.runs.evaluation import Policy, evaluate_splits
from torchrl_glam.runs.files import replace_file
from torchrl_glam.runs.interrupt import StopSignal
from torchrl_glam.runs.out_of_memory import HalvingPasses
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.program import end_sweep, how_to_resume
from torchrl_glam.runs.records.metrics import MetricsTable, Record
from torchrl_glam.runs.records.progress import Progress
from torchrl_glam.runs.results import save_results
from torchrl_glam.runs.run_folder import CONFIG, DIVERGED, claimed
from torchrl_glam.runs.setting import Setting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


class Run(Setting):
    """A training run around an algorithm: a context manager.

    It owns the folder and its lock, seeds, device, the processes that torchrun started, what is
    checkpointed and restored, signals to stop, batches split for memory, the progress bar, metrics,
    evaluations and the results. An algorithm calls ``load_model`` and ``make_envs``, then
    :meth:`keeps`, loops over :meth:`rounds` with :meth:`step` and :meth:`log`, and ends with
    :meth:`finish`. If the loop ends by an error, a checkpoint is saved where the run's state is
    whole: all that was collected is stored, and the weights are finite.

    Args:
        config: the checked configuration.
        name: of the recipe.
        unit: of a step of the run, for the page. Default: ``"environment steps"``.
        record: keeps the run's page up to date, see
            :class:`~torchrl_glam.report.record.RunRecord`. Default: None, no page.
        resumable: whether checkpoints are saved. Default: True.

    Attributes:
        ranks: the processes of the run, one without torchrun.
        folder: where the run writes.
        counters: ``"steps"``, ``"updates"`` and ``"seconds"`` so far.
    """

    def __init__(
        self,
        config: RecipeConfig,
        name: str,
        *,
        unit: str = "environment steps",
        record: Callable[[Path, str, str], Record] | None = None,
        resumable: bool = True,
    ) -> None:
        super().__init__(config)
        self.name = name
        self.counters = {"steps": 0, "updates": 0, "seconds": 0.0}
        self._unit, self._make_record, self._resumable = unit, record, resumable
        self._whole = self._stopping = False

    def __enter__(self) -> Run:
        config = self.config
        self.ranks = Ranks.join(config)
        self.mine = self.ranks.share(config)
        self.folder = Path(config.resume or config.output)
        with self._stack as stack:  # gives the folder back if what follows fails
            with self.ranks.together():
                if self.ranks.first:
                    stack.enter_context(claimed(self.folder, resume=config.resume is not None))
            with self.ranks.together():
                if not self.folder.is_dir():
                    raise FileNotFoundError(
                        f"folder {str(self.folder)!r} is not there for process {self.ranks.rank}"
                    )
            self.settle(choose_device(config.device), config.seed)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        # Errors that every process raises at the same point, so they can still save together.
        shared = Exception if self.ranks.size == 1 else UpdateFailedError
        with self._stack:
            if isinstance(error, FloatingPointError):  # from which no run resumes
                if self.ranks.first:
                    replace_file(self.folder / DIVERGED, f"{error}\n")
            elif self._whole and self._resumable and isinstance(error, shared):
                try:
                    logger.warning("The run ends by an error; saved as %s", self._save())
                except Exception as second:
                    logger.warning("The run ends by an error, and could not be saved: %s", second)

    def keeps(self, **objects: Any) -> None:
        """Names what a checkpoint holds, and restores it if the run is resumed.

        Besides these it holds counters, metrics and the global random numbers. The first process
        gives the others its weights.

        Args:
            **objects: of the kinds that
                :class:`~torchrl_glam.runs.checkpoints.manager.CheckpointManager` saves; ``loss``
                and ``optimizer`` must be among them. ``goals`` are measured at evaluations, and
                closed at the end.

        Raises:
            ValueError: if a weight that is to be trained gets no gradient.
        """
        config, loss = self.config, objects["loss"]
        self._optimizer, self._goals = objects["optimizer"], objects.get("goals")
        if self._goals:
            self._stack.callback(self._goals.close)
        inner = getattr(loss.trunk, "trunk", loss.trunk)  # of scores alone, or of encoded actions
        check_gradients(inner)
        self.ranks.align(loss, self.mine.seed)
        trunk = loss.trunk if isinstance(loss.trunk, Trunk) else inner  # counts what is read
        self._passes = HalvingPasses(trunk, self._optimizer, config.max_tokens_per_pass)
        record = None
        if self._make_record is not None:
            record = self._make_record(self.folder, self._unit, self._pretraining)
        self._table = MetricsTable(
            self.folder, config.loggers, self.name, record=record, write=self.ranks.first
        )
        self._stack.callback(self._table.close)
        self._progress = Progress(config, self.game, self.counters, self.ranks)
        self._kept = {**objects, "metrics": self._table, **self._progress.kept}
        self._checkpoints = CheckpointManager(self.folder, ranks=self.ranks)
        if config.resume:
            made = self._checkpoints.load(self._kept, asdict(config), config.may_change)
            if made != self.counters["steps"]:
                raise ValueError(
                    f"the checkpoint of resume ({config.resume}) is named after {made} steps, and "
                    f"counts {self.counters['steps']}: it is damaged"
                )
            if made > config.total_steps:
                raise ValueError(
                    f"total_steps ({config.total_steps}) must be at least the {made} steps that "
                    f"resume ({config.resume}) has made"
                )
            inner.check_exactness()
        if self.ranks.first:
            replace_file(self.folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(asdict(config))))
            (self.folder / DIVERGED).unlink(missing_ok=True)

    def _save(self) -> Path:
        self._whole = False  # it is not tried again if this fails
        path = self._checkpoints.save(self.counters["steps"], self._kept, asdict(self.config))
        self._whole = True
        return path

    def step(
        self,
        loss: Callable[[TensorDictBase], TensorDictBase],
        batch: TensorDictBase,
        size: int | None = None,
        **options: Any,
    ) -> tuple[TensorDictBase, dict[str, float]]:
        """Makes one update: the gradient of a loss on a batch, and a step of the optimizer.

        The batch is split into parts of ``max_tokens_per_pass`` tokens, and these once more where
        memory runs out. What fails on one process fails on all. The update is timed and counted.

        Args:
            loss: gives means over the rows of a part.
            batch: rows of this process.
            size: rows of all processes. Default: the configuration's ``batch_size``.
            **options: of the optimizer's ``backward``.

        Returns:
            The loss's entries, this process's share of the means over all rows (of entries that are
            no means, over passes), and the norms that the optimizer's ``step`` returns.

        Raises:
            FloatingPointError: if numbers are not finite, with the last good checkpoint.
        """
        self._whole = True  # what was collected is stored by now
        try:
            with timeit("time/update"):
                result = self._passes.update(loss, batch, size or self.config.batch_size, **options)
        except FloatingPointError as error:
            raise diverged(error, self.counters, self.config, self._checkpoints.latest()) from error
        self.counters["updates"] += 1
        return result

    def rounds(
        self,
        collector: Iterable[TensorDictBase | None],
        policy: Policy,
        *,
        heads: Callable | None = None,
        apart: bool = False,
    ) -> Iterator[TensorDictBase]:
        """Yields what is collected, once a round, until the run's last step or a signal.

        Between two rounds metrics are written; evaluations and checkpoints are made where due.

        Args:
            collector: gives ``update_every`` steps a round, ``[num_envs, T]``.
            policy: is evaluated.
            heads: what policy and critic say of states, for the probe. Default: None, no probe.
            apart: whether other processes collect, so that an error there leaves the run's state
                whole. Default: False.
        """
        config, counters = self.config, self.counters
        self._policy, self._heads = policy, heads
        like = self._eval_envs["train"]
        self._probe = make_probe(config, self._tokenizer, like) if heads else None
        if self._probe:
            self._stack.callback(self._probe.env.close, raise_if_closed=False)
        self._stop = self._stack.enter_context(StopSignal())
        if hasattr(collector, "shutdown"):
            self._stack.callback(collector.shutdown)
        self._progress.start(self.name, self._stack)
        at, rows = counters["steps"], self._table.rows
        told = rows and rows[-1]["step"] == at and any(key.startswith("eval/") for key in rows[-1])
        if not rows or (at == config.total_steps and not told):  # an error came before its end
            self._table.add(at, self._evaluate())
            if at:
                self._save()
        batches = iter(collector)
        while counters["steps"] < config.total_steps and not self._stopping:
            self._whole = self._whole and apart
            steps = next(batches)
            self._whole = False  # these are not stored yet
            self._progress.begin_round(steps)
            yield None if steps is None else steps.reshape(self.mine.num_envs, -1)
            self._whole = True
            self._end_round()

    def _end_round(self) -> None:
        config, at = self.config, self.counters["steps"]
        finished, row = at >= config.total_steps, self._progress.end_round()
        if (config.eval_every and at % config.eval_every == 0) or finished:
            row |= self._evaluate()
            if self._probe:
                row |= self._probe(self._policy, self._heads)
        if row:
            self._table.add(at, row)
        due = config.checkpoint_every and at % config.checkpoint_every == 0
        self._stopping = self.ranks.any(self._stop.requested)  # all of them after the same round
        if self._resumable and (due or finished or self._stopping):
            self._save()

    def _evaluate(self) -> dict[str, float]:
        row = evaluate_splits(self._policy, self._eval_envs, self.ranks)
        return row | (self._goals.measure(self._policy) if self._goals else {})

    @property
    def rate(self) -> float:
        """Share of the learning rates at this step: it falls from 1 to ``lr_end``."""
        return 1 + (self.config.lr_end - 1) * self.counters["steps"] / self.config.total_steps

    @property
    def logs(self) -> bool:
        """Whether this round has a row of metrics: each ``log_every`` steps, and the last."""
        at = self.counters["steps"]
        return at % self.config.log_every == 0 or at >= self.config.total_steps

    def total(self, terms: TensorDictBase) -> dict[str, float]:
        """Metrics of an update, summed over the processes."""
        return {name: value.item() for name, value in self.ranks.sum(terms).items()}

    def log(self, metrics: Mapping[str, float], means: Mapping[str, float]) -> None:
        """Gives the metrics of this round's row, which has those of episodes, goals and time too.

        Args:
            metrics: the same on all processes.
            means: of this process; the mean over the processes is logged, or the largest for a
                name that ends in ``/max``.
        """
        self._progress.log(metrics, means)

    def finish(self, model: PreTrainedModel, critics: TensorDictBase) -> None:
        """Exports the trained model and completes the page, unless the run was stopped.

        Args:
            model: the language model, or its adapters.
            critics: parameters of the value heads, stacked.
        """
        self._progress.bar.close()
        at, unit = self.counters["steps"], self._unit.split()[-1]
        if self._stopping:
            how = f"; resume with: {how_to_resume(self.folder)}" if self._resumable else ""
            if self.ranks.first:
                logger.info("Stopped at step %s%s", at, how)
            end_sweep()
        if self._stopping or not self.ranks.first:
            return
        if not self.counters["updates"]:
            logger.warning(
                "No update was made, as the replay buffer never held batch_size (%s) transitions: "
                "lower it, or raise total_steps",
                self.config.batch_size,
            )
        env = self._eval_envs["train"]
        final = save_results(
            self.folder, self._table, model, self._tokenizer, env, critics, self.config
        )
        logger.info("Success after %s %s: %s. Results in %s", at, unit, final, self.folder)
        if self._stop.requested:  # since the last round
            end_sweep()


def diverged(
    error: FloatingPointError,
    counters: Mapping[str, float],
    config: RecipeConfig,
    checkpoint: Path | None,
) -> FloatingPointError:
    """The error of an update, with where it was, the learning rates and the newest checkpoint."""
    rates = {k: v for k, v in asdict(config).items() if k.startswith("lr_") and k != "lr_end"}
    rates = ", ".join(f"{name}={rate}" for name, rate in rates.items())
    last = (
        "it has saved no checkpoint"
        if checkpoint is None
        else f"its last good checkpoint is {checkpoint} (weights and optimizer are finite there; "
        "an earlier one may be better still)"
    )
    return FloatingPointError(
        f"update {counters['updates']} at step {counters['steps']}: {error} The run stops; {last}. "
        f"Learning rates that are too high do this: {rates}"
    )
