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


@pytest.mark.parametrize("masked", [(), ((0, 1), (1, 4), (2, 0))], ids=["all", "masked"])
def test_scores_equal_the_plain_computation(family, tokenizer, read_by, masked):
    trunk = read_by
    decodes = family in ("gpt2", "llama", "qwen2")
    assert type(trunk) is (DecoderOnlyTrunk if decodes else EncoderDecoderTrunk)
    assert_plain(trunk, tokenizer, trunk(make_states(tokenizer, masked)))


def test_gradients_equal_the_plain_computation(tokenizer, read_by):
    model, states = read_by.base_model, read_by(make_states(tokenizer))
    mask = states["action_mask"]
    weights = torch.linspace(-1, 1, int(mask.sum()))
    value = (states["log_likelihood"][mask] * weights).sum()
    value = value + (states["action_embedding"][mask].sin() * weights.unsqueeze(-1)).sum()
    value = value + states["prompt_embedding"].sin().sum()
    plain, seen = torch.zeros(()), set()
    for weight, (state, action) in zip(weights, mask.nonzero().tolist(), strict=True):
        total, last, first = plain_score(
            model, tokenizer, GOALS[state], OBSERVATIONS[state], ACTIONS[state][action]
        )
        plain = plain + weight * (total + last.sin().sum())
        if state not in seen:
            plain = plain + first.sin().sum()
        seen.add(state)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    expected = torch.autograd.grad(plain, parameters, allow_unused=True)
    for (name, _), ours, theirs in zip(model.named_parameters(), gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("number", [1, 40])
def test_one_candidate_and_forty(family, tokenizer, number):
    colours, names = ["red", "blue", "green"], ["lion", "cat", "dog", "rose", "tea", "door"]
    texts = [f"{verb} {c} {n}" for verb in ("Go to", "Grow") for c in colours for n in names]
    texts = [*texts, "Grasp", "Release", "Go to", "Go to red"][:number]
    trunk, actions = trunk_of(family, tokenizer), [texts, texts[::-1]]
    states = trunk(make_states(tokenizer, (), GOALS[:2], OBSERVATIONS[:2], actions))
    assert states["log_likelihood"].shape == (2, number)
    assert_plain(trunk, tokenizer, states, GOALS[:2], OBSERVATIONS[:2], actions)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_candidates_that_are_equal_are_refused(family, tokenizer):
    states = make_states(tokenizer)
    states["action_tokens"][1, 3] = states["action_tokens"][1, 0]
    trunk = trunk_of(family, tokenizer)
    message = (
        r"action_tokens\[1, 0\] and \[1, 3\] are admissible and have the same tokens .*list each"
    )
    with pytest.raises(ValueError, match=message):
        trunk(states.clone())
    with pytest.raises(ValueError, match=message.replace("1, ", "2, ")):
        trunk(torch.cat([states[2:], states[2:], states[1:2]]))  # places as the caller counts them
    states["action_mask"][1, 0] = False  # a copy that is masked does no harm
    trunk(states)


def test_the_mean_over_tokens(family, tokenizer):
    trunk = trunk_of(family, tokenizer, normalisation="token_mean")
    states = trunk(make_states(tokenizer, masked=((0, 0),)))
    for state, action in states["action_mask"].nonzero().tolist():
        text = ACTIONS[state][action]
        model, prompt = trunk.base_model, (GOALS[state], OBSERVATIONS[state])
        total, _, _ = plain_score(model, tokenizer, *prompt, text)
        tokens = len(tokenizer(" " + text, add_special_tokens=False).input_ids)
        score = states["log_likelihood"][state, action]
        torch.testing.assert_close(score, total / tokens, atol=1e-4, rtol=0)
    assert states["log_likelihood"][0, 0] == 0


def test_passes_of_few_tokens_change_neither_outputs_nor_gradients(family, tokenizer):
    trunk = trunk_of(family, tokenizer)
    trunk.double()  # rounding is no part of the question
    parameters = list(trunk.parameters())
    states = make_nine_states(tokenizer).view(3, 3)
    mask, found = states["action_mask"], []
    for tokens in (None, 1, 60, 150, 10_000):
        trunk.max_tokens_per_pass = tokens
        out = trunk(states.clone())
        read = [out["log_likelihood"], out["action_embedding"][mask], out["prompt_embedding"]]
        value = sum(part.sin().sum() for part in read)
        twice = [
            torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=again)
            for again in (True, False)
        ]
        torch.testing.assert_close(*twice)
        gradient = torch.cat([g.flatten() for g in twice[0] if g is not None])
        found.append([part.detach() for part in read] + [gradient])
    whole = found[0]
    for parts in found[1:]:
        torch.testing.assert_close(parts[:-1], whole[:-1], atol=1e-4, rtol=1e-4)
        assert (parts[-1] - whole[-1]).norm() < 1e-5 * whole[-1].norm()


