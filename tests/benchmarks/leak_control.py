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
from pathlib import Path

import torch
from tensordict import TensorDictBase
from tqdm import tqdm
from transformers.modeling_outputs import BaseModelOutput

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.models import load_language_model
from torchrl_glam.runs.evaluation import evaluate
from torchrl_glam.text import PromptTemplate, decode_text

_THING = re.compile("|".join(OBJECTS))
_AT_ONCE = 2048  # questions


class Asking:
    """Puts questions to an encoder-decoder about prompts, each of which is read once."""

    def __init__(self, model, tokenizer, prompts: list[str]) -> None:
        self._model, self._tokenizer = model, tokenizer
        batch = tokenizer(prompts, padding=True, return_tensors="pt")
        self._mask = batch.attention_mask
        self._read = model.get_encoder()(**batch).last_hidden_state
        self._yes, self._no = (
            tokenizer(word, add_special_tokens=False).input_ids[0] for word in (" yes", " no")
        )

    def says_yes(self, rows: list[int], questions: list[str]) -> list[bool]:
        """Whether " yes" is likelier than " no" after each question about a prompt."""
        ids = self._tokenizer(questions, add_special_tokens=False).input_ids
        start = torch.tensor([[self._tokenizer.pad_token_id, *row] for row in ids])
        answers = []
        for some in torch.arange(len(rows)).split(_AT_ONCE):
            about = [rows[i] for i in some]
            logits = self._model(
                encoder_outputs=BaseModelOutput(last_hidden_state=self._read[about]),
                attention_mask=self._mask[about],
                decoder_input_ids=start[some],
            ).logits[:, -1]
            answers += (logits[:, self._yes] > logits[:, self._no]).tolist()
        return answers


class ScriptedPolicy:
    """Plays by the model's answers alone.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        parts: the parts of the goal that count: ``["first"]``, ``["second"]`` or both.
        at_random: share of the steps that it plays at random all the same.
    """

    def __init__(self, model, tokenizer, parts: list[str], at_random: float) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._parts, self._at_random = parts, at_random
        self._template = PromptTemplate()

    @torch.no_grad()
    def __call__(self, states: TensorDictBase) -> TensorDictBase:
        goals, texts, actions = (
            decode_text(states[key]) for key in ("goal", "observation", "actions")
        )
        prompts = [self._template.fill(*both) for both in zip(goals, texts, strict=True)]
        asking = Asking(self._model, self._tokenizer, prompts)
        named = self._named(asking, texts)
        counts = torch.tensor(
            [
                [sum(thing in text for thing in things) for text in row]
                for things, row in zip(named, actions, strict=True)
            ]
        )
        mask = states["action_mask"]
        counts = counts.masked_fill(~mask, -1)
        best = counts == counts.max(1, keepdim=True).values
        random = torch.rand(len(best), 1) < self._at_random
        choice = torch.where(random, mask, best)
        return states.set("action", torch.multinomial(choice.float(), 1).squeeze(-1))

    def _named(self, asking: Asking, texts: list[str]) -> list[set[str]]:
        """The things of each state that the model says the goal's parts name."""
        asked = [
            (row, part, thing)
            for row, text in enumerate(texts)
            for part in self._parts
            for thing in dict.fromkeys(_THING.findall(text))
        ]
        questions = [f"\nQuestion: {part} named {thing}" for _, part, thing in asked]
        answers = asking.says_yes([row for row, _, _ in asked], questions)
        named = [set() for _ in texts]
        for (row, _, thing), yes in zip(asked, answers, strict=True):
            if yes:
                named[row].add(thing)
        return named


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
