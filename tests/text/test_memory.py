"""Earlier steps in the prompt, against one that is written down from the games' own texts."""

import random
from functools import partial

import pytest
import stairs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, ParallelEnv, SerialEnv, TransformedEnv, check_env_specs
from torchrl.envs.utils import step_mdp

from torchrl_glam.envs import CandidateMask, TextEnvWrapper, check_text_env
from torchrl_glam.models import load_tokenizer
from torchrl_glam.replay import HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.text import PromptBuilder, PromptTemplate, TokenizeText, decode_text

TOKENIZER = load_tokenizer("tiny")
WORDS = ["red", "lion", "blue cat", "water", "a door to the east", "You", "see:"]


class Diary:
    """Shows pages of random words, no two alike, and keeps what was seen and done before each."""

    def __init__(self, first, longest, most_words):
        self.first, self.longest, self.most_words = first, longest, most_words
        self.pages = {}  # earlier observations and actions, by the page that they led to

    def reset(self, *, seed):
        self.draw = random.Random(seed)
        self.left, self.before = self.draw.randint(1, self.longest), []
        return self.turn()

    def turn(self):
        words = self.draw.choices(WORDS, k=self.draw.randint(0, self.most_words))
        self.page = " ".join([f"Page {self.first + len(self.pages)}", *words])
        self.pages[self.page] = list(self.before)
        ways = self.draw.sample(WORDS, self.draw.randint(1, 3))
        return self.page, {"ways": [f"go {way}" for way in ways]}

    def step(self, action):
        self.before.append((self.page, action))
        self.left -= 1
        won = self.left == 0 and self.draw.random() < 0.5
        page, info = self.turn()
        return page, float(won), won, self.left == 0 and not won, info


def diaries(number, longest=6, most_words=5):
    return [Diary(1000 * index, longest, most_words) for index in range(number)]


def wrap(games, **kwargs):
    own = {"max_actions": 3, "actions": "ways", "goal_text": "Read all", "seed": 0}
    return TextEnvWrapper(games, hindsight=last_page, **{**own, **kwargs})


def last_page(steps):
    return [f"Read {' '.join(steps[-1].observation.split()[:2])}"]


def size(text):
    return len(TOKENIZER(text, add_special_tokens=False).input_ids)


def prompt(goal, before, observation, memory):
    """The tokens that an agent is to read: the newest whole steps that fit."""
    shown, room = "", memory
    for seen, action in reversed(before):
        step = f"\n{seen}\nAction: {action}"
        if size(step) > room:
            break
        shown, room = step + shown, room - size(step)
    return TOKENIZER(f"Goal: {goal}{shown}\n{observation}\nAction:").input_ids


def check(states, games, memory):
    """Compares the prompts of states with the reference's; returns how many steps each shows."""
    states = states.reshape(-1)
    pages = {page: before for game in games for page, before in game.pages.items()}
    tokens, mask = PromptBuilder(TOKENIZER)(states["goal_tokens"], states["observation_tokens"])
    texts = zip(decode_text(states["goal"]), decode_text(states["observation"]), strict=True)
    for (goal, seen), row, there in zip(texts, tokens, mask, strict=True):
        assert row[there].tolist() == prompt(goal, pages[seen], seen, memory)
    return (tokens == TOKENIZER("\nAction:").input_ids[0]).sum(-1) - 1


