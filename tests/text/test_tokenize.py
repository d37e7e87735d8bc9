"""Texts as tensors, tokens and prompts, against the tokenizer applied to the text itself."""

import pytest
import stairs
import torch
from families import make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_card import PretendCard
from tensordict import TensorDict
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import check_env_specs
from transformers import PreTrainedTokenizerFast

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.models import load_tokenizer, make_trunk
from torchrl_glam.text import PromptBuilder, PromptTemplate, TokenizeText, decode_text, encode_text
from torchrl_glam.text.encoding import cut_text, join_segments
from torchrl_glam.text.token_cache import TokenCache


def make_env(tokenizer, **lengths):
    env = PlaygroundTextEnv(num_envs=5, num_objects=4, seed=0)
    return TransformedEnv(env, TokenizeText(tokenizer, **lengths))


def ids_of(tokenizer, text, length):
    ids = tokenizer(text, add_special_tokens=False).input_ids if text.strip() else []
    return ids + [tokenizer.pad_token_id] * (length - len(ids))


def test_tokens_are_those_of_the_text(tokenizer):
    env = make_env(tokenizer)
    steps = env.rollout(40, break_when_any_done=False).flatten()
    assert steps["goal_tokens"].dtype == torch.int16  # the smallest that holds the vocabulary
    assert steps["next", "done"].any()  # so that there are states after resets
    for state in (steps, steps["next"]):
        named = env.goals.texts_of(state["hindsight", "goal_id"].flatten())
        actions = decode_text(state["actions"].flatten(0, 1))
        slots = [
            (decode_text(state["goal"]), state["goal_tokens"], " "),
            (decode_text(state["observation"]), state["observation_tokens"], "\n"),
            (actions, state["action_tokens"].flatten(0, 1), " "),
            (named, state["hindsight", "goal_tokens"].flatten(0, 1), " "),
        ]
        for texts, tokens, lead in slots:
            for text, row in zip(texts, tokens.tolist(), strict=True):
                assert row == ids_of(tokenizer, lead + text, len(row))
    assert (steps["next", "hindsight", "kind"] >= 0).any()


def state_with(goal="Sing", observation="See", **hindsight):
    """A state of an environment of another make."""
    text = {"goal": [goal], "observation": [observation], "actions": [["Grasp", ""]]}
    state = {key: encode_text(words) for key, words in text.items()}
    return TensorDict(state | {"hindsight": hindsight}, [1])


def test_hindsight_goals_may_be_text_or_ids(tokenizer):
    goals = ["Grasp red lion", "Grow any tea", "Grasp food"]
    named = encode_text([[goals[2], "", goals[0]]])
    as_text = state_with().set(("hindsight", "goal"), named)
    as_ids = state_with(goal_id=torch.tensor([[2, -1, 0]]))
    out = TokenizeText(tokenizer)(as_text)
    tokens, actions = out["hindsight", "goal_tokens"], out["action_tokens"]
    assert actions.tolist() == [[ids_of(tokenizer, text, 8) for text in (" Grasp", "")]]
    expected = [ids_of(tokenizer, " " + text, 24) for text in (goals[2], "", goals[0])]
    assert tokens.tolist() == [expected]
    transform = TokenizeText(tokenizer, goal_texts=goals)
    assert (transform(as_ids)["hindsight", "goal_tokens"] == tokens).all()
    as_ids["hindsight", "goal_id"] = as_ids["hindsight", "goal_id"].to(torch.int8)
    assert (transform(as_ids)["hindsight", "goal_tokens"] == tokens).all()
    assert "hindsight" not in transform(as_ids.exclude("hindsight"))


def test_a_copy_reads_the_goals_of_its_own_environment(tokenizer):
    train = make_env(tokenizer)
    train.reset()
    test = TransformedEnv(PlaygroundTextEnv(4, split="test", seed=0), train.transform.clone())
    steps = test.rollout(20, break_when_any_done=False).flatten()["next", "hindsight"]
    named, row = (steps["goal_id"] >= 0).nonzero()[0].tolist(), steps["goal_tokens"]
    text = test.goals[int(steps["goal_id"][tuple(named)])]
    assert row[tuple(named)].tolist() == ids_of(tokenizer, " " + text, row.shape[-1])


def test_an_environment_may_move_to_another_device(tokenizer):
    env = make_env(tokenizer)
    expected = env.reset()["hindsight", "goal_tokens"].shape
    with PretendCard():
        tokens = env.to("cuda").reset()["hindsight", "goal_tokens"]
        assert tokens.is_cuda and tokens.shape == expected


def test_a_full_cache_starts_again(tokenizer, monkeypatch):
    monkeypatch.setattr("torchrl_glam.text.token_cache._SIZE", 4)
    cache = TokenCache(tokenizer, " ", "goal", 5, torch.int32)
    words = ["Grasp", "Grow", "", "red lion", "any tea", "food", "Grasp", "cow"]
    for start in range(5):
        batch = words[start : start + 3]
        expected = [ids_of(tokenizer, " " + text, 5) for text in batch]
        assert cache.tokens_of(encode_text(batch, 9)).tolist() == expected


