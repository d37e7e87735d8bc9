"""PPO as SAC-GLAM's Appendix G writes it, one row at a time, in plain Python on plain tensors.

Masked candidates do not exist here, so that whatever the library does with them cannot leak in.
"""

import torch

from .reference import policy, score


def value(model, head, state, backprop=True):
    """The value head on the prompt's embedding."""
    _, _, prompt = score(model, state, 0)
    return head(prompt if backprop else prompt.detach())[0]


def old_policy(row):
    """Probabilities of the admissible candidates, from the recorded log-likelihoods."""
    admissible = [a for a, ok in enumerate(row["action_mask"].tolist()) if ok]
    weights = [torch.exp(row["log_likelihood"][a]) for a in admissible]
    return {a: weight / sum(weights) for a, weight in zip(admissible, weights, strict=True)}


def clip_objective(row, probs, epsilon):
    """Equation 4, the ratio kept within ``epsilon`` of the row's centre, 1 by default."""
    ratio = probs[row["action"].item()] / torch.exp(row["action_log_prob"])
    center = row.get("clip_center", None)
    center = torch.ones_like(ratio) if center is None else center
    clipped = torch.maximum(torch.minimum(ratio, center + epsilon), center - epsilon)
    return min(ratio * row["advantage"][0], clipped * row["advantage"][0])


def kl_objective(row, probs, beta):
    """Equation 5, with the sign of a penalty."""
    ratio = probs[row["action"].item()] / torch.exp(row["action_log_prob"])
    kl = sum(p * (torch.log(p) - torch.log(probs[a])) for a, p in old_policy(row).items())
    return ratio * row["advantage"][0] - beta * kl


def losses(model, head, batch, objective, entropy_coeff, critic_coeff, backprop=True):
    """Means over the rows of the three losses; ``objective`` maps a row and its policy to one."""
    rows = batch.unbind(0)
    total = {"loss_objective": 0.0, "loss_entropy": 0.0, "loss_critic": 0.0}
    for row in rows:
        probs = policy(model, row)
        entropy = -sum(p * torch.log(p) for p in probs.values())
        error = value(model, head, row, backprop) - row["value_target"][0]
        total["loss_objective"] = total["loss_objective"] - objective(row, probs) / len(rows)
        total["loss_entropy"] = total["loss_entropy"] - entropy_coeff * entropy / len(rows)
        total["loss_critic"] = total["loss_critic"] + critic_coeff * error**2 / len(rows)
    return total


def advantages(rewards, values, ends, next_values, gamma, lmbda):
    """Generalised advantages of one environment's steps.

    ``ends`` holds "", "terminated" or "truncated" for each step; ``next_values`` the values of the
    next states, that of a truncated step included.
    """
    result, following = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        bootstrap = 0.0 if ends[t] == "terminated" else gamma * next_values[t]
        delta = rewards[t] + bootstrap - values[t]
        following = delta + (0.0 if ends[t] else gamma * lmbda * following)
        result[t] = following
    return result
