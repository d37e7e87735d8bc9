"""A critic told the best move, by the number of things in sight: moves.py MODEL moves 300 RATE UPDATES.

The other models come from `pretrain.py` with pairs.diff or about.diff, and things.diff, applied.
"""

import copy, re, sys, time
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import TransformedEnv
from torchrl_glam.envs.games.babyai import make_babyai
from torchrl_glam.models import load_language_model, make_critic, make_trunk
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform
from torchrl_glam.runs.device import bound_kernel_caches, keep_freed_memory
from torchrl_glam.text import TokenizeText, decode_text, draw_admissible

folder, learned, length, lr, updates = (
    sys.argv[1],
    sys.argv[2],
    int(sys.argv[3]),
    float(sys.argv[4]),
    int(sys.argv[5]),
)
MOVES = ("left", "right", "forward")
BATCH = 128


def play(tok, n, length, seed):
    torch.manual_seed(seed)
    room = dict(tasks=["go to"], room_size=6, distractors=4, max_steps=32, history=0)
    env = TransformedEnv(
        make_babyai(**room, num_envs=n, seed=seed),
        TokenizeText(tok, goal_length=16, observation_length=160, action_length=8),
    )
    return env.rollout(
        length,
        TensorDictModule(draw_admissible, ["action_mask"], ["action"]),
        break_when_any_done=False,
    )


def best_moves(st):
    out = []
    for goal, text in zip(*(decode_text(st[k]) for k in ("goal", "observation"))):
        thing = re.sub("^go to (the|a|an) ", "", goal)
        found = []
        for line in text.splitlines():
            if line.startswith("You see") and f"{thing} " in line:
                s = {w: int(n) for n, w in re.findall(r"(\d+) steps? (\w+)", line)}
                found.append((sum(s.values()), s))
        s = min(found, key=lambda o: o[0])[1] if found else {}
        out.append(MOVES.index(next(iter(s))) if len(s) == 1 else -1)
    return torch.tensor(out)


bound_kernel_caches()
keep_freed_memory()
model, tok = load_language_model(folder)
buf = TensorDictReplayBuffer(
    storage=LazyTensorStorage(400_000),
    sampler=HindsightRatioSampler(0.5),
    transform=HindsightTransform(),
    batch_size=BATCH,
    generator=torch.Generator().manual_seed(0),
)
t = time.time()
buf.extend(play(tok, 32, length, 0))
print("rows", len(buf), time.time() - t, flush=True)
rows = buf[:]
rows["best"] = best_moves(rows)
told = rows[(rows["best"] >= 0) & (rows["action"] < 3)]
print("told", len(told), flush=True)
sample = {"values": buf.sample, "moves": lambda: told[torch.randint(len(told), (BATCH,))]}[learned]
test = play(tok, 64, 48, 4321).flatten()
best = best_moves(test)
test, best = test[best >= 0], best[best >= 0]
tr_idx = torch.randperm(len(told))[:400]
trn = told[tr_idx]
torch.manual_seed(0)
trunk = make_trunk(model, tok, pad_to_multiple_of=2)
trunk, critic = make_critic(trunk, "observation-action", num_actions=6, hidden_sizes=(256, 256))
live = nn.ModuleList([trunk, critic])
slow = copy.deepcopy(live).requires_grad_(False)
opt = torch.optim.Adam(
    [{"params": trunk.parameters(), "lr": lr}, {"params": critic.parameters(), "lr": 2e-3}]
)


def values(nets, s):
    s = s.select(*trunk.in_keys)
    for n in nets:
        s = n(s)
    return s["action_value"].masked_fill(~s["action_mask"], -1e9)


@torch.no_grad()
def target(b):
    if learned == "moves":
        return (b["action"] == b["best"]).float()
    on = ~b["next", "terminated"].squeeze(-1)
    return b["next", "reward"].squeeze(-1) + 0.9 * on * values(slow, b["next"]).max(-1).values


t = time.time()
for u in range(1, updates + 1):
    b = sample()
    taken = values(live, b).gather(-1, b["action"].unsqueeze(-1)).squeeze(-1)
    loss = (taken - target(b)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(live.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    with torch.no_grad():
        for o, n in zip(slow.parameters(), live.parameters()):
            o.lerp_(n, 0.1)
    if u % 100 == 0:
        with torch.no_grad():
            m = values(live, test)[:, :3]
            mt = values(live, trn)[:, :3]
        r = m.gather(1, best[:, None])[:, 0]
        o = m.scatter(1, best[:, None], -torch.inf).max(1).values
        print(
            u,
            f"test {(m.argmax(1) == best).float().mean():.3f} gap {(r - o).mean():.3f} train {(mt.argmax(1) == trn['best']).float().mean():.3f} loss {loss:.4f} {time.time() - t:.0f}s",
            flush=True,
        )
with torch.no_grad():
    m = values(live, test)[:, :3]
pred = m.argmax(1)
import collections

conf = collections.Counter((int(b), int(p)) for b, p in zip(best, pred))
print("conf (label,pred)", sorted(conf.items()))
goals = decode_text(test["goal"])
obs = decode_text(test["observation"])
n = collections.defaultdict(lambda: [0, 0])
for g, o, b, p in zip(goals, obs, best.tolist(), pred.tolist()):
    thing = re.sub("^go to (the|a|an) ", "", g)
    lines = [l for l in o.splitlines() if l.startswith("You see") and "wall" not in l]
    k = sum(f"{thing} " in l for l in lines)
    words = len(thing.split())
    for key in (
        ("lines", len(lines)),
        ("mentions", k),
        ("words", words),
        ("pos", [i for i, l in enumerate(lines) if f"{thing} " in l][0]),
    ):
        n[key][0] += 1
        n[key][1] += b != p
for k in sorted(n):
    print(k, n[k][0], round(n[k][1] / n[k][0], 3))
c = 0
for g, o, b, p, mm in zip(goals, obs, best.tolist(), pred.tolist(), m.tolist()):
    if b != p and c < 12:
        print("---", g, "| label", MOVES[b], "pred", MOVES[p], [round(x, 2) for x in mm])
        print(o)
        c += 1
