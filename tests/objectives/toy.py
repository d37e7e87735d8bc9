"""A toy language model, small enough to follow by hand, and batches of transitions for it."""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.objectives import SoftUpdate

from torchrl_glam.models import CandidateActor, CandidateCritic, ObservationCritic
from torchrl_glam.objectives import SACGLAMLoss

VOCABULARY, WIDTH, ACTIONS = 13, 6, 4
STATE_KEYS = ["goal_tokens", "observation_tokens", "action_tokens", "action_mask"]
OUT_KEYS = ["log_likelihood", "action_embedding", "prompt_embedding"]


class ToyModel(nn.Module):
    """Scores candidates from the mean embeddings of goal, observation and candidate.

    ``calls`` records the number of rows of every pass, ``poison`` puts NaN where candidates are
    masked.
    """

    def __init__(self, tied=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.out.weight = self.embed.weight
        self.calls = []
        self.poison = False

    def forward(self, goal, observation, actions, mask):
        self.calls.append(mask[..., 0].numel())
        prompt = self.embed(goal).mean(-2) + self.embed(observation).mean(-2)
        hidden = torch.tanh(self.mix(prompt.unsqueeze(-2) + self.embed(actions).mean(-2)))
        score = self.out(hidden).log_softmax(-1).gather(-1, actions).sum(-1)
        if self.poison:
            score = score.masked_fill(~mask, torch.nan)
            hidden = hidden.masked_fill(~mask.unsqueeze(-1), torch.nan)
        return score, hidden, prompt


def make_trunk(kind="plain"):
    """A trunk; ``kind``: "plain", "tied", "partly frozen" or "frozen"."""
    model = ToyModel(tied=kind == "tied")
    model.embed.requires_grad_(kind not in ("partly frozen", "frozen"))
    if kind == "frozen":
        model.requires_grad_(False)
    return TensorDictModule(model, in_keys=STATE_KEYS, out_keys=OUT_KEYS)


def make_critic(kind="candidate"):
    if kind == "candidate":
        return CandidateCritic(WIDTH, (8,))
    return ObservationCritic(WIDTH, ACTIONS, (8,))


def make_loss(trunk=None, critic=None, gamma=0.9, actor=None, **options):
    """A loss in float64, whose differences from a reference are rounding only."""
    options = {"num_actions": ACTIONS, **options}
    heads = actor or CandidateActor(), make_critic() if critic is None else critic
    loss = SACGLAMLoss(trunk or make_trunk(), *heads, **options)
    loss.make_value_estimator(gamma=gamma)
    loss.to(torch.float64)
    SoftUpdate(loss, tau=0.1)  # which the loss wants; tests that move targets make their own
    return loss


def one_transition(scores, mask=None, **options):
    """A loss whose trunk gives one state these scores, and a batch of a step back to the state."""
    scores = nn.Parameter(torch.as_tensor(scores))
    number = len(scores)
    trunk = TensorDictModule(lambda x: scores.expand(len(x), number), ["x"], ["log_likelihood"])
    critic = TensorDictModule(nn.Linear(1, number), ["x"], ["action_value"])
    loss = SACGLAMLoss(trunk, CandidateActor(), critic, num_actions=number, **options)
    loss.make_value_estimator(gamma=0.5)
    mask = torch.tensor([mask or [True] * number])
    state = {"x": torch.ones(1, 1), "action_mask": mask}
    no = torch.zeros(1, 1, dtype=torch.bool)
    ends = {"done": no, "terminated": no, "reward": torch.ones(1, 1)}
    steps = {"action": torch.tensor([0]), "steps_to_next_obs": torch.tensor([[2]])}
    return loss, TensorDict({**state, **steps, "next": {**state, **ends}}, batch_size=[1]), scores


def rename(batch, keys):
    batch = batch.clone()
    for old, new in keys.items():
        for place in (batch, batch["next"]):
            if old in place.keys():
                place.rename_key_(old, new)
    return batch


def make_batch(rows=7):
    """Transitions of every kind; see the comments. More than seven rows repeat the kinds."""
    current, following = _states(rows), _states(rows)
    kind, action = torch.arange(rows) % 7, torch.randint(ACTIONS, (rows,))
    # 1: masked candidates, now and next
    current["action_mask"][kind == 1, :2] = following["action_mask"][kind == 1, 2] = False
    action[kind == 1] = 3
    # 2: a terminal state has nothing left to do; 6: three steps to the end
    following["action_mask"][kind == 2] = False
    terminated = ((kind == 2) | (kind == 6)).unsqueeze(-1)
    # 3: a time-out bootstraps; 4: two steps
    truncated = (kind == 3).unsqueeze(-1)
    steps = (1 + (kind == 4) + 2 * (kind == 6)).unsqueeze(-1)
    # 5: a single admissible candidate
    current["action_mask"][kind == 5] = torch.tensor([False, True, False, False])
    action[kind == 5] = 1
    ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    reward = torch.rand(rows, 1, dtype=torch.float64)
    return TensorDict(
        {**current, "action": action, "next": {**following, **ends, "reward": reward}},
        batch_size=[rows],
    ).set("steps_to_next_obs", steps)


def _states(rows):
    return {
        "goal_tokens": torch.randint(VOCABULARY, (rows, 2)),
        "observation_tokens": torch.randint(VOCABULARY, (rows, 5)),
        "action_tokens": torch.randint(VOCABULARY, (rows, ACTIONS, 3)),
        "action_mask": torch.ones(rows, ACTIONS, dtype=torch.bool),
    }


def gradients(loss, parameters):
    if not loss.requires_grad or not parameters:
        return {}
    values = torch.autograd.grad(
        loss, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    return {name: v for name, v in zip(parameters, values, strict=True) if v is not None}


def values(loss):
    """Copies of all that a loss holds, by name."""
    state = {**dict(loss.named_parameters()), **dict(loss.named_buffers())}
    return {name: value.detach().clone() for name, value in state.items()}
