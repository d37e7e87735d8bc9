"""How far a script gets that asks a pretrained model all that it was taught, without learning.

    python tests/benchmarks/leak_control.py MODEL --episodes 1000 --out leak.json

The script knows how the questions of :mod:`torchrl_glam.pretraining` are put and how to read their
answers, and no word of any goal. In each state it asks which of the things here the first and the
second part of the goal name and, of a model that has read transcripts, what each action changes. It
prefers the actions that mention most named things, in their own text or in that answer, and draws
among equals. A model that was taught the task plays well this way; one that only knows the language
plays little better than at random.
"""

import argparse
import json
import re
from collections.abc import Iterator
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
_LONGEST = 24  # tokens of an answer
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

    def _about(self, rows: list[int], texts: list[str]) -> Iterator[dict]:
        """What the model is asked, some at once."""
        ids = self._tokenizer(texts, add_special_tokens=False).input_ids
        start = torch.tensor([[self._tokenizer.pad_token_id, *row] for row in ids])
        for some in torch.arange(len(rows)).split(_AT_ONCE):
            about = [rows[i] for i in some]
            yield {
                "encoder_outputs": BaseModelOutput(last_hidden_state=self._read[about]),
                "attention_mask": self._mask[about],
                "decoder_input_ids": start[some],
            }

    def says_yes(self, rows: list[int], questions: list[str]) -> list[bool]:
        """Whether " yes" is likelier than " no" after each question about a prompt."""
        answers = []
        for asked in self._about(rows, questions):
            logits = self._model(**asked).logits[:, -1]
            answers += (logits[:, self._yes] > logits[:, self._no]).tolist()
        return answers

    def goes_on(self, rows: list[int], texts: list[str]) -> list[str]:
        """The likeliest continuation of decoder texts, which have the same number of tokens."""
        answers = []
        for asked in self._about(rows, texts):
            out = self._model.generate(**asked, max_new_tokens=_LONGEST, do_sample=False)
            said = out[:, asked["decoder_input_ids"].shape[1] :]
            answers += self._tokenizer.batch_decode(said, skip_special_tokens=True)
        return answers


class ScriptedPolicy:
    """Plays by the model's answers alone.

    Args:
        model: the language model.
        tokenizer: its tokenizer.
        parts: the parts of the goal that count: ``["first"]``, ``["second"]`` or both.
        effects: whether it asks what actions change.
        at_random: share of the steps that it plays at random all the same.
    """

    def __init__(self, model, tokenizer, parts: list[str], effects: bool, at_random: float) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._parts, self._effects, self._at_random = parts, effects, at_random
        self._template = PromptTemplate()

    @torch.no_grad()
    def __call__(self, states: TensorDictBase) -> TensorDictBase:
        goals, texts, actions = (
            decode_text(states[key]) for key in ("goal", "observation", "actions")
        )
        prompts = [self._template.fill(*both) for both in zip(goals, texts, strict=True)]
        asking = Asking(self._model, self._tokenizer, prompts)
        named = self._named(asking, texts)
        said = self._changes(asking, actions) if self._effects else actions
        counts = torch.tensor(
            [
                [sum(thing in text for thing in things) for text in row]
                for things, row in zip(named, said, strict=True)
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

    def _changes(self, asking: Asking, actions: list[list[str]]) -> list[list[str]]:
        """What the model says each action changes, but for the list of what is seen."""
        said = [[""] * len(row) for row in actions]
        places = [(row, at) for row, texts in enumerate(actions) for at in range(len(texts))]
        for moves in (True, False):  # their texts differ in length
            some = [p for p in places if actions[p[0]][p[1]].startswith("Go to") == moves]
            texts = [f" {actions[row][at]}" for row, at in some]
            answers = asking.goes_on([row for row, _ in some], texts)
            for (row, at), answer in zip(some, answers, strict=True):
                lines = [line for line in answer.split("\n") if "You see" not in line]
                said[row][at] = "\n".join(lines)
        return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or tiny")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--no-effects", action="store_true", help="it has read no transcripts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    model, tokenizer = load_language_model(options.model)
    model.eval()
    env = PlaygroundTextEnv(num_envs=options.episodes)
    results = {"random play": evaluate(None, env, seed=options.seed)["success"]}
    grid = [
        (parts, effects, at_random)
        for parts in (["first"], ["second"], ["first", "second"])
        for effects in ([False] if options.no_effects else [False, True])
        for at_random in (0.0, 0.5)
    ]
    for parts, effects, at_random in tqdm(grid, desc="scripts"):
        policy = ScriptedPolicy(model, tokenizer, parts, effects, at_random)
        name = f"{' and '.join(parts)}{', effects' * effects}, {at_random:.0%} at random"
        results[name] = evaluate(policy, env, seed=options.seed)["success"]
    report = {"model": options.model, "episodes": options.episodes, "seed": options.seed}
    report |= {"success": results, "largest": max(results.values())}
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
