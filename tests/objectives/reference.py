"""Discrete SAC and PPO with an LLM actor as the paper writes them, one row and candidate at a time.

SAC-GLAM (Gaven et al., 2024), equations 1 to 3 and Appendix G. Plain Python and plain modules;
masked candidates do not exist here, so that whatever the library does with them cannot leak in.
"""

import math

import torch


def score(model, state, candidate):
    """Log-likelihood and embedding of one candidate, and the prompt's embedding."""
    if not hasattr(model, "mix"):  # a language model, which reads texts
        return model.score(state, candidate)
    prompt = torch.zeros(model.mix.in_features, dtype=model.mix.weight.dtype)
    for text in (state["goal_tokens"], state["observation_tokens"]):
        for token in text:
            prompt = prompt + model.embed.weight[token] / len(text)
    tokens = state["action_tokens"][candidate]
    hidden = prompt
    for token in tokens:
        hidden = hidden + model.embed.weight[token] / len(tokens)
    hidden = torch.tanh(model.mix.weight @ hidden + model.mix.bias)
    logits = model.out.weight @ hidden
    likelihood = sum(logits[token] - torch.log(torch.exp(logits).sum()) for token in tokens)
    return likelihood, hidden, prompt


def policy(model, state):
    """Probability of each admissible candidate: equation 2."""
    admissible = [a for a, ok in enumerate(state["action_mask"].tolist()) if ok]
    weights = [torch.exp(score(model, state, a)[0]) for a in admissible]
    return {a: weight / sum(weights) for a, weight in zip(admissible, weights, strict=True)}


def q_value(model, head, state, candidate, backprop=True):
    """One number, by the observation-action or the observation input of Appendix B."""
    _, hidden, prompt = score(model, state, candidate)
    per_candidate = head[-1].out_features == 1
    embedding = hidden if per_candidate else prompt
    values = head(embedding if backprop else embedding.detach())
    return values[0 if per_candidate else candidate]


def target(model, target_model, target_heads, alpha, row, gamma):
    """Equation 3."""
    value = row["next"]["reward"][0]
    if not row["next"]["terminated"]:
        discount = gamma ** row["steps_to_next_obs"].item()
        for a, prob in policy(model, row["next"]).items():
            q = min(q_value(target_model, head, row["next"], a) for head in target_heads)
            value = value + discount * prob * (q - alpha * torch.log(prob))
    return value.detach()


def bonus(model, alpha, row, share):
    """Munchausen RL (Vieillard et al., 2020): the taken action's scaled log-probability."""
    likelihood = torch.log(policy(model, row)[row["action"].item()]).item()
    return share * alpha.item() * max(likelihood, -6.0)


def sac_losses(
    models, heads, log_alpha, batch, gamma, target_entropy, critic_backprop, munchausen=0, share=0
):
    """Means over the rows of the three losses; ``share``, if any, is the target entropy's weight.

    ``models`` and ``heads`` are pairs (online, target) of a model and of a list of perceptrons.
    """
    (model, target_model), (heads, target_heads) = models, heads
    alpha = log_alpha.detach().exp()
    rows = batch.unbind(0)
    total = {"loss_qvalue": 0.0, "loss_actor": 0.0, "loss_alpha": 0.0}
    errors, entropies = [], []
    for row in rows:
        y = target(model, target_model, target_heads, alpha, row, gamma)
        y = y + bonus(model, alpha, row, munchausen)
        taken = [q_value(model, h, row, row["action"].item(), critic_backprop) for h in heads]
        total["loss_qvalue"] = total["loss_qvalue"] + sum((q - y) ** 2 for q in taken) / len(rows)
        errors.append(max((q - y).abs() for q in taken).detach())
        entropy, probs = 0.0, policy(model, row)
        for a, prob in probs.items():
            q = min(q_value(model, head, row, a).detach() for head in heads)
            term = prob * (alpha * torch.log(prob) - q)
            total["loss_actor"] = total["loss_actor"] + term / len(rows)
            entropy = entropy - (prob * torch.log(prob)).detach()
        entropies.append(entropy)
        aim = share * math.log(len(probs)) if share else target_entropy
        gap = entropy - aim
        total["loss_alpha"] = total["loss_alpha"] + log_alpha * gap / len(rows)
    return total, torch.stack(errors), torch.stack(entropies)


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


def ppo_losses(model, head, batch, objective, entropy_coeff, critic_coeff, backprop=True):
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
