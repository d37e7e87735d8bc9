"""Prompts put together from pieces against the whole text's tokens, with foreign tokenizers."""

import pytest
import torch
from families import make_model
from tensordict import TensorDict
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torchrl_glam.models import load_tokenizer, make_trunk
from torchrl_glam.text import PromptBuilder, PromptTemplate, TokenizeText, encode_text

WORDS = ["Goal:", "Grasp", "red", "lion", "You", "see:", "Action:", "Go", "to", "on:", "are"]
WORDS += ["nothing", "blue", "cat", "lion,"]


def make_tokenizer(pre_tokenizer, words):
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def stray_piece():
    """As Llama 2's: a space is put before every text, also before the pieces of a prompt."""
    pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer = make_tokenizer(pre_tokenizer, ["▁", "▁\nYou", *("▁" + word for word in WORDS)])
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.backend_tokenizer.normalizer = normalizer
    return tokenizer


def state(goal="Grasp red lion", observation="You see: red lion"):
    texts = {"goal": [goal], "observation": [observation], "actions": [["Grasp", "Go to red"]]}
    return TensorDict({key: encode_text(words) for key, words in texts.items()}, [1])


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_trunk_refuses_a_tokenizer_with_a_stray_leading_piece(family):
    tokenizer = stray_piece()
    with pytest.raises(ValueError, match="does not compose"):
        make_trunk(make_model(family, tokenizer), tokenizer)


def test_states_are_refused_that_do_not_compose_by_tokenizer_or_template():
    with pytest.raises(ValueError, match="does not compose"):
        TokenizeText(stray_piece())(state())
    glued = PromptTemplate("Goal: {goal}\n{observation}Action:")
    transform = TokenizeText(load_tokenizer("tiny"), template=glued)
    with pytest.raises(ValueError, match="does not compose"):
        transform(state(observation="You see: red lion\n"))


@pytest.mark.parametrize("goal", ["", "Grasp red lion"])
@pytest.mark.parametrize("observation", ["", "You see: red lion"])
def test_an_empty_goal_keeps_its_lead_in(goal, observation, tokenizer):
    out = TokenizeText(tokenizer)(state(goal, observation))
    tokens, mask = PromptBuilder(tokenizer)(out["goal_tokens"], out["observation_tokens"])
    whole = tokenizer(f"Goal: {goal}\n{observation}\nAction:").input_ids
    assert tokens[0, mask[0]].tolist() == whole


def pairs_of_line_ends():
    """Two line ends are one token of this tokenizer."""
    words = ["\n\n", "\n", " ", "Goal:", "Sing", "See", "Action:"]
    isolated = ["\n\n", " ", Regex(r"(?<!\n)\n(?!\n)")]
    splits = [pre_tokenizers.Split(pattern, "isolated") for pattern in isolated]
    return make_tokenizer(pre_tokenizers.Sequence(splits), words)


def test_earlier_steps_that_do_not_compose_are_refused_before_they_are_played():
    template = PromptTemplate("{observation} Goal: {goal}")  # nothing parts it from an action
    TokenizeText(pairs_of_line_ends(), template=template)(state("Sing", "See"))
    with pytest.raises(ValueError, match="does not compose"):
        TokenizeText(pairs_of_line_ends(), template=template, memory=50)(state("Sing", "See"))


def test_a_kind_of_prompt_that_does_not_compose_is_refused_when_it_comes():
    """Two line ends stand there if nothing is between."""
    transform = TokenizeText(pairs_of_line_ends())
    transform(state("Sing", "See"))
    transform(state("", "See"))
    # what a reset leaves empty elsewhere is no prompt
    states = torch.cat([state("Sing", "See"), state("Sing", "See")])
    states["observation"][1] = 0
    masks = [
        TensorDict({"_reset": torch.tensor([[True], [last]])}, batch_size=[2])
        for last in (False, True)
    ]
    transform._reset(masks[0], states.clone())
    with pytest.raises(ValueError, match="does not compose"):
        transform._reset(masks[1], states.clone())


def test_a_template_of_white_space_is_read_at_once():
    """In time that grows with its length, not with the square."""
    with pytest.raises(ValueError, match="has the slots"):
        PromptTemplate(" " * 300_000)
    assert PromptTemplate("{goal} \n {observation}").lead("observation") == " \n "
