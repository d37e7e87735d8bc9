"""Trunks of every family against the plain computation: values, gradients, options, bad input."""

import pytest
import torch
from families import (
    ACTIONS,
    FAMILIES,
    GOALS,
    OBSERVATIONS,
    assert_plain,
    fresh_trunk,
    make_model,
    make_nine_states,
    make_states,
    make_transitions,
    outputs_and_gradients,
    passes_of,
    plain_score,
)
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictSequential
from torchrl.envs import TransformedEnv
from torchrl.objectives import DiscreteSACLoss
from transformers import GPT2Model, T5EncoderModel

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import (
    CandidateActor,
    CandidateCritic,
    DecoderOnlyTrunk,
    EncodedActionsTrunk,
    EncoderDecoderTrunk,
    OnDevice,
    ScoresOnly,
    load_language_model,
    make_trunk,
    split_by_tokens,
)
from torchrl_glam.models.trunks import encoder_decoder
from torchrl_glam.models.trunks.passes import token_passes
from torchrl_glam.text import TokenizeText


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def trunk_of(family, tokenizer, model=None, **options):
    return make_trunk(model or make_model(family, tokenizer), tokenizer, **options)


@pytest.fixture(params=["sdpa", "eager", "ours"])
def read_by(request, family, tokenizer, monkeypatch):
    """A trunk whose model reads by one of its own attentions, or T5 by our passes."""
    options = {} if request.param == "ours" else {"attention": request.param}
    trunk = trunk_of(family, tokenizer, make_model(family, tokenizer, **options))
    if request.param == "ours" and "t5" in family:
        monkeypatch.setattr(encoder_decoder, "can_read", lambda *_: True)
    return trunk