@pytest.mark.parametrize("keep", ["head", "tail"])
def test_a_text_that_is_too_long_is_cut_at_white_space_and_counted(tokenizer, keep):
    whole, length = "Zebras quarrel where walls\ncrumble into dusty squares", 20
    transform = TokenizeText(tokenizer, observation_length=length, keep=keep)
    state = state_with(observation=whole)
    with pytest.warns(UserWarning, match=rf"observation_length \({length}\) is too .* {keep} is"):
        tokens = transform(state)["observation_tokens"]
    kept = tokenizer.decode([token for token in tokens[0] if token != tokenizer.pad_token_id])
    gaps = [place for place, letter in enumerate(whole) if letter.isspace()]
    parts = [whole[:gap] if keep == "head" else whole[gap + 1 :] for gap in gaps]
    fitting = [part for part in parts if len(ids_of(tokenizer, "\n" + part, 0)) <= length]
    assert kept == "\n" + max(fitting, key=len)
    transform(state)  # which is in the cache, and warns no more
    assert transform.num_cut == {"goal": 0, "observation": 1, "action": 0}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0")), st.integers(0, 12))
def test_a_part_is_as_long_as_fits(text, size):
    def fits(part):
        return len(part.encode()) <= size

    for keep in ("head", "tail"):
        part = cut_text(text, fits, keep)
        assert fits(part)
        assert text.startswith(part) if keep == "head" else text.endswith(part)
        if size >= 4 and text.strip():  # one character at least
            assert part or text != text.strip()


def test_an_environment_without_hindsight_needs_none(tokenizer):
    env = TransformedEnv(stairs.make(2, hindsight=None), TokenizeText(tokenizer))
    check_env_specs(env)
    assert "hindsight" not in env.reset().keys()
    assert "hindsight" not in env.observation_spec.keys()


@pytest.mark.parametrize("raw", ["Sing, Élan".encode("latin-1"), "Sing, É".encode()[:-1]])
def test_a_text_that_is_not_utf_8_is_named(tokenizer, raw):
    state = state_with()
    state["observation"] = torch.tensor([[*raw, 0, 0]], dtype=torch.uint8)
    message = r"observation is not UTF-8 at byte 6 of b'Sing, \\xc."
    with pytest.raises(ValueError, match=message):
        TokenizeText(tokenizer)(state)
    with pytest.raises(ValueError, match=message.replace("observation", "text")):
        decode_text(state["observation"])


def test_what_cannot_be_tokenised_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"goal_length \(2\) is too small: '.*' has \d tokens"):
        make_env(tokenizer, goal_length=2).reset()
    with pytest.raises(ValueError, match=r"action_length \(0\)"):
        TokenizeText(tokenizer, action_length=0)
    template = PromptTemplate("Goal: {goal}\n\n{observation}\nAction:")
    for keep in (None, "head", "tail"):  # no end of a lead is kept
        with pytest.raises(
            ValueError, match=r"observation_length \(1\) is .* '\\n\\n' has 2 tokens"
        ):
            TokenizeText(tokenizer, template=template, observation_length=1, keep=keep)
    with pytest.raises(ValueError, match=r"goal_texts is needed: \('hindsight', 'goal_id'\) holds"):
        TokenizeText(tokenizer)(state_with(goal_id=torch.tensor([[2]])))
    for low, high in ((-2, 0), (0, 1)):
        state = state_with(goal_id=torch.tensor([[high, low]]))
        with pytest.raises(ValueError, match=rf"goal_id'\) is from {low} to {high}, .* the 1 goal"):
            TokenizeText(tokenizer, goal_texts=["Sing"])(state)
    with pytest.raises(ValueError, match=r"^action \(' Say <pad>'\) spells '<pad>', the tokenizer"):
        TokenizeText(tokenizer)(state_with().set("actions", encode_text([["Say <pad>", ""]])))
    with pytest.raises(ValueError, match=r"goal_texts \('Sing'\) must be a list of texts"):
        TokenizeText(tokenizer, goal_texts="Sing")
    with pytest.raises(KeyError, match="text=True"):
        TransformedEnv(PlaygroundTextEnv(2, text=False), TokenizeText(tokenizer)).reset()
    for key in ("goal", "actions"):
        for wrong, kind in ((torch.ones(1, 2, 9).long(), "torch.int64"), (["Go"], "NonTensor")):
            state = state_with().exclude(key).set(key, wrong)
            with pytest.raises(TypeError, match=rf"{key.removesuffix('s')} must .*, got .*{kind}"):
                TokenizeText(tokenizer)(state)


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(words, min_size=n, max_size=n))))
def test_text_tensors_hold_any_text(strings):
    text = encode_text(strings)
    assert text.dtype == torch.uint8
    assert decode_text(text) == strings


