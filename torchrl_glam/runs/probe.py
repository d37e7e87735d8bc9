"""Instruments for an agent that does not learn yet: success alone hides what it has learned."""

from collections.abc import Callable

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.envs import EnvBase
from torchrl.objectives.value.functional import reward2go

from torchrl_glam.runs.evaluation import Policy
from torchrl_glam.runs.seeds import seeded
from torchrl_glam.text import Oracle

Heads = Callable[[TensorDictBase], tuple[Tensor, Tensor]]
"""From states ``[B]`` to probabilities and Q-values of the candidates, ``[B, A]`` both."""

_ROWS = 256  # states that the heads are given at a time


class PlanProbe:
    """Compares policy and critic with shortest plans, and Q-values with returns.

    Of every state it asks whether the likeliest action, and the one of the largest Q-value, lie on
    *a* shortest plan (any of them), and by how much Q sets those actions apart. The states are
    those of the shortest plan (``plan``) and of random play (``random``), both drawn once, and
    those that the policy itself meets (``policy``), drawn at each call with the same goals and
    scenes. The global random state is left as it was.

    Args:
        env: instances of the environment, with what oracle, policy and critic read.
        oracle: knows the shortest plans.
        max_steps: steps of an episode.
        gamma: discount of a step, for the returns.
        seed: of goals, scenes and play. Default: ``0``.

    Examples:
        >>> from torchrl_glam.envs import OraclePolicy, PlaygroundTextEnv
        >>> env = PlaygroundTextEnv(num_envs=8, text=False)
        >>> oracle = OraclePolicy(env.goals)
        >>> probe = PlanProbe(env, oracle, env.max_steps, gamma=0.9)
        >>> def heads(states):  # a policy and a critic that know the shortest plans
        ...     best, left = oracle.shortest_plans(states)
        ...     return best.float(), 0.9 ** (left[:, None] - best.float())
        >>> results = probe(oracle, heads)
        >>> results["probe/policy/policy"], results["probe/random/critic"]
        (1.0, 1.0)
        >>> abs(results["probe/q_error"]) < 1e-6
        True
    """

    def __init__(
        self, env: EnvBase, oracle: Oracle, max_steps: int, *, gamma: float, seed: int = 0
    ) -> None:
        self.env, self._oracle, self._max_steps = env, oracle, max_steps
        self._gamma, self._seed = gamma, seed
        self._kept = {"plan": self._play(oracle), "random": self._play(None)}

    @torch.no_grad()
    def __call__(self, policy: Policy, heads: Heads) -> dict[str, float]:
        """Measures the policy, which plays episodes, and the heads.

        Returns:
            For each kind of states, as ``probe/<states>/…``: ``policy`` and ``critic``, the shares
            of states in which the likeliest action, and that of the largest Q-value, lie on a
            shortest plan; ``policy/second`` and ``critic/second``, the same where the first of two
            parts of the goal has been reached; ``probability``, of all actions on a shortest plan;
            ``lead``, mean Q-value of these less that of the others. For the policy's episodes
            ``probe/q_error``, mean of Q less the discounted returns that followed,
            ``probe/q_correlation`` of the two, and ``probe/calibration/1/q`` and ``/return`` to
            ``5``, their means over the states by fifths of Q, the lowest first.
        """
        out, found = {}, self._play(policy)
        for name, states in (*self._kept.items(), ("policy", found)):
            parts = [heads(part) for part in states.split(_ROWS)]
            probabilities, q_values = map(torch.cat, zip(*parts, strict=True))
            measured = self._compare(states, probabilities, q_values)
            out |= {f"probe/{name}/{key}": value for key, value in measured.items()}
        taken = q_values.gather(1, found["action"].unsqueeze(1)).squeeze(1)
        out["probe/q_error"] = (taken - found["return"]).mean().item()
        out["probe/q_correlation"] = torch.stack((taken, found["return"])).corrcoef()[0, 1].item()
        for fifth, rows in enumerate(taken.argsort(stable=True).tensor_split(5), start=1):
            if len(rows):
                out[f"probe/calibration/{fifth}/q"] = taken[rows].mean().item()
                out[f"probe/calibration/{fifth}/return"] = found["return"][rows].mean().item()
        return out

    def _compare(
        self, states: TensorDictBase, probabilities: Tensor, q_values: Tensor
    ) -> dict[str, float]:
        on_plan, left = self._oracle.shortest_plans(states)
        mask, stage = states["action_mask"], states.get(("state", "stage"), None)
        second = torch.zeros_like(left, dtype=torch.bool) if stage is None else stage == 1
        others = mask & ~on_plan
        judged = (left > 0) & others.any(-1)  # the goal is in reach, and there is a choice
        out = {}
        for name, scores in (("policy", probabilities), ("critic", q_values)):
            best = scores.masked_fill(~mask, -torch.inf).argmax(1, keepdim=True)
            right = on_plan.gather(1, best).squeeze(1)
            out[name] = right[judged].float().mean().item()
            if (judged & second).any():
                out[f"{name}/second"] = right[judged & second].float().mean().item()
        out["probability"] = (probabilities * on_plan).sum(1)[judged].mean().item()
        planned, rest = ((q_values * of).sum(1) / of.sum(1) for of in (on_plan, others))
        return out | {"lead": (planned - rest)[judged].mean().item()}

    def _play(self, policy: Policy | None) -> TensorDictBase:
        """The states of one episode in every instance, flat, with actions and returns."""
        with seeded(self._seed):
            self.env.set_seed(self._seed)
            steps = self.env.rollout(self._max_steps, policy, break_when_any_done=False)
        reward, done = steps["next", "reward"], steps["next", "done"]
        steps["return"] = reward2go(reward, done, self._gamma).squeeze(-1)
        ends = done.squeeze(-1).int()
        first_episode = ends.cumsum(1) - ends == 0
        return steps.exclude("next")[first_episode]
