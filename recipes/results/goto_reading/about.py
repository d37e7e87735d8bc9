"""What a pretrained model answers to each exercise, `about` by the number of things in sight: about.py MODEL."""

import sys, collections, torch
from torchrl_glam.envs.games.babyai import make_babyai
from torchrl_glam.models import load_language_model
from torchrl_glam.pretraining import GameExercises
from torchrl_glam.pretraining.play import record_play
from torchrl_glam.pretraining.batches import encode_readings, IGNORED

model, tok = load_language_model(sys.argv[1])
moves = record_play(
    make_babyai(tasks=["go to"], room_size=6, distractors=4, max_steps=32, history=2, num_envs=16),
    640,
    seed=99,
)
stat = collections.defaultdict(lambda: [0, 0, 0])
for name in ("about", "shared", "goal", "outcome", "follow"):
    ex = GameExercises(moves, seed=5, questions=1, weights={name: 1.0})
    for _ in range(8):
        rs = ex(50)
        b = encode_readings(tok, rs)
        with torch.no_grad():
            enc = model.get_encoder()(
                input_ids=b.prompt, attention_mask=b.prompt_mask
            ).last_hidden_state
            h = model.get_decoder()(
                input_ids=b.decoder_input,
                encoder_hidden_states=enc,
                encoder_attention_mask=b.prompt_mask,
                use_cache=False,
            ).last_hidden_state
            lg = model.lm_head(h * model.config.d_model**-0.5)
        ok = (lg.argmax(-1) == b.labels) | (b.labels == IGNORED)
        first = (b.labels != IGNORED).float().argmax(1)
        for i, r in enumerate(rs):
            k = (
                name,
                sum("You see" in l and "wall" not in l for l in r.prompt.split("\n"))
                if name == "about"
                else 0,
            )
            stat[k][0] += 1
            stat[k][1] += int(ok[i].all())
            stat[k][2] += int(ok[i, first[i]])
for k in sorted(stat):
    print(
        k,
        stat[k][0],
        "exact",
        round(stat[k][1] / stat[k][0], 3),
        "first",
        round(stat[k][2] / stat[k][0], 3),
    )
