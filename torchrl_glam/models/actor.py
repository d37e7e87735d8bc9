"""The actor head: from candidate log-likelihoods to a policy over admissible actions."""

import math

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModuleBase,
    TensorDictSequential,
)
from torch import Tensor
from torch.distributions.kl import register_kl
from torchrl.data import Categorical
from torchrl.modules import EGreedyModule, MaskedCategorical

from torchrl_glam.models.protocol import Trunk

# The score of a masked candidate, that of the best admissible one being 0: so far below that the
# softmax of equation 2 gives exactly 0 there, yet finite: 0 * log(0) would be NaN in the SAC
# losses. It also leaves room for products with an entropy coefficient, where the smallest float32
# would overflow.
MASKED_LOG_LIKELIHOOD = -1e9


class CandidateActor(ProbabilisticTensorDictSequential):
    """Policy over the candidate actions of a text state: a masked softmax of their log-likelihoods.

    Implements equation 2 of SAC-GLAM (Gaven et al., 2024, section 2.1),
    ``pi(a_i | o, g) = exp(LP(a_i | o, g)) / sum_j exp(LP(a_j | o, g))``, over the admissible
    candidates. Masked candidates have probability exactly 0, a finite log-probability and no
    gradient. The head has no parameters: the scores come from the trunk before it.

    :func:`~torchrl.envs.set_exploration_type` chooses how it acts: ``RANDOM`` samples (the
    default), ``DETERMINISTIC`` and ``MODE`` take the likeliest candidate.

    Args:
        log_likelihood_key: scores of equation 1, float ``[*B, A]``, in nats. Half
            precision is scored in float32. Default: ``"log_likelihood"``.
        action_mask_key: bool ``[*B, A]``, True where the candidate is admissible.
            Default: ``"action_mask"``.
        action_key: chosen candidate, int64 ``[*B]``. Default: ``"action"``.
        return_log_prob: whether to write the action's log-probability ``[*B]`` under
            the action's key with ``_log_prob`` too (for PPO). Default: ``False``.

    Raises:
        ValueError: when called, if a state has no admissible candidate, if scores and mask differ
            in shape, or if the mask is not bool.
        FloatingPointError: when called, if the score of an admissible candidate is not finite.

    Examples:
        >>> from tensordict import TensorDict
        >>> from torchrl.envs import ExplorationType, set_exploration_type
        >>> actor, mask = CandidateActor(), torch.tensor([[True, True, False]])
        >>> scores = torch.tensor([[-3.0, -1.0, 0.0]])
        >>> state = TensorDict({"log_likelihood": scores, "action_mask": mask}, [1])
        >>> actor.get_dist(state).probs
        tensor([[0.1192, 0.8808, 0.0000]])
        >>> with set_exploration_type(ExplorationType.DETERMINISTIC):
        ...     actor(state)["action"]
        tensor([1])
    """

    def __init__(
        self,
        *,
        log_likelihood_key: NestedKey = "log_likelihood",
        action_mask_key: NestedKey = "action_mask",
        action_key: NestedKey = "action",
        return_log_prob: bool = False,
    ) -> None:
        super().__init__(
            _CandidateChoice(
                in_keys={"logits": log_likelihood_key, "mask": action_mask_key},
                out_keys=[action_key],
                distribution_class=_Candidates,
                default_interaction_type=InteractionType.RANDOM,
                return_log_prob=return_log_prob,
            )
        )


class _Candidates(MaskedCategorical):
    """A masked categorical whose divergence from another one of equal mask is finite.

    torch's own is infinite where a probability is rounded to 0, as happens to candidates 100 nats
    below the best, though the logarithm of that probability is known.
    """


@register_kl(_Candidates, _Candidates)
def _kl_divergence(p: _Candidates, q: _Candidates) -> Tensor:
    return (p.probs * (p.logits - q.logits)).sum(-1)


class _CandidateChoice(ProbabilisticTensorDictModule):
    """Builds the distribution of :class:`CandidateActor` after checking its inputs by name."""

    def get_dist(self, tensordict: TensorDictBase) -> _Candidates:
        inputs = dict(zip(self.dist_keys, self.in_keys, strict=True))
        log_likelihood = tensordict[inputs["logits"]]
        mask = tensordict[inputs["mask"]]
        _check_scores(log_likelihood, mask, inputs["logits"], inputs["mask"])
        dtype = torch.promote_types(log_likelihood.dtype, torch.float32)
        scores = log_likelihood.to(dtype)
        # The softmax depends on differences only, and these stay in range however low the scores.
        best = scores.detach().masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
        return _Candidates(logits=scores - best, mask=mask, neg_inf=MASKED_LOG_LIKELIHOOD)

    # ProbabilisticTensorDictSequential.get_dist calls the module under this name.
    build_dist_from_params = get_dist


