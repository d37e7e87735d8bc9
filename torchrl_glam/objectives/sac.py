"""The SAC-GLAM loss: discrete soft actor-critic on the heads of one shared language model.

Conventions. ``*B`` is the batch, ``A`` the number of candidate slots, ``N`` the number of critics.
The *state* is the root of the input tensordict, the *next state* its ``"next"`` entry, ``n`` steps
later if ``"steps_to_next_obs"`` says so. All entropies are in nats.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from tensordict import TensorDict, TensorDictBase, TensorDictParams, unravel_key
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from torch import Tensor, nn
from torch.func import functional_call
from torchrl.modules import MaskedCategorical
from torchrl.objectives import DiscreteSACLoss
from torchrl.objectives.utils import ValueEstimators, distance_loss

from torchrl_glam.objectives import _checks, functional
from torchrl_glam.objectives._checks import require
from torchrl_glam.objectives.trunk import SharedTrunk, enough


class SACGLAMLoss(SharedTrunk, DiscreteSACLoss):
    """Discrete SAC with a language model as the trunk of actor and critic.

    SAC-GLAM (Gaven et al., 2024), sections 2.1 and 2.2, Appendices B and C. The trunk runs three
    times a call: on the state with gradient; on the next states that do not terminate without it,
    by its own weights and the target's. :mod:`torchrl_glam.objectives.functional` has the formulas.

    A call returns ``loss_qvalue`` (distance to equation 3; truncated rows bootstrap, rewards are
    n-step returns already), ``loss_actor`` (through the log-likelihoods only: through Q the actor
    would push the shared trunk to raise the values), ``loss_alpha`` and, without gradient, the
    means ``alpha``, ``entropy``, ``q_value`` (of the taken actions), ``target_value`` and
    ``td_error`` (of the worst critic). Errors per row, ``[*B]``, go to the input's ``priority``
    key; its ``"priority_weight"`` ``[*B]``, if any, multiplies each row's losses.

    The trunk's trainable parameters are trained in place (``trunk_params``), and only these have
    target copies and stand in ``state_dict()``. Critics are copied (``qvalue_network_params``).
    ``SoftUpdate(loss, tau=...)`` moves the targets, ``loss.make_value_estimator(gamma=...)`` sets
    the discount (0.99).

    Args:
        trunk: the language model; it writes what actor and critic read. A
            :class:`~torchrl_glam.models.Trunk` is asked for no more than that.
        actor: head without parameters, from log-likelihoods to a
            :class:`~torchrl.modules.MaskedCategorical` with a finite ``neg_inf``:
            :class:`~torchrl_glam.models.CandidateActor`.
        critic: head or heads that write ``"action_value"`` ``[*B, A]``; the minimum counts.
        num_actions: number ``A`` of candidate slots.
        alpha_init: initial entropy coefficient, above 0; 0.005 in the paper without hindsight
            (Appendix C). Default: ``0.05``.
        alpha_end: coefficient to end with, above 0: :meth:`schedule` sets it, and ``loss_alpha``
            is 0. Default: None, it is learned, as in the paper.
        target_entropy: entropy for a learned coefficient to keep, in ``[0, log(num_actions)]``; 0
            in the paper without hindsight. Default: None, by the weight, or 0.01 without one.
        target_entropy_weight: share of each state's largest entropy, ``log`` of its admissible
            candidates, to keep where ``target_entropy`` is None, in ``[0, 1]``. Default: None.
        munchausen: share of ``alpha * log pi(a)`` of the action taken that is added to its reward
            (``functional.munchausen_bonus``), in ``[0, 1)``. Default: ``0.0``, as in the paper.
        critic_backprop: whether ``loss_qvalue`` trains the trunk too (Appendix B); may be changed
            between calls. Default: ``True``.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``. Default: ``"l2"``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` (the losses by row). Default: ``"mean"``.

    Raises:
        ValueError: for arguments out of range; on a call, if there are no rows, log-likelihoods
            are not ``num_actions`` wide, no candidate is admissible, or an action is not.
        FloatingPointError: on a call, if rewards, log-likelihoods or Q-values are not finite.

    Examples:
        >>> from torchrl_glam.models import CandidateActor, ObservationCritic
        >>> trunk = TensorDictModule(nn.Linear(2, 3), ["observation"], ["log_likelihood"])  # a toy
        >>> critic = ObservationCritic(2, 3, (8,), prompt_embedding_key="observation")
        >>> loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=3)
        >>> state = {"observation": torch.randn(5, 2), "action_mask": torch.ones(5, 3).bool()}
        >>> end = torch.ones(5, 1).bool()
        >>> following = state | {"done": end, "terminated": end, "reward": torch.rand(5, 1)}
        >>> rows = TensorDict(state | {"action": torch.arange(5) % 3, "next": following}, [5])
        >>> terms = loss(rows)
        >>> (terms["loss_actor"] + terms["loss_qvalue"] + terms["loss_alpha"]).backward()
        >>> rows["td_error"].shape
        torch.Size([5])
    """

    target_trunk_params: TensorDictParams

    out_keys = ["loss_actor", "loss_qvalue", "loss_alpha"]
    out_keys += ["alpha", "entropy", "q_value", "target_value", "td_error"]

    # The other estimators need a time dimension, which rows of a replay buffer do not have.
    SUPPORTED_VALUE_ESTIMATORS = (ValueEstimators.TD0,)

    def __init__(
        self,
        trunk: TensorDictModuleBase,
        actor: ProbabilisticTensorDictSequential,
        critic: TensorDictModule | Sequence[TensorDictModule],
        *,
        num_actions: int,
        alpha_init: float = 0.05,
        alpha_end: float | None = None,
        target_entropy: float | None = None,
        target_entropy_weight: float | None = None,
        munchausen: float = 0.0,
        critic_backprop: bool = True,
        loss_function: str = "l2",
        reduction: str = "mean",
    ) -> None:
        critics = [critic] if isinstance(critic, nn.Module) else list(critic)
        alphas = alpha_init, alpha_init if alpha_end is None else alpha_end
        _checks.check_common(actor, loss_function, reduction)
        require(num_actions >= 1, "num_actions", num_actions, "be at least 1: the candidate slots")
        for name, alpha in zip(("alpha_init", "alpha_end"), alphas, strict=True):
            require(0.0 < alpha < math.inf, name, alpha, "be positive and finite")
        share, most = target_entropy_weight, math.log(num_actions)
        require(0.0 <= (share or 0.0) <= 1.0, "target_entropy_weight", share, "lie in [0, 1]")
        default = 0.01 if share is None else 0.0
        aim, share = (default, share) if target_entropy is None else (target_entropy, None)
        fits = isinstance(aim, (int, float)) and 0.0 <= aim <= most  # TorchRL's "auto" is a text
        expected = f"be a number of nats in [0, log(num_actions)] = [0, {most:.4g}]"
        require(fits, "target_entropy", aim, expected)
        require(0.0 <= munchausen < 1.0, "munchausen", munchausen, "be in [0, 1): a share")
        if not critics or len({id(critic) for critic in critics}) != len(critics):
            raise ValueError(
                f"critic must be one module or several distinct ones, got {len(critics)} with "
                f"{len({id(critic) for critic in critics})} distinct: equal critics stay equal."
            )
        super().__init__(
            actor,
            critics[0],
            action_space="categorical",
            num_qvalue_nets=len(critics),
            loss_function=loss_function,
            alpha_init=alpha_init,
            target_entropy=aim,
            reduction=reduction,
            scalar_output_mode="exclude" if reduction == "none" else None,
            # One critic gains nothing from vmap, and two little MLPs run as fast in a loop.
            deactivate_vmap=True,
        )
        # TorchRL re-samples the critics' values. Passed as a list they would keep them, but a list
        # of one becomes views without a parameter among them (torchrl 0.14).
        values = TensorDict.from_modules(*critics, expand_identical=False).data
        self.qvalue_network_params.data.update_(values)
        dict(self.named_children())["target_qvalue_network_params"].data.update_(values)
        if reduction == "none":
            self.out_keys = self.out_keys[:3]  # the losses
        self._alphas = alpha_init, alpha_end
        self.target_entropy_weight = share
        self.num_actions = num_actions
        self.munchausen = munchausen
        self.critic_backprop = critic_backprop
        self.share_trunk(trunk)
        self.target_trunk_params = TensorDictParams(self.trunk_params.data.clone(), no_convert=True)
        self._has_update_associated["trunk"] = False
        self.make_value_estimator()  # lazily, the state_dict would change with the first call

    def schedule(self, done: float) -> None:
        """Sets a coefficient that is not learned, on a line from ``alpha_init`` to ``alpha_end``.

        Args:
            done: share of training that is done, in ``[0, 1]``, or ValueError is raised.
        """
        _checks.require(0.0 <= done <= 1.0, "done", done, "lie in [0, 1]: a share of training")
        start, end = self._alphas
        if end is not None:
            self.log_alpha.data.fill_(math.log(start + done * (end - start)))

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the critics: copies owned by the loss, stacked, ``[N, ...]`` each."""
        return self.qvalue_network_params.parameters()

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes all terms of one update, scalars unless ``reduction="none"``; see the class.

        Args:
            tensordict: transitions ``[*B]``: the trunk's inputs and the action mask at the root and
                under ``"next"``, the action, and under ``"next"`` reward, done and terminated,
                ``[*B, 1]``.
        """
        state = self._run_trunk(tensordict, self._heads)
        dist = self._policy(state)
        q_values = self._q_values(state)
        loss_qvalue, metrics = self._qvalue_term(tensordict, q_values, dist)
        loss_actor, entropy = self._actor_term(tensordict, q_values, dist)
        aim = self.target_entropy
        if self.target_entropy_weight is not None:
            aim = self.target_entropy_weight * dist.mask.sum(-1).to(entropy.dtype).log()
        loss_alpha = functional.alpha_loss(self.log_alpha, entropy, aim)
        loss_alpha = self._reduce(loss_alpha, tensordict) * (self._alphas[1] is None)

        tensordict.set(self.tensor_keys.priority, metrics["td_error"])
        out = {"loss_actor": loss_actor, "loss_qvalue": loss_qvalue, "loss_alpha": loss_alpha}
        if self.reduction == "none":
            return TensorDict(out, batch_size=tensordict.batch_size)
        means = {name: value.mean() for name, value in {"entropy": entropy, **metrics}.items()}
        return TensorDict({**out, "alpha": self.alpha, **means})

    @property
    def alpha(self) -> Tensor:
        """The entropy coefficient, a scalar without gradient."""
        return self.log_alpha.detach().exp()

    @torch.no_grad()
    def policy_and_values(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Probabilities of the candidates, and the least of the critics' Q-values, ``[*B, A]``.

        On the device of the states, wherever the loss is.
        """
        inputs = tensordict.select(*self._state_keys(self._heads))
        here = next(iter(inputs.values(True, True))).device
        state = self._run_trunk(inputs.to(self.log_alpha.device), self._heads)
        values = self._policy(state).probs, self._q_values(state).min(0).values
        return tuple(value.to(here) for value in values)

    def qvalue_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss alone, and its metrics per row ``[*B]``. Runs the trunk itself."""
        state = self._run_trunk(tensordict, self._heads)
        return self._qvalue_term(tensordict, self._q_values(state), self._policy(state))

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss alone, and minus its entropy ``[*B]``. Runs the trunk itself."""
        state = self._run_trunk(tensordict, self._heads)
        loss, entropy = self._actor_term(tensordict, self._q_values(state), self._policy(state))
        return loss, {"log_prob": -entropy}

    def _run_trunk(
        self, tensordict: TensorDictBase, heads: list[TensorDictModule], target: bool = False
    ) -> TensorDictBase:
        """The inputs of these heads. Values that a policy left in the batch are not reused."""
        inputs = tensordict.select(*self._state_keys(self._heads))
        only = enough(self.trunk, heads)
        options = {} if only is None else {"only": only}
        if not target:
            return self.trunk(inputs, **options)
        # Unlike to_module, which fills one slot per entry, this also replaces tied copies.
        weights = dict(self.target_trunk_params.flatten_keys(".").items())
        return functional_call(self.trunk, weights, (inputs,), options, tie_weights=True)

    def _policy(self, state: TensorDictBase) -> MaskedCategorical:
        dist = self.actor_network.get_dist(state)
        if dist.logits.shape[-1] != self.num_actions:
            raise ValueError(
                f"num_actions ({self.num_actions}) differs from the number of candidates the "
                f"trunk scored ({dist.logits.shape[-1]}): pass the number of slots of "
                "'action_mask', padding included."
            )
        return dist

    def _q_values(self, state: TensorDictBase, target: bool = False) -> Tensor:
        """Q-values of all critics, ``[N, *B, A]``."""
        inputs = state.select(*self.qvalue_network.in_keys)
        if not self.critic_backprop:
            inputs = inputs.detach()
        params = self.target_qvalue_network_params if target else self.qvalue_network_params
        return self._vmap_qnetworkN0(inputs, params)[self.tensor_keys.action_value]

    @torch.no_grad()
    def _compute_target(self, tensordict: TensorDictBase) -> Tensor:
        """Equation 3, ``[*B]``. On a GPU, the host waits for the rows that go on."""
        keys, next_state = self.tensor_keys, tensordict["next"]
        terminated, reward = next_state[keys.terminated], next_state[keys.reward]
        column, is_bool = (*tensordict[keys.action].shape, 1), terminated.dtype == torch.bool
        _checks.check_entry(reward, column, ("next", keys.reward))
        _checks.check_entry(terminated, column, ("next", keys.terminated), "bool", is_bool)
        _checks.check_finite(reward, ("next", keys.reward))
        going_on = ~terminated.squeeze(-1)
        next_value = torch.zeros_like(reward, dtype=self.log_alpha.dtype)
        rows = going_on.nonzero(as_tuple=True)
        if len(rows[0]) == going_on.numel():
            next_value = self._state_value(next_state).unsqueeze(-1)
        elif len(rows[0]):
            value = self._state_value(next_state.select(*self._state_keys(self._heads))[rows])
            next_value[rows] = value.unsqueeze(-1).to(next_value.dtype)
        return self.value_estimator.value_estimate(tensordict, next_value=next_value).squeeze(-1)

    def _state_value(self, state: TensorDictBase) -> Tensor:
        """Soft value under the policy and the target critic: the expectation in equation 3."""
        # A trunk that does not train is its own target.
        moving = not self.trunk_params.is_empty()
        heads = [self.actor_network] if moving else self._heads
        online = self._run_trunk(state, heads)
        try:
            dist = self._policy(online)
        except (ValueError, FloatingPointError) as error:
            raise type(error)(f"In the next states, of the rows that go on: {error}") from error
        target = online
        if moving:
            target = self._run_trunk(state, [self.qvalue_network], target=True)
        q_values = self._q_values(target, target=True).min(0).values
        _checks.check_finite(q_values, ("next", self.tensor_keys.action_value), dist.mask)
        q_values = q_values.masked_fill(~dist.mask, 0.0)  # which may be -inf there
        return functional.soft_value(dist.probs, dist.logits, q_values, self.alpha)

    def _qvalue_term(
        self, tensordict: TensorDictBase, q_values: Tensor, dist: MaskedCategorical
    ) -> tuple[Tensor, dict[str, Tensor]]:
        _checks.check_finite(q_values, self.tensor_keys.action_value, dist.mask)
        action = tensordict[self.tensor_keys.action]
        _checks.check_action(action, dist.mask, self.tensor_keys.action)
        target = self._compute_target(tensordict)
        if self.munchausen:
            log_prob = dist.logits.detach().gather(-1, action.unsqueeze(-1)).squeeze(-1)
            target = target + functional.munchausen_bonus(log_prob, self.alpha, self.munchausen)
        index = action.unsqueeze(-1).expand(len(q_values), *action.shape, 1)
        taken = q_values.gather(-1, index).squeeze(-1)
        distance = distance_loss(taken, target.expand_as(taken), self.loss_function).sum(0)
        metrics = {
            "q_value": taken.detach().mean(0),
            "target_value": target,
            "td_error": (taken.detach() - target).abs().max(0).values,
        }
        return self._reduce(distance, tensordict), metrics

    def _actor_term(
        self, tensordict: TensorDictBase, q_values: Tensor, dist: MaskedCategorical
    ) -> tuple[Tensor, Tensor]:
        policy = (dist.probs, dist.logits)
        min_q = q_values.detach().min(0).values.masked_fill(~dist.mask, 0.0)
        loss = -functional.soft_value(*policy, min_q, self.alpha)  # Christodoulou, 2019, eq. 12
        return self._reduce(loss, tensordict), functional.entropy(*policy).detach()

    def _reduce(self, loss: Tensor, tensordict: TensorDictBase) -> Tensor:
        weights = tensordict.get(self.tensor_keys.priority_weight, None)
        if weights is not None:
            # TorchRL would divide by the sum of the weights, of each micro-batch by its own: these
            # would then not add up to the whole batch.
            loss = loss * weights.reshape(loss.shape).to(loss.dtype)
        return self._reduce_loss(loss, tensordict=tensordict)

    @property
    def _heads(self) -> list[TensorDictModule]:
        return [self.actor_network, self.qvalue_network]

    def _set_in_keys(self) -> None:
        state_keys = self._state_keys(self._heads)
        next_keys = [self.tensor_keys.reward, self.tensor_keys.done, self.tensor_keys.terminated]
        self._in_keys = [
            self.tensor_keys.action,
            *state_keys,
            *(unravel_key(("next", key)) for key in [*next_keys, *state_keys]),
        ]

    def reset_parameters_recursive(self) -> None:
        """Re-initialises the critics and their targets. The trunk keeps its pretrained weights."""
        self._reset_module_parameters("qvalue_network", self.qvalue_network)