def make(games, memory, **kwargs):
    texts = TokenizeText(TOKENIZER, memory=memory, observation_length=120, action_length=24)
    return TransformedEnv(wrap(games, **kwargs), Compose(texts, CandidateMask()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:memory .* is too small for a step")
@settings(max_examples=30, deadline=None)
@given(
    *(st.integers(1, 3), st.integers(1, 8), st.integers(0, 6)),  # games, steps, words
    *(st.integers(10, 400), st.integers(1, 4), st.integers(0, 99)),  # memory, n, seed
)
def test_every_row_reads_what_came_before_its_state(number, longest, words, memory, n, seed):
    games = diaries(number, longest, words)
    env = make(games, memory, seed=seed)
    first = wrap(diaries(number, longest, words), seed=seed).reset()
    rows = zip(decode_text(first["observation"]), decode_text(first["actions"]), strict=True)
    least = max(size(f"\n{seen}\nAction: {way}") for seen, ways in rows for way in ways if way)
    if least > memory:
        with pytest.raises(ValueError, match=rf"memory \({memory}\) must be at least {least}, the"):
            env.reset()
        return
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(1000),
        transform=Compose(SegmentMultiStepTransform(n, 0.9), HindsightTransform()),
        batch_size=1,
    )
    torch.manual_seed(seed)
    batches = [*Collector(env, None, frames_per_batch=9 * number, total_frames=27 * number)]
    for batch in batches:
        buffer.extend(batch)
    rows = buffer[:]
    assert rows["is_hindsight"].any()
    for states in (*batches, rows):
        check(states, games, memory)
        check(states["next"], games, memory)


def test_specs_hold_with_and_without_a_batch():
    for number in (None, 2):
        texts = [TokenizeText(TOKENIZER, memory=memory) for memory in (200, 0)]
        env, without = (TransformedEnv(stairs.make(number), own) for own in texts)
        check_env_specs(env)
        check_text_env(env)
        wider = env.observation_spec["observation_tokens"].shape[-1]
        assert wider >= without.observation_spec["observation_tokens"].shape[-1] + 200
        assert {*env.state_spec.keys()} == {"observation_tokens", "action_tokens"}
        assert not {*without.state_spec.keys()}


@pytest.mark.parametrize("inside", [True, False])
def test_batched_environments_remember_each_on_its_own(inside):
    games = diaries(6)
    texts = partial(TokenizeText, TOKENIZER, memory=90, observation_length=80, action_length=24)

    def one(some):
        return TransformedEnv(wrap(some), texts()) if inside else wrap(some)

    def batched(kind):
        env = kind(2, [partial(one, some) for some in (games[:3], games[3:])])
        return TransformedEnv(env, CandidateMask() if inside else Compose(texts(), CandidateMask()))

    parallel = batched(partial(ParallelEnv, mp_start_method="fork"))
    parallel.set_seed(0)
    played = parallel.rollout(15, break_when_any_done=False)
    parallel.close()
    serial = batched(SerialEnv)
    serial.set_seed(0)
    actions = iter(played["action"].unbind(-1))
    policy = TensorDictModule(lambda mask: next(actions), ["action_mask"], ["action"])
    steps = serial.rollout(15, policy, break_when_any_done=False)
    assert (steps == played).all()
    for states in (steps, steps["next"]):
        assert check(states, games, 90).max() > 1


def act(env, state, action, moves=None):
    state = state.clone().set("action", torch.tensor(action))
    if moves is not None:
        state.set("_step", torch.tensor(moves).unsqueeze(-1))
    return step_mdp(env.step(state))


def test_an_instance_that_stands_still_keeps_its_memory():
    games = diaries(3, longest=9)
    env = make(games, 250)
    state = act(env, env.reset(), [0, 0, 0])
    after = act(env, state, [0, 0, 0], [True, False, True])
    assert check(after, games, 250).tolist() == [2, 1, 2]
    assert torch.equal(after["observation_tokens"][1], state["observation_tokens"][1])
    still = act(env, after, [0, 0, 0], [False] * 3)
    assert torch.equal(still["observation_tokens"], after["observation_tokens"])


def test_nothing_is_remembered_after_a_step_that_is_too_long():
    games = diaries(1, longest=9)
    env = make(games, 20, seed=3)
    with pytest.warns(UserWarning, match=r"memory \(20\) is too small for a step, so nothing is"):
        steps = env.rollout(9)
    shown = "".join(map(str, check(steps, games, 20).tolist()))
    assert "101" in shown  # nothing, and from there on again


@pytest.mark.parametrize("memory", [-1, 2.5, "64", True, None])
def test_a_memory_that_is_no_number_of_tokens_is_refused(memory):
    expected = rf"memory \({memory!r}\) must be a whole number of tokens, at least 0"
    with pytest.raises(ValueError, match=expected):
        TokenizeText(TOKENIZER, memory=memory)


def test_a_step_without_the_tokens_of_its_state_is_refused():
    env = make(diaries(1), 200)
    action = env.reset().select("action_mask").set("action", torch.tensor([0]))
    with pytest.raises(KeyError, match="observation_tokens"):
        env.step(action)


def test_outside_environments_there_is_nothing_to_remember():
    text = stairs.make(2).reset()
    without = TokenizeText(TOKENIZER)(text.clone())["observation_tokens"]
    tokens = TokenizeText(TOKENIZER, memory=100)(text)["observation_tokens"]
    assert torch.equal(tokens[:, -160:], without)
    assert (tokens[:, :-160] == TOKENIZER.pad_token_id).all()


def test_an_earlier_step_reads_as_the_prompt_does():
    steps = [("A", "go"), ("B", "stay")]
    for text, shown in (
        ("Goal: {goal}\n{observation}\nAction:", "A\nAction: go\nB\nAction: stay\nC"),
        ("{goal} State: {observation} Do:", "A Do: go B Do: stay C"),
        ("{goal}\n{observation}", "A go\nB stay\nC"),
        ("{observation} Goal: {goal}", "A\nAction: goB\nAction: stayC"),
    ):
        assert PromptTemplate(text).recall(steps, "C") == shown
    chat = PromptTemplate("<user>\n{goal}\n{observation}<answer>", "", special_tokens=False)
    assert chat.recall(steps, "C") == "A\nAction:\ngo\nB\nAction:\nstay\nC"