def _check_scores(scores: Tensor, mask: Tensor, scores_key: NestedKey, mask_key: NestedKey) -> None:
    if scores.shape != mask.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"{scores_key!r} has shape {tuple(scores.shape)} and {mask_key!r} is {mask.dtype} "
            f"{tuple(mask.shape)}: both must be [*batch, candidates], and the mask bool."
        )
    admissible = mask.any(-1)
    finite = (scores.detach().isfinite() | ~mask).all(-1)
    if (admissible & finite).all():  # one synchronisation with the device
        return
    if not admissible.all():
        rows = (~admissible).nonzero().squeeze(-1).tolist()
        raise ValueError(
            f"{mask_key!r} admits no candidate in batch row(s) {rows[:5]} of shape "
            f"{tuple(mask.shape)}: every state needs at least one True, as a softmax over no "
            "action is undefined."
        )
    rows = (~finite).nonzero().squeeze(-1).tolist()
    raise FloatingPointError(
        f"{scores_key!r} is NaN or infinite for an admissible candidate in batch row(s) "
        f"{rows[:5]}: the language model's weights or inputs are no longer finite."
    )


class ScoresOnly(TensorDictModuleBase):
    """A trunk without action embeddings, for policies.

    The model then skips the last token of each candidate. Shares the language model with the trunk.

    Args:
        trunk: the trunk to run.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> ScoresOnly(make_trunk(*load_language_model("tiny"))).out_keys
        ['log_likelihood', 'prompt_embedding']
    """

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        self.in_keys, self.out_keys = trunk.in_keys, trunk.written_keys("scores")

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes log-likelihoods and the embedding of the prompt."""
        return self.trunk(tensordict, only="scores")


class OnDevice(TensorDictModuleBase):
    """A module that reads tensors of another device than its own, and writes back to theirs.

    Only its inputs are copied there, and only its outputs are copied back. So environments,
    collectors and replay stay in main memory, where a few dozen instances play fastest, and a seed
    plays the same games wherever the language model is.

    Args:
        module: the module, such as a policy; its device is that of its parameters.

    Examples:
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> OnDevice(ScoresOnly(make_trunk(*load_language_model("tiny")))).out_keys
        ['log_likelihood', 'prompt_embedding']
    """

    def __init__(self, module: TensorDictModuleBase) -> None:
        super().__init__()
        self.module = module
        self.in_keys, self.out_keys = module.in_keys, module.out_keys

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Runs the module."""
        here = tensordict[self.in_keys[0]].device
        there = next((parameter.device for parameter in self.module.parameters()), here)
        if here == there:
            return self.module(tensordict)
        found = self.module(tensordict.select(*self.in_keys).to(there))
        return tensordict.update(found.select(*self.out_keys).to(here))


def with_random_actions(
    policy: TensorDictModuleBase,
    num_actions: int,
    share: float,
    *,
    action_key: NestedKey = "action",
    action_mask_key: NestedKey = "action_mask",
) -> TensorDictModuleBase:
    """A policy to collect with: it draws some actions uniformly among the admissible ones.

    TorchRL's :class:`~torchrl.modules.EGreedyModule` behind the policy, so that off-policy learning
    sees other actions also where the policy is sure of itself. Evaluations use the policy itself.

    Args:
        policy: writes the action, int64 ``[*B]``.
        num_actions: number ``A`` of candidate slots.
        share: of the actions drawn at random, in ``[0, 1]``. With 0 the policy itself is returned.
        action_key, action_mask_key: entries of the action and of the admissible ones, bool
            ``[*B, A]``. Defaults: ``"action"``, ``"action_mask"``.

    Raises:
        ValueError: if ``share`` is out of range.

    Examples:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> policy = TensorDictModule(lambda m: m.long().argmax(-1), ["action_mask"], ["action"])
        >>> states = TensorDict({"action_mask": torch.ones(1000, 4).bool()}, [1000])
        >>> first = with_random_actions(policy, 4, share=0.4)(states)["action"] == 0
        >>> 0.6 < first.float().mean() < 0.8  # 0.6 and a quarter of 0.4
        tensor(True)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share ({share}) must be in [0, 1]: the share of random actions")
    if not share:
        return policy
    spec = Categorical(num_actions)
    keys = {"action_key": action_key, "action_mask_key": action_mask_key}
    return TensorDictSequential(policy, EGreedyModule(spec, share, share, **keys))
