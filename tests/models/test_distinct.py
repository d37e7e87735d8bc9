"""States that are alike are read once, and nothing else changes."""

import pytest
import torch
from families import ACTIONS, GOALS, OBSERVATIONS, assert_plain, make_model, make_states, passes_of
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import pad

from torchrl_glam.models import CandidateCritic, EncodedActionsTrunk, make_trunk
from torchrl_glam.models.trunks.passes import distinct_rows, fingerprint
from torchrl_glam.models.trunks.trie import build_trie

ORDER = [2, 0, 2, 1, 0, 2]  # three states, six rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 1), st.booleans()), max_size=12))
def test_distinct_rows_are_those_of_a_dictionary(rows):
    numbers = torch.tensor([row[:2] for row in rows], dtype=torch.int16).view(-1, 2)
    flags = torch.tensor([row[2] for row in rows], dtype=torch.bool)
    seen = {}
    for index, row in enumerate(rows):
        seen.setdefault(row, index)
    found = distinct_rows(numbers, flags.view(-1, 1, 1))
    if len(seen) == len(rows):
        assert found is None
    else:
        kept, back = (value.tolist() for value in found)
        assert kept == list(seen.values())
        assert [kept[place] for place in back] == [seen[row] for row in rows]


def test_rows_of_one_fingerprint_that_differ_are_kept_apart(monkeypatch):
    def poor(tokens):
        return torch.zeros(tokens.shape[:-1], dtype=torch.long)

    assert fingerprint(torch.tensor([[1, 2], [2, 1]])).unique().numel() == 2
    monkeypatch.setattr("torchrl_glam.models.trunks.passes.fingerprint", poor)
    monkeypatch.setattr("torchrl_glam.models.trunks.trie.fingerprint", poor)
    assert distinct_rows(torch.tensor([[1, 2], [2, 1], [1, 2]])) is None
    mask = torch.ones(1, 2, dtype=torch.bool)
    trie = build_trie(torch.tensor([[[5, 6], [6, 5]]]), mask, 1, 0)
    assert trie.tokens.tolist() == [[1, 5, 6, 6, 5]]


@pytest.mark.parametrize("most", [None, 60])
@pytest.mark.parametrize("family", ["t5", "bart", "llama"])
def test_states_that_are_alike_are_read_once(family, tokenizer, most, monkeypatch):
    trunk = make_trunk(make_model(family, tokenizer), tokenizer, max_tokens_per_pass=most)
    shapes = passes_of(trunk, monkeypatch)
    with torch.no_grad():
        states = trunk(make_states(tokenizer)[ORDER].view(2, 3)).view(-1)
    assert sum(rows for rows, *_ in shapes) == 3
    texts = ([rows[state] for state in ORDER] for rows in (GOALS, OBSERVATIONS, ACTIONS))
    assert_plain(trunk, tokenizer, states, *texts)
    shapes.clear()
    inputs = make_states(tokenizer)[ORDER]
    inputs["action_mask"][1, 0] = False  # prompts alone do not read it
    prompts = trunk(inputs, only="prompt")["prompt_embedding"]
    torch.testing.assert_close(prompts, states["prompt_embedding"], atol=1e-5, rtol=1e-5)
    assert sum(rows for rows, *_ in shapes) == 3


@pytest.mark.parametrize("most", [None, 60])
def test_gradients_of_states_that_are_alike_add_up(tokenizer, most):
    """Each row has a weight of its own; the plain gradients are those of one state at a time."""
    trunk = make_trunk(make_model("t5", tokenizer), tokenizer, max_tokens_per_pass=most).double()
    parameters = list(trunk.parameters())
    weights = torch.arange(1.0, 7).double()

    def value(rows):
        out = trunk(make_states(tokenizer)[rows])
        return (out["log_likelihood"].sin() + out["prompt_embedding"].sin().sum(-1, True)).sum(-1)

    whole = torch.autograd.grad((value(ORDER) * weights).sum(), parameters)
    apart = sum((value([state]) * w).sum() for state, w in zip(ORDER, weights, strict=True))
    apart = torch.autograd.grad(apart, parameters)
    torch.testing.assert_close(whole, apart, atol=1e-5, rtol=1e-5)  # scores are float32


def test_texts_of_prompt_and_action_that_are_alike_are_read_once(tokenizer, monkeypatch):
    trunk = EncodedActionsTrunk(make_trunk(make_model("t5", tokenizer), tokenizer))
    states = make_states(tokenizer)
    expected = torch.stack([trunk(state)["action_embedding"] for state in states.clone()])
    shapes = passes_of(trunk.trunk, monkeypatch)
    out = trunk(states[ORDER], only="embeddings")["action_embedding"]
    torch.testing.assert_close(out, expected[ORDER], atol=1e-5, rtol=1e-5)
    assert [rows for rows, *_ in shapes] == [13]  # of 5, 5 and 3 candidates
    states["action_mask"][:] = False
    assert not trunk(states)["action_embedding"].any()
    states = states.select(*trunk.in_keys)
    chosen = trunk.select_out_keys("prompt_embedding")(states.clone())
    assert {*chosen.keys()} - {*states.keys()} == {"prompt_embedding"}


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_slots_that_no_state_uses_are_not_read(family, tokenizer):
    """Not by the trie, whose work grows with their square, nor by the critic's perceptron."""
    trunk, states = make_trunk(make_model(family, tokenizer), tokenizer), make_states(tokenizer)
    critic = CandidateCritic(trunk.embedding_dim, (8,))
    used, wide = states["action_mask"].shape[1], states.clone()
    wide["action_tokens"] = pad(states["action_tokens"], (0, 0, 0, 40))
    wide["action_mask"] = pad(states["action_mask"], (0, 40))
    trie = build_trie(wide["action_tokens"], wide["action_mask"], 1, 0)
    assert trie.end.shape == (3, used) and trie.path.shape[:2] == (3, used)
    read = []
    critic.module.mlp.register_forward_pre_hook(lambda _, given: read.append(len(given[0])))
    found, expected = (critic(trunk(given)) for given in (wide, states))
    assert read == [states["action_mask"].sum()] * 2
    for key in ("log_likelihood", "action_embedding", "action_value"):
        assert found[key].shape[1] == used + 40
        torch.testing.assert_close(found[key][:, :used], expected[key])
        assert not found[key][:, used:].any()
    masked = torch.zeros_like(wide["action_mask"])
    assert build_trie(wide["action_tokens"], masked, 1, 0).tokens.tolist() == [[1]] * 3


def test_a_critic_runs_under_vmap_as_torchrls_losses_run_it():
    """With several critics' weights over one batch."""
    critics = [CandidateCritic(4, (8,)) for _ in range(2)]
    weights = torch.func.stack_module_state([critic.module for critic in critics])
    inputs = (
        torch.randn(3, 5, 4),
        torch.tensor([[True] * 5, [True, False] * 2 + [True], [False] * 5]),
    )

    def read(*given):
        return torch.func.functional_call(critics[0].module, given, inputs)

    expected = torch.stack([critic.module(*inputs) for critic in critics])
    torch.testing.assert_close(torch.vmap(read)(*weights), expected)
