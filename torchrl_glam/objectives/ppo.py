"""The PPO-GLAM loss: proximal policy optimisation on the heads of one shared language model.

Conventions. ``*B`` is the batch, ``M`` the rows of a rollout, ``A`` the number of candidate slots;
``s, a, g`` are state, action and goal, ``g'`` is the goal of a relabelled row, ``pi_old`` is the
policy that made the rollout. All entropies and divergences are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from tensordict import NestedKey, TensorDictBase, TensorDictParams
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.utils import unravel_key
from torch import Tensor, nn
from torchrl.objectives import KLPENPPOLoss, LossModule
from torchrl.objectives.utils import ValueEstimators
from torchrl.objectives.value import GAE

from torchrl_glam.objectives._checks import check_action, check_finite, check_ppo_arguments
from torchrl_glam.objectives._ppo_heads import NOW, CentredClipPPOLoss, reading_now
from torchrl_glam.objectives._trunk import state_keys, trainable_leaves


class PPOGLAMLoss(LossModule):
    """PPO with a language model as the trunk of policy and value, with or without hindsight.

    The trunk runs once per call, with gradient; TorchRL's :class:`~torchrl.objectives.ClipPPOLoss`
    or :class:`~torchrl.objectives.KLPENPPOLoss` then sees heads only. With the ratio
    ``r = pi(a|s,g) / pi_old(a|s,g)`` and the advantage ``A``, both as SAC-GLAM (Gaven et al., 2024,
    Appendix G) writes them, what is maximised is the mean over the rows of

    - ``objective="clip"``, equation 4: ``min(r A, clip(r, 1 - eps, 1 + eps) A)``;
    - ``objective="kl"``, equation 5: ``r A - beta KL(pi_old(.|s,g), pi(.|s,g))``. (The paper prints
      a plus sign; PPO penalises the divergence.)

    Rows relabelled with a goal ``g'`` keep what the policy did under ``g``, so their ratio is
    ``r = pi(a|s,g') / pi_old(a|s,g)``, which is not 1 in the first epoch, and the divergence of
    equation 5 is ``KL(pi_old(.|s,g), pi(.|s,g'))``, which is not 0. ``clip_center="behaviour"``
    moves the centre of both to where relabelled rows begin, the policy that made the rollout under
    the new goal (G.2): with ``c = pi_old(a|s,g') / pi_old(a|s,g)``, 1 where nothing was relabelled,

    - clip: ``min(r A, clip(r, c - eps, c + eps) A)``;
    - kl: ``r A - beta KL(pi_old(.|s,g'), pi(.|s,g'))``.

    To these are added the entropy over admissible candidates and the distance of the state's value
    from its target. The entries are ``loss_objective``, ``loss_entropy`` and ``loss_critic``, each
    with its coefficient, to be summed; metrics, without gradient, are TorchRL's: ``entropy``,
    ``kl_approx``, ``explained_variance`` and ``clip_fraction``, ``ESS``, ``max_ratio``,
    ``mean_ratio`` or, with ``"kl"``, ``kl`` (mean). Masked candidates contribute exactly nothing.

    :func:`~torchrl_glam.objectives.ppo_networks` wires the same heads into TorchRL's own losses.
    Before an update, :meth:`prepare` is given the rows of the rollout, once. Parameters are trained
    where they are: :meth:`trunk_parameters` and :meth:`critic_parameters`, both ``parameters()``.
    Frozen and quantised weights are no part of ``state_dict()``; ``loss.to(...)`` moves them too.

    Args:
        trunk (TensorDictModuleBase): the language model; it writes what the heads read, per
            contract ``"log_likelihood"`` ``[*B, A]`` and ``"prompt_embedding"`` ``[*B, D]``:
            :class:`~torchrl_glam.models.ScoresOnly`.
        actor (ProbabilisticTensorDictSequential): head without parameters from log-likelihoods to
            a distribution: :class:`~torchrl_glam.models.CandidateActor` with ``return_log_prob``.
        value (TensorDictModule): head that writes ``"state_value"`` ``[*B, 1]``:
            :class:`~torchrl_glam.models.ValueHead`.

    Keyword Args:
        objective (str): ``"clip"`` or ``"kl"``. Default: ``"clip"``.
        clip_center (str): ``"one"`` or ``"behaviour"``, see above. Default: ``"one"``.
        clip_epsilon (float): ``eps``, above 0 and below 1. Default: ``0.2`` (Table 1).
        kl_coeff (float): ``beta`` at the start, at least 0; see :meth:`adapt_kl_coeff`. Default: 1.
        entropy_coeff (float): weight of the entropy. Default: ``0.01`` (Table 1).
        critic_coeff (float): weight of the value's loss. Default: ``0.5`` (Table 1).
        critic_backprop (bool): whether the value's loss trains the trunk too. Default: ``True``.
        loss_function (str): ``"l2"``, ``"l1"`` or ``"smooth_l1"``, between value and target.
            Default: ``"l2"``.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``. Default: ``"mean"``.

    Raises:
        ValueError: on construction, for an unknown ``objective`` or ``clip_center``, coefficients
            out of range, or an actor with parameters; on a call, if a state has no admissible
            candidate, or an action is out of range or masked.
        FloatingPointError: on a call, if log-likelihoods or advantages are not finite.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl_glam.models import CandidateActor, ValueHead
        >>> trunk = TensorDictModule(  # stands for a language model with 3 candidates
        ...     torch.nn.Linear(2, 3), in_keys=["observation"], out_keys=["log_likelihood"]
        ... )
        >>> actor = CandidateActor(return_log_prob=True)
        >>> value = ValueHead(2, (8,), prompt_embedding_key="observation")
        >>> loss = PPOGLAMLoss(trunk, actor, value)
        >>> _ = loss.make_value_estimator(gamma=0.99, lmbda=0.95)
        >>> rows = TensorDict(  # one episode of 5 steps
        ...     {
        ...         "observation": torch.randn(5, 2),
        ...         "action_mask": torch.ones(5, 3, dtype=torch.bool),
        ...         "next": {
        ...             "reward": torch.tensor([0.0, 0, 0, 0, 1]).unsqueeze(-1),
        ...             "done": torch.tensor([0, 0, 0, 0, 1]).bool().unsqueeze(-1),
        ...             "terminated": torch.tensor([0, 0, 0, 0, 1]).bool().unsqueeze(-1),
        ...         },
        ...     },
        ...     batch_size=[5],
        ... )
        >>> with torch.no_grad():  # what a collector's policy records
        ...     rows = value(actor(trunk(rows)))
        >>> terms = loss(loss.prepare(rows))
        >>> print(f"{terms['mean_ratio']:.4f}")
        1.0000
        >>> (terms["loss_objective"] + terms["loss_entropy"] + terms["loss_critic"]).backward()
    """

    @dataclass
    class _AcceptedKeys:
        """Keys that ``set_keys`` accepts; those of TorchRL's PPO, and the last two.

        Action, log-probability and value begin as the keys that actor and value head write.
        ``clip_center`` is ``c`` above, ``[*B]``, which :meth:`PPOGLAMLoss.prepare` writes;
        ``is_hindsight`` says which rows are relabelled, bool ``[*B]``.
        """

        advantage: NestedKey = "advantage"
        value_target: NestedKey = "value_target"
        value: NestedKey = "state_value"
        sample_log_prob: NestedKey = "action_log_prob"
        action: NestedKey = "action"
        reward: NestedKey = "reward"
        done: NestedKey = "done"
        terminated: NestedKey = "terminated"
        clip_center: NestedKey = "clip_center"
        is_hindsight: NestedKey = "is_hindsight"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = ValueEstimators.GAE

    def __init__(
        self,
        trunk: TensorDictModuleBase,
        actor: ProbabilisticTensorDictSequential,
        value: TensorDictModule,
        *,
        objective: Literal["clip", "kl"] = "clip",
        clip_center: Literal["one", "behaviour"] = "one",
        clip_epsilon: float = 0.2,
        kl_coeff: float = 1.0,
        entropy_coeff: float = 0.01,
        critic_coeff: float = 0.5,
        critic_backprop: bool = True,
        loss_function: str = "l2",
        reduction: str = "mean",
    ) -> None:
        check_ppo_arguments(actor, objective, clip_center, clip_epsilon, kl_coeff)
        super().__init__()
        self.objective, self.clip_center = objective, clip_center
        # Not a submodule: its frozen weights are no business of the loss's state_dict.
        self.__dict__["trunk"] = trunk
        self.trunk_params = TensorDictParams(trainable_leaves(trunk), no_convert=True)
        self.actor = actor
        self._scores = [unravel_key(k) for k in actor.in_keys if k in trunk.out_keys]
        own = {"clip": {"clip_epsilon": clip_epsilon}, "kl": {"beta": kl_coeff}}[objective]
        kind = CentredClipPPOLoss if objective == "clip" else KLPENPPOLoss
        if objective == "kl":  # its own rule would adapt beta at every call: see adapt_kl_coeff
            own |= {"increment": 1.0, "decrement": 1.0}
        # Functional losses keep parameters apart for targets; PPO has none.
        self.heads = kind(
            reading_now(actor, self._scores),
            value,
            functional=False,
            entropy_coeff=entropy_coeff,
            critic_coeff=critic_coeff,
            separate_losses=not critic_backprop,
            loss_critic_type=loss_function,
            reduction=reduction,
            **own,
        )
        written = self.heads.tensor_keys
        self.set_keys(
            action=written.action,
            sample_log_prob=written.sample_log_prob,
            value=value.out_keys[0],
        )

    @property
    def value(self) -> TensorDictModule:
        """The value head."""
        return self.heads.critic_network

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """The trainable parameters of the trunk, each once."""
        return self.trunk_params.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the value head."""
        return self.value.parameters()

    def make_value_estimator(
        self,
        value_type: ValueEstimators = ValueEstimators.GAE,
        *,
        gamma: float = 0.99,
        lmbda: float = 0.95,
        average_gae: bool = False,
    ) -> PPOGLAMLoss:
        """Sets how :meth:`prepare` estimates advantages.

        Args:
            value_type: only ``ValueEstimators.GAE``.
            gamma: discount a step. Default: 0.99.
            lmbda: lambda of the generalised advantage estimator. Default: 0.95.
            average_gae: shift and scale the advantages of all rows of a rollout together to mean 0
                and deviation 1. Default: False.

        Raises:
            NotImplementedError: for another estimator.
        """
        if value_type != ValueEstimators.GAE:
            raise NotImplementedError(f"value_type ({value_type}) must be ValueEstimators.GAE.")
        # Values are recorded or come from prepare, never from a second pass of the trunk.
        self._value_estimator = GAE(
            gamma=gamma, lmbda=lmbda, value_network=None, average_gae=average_gae
        )
        self._forward_value_estimator_keys()
        return self

    @torch.no_grad()
    def prepare(self, rows: TensorDictBase, rows_per_pass: int = 256) -> TensorDictBase:
        """Adds advantages, value targets and, with ``clip_center="behaviour"``, ratio centres.

        To be called once per rollout, before its first update. Recorded values are used as they
        are; the trunk reads only relabelled rows, for their value and log-probabilities under the
        new goal, and the next states of truncated ends, which bootstrap.

        Args:
            rows (TensorDictBase): transitions ``[M]``, in runs of consecutive steps, each of which
                ends with ``("next", "done")``, as
                :class:`~torchrl_glam.replay.HindsightTransform` lets them out: the trunk's inputs
                at the root and under ``"next"``, action, mask, and what the policy recorded:
                ``"log_likelihood"``, ``"action_log_prob"`` and ``"state_value"``. Changed in place.
            rows_per_pass (int): rows that go through the trunk at a time. Default: 256.

        Returns:
            TensorDictBase: the same rows.
        """
        keys = self.tensor_keys
        relabelled = rows.get(keys.is_hindsight, None)
        if self.clip_center == "behaviour":
            rows.set(keys.clip_center, torch.ones_like(rows[keys.sample_log_prob]))
        if relabelled is not None and relabelled.any():
            self._fill_relabelled(rows, relabelled, rows_per_pass)
        value, following = rows[keys.value], rows["next"]
        next_value = value.roll(-1, 0)  # of the next row, except at the end of a run
        bootstraps = (following[keys.done] & ~following[keys.terminated]).squeeze(-1)
        if bootstraps.any():
            ends = following.select(*state_keys(self.trunk, [self.value]))[bootstraps]
            next_value[bootstraps] = self._read(ends, rows_per_pass)[keys.value]
        rows.set(("next", keys.value), next_value)
        return self.value_estimator(rows)

    def _fill_relabelled(self, rows: TensorDictBase, relabelled: Tensor, size: int) -> None:
        """Values under the new goals, and where ratio and divergence start."""
        keys = self.tensor_keys
        inputs = state_keys(self.trunk, [self.actor, self.value])
        now = self._read(rows.select(*inputs, keys.action)[relabelled], size)
        rows[keys.value][relabelled] = now[keys.value]
        if self.clip_center == "behaviour":
            log_prob = self.actor.get_dist(now).log_prob(now[keys.action])
            start = log_prob - rows[keys.sample_log_prob][relabelled]
            rows[keys.clip_center][relabelled] = start.exp()
            for key in self._scores if self.objective == "kl" else ():
                rows[key][relabelled] = now[key]

    def _read(self, states: TensorDictBase, size: int) -> TensorDictBase:
        """The states with what trunk and value head write."""
        return torch.cat([self.value(self.trunk(part)) for part in states.split(size)])

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes the losses of one mini-batch; see the class for what they are.

        Args:
            tensordict (TensorDictBase): rows that :meth:`prepare` has seen, ``[*B]``.

        Returns:
            TensorDictBase: losses and metrics.
        """
        keys = self.tensor_keys
        now = self.trunk(tensordict.select(*state_keys(self.trunk, [self.actor, self.value])))
        check_action(tensordict[keys.action], self.actor.get_dist(now).mask, keys.action)
        check_finite(tensordict[keys.advantage], keys.advantage)
        for key in self._scores:
            score = now.pop(key)
            now.set(unravel_key((NOW, key)), score)
        out = self.heads(now.update(tensordict.select(*self._recorded())))
        if self.objective == "kl":
            out.set("kl", out["kl"].mean())
        return out

    def adapt_kl_coeff(self, kl: float, target: float) -> None:
        """Doubles ``beta`` if the divergence exceeds 1.5 times its target, halves it below 2/3.

        PPO (Schulman et al., 2017), section 4; once per rollout.

        Args:
            kl: mean divergence over the rollout's last epoch.
            target: the one wanted.
        """
        if kl > 1.5 * target:
            self.heads.beta *= 2
        elif kl < target / 1.5:
            self.heads.beta /= 2

    def _recorded(self) -> list[NestedKey]:
        """What the heads read of a row beside the state."""
        keys = self.tensor_keys
        out = [keys.action, keys.sample_log_prob, keys.advantage, keys.value_target]
        if self.objective == "kl":
            out += self._scores
        elif self.clip_center == "behaviour":
            out.append(keys.clip_center)
        return out

    @property
    def in_keys(self) -> list[NestedKey]:
        """Entries that a call reads: a mini-batch needs no others."""
        return [*self._recorded(), *state_keys(self.trunk, [self.actor, self.value])]

    @property
    def out_keys(self) -> list[str]:
        """Entries that a call returns."""
        return [*self.heads.out_keys, "explained_variance"]

    def _forward_value_estimator_keys(self, **kwargs) -> None:
        keys = dict(vars(self.tensor_keys))
        center = keys.pop("clip_center")
        del keys["is_hindsight"]
        self.heads.set_keys(**keys)
        if self.clip_center == "behaviour":
            self.heads.center_key = center
        if self._value_estimator is not None:
            del keys["action"]
            self._value_estimator.set_keys(**keys)

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> PPOGLAMLoss:
        self.trunk._apply(fn)  # frozen weights too; the trained ones do not move twice
        return super()._apply(fn)
