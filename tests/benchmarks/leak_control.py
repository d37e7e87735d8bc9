"""How far a script gets that asks a pretrained model all that it was taught, without learning.

    python tests/benchmarks/leak_control.py MODEL --episodes 1000 --out leak.json

The script knows how the questions of :mod:`torchrl_glam.pretraining` are put and how to read their
answers, and no word of any goal. In each state it asks which of the things here the first and the
second part of the goal name. It prefers the actions whose text mentions most of them, and draws
among equals. A model that was taught the task plays well this way; one that only knows the language
plays little better than at random.
"""

import argparse
import json
import re
from itertools import compress, product
from pathlib import Path

import torch
from tensordict import TensorDict, TensorDictBase
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.goals import prompt_tokens
from torchrl_glam.models import load_language_model, make_trunk
from torchrl_glam.runs.evaluation import evaluate
from torchrl_glam.text import decode_text

_THING = re.compile("|".join(OBJECTS))


class ScriptedPolicy:
    """Plays by the model's answers alone.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        parts: the parts of the goal that count: ``["first"]``, ``["second"]`` or both.
        at_random: share of the steps that it plays at random all the same.
    """

    def __init__(self, model, tokenizer, parts: list[str], at_random: float) -> None:
        self._trunk, self._tokenizer = make_trunk(model, tokenizer), tokenizer
        self._parts, self._at_random = parts, at_random

    @torch.no_grad()
    def __call__(self, states: TensorDictBase) -> TensorDictBase:
        goals, texts, actions = (
            decode_text(states[key]) for key in ("goal", "observation", "actions")
        )
        counts = torch.tensor(
            [
                [sum(thing in text for thing in things) for text in row]
                for things, row in zip(self._named(goals, texts), actions, strict=True)
            ]
        )
        mask = states["action_mask"]
        counts = counts.masked_fill(~mask, -1)
        best = counts == counts.max(1, keepdim=True).values
        random = torch.rand(len(best), 1) < self._at_random
        choice = torch.where(random, mask, best)
        return states.set("action", torch.multinomial(choice.float(), 1).squeeze(-1))

    def _named(self, goals: list[str], texts: list[str]) -> list[list[str]]:
        """The things of each state that the model says the goal's parts name.

        That is where it finds " yes" likelier than " no" after the question.
        """
        things = [[*dict.fromkeys(_THING.findall(text))] for text in texts]  # always as many
        questions = [
            f"\nQuestion: {part} named {thing} {answer}"
            for row in things
            for part, thing, answer in product(self._parts, row, ("yes", "no"))
        ]
        ids = self._tokenizer(questions, add_special_tokens=False).input_ids
        pad = {"batch_first": True, "padding_value": self._tokenizer.pad_token_id}
        tokens = pad_sequence([*map(torch.tensor, ids)], **pad).unflatten(0, (len(texts), -1))
        goal, observation = (
            prompt_tokens(self._trunk, self._tokenizer, slot, given)
            for slot, given in (("goal", goals), ("observation", texts))
        )
        inputs = (goal, observation, tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))
        states = TensorDict(dict(zip(self._trunk.in_keys, inputs, strict=True)), [len(texts)])
        scores = self._trunk(states, only="scores")[self._trunk.out_keys[0]]
        yes, no = scores.view(len(texts), len(self._parts), -1, 2).unbind(-1)
        named = (yes > no).any(1).tolist()
        return [[*compress(*both)] for both in zip(things, named, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or tiny")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    model, tokenizer = load_language_model(options.model)
    model.eval()
    env = PlaygroundTextEnv(num_envs=options.episodes)
    results = {"random play": evaluate(None, env, seed=options.seed)["success"]}
    grid = [
        (parts, at_random)
        for parts in (["first"], ["second"], ["first", "second"])
        for at_random in (0.0, 0.5)
    ]
    for parts, at_random in tqdm(grid, desc="scripts"):
        policy = ScriptedPolicy(model, tokenizer, parts, at_random)
        name = f"{' and '.join(parts)}, {at_random:.0%} at random"
        results[name] = evaluate(policy, env, seed=options.seed)["success"]
    report = {"model": options.model, "episodes": options.episodes, "seed": options.seed}
    report |= {"success": results, "largest": max(results.values())}
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