def test_outputs_and_gradients_equal_the_plain_computation(family, tokenizer, read_by):
    decodes = family in ("gpt2", "llama", "qwen2")
    assert type(read_by) is (DecoderOnlyTrunk if decodes else EncoderDecoderTrunk)
    states = read_by(make_states(tokenizer, masked=((0, 1), (1, 4), (2, 1))))
    assert_plain(read_by, tokenizer, states)
    model, mask = read_by.base_model, states["action_mask"]
    weights = torch.linspace(-1, 1, int(mask.sum()))
    value = states["log_likelihood"][mask] + states["action_embedding"][mask].sin().sum(-1)
    value = value @ weights + states["prompt_embedding"].sin().sum()
    plain = torch.zeros(())
    for weight, (state, action) in zip(weights, mask.nonzero().tolist(), strict=True):
        texts = GOALS[state], OBSERVATIONS[state], ACTIONS[state][action]
        total, last, first = plain_score(model, tokenizer, *texts)
        plain = plain + weight * (total + last.sin().sum())
        if action == 0:  # once a state
            plain = plain + first.sin().sum()
    gradients, expected = (
        torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        for total in (value, plain)
    )
    torch.testing.assert_close(gradients, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("number", [1, 40])
def test_one_candidate_and_forty(family, tokenizer, number):
    colours, names = ["red", "blue", "green"], ["lion", "cat", "dog", "rose", "tea", "door"]
    texts = [f"{verb} {c} {n}" for verb in ("Go to", "Grow") for c in colours for n in names]
    texts = [*texts, "Grasp", "Release", "Go to", "Go to red"][:number]
    trunk, actions = trunk_of(family, tokenizer), [texts, texts[::-1]]
    states = trunk(make_states(tokenizer, (), GOALS[:2], OBSERVATIONS[:2], actions))
    assert states["log_likelihood"].shape == (2, number)
    assert_plain(trunk, tokenizer, states, GOALS[:2], OBSERVATIONS[:2], actions)


def test_candidates_without_tokens_or_with_those_of_another_are_refused(tokenizer):
    trunk, states = fresh_trunk("t5"), make_states(tokenizer)
    states["action_mask"][2, 4] = True
    with pytest.raises(ValueError, match=r"action_tokens\[2, 4\] is admissible but has no tokens"):
        trunk(states)
    states = make_states(tokenizer)
    states["action_tokens"][1, 3] = states["action_tokens"][1, 0]
    places = r"action_tokens\[{0}, 0\] and \[{0}, 3\]"
    message = places + " are admissible and have the same tokens .*list each"
    with pytest.raises(ValueError, match=message.format(1)):
        trunk(states.clone())
    with pytest.raises(ValueError, match=message.format(2)):
        trunk(torch.cat([states[2:], states[2:], states[1:2]]))  # places as the caller counts them
    states["action_mask"][1, 0] = False  # a copy that is masked does no harm
    trunk(states)


def test_the_mean_over_tokens(family, tokenizer):
    states = make_states(tokenizer, masked=((0, 0),))
    mean, total = (
        trunk_of(family, tokenizer, normalisation=kind)(states.clone())["log_likelihood"]
        for kind in ("token_mean", "sum")
    )
    tokens = (states["action_tokens"] != tokenizer.pad_token_id).sum(-1).clamp_min(1)
    torch.testing.assert_close(mean, total / tokens)


def test_passes_of_few_tokens_change_neither_outputs_nor_gradients(family, tokenizer):
    trunk = trunk_of(family, tokenizer).double()  # rounding is no part of the question
    states, found = make_nine_states(tokenizer).view(3, 3), []
    for tokens in (None, 1, 60, 150, 10_000):
        trunk.max_tokens_per_pass = tokens
        outputs, gradients = outputs_and_gradients(trunk, states)
        found.append((outputs, torch.cat([value.flatten() for value in gradients.values()])))
    (whole, gradient), *parts = found
    for outputs, other in parts:
        torch.testing.assert_close(outputs, whole, atol=1e-4, rtol=1e-4)
        assert (other - gradient).norm() < 1e-5 * gradient.norm()


def test_parts_of_the_outputs_are_those_of_the_whole(family, tokenizer):
    trunk, inputs = trunk_of(family, tokenizer), make_states(tokenizer, masked=((0, 1), (2, 0)))
    mask, whole, near = inputs["action_mask"], trunk(inputs.clone()), {"atol": 1e-5, "rtol": 1e-5}
    for key, part in (
        ("log_likelihood", ScoresOnly(trunk)(inputs.clone())),
        ("action_embedding", trunk(inputs.clone(), only="embeddings")),
    ):
        assert {*part.keys()} - {*inputs.keys()} == {key, "prompt_embedding"}
        torch.testing.assert_close(part[key][mask], whole[key][mask], **near)
        torch.testing.assert_close(part["prompt_embedding"], whole["prompt_embedding"], **near)
    with pytest.raises(ValueError, match=r"only \('score'\) must be None or one of"):
        trunk(inputs, only="score")
    chosen = trunk.select_out_keys("log_likelihood")(inputs.clone())
    assert {*chosen.keys()} - {*inputs.keys()} == {"log_likelihood"}
    assert torch.equal(chosen["log_likelihood"], whole["log_likelihood"])


def test_keys_and_settings_arrive(tokenizer):
    inputs = ["goal", "observation", "action", "mask"]
    outputs = ["log_likelihood", "action_embedding", "prompt_embedding"]
    keys = {f"{name}_key": ("nested", name) for name in (*inputs, *outputs)}
    trunk, plain = trunk_of("t5", tokenizer, max_tokens_per_pass=70, **keys), fresh_trunk("t5")
    assert trunk.out_keys == [("nested", name) for name in outputs]
    assert trunk.max_tokens_per_pass == 70
    states, nested = plain(make_states(tokenizer)), make_states(tokenizer)
    for old, new in zip(plain.in_keys, trunk.in_keys, strict=True):
        nested.rename_key_(old, new)
    nested = trunk(nested)
    for old, new in zip(plain.out_keys, trunk.out_keys, strict=True):
        torch.testing.assert_close(nested[new], states[old])


def test_the_last_position_can_be_used(tokenizer):
    """Padding and siblings take no positions: exactly prompt plus longest candidate is enough."""
    longest = max(
        len(tokenizer(f"Goal: {g}\n{o}\nAction: {a}", add_special_tokens=False).input_ids)
        for g, o, row in zip(GOALS, OBSERVATIONS, ACTIONS, strict=True)
        for a in row
    )
    states = make_states(tokenizer)
    trunk = trunk_of("gpt2", tokenizer, make_model("gpt2", tokenizer, n_positions=longest))
    assert_plain(trunk, tokenizer, trunk(states.clone()))
    for family, number in (("gpt2", longest - 1), ("bart", 8)):
        model = make_model(family, tokenizer, max_position_embeddings=number)
        message = rf"have \d+ tokens, and the model has {number} positions"
        with pytest.raises(ValueError, match=message):
            trunk_of(family, tokenizer, model)(states.clone())


def test_under_vmap_the_remedy_is_named():
    """TorchRL's own loss runs its networks so, unless told otherwise."""
    trunk = fresh_trunk("t5")
    critic = TensorDictSequential(trunk, CandidateCritic(trunk.embedding_dim, (8,)))
    actor = ProbabilisticTensorDictSequential(trunk, CandidateActor()[0])
    loss = DiscreteSACLoss(actor, critic, action_space="categorical", num_actions=5)
    with pytest.raises(RuntimeError, match="under vmap.*deactivate_vmap=True"):
        loss(make_transitions())


def test_models_that_trunks_cannot_read_are_refused(tokenizer):
    t5, flan_t5, bart, gpt2, llama, _ = (make_model(family, tokenizer) for family in FAMILIES)
    bart.config.decoder_start_token_id = None
    llama.config._attn_implementation = "flash_attention_2"
    for kind, model, message in (
        (DecoderOnlyTrunk, t5, "not a decoder-only language model"),
        (EncoderDecoderTrunk, gpt2, "not an encoder-decoder with a language-model head"),
        (make_trunk, T5EncoderModel(flan_t5.config), "T5EncoderModel.*language-model head"),
        (make_trunk, GPT2Model(gpt2.config), "GPT2Model.*language-model head"),
        (make_trunk, bart, "set model.config.decoder_start_token_id"),
        (make_trunk, llama, "'flash_attention_2', which takes no mask per node"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(model, tokenizer)


def test_inputs_that_are_missing_or_do_not_fit_are_named(tokenizer):
    trunk, states = trunk_of("t5", tokenizer), make_states(tokenizer)
    for key in trunk.in_keys:
        for module in (trunk, OnDevice(ScoresOnly(trunk))):
            with pytest.raises(KeyError, match=f'"{key}" not found'):
                module(states.exclude(key))
    mask = states["action_mask"]
    for wrong, what in ((mask.int(), r"int32 \(3, 5\)"), (mask[:, :2], r"bool \(3, 2\)")):
        with pytest.raises(ValueError, match=rf"'action_mask' is torch.{what} .*'action_tokens'"):
            trunk(states.clone().set("action_mask", wrong))


@pytest.mark.parametrize(
    ("option", "value"),
    [("normalisation", "mean"), ("max_tokens_per_pass", 0), ("pad_to_multiple_of", 0)],
)
def test_wrong_options_are_refused(tokenizer, option, value):
    with pytest.raises(ValueError, match=rf"{option} \({value!r}\) must be (one of|at least 1)"):
        trunk_of("t5", tokenizer, **{option: value})


def test_passes_by_hand():
    """Sorted: prompts 10, 10, 11, 20, 21, 90 with nodes 5, 4, 5, 5, 6, 3; at most 48 tokens.

    Three rows of 11 + 5 are 48; two of 21 + 6 would be 54, so 20 and 21 stand alone; 90 + 3 is too
    long and stands alone too.
    """
    prompts, nodes = torch.tensor([21, 10, 90, 11, 10, 20]), torch.tensor([6, 5, 3, 5, 4, 5])
    passes = [rows.tolist() for rows in token_passes(prompts, nodes, 48)]
    assert passes == [[1, 4, 3], [5], [0], [2]]
    assert [rows.tolist() for rows in token_passes(prompts, nodes, 10_000)] == [[1, 4, 3, 5, 0, 2]]


def test_parts_hold_every_row_once_and_fit():
    trunk, batch = fresh_trunk("t5"), make_transitions()
    batch["row"] = torch.arange(len(batch))
    parts = split_by_tokens(batch, trunk, 90)
    assert sorted(torch.cat([part["row"] for part in parts]).tolist()) == list(range(len(batch)))
    assert len(parts) > 2
    for part in parts:
        for states in (part, part["next"]):
            prompts, nodes = trunk.count_tokens(states)
            assert len(part) * (prompts.max() + nodes.max()) <= 90 or len(part) == 1
    assert split_by_tokens(batch, trunk, None)[0] is batch
    with pytest.raises(ValueError, match=r"max_tokens \(0\) must be at least 1"):
        split_by_tokens(batch, trunk, 0)
    with pytest.raises(ValueError, match=r"batch has the shape \(3, 3\)"):
        split_by_tokens(batch.view(3, 3), trunk, 100)


@pytest.fixture(scope="module")
def played(tokenizer):
    env = TransformedEnv(PlaygroundTextEnv(num_envs=75, seed=0), TokenizeText(tokenizer))
    return env.rollout(6, break_when_any_done=False)


@pytest.fixture(scope="module")
def trunks():
    model, tokenizer = load_language_model("tiny")
    return [make_trunk(model, tokenizer, pad_to_multiple_of=multiple) for multiple in (1, 4)]


@pytest.mark.parametrize("only", [None, "scores", "embeddings", "prompt", "encoded actions"])
@pytest.mark.parametrize("number", [1, 13, 75])
def test_rounding_up_changes_no_output_nor_gradient(trunks, played, only, number, monkeypatch):
    shapes = passes_of(trunks[1], monkeypatch)
    if only == "encoded actions":
        trunks, only = [EncodedActionsTrunk(trunk) for trunk in trunks], "embeddings"
    plain, rounded = (outputs_and_gradients(t, played[:number, -1], only) for t in trunks)
    torch.testing.assert_close(rounded[0], plain[0], rtol=1e-4, atol=1e-4)
    for name, one in plain[1].items():
        scale = one.abs().max().clamp_min(1e-6)
        torch.testing.assert_close(rounded[1][name] / scale, one / scale, rtol=1e-3, atol=1e-4)
    assert {length % 4 for _, length, *_ in shapes} == {0}


def test_states_of_any_number_have_few_shapes(trunks, played, monkeypatch):
    plain, rounded = (passes_of(trunk, monkeypatch) for trunk in trunks)
    with torch.no_grad():
        for trunk in trunks:
            for number in range(65, 76):
                trunk(played[:number, -1].clone())
    assert len({*plain}) > 10
    assert len({*rounded}) <= 2


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_no_state_and_one_state(family, tokenizer):
    trunk, states = fresh_trunk(family), make_states(tokenizer)
    with pytest.raises(ValueError, match=r"batch size \[0\]: give one state or more"):
        trunk(states[:0])
    assert [len(part) for part in split_by_tokens(states[:0], trunk, 50)] == [0]
    counted = [n.tolist() for n in trunk.count_tokens(states)]
    for row in range(3):
        assert [n.item() for n in trunk.count_tokens(states[row])] == [n[row] for n in counted]
