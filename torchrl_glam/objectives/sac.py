"""The SAC-GLAM loss: discrete soft actor-critic on the heads of one shared language model.

Conventions. ``*B`` is the batch, ``A`` the number of candidate slots, ``N`` the number of critics.
The *state* is the root of the input tensordict, the *next state* its ``"next"`` entry, ``n`` steps
later if ``"steps_to_next_obs"`` says so. All entropies are in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, TensorDictParams
from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    dispatch,
)
from tensordict.utils import unravel_key
from torch import Tensor, nn
from torch.func import functional_call
from torchrl.modules import MaskedCategorical
from torchrl.objectives import DiscreteSACLoss
from torchrl.objectives.utils import ValueEstimators, distance_loss

from torchrl_glam.models.trunk import Part
from torchrl_glam.objectives._checks import check_action, check_arguments, check_finite
from torchrl_glam.objectives._trunk import flat_items, state_keys, trainable_leaves


class SACGLAMLoss(DiscreteSACLoss):
    """Discrete SAC with a language model as the trunk of actor and critic.

    Implements SAC-GLAM (Gaven et al., 2024), sections 2.1 and 2.2 and Appendices B and C: discrete
    SAC (Christodoulou, 2019) in which actor and critic are heads on one language model, the
    *trunk*. The trunk runs three times per call: on the state with gradient, on the next state,
    and on the next state with its target weights. The last two run without gradient, and only for
    the rows that do not terminate. All that follows runs on heads.

    A trunk with ``written_keys``, such as this library's, is asked for no more than the heads read:
    a critic on the prompt alone (:func:`~torchrl_glam.models.make_critic`) costs its target pass no
    candidates.

    - ``loss_qvalue``: distance between the Q-value of the taken action and equation 3,
      ``y = reward + gamma^n * (1 - terminated) * sum_a pi(a) (Q_target(a) - alpha log pi(a))``.
      Truncated rows bootstrap. Rewards are expected to be n-step returns already, as
      :class:`~torchrl.envs.transforms.MultiStepTransform` makes them.
    - ``loss_actor``: ``sum_a pi(a) (alpha log pi(a) - min_N Q(a))``; only the log-likelihoods carry
      gradient, for through Q the actor would push the shared trunk to raise the values.
    - ``loss_alpha``: ``log_alpha * (entropy - target_entropy)``, which raises the entropy
      coefficient ``alpha`` while the policy's entropy is below its target, and lowers it above.

    Masked candidates have probability 0 and contribute exactly nothing to losses or gradients.

    Parameters. The trunk stays the caller's: its *trainable* parameters (those with
    ``requires_grad`` when the loss is built, once each if tied) are trained where they are, so a
    policy made of the same trunk follows every update; they are ``loss.trunk_params``, and
    ``loss.target_trunk_params`` holds a copy of them only, a few MB with LoRA. Frozen and quantised
    weights are neither copied nor saved by ``state_dict()``. The critics passed in are not trained:
    the loss owns copies, ``loss.qvalue_network_params``. Optimisers take :meth:`trunk_parameters`,
    :meth:`critic_parameters` and ``loss.log_alpha``, or see
    :class:`~torchrl_glam.objectives.SharedTrunkOptimizer`. ``SoftUpdate(loss, tau=...)`` moves the
    targets. Dropout follows the trunk's own ``train()`` and ``eval()``; ``loss.to(...)`` moves it.

    Args:
        trunk (TensorDictModuleBase): the language model; it writes what actor and critic read,
            per contract ``"log_likelihood"`` ``[*B, A]``, ``"action_embedding"`` ``[*B, A, D]``
            and ``"prompt_embedding"`` ``[*B, D]``.
        actor (ProbabilisticTensorDictSequential): head from log-likelihoods to a
            :class:`~torchrl.modules.MaskedCategorical` with a finite ``neg_inf``, without
            parameters: :class:`~torchrl_glam.models.CandidateActor`.
        critic (TensorDictModule or sequence of them): head or heads that write ``"action_value"``
            ``[*B, A]``; with several, targets and actor use their minimum. SAC-GLAM uses one.

    Keyword Args:
        num_actions (int): number ``A`` of candidate slots.
        alpha_init (float): initial entropy coefficient, above 0. Default: ``0.05``; the paper uses
            0.05 with hindsight and 0.005 without (Appendix C).
        target_entropy (float): entropy to keep, in ``[0, log(num_actions)]``. Default: ``0.01``;
            the paper uses 0.01 with hindsight and 0 without (Appendix C).
        critic_backprop (bool): whether ``loss_qvalue`` trains the trunk as well ("shared parameters
            with backpropagation", Appendix B) or the critic only. The attribute of the same name
            may be changed between calls. Default: ``True``.
        loss_function (str): ``"l2"``, ``"l1"`` or ``"smooth_l1"``. Default: ``"l2"``.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``; with ``"none"`` only the three losses
            are returned, per row. Default: ``"mean"``.

    Returns of a call, without gradient except for the losses: ``loss_actor``, ``loss_qvalue``,
    ``loss_alpha``, ``alpha`` (before the update), ``entropy`` (mean of the policy's), ``q_value``
    (mean of the taken actions'), ``target_value`` (mean of ``y``) and ``td_error`` (mean absolute,
    of the worst critic). The absolute errors per row, ``[*B]``, are written to the input under the
    ``priority`` key. A ``"priority_weight"`` ``[*B]`` in the input, as prioritised samplers write
    it, multiplies each row's losses before they are reduced.

    The discount is set by ``loss.make_value_estimator(gamma=0.99)`` (0.99 if never called); only
    the one-step estimator ``ValueEstimators.TD0`` is supported, n-step returns come with the data.

    Raises:
        ValueError: on construction, for ``num_actions`` below 1, ``alpha_init`` or
            ``target_entropy`` out of range, an unknown ``loss_function``, critics that are the same
            object, or an actor with parameters; on a call, if log-likelihoods are not
            ``num_actions`` wide, a state has no admissible candidate, or an action is out of range
            or masked.
        KeyError: on a call, if an entry is missing.
        FloatingPointError: on a call, if rewards, log-likelihoods or Q-values are not finite.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> from torchrl.objectives import SoftUpdate
        >>> from torchrl_glam.models import CandidateActor, CandidateCritic
        >>> class Trunk(torch.nn.Module):  # stands for a language model: 3 candidates, width 4
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embed = torch.nn.Linear(2, 12)
        ...         self.score = torch.nn.Linear(4, 1)
        ...     def forward(self, observation):
        ...         embedding = self.embed(observation).unflatten(-1, (3, 4))
        ...         return self.score(embedding).squeeze(-1), embedding
        >>> trunk = TensorDictModule(
        ...     Trunk(), in_keys=["observation"], out_keys=["log_likelihood", "action_embedding"]
        ... )
        >>> loss = SACGLAMLoss(trunk, CandidateActor(), CandidateCritic(4, (8,)), num_actions=3)
        >>> _ = loss.make_value_estimator(gamma=0.99)
        >>> target_updater = SoftUpdate(loss, tau=0.005)
        >>> state = lambda: {
        ...     "observation": torch.randn(5, 2),
        ...     "action_mask": torch.ones(5, 3, dtype=torch.bool),
        ... }
        >>> no = torch.zeros(5, 1, dtype=torch.bool)
        >>> batch = TensorDict(
        ...     {
        ...         **state(),
        ...         "action": torch.tensor([0, 1, 2, 0, 1]),
        ...         "next": {**state(), "reward": torch.rand(5, 1), "done": no, "terminated": no},
        ...     },
        ...     batch_size=[5],
        ... )
        >>> terms = loss(batch)
        >>> (terms["loss_actor"] + terms["loss_qvalue"] + terms["loss_alpha"]).backward()
        >>> target_updater.step()
        >>> batch["td_error"].shape
        torch.Size([5])
    """

    trunk: TensorDictModuleBase
    trunk_params: TensorDictParams
    target_trunk_params: TensorDictParams

    out_keys = [
        "loss_actor",
        "loss_qvalue",
        "loss_alpha",
        "alpha",
        "entropy",
        "q_value",
        "target_value",
        "td_error",
    ]

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
        target_entropy: float = 0.01,
        critic_backprop: bool = True,
        loss_function: str = "l2",
        reduction: str = "mean",
    ) -> None:
        critics = [critic] if isinstance(critic, nn.Module) else list(critic)
        check_arguments(actor, critics, num_actions, alpha_init, target_entropy, loss_function)
        super().__init__(
            actor,
            critics[0],
            action_space="categorical",
            num_qvalue_nets=len(critics),
            loss_function=loss_function,
            alpha_init=alpha_init,
            target_entropy=target_entropy,
            reduction=reduction,
            scalar_output_mode="exclude" if reduction == "none" else None,
            # One critic gains nothing from vmap, and two little MLPs run as fast in a loop.
            deactivate_vmap=True,
        )
        # TorchRL re-samples the critics' values. Passed as a list they would keep them, but a list
        # of one becomes views without a parameter among them (torchrl 0.14).
        values = TensorDict.from_modules(*critics, expand_identical=False).data
        self.qvalue_network_params.data.update_(values)
        self._modules["target_qvalue_network_params"].data.update_(values)
        self.num_actions = num_actions
        self.critic_backprop = critic_backprop
        # Not a submodule: its frozen weights are no business of the loss's state_dict, and
        # convert_to_functional would copy and re-initialise pretrained ones.
        self.__dict__["trunk"] = trunk
        self.trunk_params = TensorDictParams(trainable_leaves(trunk), no_convert=True)
        self.target_trunk_params = TensorDictParams(self.trunk_params.data.clone(), no_convert=True)
        self._has_update_associated["trunk"] = False

    def trunk_parameters(self) -> Iterator[nn.Parameter]:
        """The trainable parameters of the trunk: the live ones, each once."""
        return self.trunk_params.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the critics: copies owned by the loss, stacked, ``[N, ...]`` each."""
        return self.qvalue_network_params.parameters()

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Computes all terms of one update; see the class for what they are.

        Args:
            tensordict (TensorDictBase): batch of transitions, ``[*B]``: the trunk's inputs and the
                action mask at the root and under ``"next"``, the action, and under ``"next"``
                reward, done and terminated, ``[*B, 1]``.

        Returns:
            TensorDictBase: the terms, scalars unless ``reduction="none"``.
        """
        state = self._read_state(tensordict)
        dist = self._policy(state)
        q_values = self._q_values(state)
        loss_qvalue, q_metrics = self._qvalue_term(tensordict, q_values, dist.mask)
        loss_actor, log_prob = self._actor_term(tensordict, q_values, dist)
        loss_alpha = self._reduce(self._alpha_loss(log_prob), tensordict)

        tensordict.set(self.tensor_keys.priority, q_metrics["td_error"])
        out = {"loss_actor": loss_actor, "loss_qvalue": loss_qvalue, "loss_alpha": loss_alpha}
        if self.reduction == "none":
            return TensorDict(out, batch_size=tensordict.batch_size)
        out.update(alpha=self._alpha, entropy=-log_prob.mean())
        out.update({name: value.mean() for name, value in q_metrics.items()})
        return TensorDict(out)

    @torch.no_grad()
    def policy_and_values(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor]:
        """Probabilities of the candidates, and the least of the critics' Q-values, ``[*B, A]``."""
        state = self._read_state(tensordict)
        return self._policy(state).probs, self._q_values(state).min(0).values

    def qvalue_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critic's loss alone, and its metrics per row ``[*B]``. Runs the trunk itself."""
        state = self._read_state(tensordict)
        return self._qvalue_term(tensordict, self._q_values(state), self._policy(state).mask)

    def actor_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss alone, and minus its entropy ``[*B]``. Runs the trunk itself."""
        state = self._read_state(tensordict)
        loss, log_prob = self._actor_term(tensordict, self._q_values(state), self._policy(state))
        return loss, {"log_prob": log_prob}

    def _run_trunk(
        self, tensordict: TensorDictBase, target: bool = False, only: Part | None = None
    ) -> TensorDictBase:
        """The inputs of the heads. Values that a policy left in the batch are not reused."""
        inputs = tensordict.select(*self._state_keys())
        options = {} if only is None else {"only": only}
        if not target:
            return self.trunk(inputs, **options)
        # Unlike to_module, which fills one slot per entry, this also replaces tied copies.
        weights = {".".join(k): v for k, v in flat_items(self.target_trunk_params)}
        return functional_call(self.trunk, weights, (inputs,), options, tie_weights=True)

    def _read_state(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What both heads read of the state, with the gradient that they send."""
        critic = self._enough(self.qvalue_network)
        apart = critic == "embeddings" and not getattr(self.trunk, "one_pass", True)
        if self.critic_backprop or not apart:
            return self._run_trunk(tensordict, only=self._enough(*self._heads))
        # The critic's inputs take passes of their own, which need no graph.
        state = self._run_trunk(tensordict, only=self._enough(self.actor_network))
        with torch.no_grad():
            return state.update(self._run_trunk(tensordict, only=critic))

    def _enough(self, *heads: TensorDictModule) -> Part | None:
        """The least that the trunk can write and the heads can do with."""
        if not hasattr(self.trunk, "written_keys"):
            return None
        made = {unravel_key(key) for key in self.trunk.out_keys}
        read = {unravel_key(key) for head in heads for key in head.in_keys} & made
        for part in ("prompt", "scores", "embeddings"):
            if read <= {unravel_key(key) for key in self.trunk.written_keys(part)}:
                return part
        return None

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
        """Equation 3, ``[*B]``."""
        next_state = tensordict["next"]
        terminated = next_state[self.tensor_keys.terminated]
        reward = next_state[self.tensor_keys.reward]
        check_finite(reward, ("next", self.tensor_keys.reward))
        going_on = ~terminated.squeeze(-1)
        next_value = torch.zeros_like(reward, dtype=self.log_alpha.dtype)
        if going_on.all():
            next_value = self._state_value(next_state).unsqueeze(-1)
        elif going_on.any():
            rows = next_state.select(*self._state_keys())[going_on]
            next_value[going_on] = self._state_value(rows).unsqueeze(-1).to(next_value.dtype)
        return self.value_estimator.value_estimate(tensordict, next_value=next_value).squeeze(-1)

    def _state_value(self, state: TensorDictBase) -> Tensor:
        """Soft value under the policy and the target critic: the expectation in equation 3."""
        # A trunk that does not train is its own target.
        moving = not self.trunk_params.is_empty()
        heads = [self.actor_network] if moving else self._heads
        online = self._run_trunk(state, only=self._enough(*heads))
        try:
            dist = self._policy(online)
        except (ValueError, FloatingPointError) as error:
            raise type(error)(f"In the next states, of the rows that go on: {error}") from error
        target = online
        if moving:
            target = self._run_trunk(state, target=True, only=self._enough(self.qvalue_network))
        q_values = self._q_values(target, target=True).min(0).values
        check_finite(q_values[dist.mask], ("next", self.tensor_keys.action_value))
        return (dist.probs * (q_values - self._alpha * dist.logits)).sum(-1)

    def _qvalue_term(
        self, tensordict: TensorDictBase, q_values: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        check_finite(q_values[:, mask], self.tensor_keys.action_value)
        action = tensordict[self.tensor_keys.action]
        check_action(action, mask, self.tensor_keys.action)
        target = self._compute_target(tensordict)
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
        min_q = q_values.detach().min(0).values
        prob, log_prob = dist.probs, dist.logits
        loss = (prob * (self._alpha * log_prob - min_q)).sum(-1)
        return self._reduce(loss, tensordict), (prob * log_prob).sum(-1).detach()

    def _reduce(self, loss: Tensor, tensordict: TensorDictBase) -> Tensor:
        weights = self._maybe_get_priority_weight(tensordict)
        if weights is not None:
            # TorchRL would divide by the sum of the weights, of each micro-batch by its own: these
            # would then not add up to the whole batch.
            loss = loss * weights.to(loss.dtype)
        return self._reduce_loss(loss, tensordict=tensordict)

    @property
    def _heads(self) -> list[TensorDictModule]:
        return [self.actor_network, self.qvalue_network]

    def _state_keys(self) -> list[NestedKey]:
        return state_keys(self.trunk, self._heads)

    def _set_in_keys(self) -> None:
        state_keys = self._state_keys()
        next_keys = [self.tensor_keys.reward, self.tensor_keys.done, self.tensor_keys.terminated]
        self._in_keys = [
            self.tensor_keys.action,
            *state_keys,
            *(unravel_key(("next", key)) for key in [*next_keys, *state_keys]),
        ]

    def _apply(self, fn: Callable[[Tensor], Tensor]) -> SACGLAMLoss:
        self.trunk._apply(fn)  # frozen weights too; the trained ones do not move twice
        return super()._apply(fn)

    def reset_parameters_recursive(self) -> None:
        """Re-initialises the critics and their targets. The trunk keeps its pretrained weights."""
        self._reset_module_parameters("qvalue_network", self.qvalue_network)