def test_scores_alone_and_embeddings_alone(family, tokenizer):
    trunk = trunk_of(family, tokenizer)
    inputs = make_states(tokenizer, masked=((0, 1), (2, 0)))
    mask, whole = inputs["action_mask"], trunk(inputs.clone())
    lean = TensorDictSequential(ScoresOnly(trunk), CandidateActor())
    torch.manual_seed(0)
    scores = lean(inputs.clone())
    assert "action_embedding" not in scores
    torch.manual_seed(0)
    torch.testing.assert_close(scores["action"], CandidateActor()(whole.clone())["action"])
    embeddings = trunk(inputs.clone(), only="embeddings")
    assert "log_likelihood" not in embeddings
    near = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(scores["log_likelihood"], whole["log_likelihood"], **near)
    torch.testing.assert_close(
        embeddings["action_embedding"][mask], whole["action_embedding"][mask], **near
    )
    for part in (scores, embeddings):
        torch.testing.assert_close(part["prompt_embedding"], whole["prompt_embedding"], **near)


def test_keys_and_settings_arrive(tokenizer):
    inputs = ["goal", "observation", "action", "mask"]
    outputs = ["log_likelihood", "action_embedding", "prompt_embedding"]
    keys = {f"{name}_key": ("nested", name) for name in (*inputs, *outputs)}
    options = {"normalisation": "token_mean", "max_tokens_per_pass": 70}
    trunk = trunk_of("t5", tokenizer, **options, **keys)
    assert trunk.out_keys == [("nested", name) for name in outputs]
    assert trunk.max_tokens_per_pass == 70 and trunk.normalisation == "token_mean"
    plain = trunk_of("t5", tokenizer, **options)
    states, nested = plain(make_states(tokenizer)), make_states(tokenizer)
    for old, new in zip(plain.in_keys, trunk.in_keys, strict=True):
        nested.rename_key_(old, new)
    nested = trunk(nested)
    for old, new in zip(plain.out_keys, trunk.out_keys, strict=True):
        torch.testing.assert_close(nested[new], states[old])


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "bart"])
def test_more_tokens_than_positions_are_refused(family, tokenizer):
    model = make_model(family, tokenizer, **({"max_position_embeddings": 8}))
    with pytest.raises(ValueError, match=r"have \d+ tokens, and the model has 8 positions"):
        trunk_of(family, tokenizer, model)(make_states(tokenizer))


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
    trunk = trunk_of("gpt2", tokenizer, make_model("gpt2", tokenizer, n_positions=longest - 1))
    with pytest.raises(ValueError, match="positions"):
        trunk(states)


def test_under_vmap_the_remedy_is_named(tokenizer):
    """TorchRL's own loss runs its networks so, unless told otherwise."""
    trunk = trunk_of("t5", tokenizer)
    critic = TensorDictSequential(trunk, CandidateCritic(trunk.embedding_dim, (8,)))
    actor = ProbabilisticTensorDictSequential(trunk, CandidateActor()[0])
    loss = DiscreteSACLoss(actor, critic, action_space="categorical", num_actions=5)
    steps = make_states(tokenizer).set("action", torch.zeros(3, dtype=torch.long))
    ends = torch.zeros(3, 1, dtype=torch.bool)
    after = {"reward": ends.float(), "done": ends, "terminated": ends}
    steps["next"] = make_states(tokenizer).update(after)
    with pytest.raises(RuntimeError, match="under vmap.*deactivate_vmap=True"):
        loss(steps)


def test_models_that_trunks_cannot_read_are_refused(tokenizer):
    with pytest.raises(ValueError, match="not a decoder-only language model"):
        DecoderOnlyTrunk(make_model("t5", tokenizer), tokenizer)
    with pytest.raises(ValueError, match="not an encoder-decoder with a language-model head"):
        EncoderDecoderTrunk(make_model("gpt2", tokenizer), tokenizer)
    t5, gpt2 = make_model("t5", tokenizer).config, make_model("gpt2", tokenizer).config
    with pytest.raises(ValueError, match="T5EncoderModel.*language-model head"):
        make_trunk(T5EncoderModel(t5), tokenizer)
    with pytest.raises(ValueError, match="GPT2Model.*language-model head"):
        make_trunk(GPT2Model(gpt2), tokenizer)


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


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_a_candidate_that_spells_nothing_is_refused(family, tokenizer):
    states = make_states(tokenizer)
    states["action_mask"][2, 4] = True
    with pytest.raises(ValueError, match=r"action_tokens\[2, 4\] is admissible but has no tokens"):
        trunk_of(family, tokenizer)(states)


