"""The trunk's keys, batch shapes and checks; its numbers are compared in ``test_families.py``."""

import pytest
import torch
from families import GOALS, OBSERVATIONS, make_model, make_states
from tensordict.nn import TensorDictSequential

from torchrl_glam.models import CandidateActor, ScoresOnly, make_trunk
from torchrl_glam.models.loading import load_tokenizer
from torchrl_glam.models.trunks.encoder_decoder import EncoderDecoderTrunk
from torchrl_glam.text import PromptTemplate, check_composition


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def test_many_candidates_and_batch_shapes(tokenizer):
    """34 candidates, as with 32 objects, in a [2, 2] batch: the order of candidates is kept."""
    model = make_model("t5", tokenizer)
    colours, names = ["red", "blue", "green"], ["lion", "cat", "dog", "rose", "tea", "door"]
    texts = (
        [f"Go to {c} {n}" for c in colours for n in names]
        + [f"Go to {n}" for n in names]
        + [f"Grow {c} thing" for c in colours]
        + ["Grasp", "Release"]
        + names[:5]
    )
    texts = texts[:34]
    assert len(texts) == 34
    one = make_states(tokenizer, (), GOALS[:1], OBSERVATIONS[:1], [texts])
    trunk = EncoderDecoderTrunk(model, tokenizer)
    order = torch.randperm(34, generator=torch.Generator().manual_seed(0))
    shuffled = one.clone()
    shuffled["action_tokens"] = one["action_tokens"][:, order]
    both = torch.stack([torch.cat([one, shuffled]), torch.cat([shuffled, one])])
    scores = trunk(both)["log_likelihood"]
    assert scores.shape == (2, 2, 34)
    torch.testing.assert_close(scores[0, 0][order], scores[0, 1], atol=1e-4, rtol=0)
    torch.testing.assert_close(scores[0, 0], scores[1, 1], atol=1e-4, rtol=0)


def test_nested_keys(tokenizer):
    model = make_model("t5", tokenizer)
    keys = {
        "goal_key": ("text", "goal"),
        "log_likelihood_key": ("scores", "ll"),
        "prompt_embedding_key": ("scores", "prompt"),
    }
    states = make_states(tokenizer)
    expected = EncoderDecoderTrunk(model, tokenizer)(states.clone())
    states.rename_key_("goal_tokens", ("text", "goal"))
    out = EncoderDecoderTrunk(model, tokenizer, **keys)(states)
    torch.testing.assert_close(out["scores", "ll"], expected["log_likelihood"])
    torch.testing.assert_close(out["scores", "prompt"], expected["prompt_embedding"])


def test_a_candidate_without_tokens_is_named(tokenizer):
    states = make_states(tokenizer)
    states["action_mask"][2, 3] = True
    with pytest.raises(ValueError, match=r"action_tokens\[2, 3\] is admissible but has no tokens"):
        EncoderDecoderTrunk(make_model("t5", tokenizer), tokenizer)(states)


def test_a_tokenizer_that_does_not_compose_is_refused(tokenizer):
    glued = PromptTemplate("Goal: {goal}\n{observation}Action:")
    examples = [("Grasp red lion", "You see: red lion\n")]
    with pytest.raises(ValueError, match="does not compose"):
        check_composition(tokenizer, glued, examples)
    check_composition(tokenizer, PromptTemplate(), zip(GOALS, OBSERVATIONS, strict=True))


@pytest.mark.parametrize("text", ["Goal: {goal}", "{goal} {goal} {observation}", "{goal} {obs}"])
def test_template_slots_are_checked(text):
    with pytest.raises(ValueError, match="slots"):
        PromptTemplate(text)


def test_other_model_families_are_refused(tokenizer):
    with pytest.raises(ValueError, match="not an encoder-decoder with a language-model head"):
        EncoderDecoderTrunk(make_model("gpt2", tokenizer), tokenizer)
    with pytest.raises(ValueError, match="has 2 position biases in its decoder"):
        EncoderDecoderTrunk(make_model("umt5", tokenizer), tokenizer)
    with pytest.raises(ValueError, match=r"layout \('tri'\) must be 'trie' or 'packed'"):
        EncoderDecoderTrunk(make_model("t5", tokenizer), tokenizer, layout="tri")


def test_a_policy_on_scores_alone_acts_as_on_everything(tokenizer):
    trunk, seen = EncoderDecoderTrunk(make_model("t5", tokenizer), tokenizer), []
    for module in (trunk, ScoresOnly(trunk)):
        torch.manual_seed(0)
        seen.append(TensorDictSequential(module, CandidateActor())(make_states(tokenizer)))
    whole, lean = seen
    torch.testing.assert_close(lean["log_likelihood"], whole["log_likelihood"])
    torch.testing.assert_close(lean["action"], whole["action"])
    assert "action_embedding" not in lean


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_a_state_without_batch_dimensions(family, tokenizer):
    trunk = make_trunk(make_model(family, tokenizer), tokenizer)
    states = make_states(tokenizer)
    expected, one = trunk(states.clone()), trunk(states[1].clone())
    for key in trunk.out_keys:
        torch.testing.assert_close(one[key], expected[key][1], atol=1e-4, rtol=1e-4)
