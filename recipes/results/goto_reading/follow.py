"""What a pretrained model answers to `follow` questions about a thing in sight: follow.py MODEL."""

import re, sys, random, torch, collections
from torchrl_glam.envs.games.babyai import make_babyai
from torchrl_glam.models import load_language_model
from torchrl_glam.pretraining import *
from torchrl_glam.pretraining.play import record_play
from torchrl_glam.pretraining.batches import encode_readings, Reading, IGNORED
from torchrl_glam.text import PromptTemplate

folder = sys.argv[1]
model, tok = load_language_model(folder)
hist = int(sys.argv[2]) if len(sys.argv) > 2 else 2
moves = record_play(
    make_babyai(
        tasks=["go to"], room_size=6, distractors=4, max_steps=32, history=hist, num_envs=16
    ),
    640,
    seed=99,
)
T = PromptTemplate()
random.seed(0)
stat = collections.defaultdict(lambda: [0, 0, 0])


@torch.no_grad()
def run(readings, keys):
    b = encode_readings(tok, readings)
    enc = model.get_encoder()(input_ids=b.prompt, attention_mask=b.prompt_mask).last_hidden_state
    h = model.get_decoder()(
        input_ids=b.decoder_input,
        encoder_hidden_states=enc,
        encoder_attention_mask=b.prompt_mask,
        use_cache=False,
    ).last_hidden_state
    lg = model.lm_head(h * model.config.d_model**-0.5)
    ok = (lg.argmax(-1) == b.labels) | (b.labels == IGNORED)
    first = (b.labels != IGNORED).float().argmax(1)
    for i, k in enumerate(keys):
        for kk in k:
            stat[kk][0] += 1
            stat[kk][1] += int(ok[i].all())
            stat[kk][2] += int(ok[i, first[i]])


rs, ks = [], []
for m in moves:
    lines = [
        l
        for l in m.observation.split("\n")
        if l.startswith("You see") and "wall" not in l and "nothing" not in l
    ]
    words = re.findall(r"\s*\S+", T.lead("observation") + m.observation)
    for i, l in enumerate(lines):
        w = l.split()
        c, nn = w[3], w[4]
        if sum(f" {c} {nn} " in x for x in lines) != 1:
            continue
        amb = sum((f" {c} " in x) or (f" {nn} " in x) for x in lines) - 1
        ans = " ".join(w[5:9])
        rs.append(
            Reading(
                T.fill(m.goal, m.observation),
                [[(f"\nQuestion: follow {c} {nn}", False), (" " + ans, True)]],
            )
        )
        ks.append([("follow lines", len(lines)), ("follow shares", amb)])
for i in range(0, min(len(rs), 2000), 50):
    run(rs[i : i + 50], ks[i : i + 50])
for k in sorted(stat):
    print(
        k,
        stat[k][0],
        "exact",
        round(stat[k][1] / stat[k][0], 3),
        "first",
        round(stat[k][2] / stat[k][0], 3),
    )