def test_an_attention_without_masks_of_its_own_is_refused(tokenizer):
    model = make_model("llama", tokenizer)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="'flash_attention_2', which takes no mask per node"):
        make_trunk(model, tokenizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalisation": "mean"}, r"normalisation \('mean'\) must be one of"),
        ({"max_tokens_per_pass": 0}, r"max_tokens_per_pass \(0\) must be at least 1"),
        ({"pad_to_multiple_of": 0}, r"pad_to_multiple_of \(0\) must be at least 1"),
    ],
)
def test_wrong_options_are_refused(tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        EncoderDecoderTrunk(make_model("t5", tokenizer), tokenizer, **options)


def test_passes_by_hand():
    """Sorted: prompts 10, 10, 11, 20, 21, 90 with nodes 5, 4, 5, 5, 6, 3; at most 48 tokens.

    Three rows of 11 + 5 are 48; two of 21 + 6 would be 54, so 20 and 21 stand alone; 90 + 3 is too
    long and stands alone too.
    """
    prompts, nodes = torch.tensor([21, 10, 90, 11, 10, 20]), torch.tensor([6, 5, 3, 5, 4, 5])
    passes = [rows.tolist() for rows in token_passes(prompts, nodes, 48)]
    assert passes == [[1, 4, 3], [5], [0], [2]]
    assert [rows.tolist() for rows in token_passes(prompts, nodes, 10_000)] == [[1, 4, 3, 5, 0, 2]]


def test_parts_hold_every_row_once_and_fit(tokenizer):
    trunk, batch = make_trunk(make_model("t5", tokenizer), tokenizer), make_transitions()
    batch["row"] = torch.arange(len(batch))
    parts = split_by_tokens(batch, trunk, 90)
    assert sorted(torch.cat([part["row"] for part in parts]).tolist()) == list(range(len(batch)))
    assert len(parts) > 2
    for part in parts:
        for states in (part, part["next"]):
            prompts, nodes = trunk.count_tokens(states)
            assert len(part) * (prompts.max() + nodes.max()) <= 90 or len(part) == 1
    assert split_by_tokens(batch, trunk, None)[0] is batch


def test_bad_arguments_of_passes_are_refused(tokenizer):
    trunk, batch = make_trunk(make_model("t5", tokenizer), tokenizer), make_transitions()
    with pytest.raises(ValueError, match=r"max_tokens \(0\) must be at least 1"):
        split_by_tokens(batch, trunk, 0)
    with pytest.raises(ValueError, match=r"batch has the shape \(3, 3\)"):
        split_by_tokens(batch.view(3, 3), trunk, 100)


@pytest.fixture(scope="module")
def played():
    _, tokenizer = load_language_model("tiny")
    env = TransformedEnv(PlaygroundTextEnv(num_envs=75, seed=0), TokenizeText(tokenizer))
    return env.rollout(6, break_when_any_done=False)


@pytest.fixture(scope="module")
def trunks():
    model, tokenizer = load_language_model("tiny")
    return [make_trunk(model, tokenizer, pad_to_multiple_of=multiple) for multiple in (1, 4)]


@pytest.mark.parametrize("only", [None, "scores", "embeddings", "prompt"])
@pytest.mark.parametrize("number", [1, 13, 75])
def test_rounding_up_changes_no_output_nor_gradient(trunks, played, only, number):
    plain, rounded = (outputs_and_gradients(t, played[:number, -1], only) for t in trunks)
    torch.testing.assert_close(rounded[0], plain[0], rtol=1e-4, atol=1e-4)
    for name, one in plain[1].items():
        scale = one.abs().max().clamp_min(1e-6)
        torch.testing.assert_close(rounded[1][name] / scale, one / scale, rtol=1e-3, atol=1e-4)


def test_states_of_any_number_have_few_shapes(trunks, played, monkeypatch):
    plain, rounded = (passes_of(trunk, monkeypatch) for trunk in trunks)
    with torch.no_grad():
        for trunk in trunks:
            for number in range(65, 76):
                trunk(played[:number, -1].clone())
    assert len({*plain}) > 10
    assert len({*rounded}) <= 2


def test_prompts_that_end_in_an_action_are_rounded_up_too(trunks, played, monkeypatch):
    read = [passes_of(trunk, monkeypatch) for trunk in trunks]
    for number in (1, 2, 13, 75):
        plain, rounded = (
            EncodedActionsTrunk(trunk)(played[:number, -1].clone(), only="embeddings")
            for trunk in trunks
        )
        torch.testing.assert_close(
            rounded["action_embedding"], plain["action_embedding"], rtol=1e-4, atol=1e-4
        )
    lengths = [{length % 4 for _, length, *_ in shapes} for shapes in read]
    assert lengths[0] != {0} and lengths[1] == {0}


def test_some_outputs_can_be_chosen_and_misspelt_parts_are_refused(tokenizer):
    trunk, states = fresh_trunk("t5"), make_states(tokenizer)
    whole = fresh_trunk("t5")(states.clone())
    chosen = trunk.select_out_keys("log_likelihood")(states.clone())
    assert set(chosen.keys()) - set(states.keys()) == {"log_likelihood"}
    assert torch.equal(chosen["log_likelihood"], whole["log_likelihood"])
    with pytest.raises(ValueError, match=r"only \('score'\) must be None or one of"):
        trunk(states, only="score")


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_no_state_and_one_state(family, tokenizer):
    trunk, states = fresh_trunk(family), make_states(tokenizer)
    with pytest.raises(ValueError, match=r"batch size \[0\]: give one state or more"):
        trunk(states[:0])
    assert [len(part) for part in split_by_tokens(states[:0], trunk, 50)] == [0]
    counted = [n.tolist() for n in trunk.count_tokens(states)]
    for row in range(3):
        assert [n.item() for n in trunk.count_tokens(states[row])] == [n[row] for n in counted]