def test_shapes_of_text_tensors():
    assert decode_text(encode_text("Grasp")) == "Grasp"
    assert encode_text([["a", "b"], ["c", "d"], ["e", ""]], length=5).shape == (3, 2, 5)
    assert encode_text("").tolist() == [0]
    assert decode_text(torch.zeros(2, 0, dtype=torch.uint8)) == ["", ""]
    assert encode_text([], length=3).shape == (0, 3)


def test_errors_of_text_tensors():
    with pytest.raises(ValueError, match=r"length \(3\) is too small for 'Grasp', .* 5 bytes"):
        encode_text(["Go", "Grasp"], length=3)
    with pytest.raises(ValueError, match="zero bytes are padding"):
        encode_text("a\0b")
    with pytest.raises(ValueError, match=r"length \(0\) is too small for '', .* 0 bytes"):
        encode_text([""], length=0)
    with pytest.raises(ValueError, match="nested evenly"):
        encode_text([["a"], ["b", "c"]])
    with pytest.raises(TypeError, match="uint8 tensor of UTF-8 bytes, got torch.int64"):
        decode_text(torch.zeros(3).long())
    with pytest.raises(TypeError, match="got str"):
        decode_text("Grasp")


cells = st.tuples(st.integers(-9, 9), st.booleans())  # a value, and whether it is kept


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(cells, min_size=12, max_size=12)), st.integers(0, 14))
def test_join_segments(rows, length):
    """Three of four values a row, whose padding may stand in the middle."""
    values, mask = torch.tensor(rows, dtype=torch.int16).view(len(rows), 3, 4, 2).unbind(-1)
    joined = join_segments(values, mask.bool(), length, pad=99)
    assert joined.dtype == values.dtype
    kept = [[value for value, keep in row if keep][:length] for row in rows]
    assert joined.tolist() == [row + [99] * (length - len(row)) for row in kept]


def test_a_tokenizer_with_a_stray_leading_piece_is_refused_by_trunk_and_transform():
    """As Llama 2's: a space is put before every text, also before the pieces of a prompt."""
    tokenizer = load_tokenizer("tiny")
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    for family in ("gpt2", "t5"):
        with pytest.raises(ValueError, match="does not compose"):
            make_trunk(make_model(family, tokenizer), tokenizer)
    with pytest.raises(ValueError, match="does not compose"):
        TokenizeText(tokenizer)(state_with())


def test_a_template_that_does_not_compose_is_refused(tokenizer):
    glued = PromptTemplate("Goal: {goal}\n{observation}Action:")
    with pytest.raises(ValueError, match="does not compose"):
        TokenizeText(tokenizer, template=glued)(state_with(observation="You see: red lion\n"))


@pytest.mark.parametrize("goal", ["", "Grasp red lion"])
@pytest.mark.parametrize("observation", ["", "You see: red lion"])
def test_an_empty_goal_keeps_its_lead_in(goal, observation, tokenizer):
    out = TokenizeText(tokenizer)(state_with(goal, observation))
    tokens, mask = PromptBuilder(tokenizer)(out["goal_tokens"], out["observation_tokens"])
    whole = tokenizer(f"Goal: {goal}\n{observation}\nAction:").input_ids
    assert tokens[0, mask[0]].tolist() == whole


def pairs_of_line_ends():
    """Two line ends are one token of this tokenizer."""
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    words = [*special.values(), "\n\n", "\n", " ", "Goal:", "Sing", "See", "Action:"]
    vocabulary = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    isolated = ["\n\n", " ", Regex(r"(?<!\n)\n(?!\n)")]
    splits = [pre_tokenizers.Split(pattern, "isolated") for pattern in isolated]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def test_earlier_steps_that_do_not_compose_are_refused_before_they_are_played():
    template = PromptTemplate("{observation} Goal: {goal}")  # nothing parts it from an action
    TokenizeText(pairs_of_line_ends(), template=template)(state_with())
    with pytest.raises(ValueError, match="does not compose"):
        TokenizeText(pairs_of_line_ends(), template=template, memory=50)(state_with())


def test_a_kind_of_prompt_that_does_not_compose_is_refused_when_it_comes():
    """Two line ends stand there if nothing is between."""
    transform = TokenizeText(pairs_of_line_ends())
    transform(state_with())
    transform(state_with(goal=""))
    # what a reset leaves empty elsewhere is no prompt
    states = torch.cat([state_with(), state_with()])
    states["observation"][1] = 0
    resets = TensorDict({"_reset": torch.tensor([[True], [False]])}, batch_size=[2])
    transform._reset(resets, states.clone())
    resets["_reset"][1] = True
    with pytest.raises(ValueError, match="does not compose"):
        transform._reset(resets, states.clone())


def test_a_template_of_white_space_is_read_at_once():
    """In time that grows with its length, not with the square."""
    with pytest.raises(ValueError, match="has the slots"):
        PromptTemplate(" " * 300_000)
    assert PromptTemplate("{goal} \n {observation}").lead("observation") == " \n "
