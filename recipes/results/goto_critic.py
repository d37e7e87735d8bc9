"""How soon a critic ranks the moves of BabyAI's go-to, by what it is trained on.

    python recipes/pretrain.py --multirun +games=small +game=goto seed=0
    python recipes/results/goto_critic.py multirun/games_small/goto/model/0

The rows are those of random play with hindsight. Trained on values, a critic learns the reward plus
the discounted largest value of the next state, by target weights; with advantage learning also what
the action taken falls short of the best one. Trained on moves, it is told 1 for the one move of the
shortest way and 0 for the others, in states where the room shows such a way: the bound, as no agent
is told so. Measured, in such states of other play: the share in which the largest value is that
move's, and how far it is above the others'. Some ten minutes on one core; writes
games/goto_critic.csv.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterator

import torch
from tables import RESULTS, write
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from tqdm import tqdm

from torchrl_glam.envs.games.babyai import make_babyai
from torchrl_glam.models import load_language_model, make_critic, make_trunk
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform
from torchrl_glam.runs.device import bound_kernel_caches, keep_freed_memory
from torchrl_glam.text import TokenizeText, decode_text, draw_admissible

UPDATES, EVERY, BATCH = 300, 100, 128
CASES = [  # what is learned, discount, weight of advantage learning
    ("values", 0.9, 0.0),
    ("values", 0.7, 0.0),
    ("values", 0.5, 0.0),
    ("values", 0.9, 0.9),
    ("values", 0.7, 0.9),
    ("moves", 0.0, 0.0),
]
MOVES = ("left", "right", "forward")  # the first actions


def play(tokenizer, num_envs: int, length: int, seed: int) -> TensorDict:
    """Random play ``[num_envs, length]``."""
    torch.manual_seed(seed)
    room = {"tasks": ["go to"], "room_size": 6, "distractors": 4, "max_steps": 32}
    lengths = {"goal_length": 16, "observation_length": 160, "action_length": 8}
    game = make_babyai(**room, num_envs=num_envs, seed=seed)
    env = TransformedEnv(game, TokenizeText(tokenizer, **lengths))
    draw = TensorDictModule(draw_admissible, ["action_mask"], ["action"])
    return env.rollout(length, draw, break_when_any_done=False)


def best_moves(states: TensorDict) -> Tensor:
    """The one move of the shortest way to face the nearest thing of the goal; -1 if none is seen,
    or there are two."""
    moves = []
    for goal, text in zip(
        *(decode_text(states[key]) for key in ("goal", "observation")), strict=True
    ):
        thing = re.sub("^go to (the|a|an) ", "", goal)
        found = []
        for line in text.splitlines():
            if line.startswith("You see") and f"{thing} " in line:
                steps = {way: int(n) for n, way in re.findall(r"(\d+) steps? (\w+)", line)}
                found.append((sum(steps.values()), steps))
        steps = min(found, key=lambda one: one[0])[1] if found else {}
        moves.append(MOVES.index(next(iter(steps))) if len(steps) == 1 else -1)
    return torch.tensor(moves)


def train(
    folder: str, sample: Callable[[], TensorDict], learned: str, gamma: float, advantage: float
) -> Iterator[tuple[int, Callable[[TensorDict], Tensor]]]:
    """Yields the critic, a function of states, after every ``EVERY`` updates."""
    torch.manual_seed(0)
    trunk = make_trunk(*load_language_model(folder), autocast=torch.bfloat16, pad_to_multiple_of=2)
    trunk, critic = make_critic(trunk, "observation-action", num_actions=6, hidden_sizes=(256, 256))
    live = nn.ModuleList([trunk, critic])
    slow = copy.deepcopy(live).requires_grad_(False)
    rates = {trunk: 6e-4, critic: 2e-3}
    optimizer = torch.optim.Adam([{"params": m.parameters(), "lr": r} for m, r in rates.items()])

    def values(networks: nn.ModuleList, states: TensorDict) -> Tensor:
        states = states.select(*trunk.in_keys)
        for network in networks:
            states = network(states)
        return states["action_value"].masked_fill(~states["action_mask"], -1e9)

    @torch.no_grad()
    def target(batch: TensorDict) -> Tensor:
        if learned == "moves":
            return (batch["action"] == batch["best"]).float()
        going_on = ~batch["next", "terminated"].squeeze(-1)
        best = values(slow, batch["next"]).max(-1).values
        told = batch["next", "reward"].squeeze(-1) + gamma * going_on * best
        if advantage:
            now = values(slow, batch)
            taken = now.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
            told += advantage * (taken - now.max(-1).values)
        return told

    for update in tqdm(range(1, UPDATES + 1), desc=f"{learned}, {gamma}, {advantage}"):
        batch = sample()
        taken = values(live, batch).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        (taken - target(batch)).square().mean().backward()
        nn.utils.clip_grad_norm_(live.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for old, new in zip(slow.parameters(), live.parameters(), strict=True):
                old.lerp_(new, 0.1)
        if update % EVERY == 0:
            yield update, lambda states: values(live, states)[:, : len(MOVES)]


def main(folder: str) -> None:
    bound_kernel_caches()
    keep_freed_memory()
    _, tokenizer = load_language_model(folder)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100_000),
        sampler=HindsightRatioSampler(0.5),
        transform=HindsightTransform(),
        batch_size=BATCH,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(play(tokenizer, 32, 300, seed=0))
    rows = buffer[:]
    rows["best"] = best_moves(rows)
    told = rows[(rows["best"] >= 0) & (rows["action"] < len(MOVES))]
    samples = {"values": buffer.sample, "moves": lambda: told[torch.randint(len(told), (BATCH,))]}
    test = play(tokenizer, 64, 48, seed=4321).flatten()
    best = best_moves(test)
    test, best = test[best >= 0], best[best >= 0]
    lines = []
    for learned, gamma, advantage in CASES:
        for updates, critic in train(folder, samples[learned], learned, gamma, advantage):
            with torch.no_grad():
                moves = critic(test)
            right = moves.gather(1, best[:, None])[:, 0]
            others = moves.scatter(1, best[:, None], -torch.inf).max(1).values
            share = (moves.argmax(1) == best).float().mean().item()
            gap = (right - others).mean().item()
            line = {"learned": learned, "gamma": gamma, "advantage": advantage, "updates": updates}
            measured = {"best_move": f"{share:.3f}", "above_others": f"{gap:.3f}"}
            lines.append({**line, "states": len(test), **measured})
    write(RESULTS / "games" / "goto_critic.csv", lines)


if __name__ == "__main__":
    main(sys.argv[1])
