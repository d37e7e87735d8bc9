"""Policy and value networks for TorchRL's own losses and estimators."""

from __future__ import annotations

from tensordict.nn import (
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictSequential,
)


def ppo_networks(
    trunk: TensorDictModuleBase, actor: ProbabilisticTensorDictSequential, value: TensorDictModule
) -> tuple[ProbabilisticTensorDictSequential, TensorDictSequential]:
    """The networks of :class:`~torchrl.objectives.ClipPPOLoss` and its relatives, on one trunk.

    TorchRL's losses take whole networks, each of which reads the state: the trunk runs twice a
    call. :class:`~torchrl_glam.objectives.PPOGLAMLoss` computes the same with one pass.

    TorchRL's estimators of advantages would call the value network under ``vmap``, which a trunk
    does not support: the shapes of its pass follow from the tokens. Give them
    ``deactivate_vmap=True``, as in the example.

    Args:
        trunk: the language model: :class:`~torchrl_glam.models.ScoresOnly`, since PPO needs no
            action embeddings.
        actor: head from log-likelihoods to a distribution:
            :class:`~torchrl_glam.models.CandidateActor` with ``return_log_prob=True``.
        value: head that writes the state's value: :class:`~torchrl_glam.models.ValueHead`.

    Returns:
        ``actor_network``, which is also the collector's policy, and ``critic_network``.

    Examples:
        >>> import torch
        >>> from torchrl.envs import TransformedEnv
        >>> from torchrl.objectives import ClipPPOLoss
        >>> from torchrl.objectives.value import GAE
        >>> from torchrl_glam.envs import PlaygroundTextEnv
        >>> from torchrl_glam.text import TokenizeText
        >>> from torchrl_glam.models import CandidateActor, ScoresOnly, ValueHead
        >>> from torchrl_glam.models import load_language_model, make_trunk
        >>> model, tokenizer = load_language_model("tiny")
        >>> env = TransformedEnv(PlaygroundTextEnv(num_envs=2), TokenizeText(tokenizer))
        >>> trunk = make_trunk(model, tokenizer)
        >>> policy, critic = ppo_networks(
        ...     ScoresOnly(trunk),
        ...     CandidateActor(return_log_prob=True),
        ...     ValueHead(trunk.embedding_dim, (16,)),
        ... )
        >>> advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, deactivate_vmap=True)
        >>> with torch.no_grad():
        ...     rows = advantages(env.rollout(3, policy))
        >>> loss = ClipPPOLoss(policy, critic)
        >>> terms = loss(rows.flatten())
        >>> (terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]).backward()
        >>> all(p.grad is not None for p in model.parameters())
        True
    """
    return ProbabilisticTensorDictSequential(trunk, *actor), TensorDictSequential(trunk, value)
