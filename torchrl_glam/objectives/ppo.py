"""The PPO-GLAM loss: proximal policy optimisation on the heads of one shared language model.

Conventions. ``*B`` is the batch, ``M`` the rows of a rollout, ``A`` the number of candidate slots;
``s, a, g`` are state, action and goal, ``g'`` is the goal of a relabelled row, ``pi_old`` is the
policy that made the rollout. All entropies and divergences are in nats.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from tensordict import NestedKey, TensorDictBase, unravel_key
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from torch import Tensor, nn
from torchrl.objectives import ClipPPOLoss, KLPENPPOLoss, LossModule
from torchrl.objectives.utils import ValueEstimators
from torchrl.objectives.value import GAE

from torchrl_glam.objectives import _checks
from torchrl_glam.objectives.functional import log_clip_bounds, ratio_center
from torchrl_glam.objectives.trunk import SharedTrunk

# Where the heads find what the trunk writes in this pass.
_NOW = "now"


class PPOGLAMLoss(SharedTrunk, LossModule):
    """PPO with a language model as the trunk of policy and value, with or without hindsight.

    The trunk runs once a call; TorchRL's :class:`~torchrl.objectives.ClipPPOLoss` or
    :class:`~torchrl.objectives.KLPENPPOLoss` sees heads only. With ``r = pi(a|s,g') /
    pi_old(a|s,g)``, where only relabelled rows have another goal ``g'``, the advantage ``A`` and
    the centre ``c``, it maximises the mean of (SAC-GLAM, Gaven et al., 2024, Appendix G)

    - ``objective="clip"``, equation 4: ``min(r A, clip(r, c - eps, c + eps) A)``;
    - ``objective="kl"``, equation 5: ``r A - beta KL(pi_old, pi(.|s,g'))``. (The paper prints a
      plus sign; PPO penalises the divergence.)

    ``clip_center="one"`` is ``c = 1`` and ``pi_old(.|s,g)``, as if nothing were relabelled.
    ``"behaviour"`` moves both to where these begin (G.2): ``c = pi_old(a|s,g') / pi_old(a|s,g)``
    and ``pi_old(.|s,g')``.

    The losses, each with its coefficient, are ``loss_objective``, ``loss_entropy`` and
    ``loss_critic``; metrics are TorchRL's, ``kl`` as its mean. :meth:`prepare` takes the rows of a
    rollout once, before its first update. Parameters are trained in place; frozen weights are not
    in ``state_dict()``.

    Args:
        trunk: the language model; it writes ``"log_likelihood"`` ``[*B, A]`` and what ``value``
            reads: :class:`~torchrl_glam.models.ScoresOnly`.
        actor: head without parameters, from log-likelihoods to a distribution:
            :class:`~torchrl_glam.models.CandidateActor` with ``return_log_prob``.
        value: head that writes ``"state_value"`` ``[*B, 1]``:
            :class:`~torchrl_glam.models.ValueHead`.
        objective: ``"clip"`` or ``"kl"``. Default: ``"clip"``.
        clip_center: ``"one"`` or ``"behaviour"``. Default: ``"one"``.
        clip_epsilon: ``eps``, above 0 and below 1. Default: ``0.2`` (Table 1).
        kl_coeff: ``beta`` at the start, at least 0; see :meth:`adapt_kl_coeff`. Default: ``1.0``.
        entropy_coeff: weight of the entropy. Default: ``0.01`` (Table 1).
        critic_coeff: weight of the value's loss. Default: ``0.5`` (Table 1).
        critic_backprop: whether the value's loss trains the trunk too. Default: ``True``.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``. Default: ``"l2"``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. Default: ``"mean"``.

    Raises:
        ValueError: for arguments out of range; on a call, if no candidate of a state is admissible,
            or an action is not.
        FloatingPointError: on a call, if log-likelihoods or advantages are not finite.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl_glam.models import CandidateActor, ValueHead
        >>> trunk = TensorDictModule(nn.Linear(2, 3), ["observation"], ["log_likelihood"])  # a toy
        >>> value = ValueHead(2, (8,), prompt_embedding_key="observation")
        >>> loss = PPOGLAMLoss(trunk, CandidateActor(return_log_prob=True), value)
        >>> ends = {"done": torch.ones(5, 1).bool(), "terminated": torch.ones(5, 1).bool()}
        >>> following = ends | {"reward": torch.rand(5, 1)}  # five episodes of one step
        >>> state = {"observation": torch.randn(5, 2), "action_mask": torch.ones(5, 3).bool()}
        >>> rows = value(loss.actor(trunk(TensorDict(state | {"next": following}, [5])))).detach()
        >>> print(f"{loss(loss.prepare(rows))['mean_ratio']:.4f}")
        1.0000
    """

    @dataclass
    class _AcceptedKeys(ClipPPOLoss._AcceptedKeys):
        """Keys that ``set_keys`` accepts: those of TorchRL's PPO, and two more.

        Action, log-probability and value begin as the keys that actor and value head write.
        ``clip_center`` is ``c`` above, ``[*B]``, which :meth:`PPOGLAMLoss.prepare` writes;
        ``is_hindsight`` says which rows are relabelled, bool ``[*B]``.
        """

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
        _checks.check_common(actor, loss_function, reduction)
        _checks.require_one_of("objective", objective, "clip", "kl")
        _checks.require_one_of("clip_center", clip_center, "one", "behaviour")
        _checks.require(0.0 < clip_epsilon < 1.0, "clip_epsilon", clip_epsilon, "be in (0, 1)")
        _checks.require(0.0 <= kl_coeff < torch.inf, "kl_coeff", kl_coeff, "be at least 0, finite")
        super().__init__()
        self.objective, self.clip_center = objective, clip_center
        self.share_trunk(trunk)
        self.actor = actor
        self._scores = [unravel_key(k) for k in actor.in_keys if k in trunk.out_keys]
        kind = _CentredClipPPOLoss if clip_center == "behaviour" else ClipPPOLoss
        own = {"clip_epsilon": clip_epsilon}
        if objective == "kl":  # its own rule would adapt beta at every call: see adapt_kl_coeff
            kind, own = KLPENPPOLoss, {"beta": kl_coeff, "increment": 1.0, "decrement": 1.0}
        # The actor runs on the scores of this pass; built without running, as KLPENPPOLoss does for
        # the old distribution, it takes the recorded ones.
        copy = [TensorDictModule(nn.Identity(), [(_NOW, key)], [key]) for key in self._scores]
        self.heads = kind(
            ProbabilisticTensorDictSequential(*copy, *actor),
            value,
            functional=False,  # parameters apart are for targets; PPO has none
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
        self.make_value_estimator()
        self.out_keys = [*dict.fromkeys([*self.heads.out_keys, "kl_approx"]), "explained_variance"]

    @property
    def value(self) -> TensorDictModule:
        """The value head."""
        return self.heads.critic_network

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
    ) -> "PPOGLAMLoss":
        """Sets the discount ``gamma`` and the ``lmbda`` of the generalised advantage estimator.

        With ``average_gae``, the advantages of a rollout are shifted and scaled to mean 0 and
        deviation 1. Another ``value_type`` raises NotImplementedError.
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
    def prepare(self, rows: TensorDictBase) -> TensorDictBase:
        """Adds advantages, value targets and, with ``clip_center="behaviour"``, ratio centres.

        Call it once per rollout, before its first update. The trunk reads only relabelled rows,
        and the next states of truncated ends, which bootstrap, each in one call: its
        ``max_tokens_per_pass`` bounds the memory.

        Args:
            rows: transitions ``[*B, M]``, in runs of consecutive steps along the last dimension
                that end with ``("next", "done")``, as those of
                :class:`~torchrl_glam.replay.HindsightTransform`, ``[M]``: the trunk's inputs at the
                root and under ``"next"``, action, mask, and the recorded ``"log_likelihood"``,
                ``"action_log_prob"`` and ``"state_value"``. Changed in place and returned.

        Raises:
            ValueError: if the last run is cut off.
        """
        keys = self.tensor_keys
        ended, last = rows["next", keys.done][..., -1:, 0].all(), f"the last {('next', keys.done)}"
        expected = "be True, as torchrl_glam.replay.close_rollout makes it"
        _checks.require(bool(ended), last, False, expected)
        relabelled = rows.get(keys.is_hindsight, None)
        if self.clip_center == "behaviour":
            rows.set(keys.clip_center, torch.ones_like(rows[keys.sample_log_prob]))
        if relabelled is not None and relabelled.any():
            self._fill_relabelled(rows, relabelled)
        value, following = rows[keys.value], rows["next"]
        next_value = value.roll(-1, rows.ndim - 1)  # of the next row, except at the end of a run
        bootstraps = (following[keys.done] & ~following[keys.terminated]).squeeze(-1)
        if bootstraps.any():
            ends = following.select(*self._state_keys([self.value]))[bootstraps]
            next_value[bootstraps] = self.value(self.trunk(ends))[keys.value].to(value.dtype)
        rows.set(("next", keys.value), next_value)
        return self.value_estimator(rows)

    def _fill_relabelled(self, rows: TensorDictBase, relabelled: Tensor) -> None:
        """Values under the new goals, and where ratio and divergence start."""
        keys = self.tensor_keys
        inputs = self._state_keys([self.actor, self.value])
        now = self.value(self.trunk(rows.select(*inputs, keys.action)[relabelled]))
        found = {keys.value: now[keys.value]}
        if self.clip_center == "behaviour":
            log_prob = self.actor.get_dist(now).log_prob(now[keys.action])
            recorded = rows[keys.sample_log_prob][relabelled]
            found[keys.clip_center] = ratio_center(log_prob, recorded)
            found |= {key: now[key] for key in self._scores if self.objective == "kl"}
        for key, values in found.items():
            entry = rows[key]  # a copy, if rows are stacked lazily
            entry[relabelled] = values.to(entry.dtype)
            rows.set(key, entry)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Losses and metrics of rows that :meth:`prepare` has seen, ``[*B]``; see the class."""
        keys = self.tensor_keys
        now = self.trunk(tensordict.select(*self._state_keys([self.actor, self.value])))
        _checks.check_action(tensordict[keys.action], self.actor.get_dist(now).mask, keys.action)
        _checks.check_finite(tensordict[keys.advantage], keys.advantage)
        for key in self._scores:
            score = now.pop(key)
            now.set(unravel_key((_NOW, key)), score)
        out = self.heads(now.update(tensordict.select(*self._recorded())))
        if self.objective == "kl":
            out.set("kl", out["kl"].mean())
        return out

    def adapt_kl_coeff(self, kl: float, target: float) -> None:
        """Doubles ``beta`` if ``kl`` exceeds 1.5 times its target, halves it below 2/3 of it.

        PPO (Schulman et al., 2017), section 4; once per rollout, by the mean of its last epoch.
        Raises ValueError where there is no such weight.
        """
        is_kl = self.objective == "kl"
        _checks.require(is_kl, "objective", self.objective, "be 'kl' for a weight to adapt")
        if kl > 1.5 * target:
            self.heads.beta *= 2
        elif kl < target / 1.5:
            self.heads.beta /= 2

    def _recorded(self) -> list[NestedKey]:
        """Entries of a row that the heads read, apart from the state."""
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
        return [*self._recorded(), *self._state_keys([self.actor, self.value])]

    def _forward_value_estimator_keys(self, **kwargs) -> None:
        keys = dict(vars(self.tensor_keys))
        self.heads.center_key = keys.pop("clip_center")
        del keys["is_hindsight"]
        self.heads.set_keys(**keys)
        if self._value_estimator is not None:
            del keys["action"]
            self._value_estimator.set_keys(**keys)


class _CentredClipPPOLoss(ClipPPOLoss):
    """Clips every row's ratio around a centre of its own, that of ``center_key``.

    The centre, ``[*B]`` and above 0, takes the place of 1 in ``clip(r, 1 - eps, 1 + eps)``.
    """

    center_key: NestedKey = "clip_center"

    def _log_weight(self, tensordict: TensorDictBase, adv_shape: torch.Size) -> tuple:
        self._center = tensordict[self.center_key].view(*adv_shape, 1)
        return super()._log_weight(tensordict, adv_shape)

    @property
    def _clip_bounds(self) -> tuple[Tensor, Tensor]:
        """Logarithms of the smallest and the largest ratio."""
        return log_clip_bounds(self._center, self.clip_epsilon)
