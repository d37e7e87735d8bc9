"""CompactStorage against TorchRL's plain storage: what goes in comes out, and memory is freed."""

import pytest
import torch
from flan_t5 import make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, SelectTransform, TransformedEnv

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.replay import (
    CompactStorage,
    HindsightTransform,
    SegmentMultiStepTransform,
    _shared_rows,
    stored_entry,
)
from torchrl_glam.replay._packing import RowLayout
from torchrl_glam.text import TokenizeText, token_lengths

SHARED = (("observation", ("agent", "actions")), ("goal",))


def make_rows(numbers, seed):
    """Transitions whose states and goals are few, so that many are equal; numbers [k]."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.tensor(numbers, dtype=torch.int64)
    later = torch.randint(0, 4, numbers.shape, generator=generator)

    def state(number):
        return {
            "observation": torch.stack([number * 90, -number, number**3], -1).to(torch.int16),
            "agent": {"actions": (number.view(-1, 1, 1) * 9000).repeat(1, 2, 2).int()},
            "goal": number.view(-1, 1) % 2,
        }

    return TensorDict(
        {
            **state(numbers),
            "action": numbers % 3,
            "score": torch.rand(numbers.shape[0], 2, generator=generator),
            "large": numbers * 2**40 - 7,
            "next": {
                **state(later),
                "reward": torch.rand(numbers.shape[0], 1, generator=generator),
                "done": (later == 1).unsqueeze(-1),
            },
        },
        [numbers.shape[0]],
    )


def make_buffer(storage, **kwargs):
    return TensorDictReplayBuffer(
        storage=storage, batch_size=8, generator=torch.Generator().manual_seed(0), **kwargs
    )


def assert_same(one, other):
    assert set(one.keys(True, True)) == set(other.keys(True, True))
    assert one.shape == other.shape
    for key, value in one.items(True, True):
        assert value.dtype == other[key].dtype and value.equal(other[key]), key


def assert_tables_hold_what_is_pointed_at(storage):
    """Every slot's count is the number of pointers at it, and idle slots are those of count 0."""
    held = storage._rows[storage._held]
    for index, table in enumerate(storage.tables):
        links = [link for link in storage._links if link.table == index]
        pointers = torch.cat([storage._layout.unpack_one(held, link.pointer) for link in links])
        assert table._count.equal(pointers.bincount(minlength=table._count.shape[0]).int())
        idle = table._stack[: table._idle].long()
        assert idle.sort().values.equal((table._count == 0).nonzero().squeeze(-1))
        assert len(table) == pointers.unique().shape[0]


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 20),
    calls=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=8),
    save_after=st.integers(0, 8),
)
def test_equals_plain_storage(capacity, calls, save_after):
    plain = make_buffer(LazyTensorStorage(capacity))
    compact = make_buffer(CompactStorage(capacity, shared=SHARED))
    for number, call in enumerate(calls):
        plain.extend(make_rows(call[:capacity], number))
        compact.extend(make_rows(call[:capacity], number))
        if number == save_after:
            saved = compact.state_dict()
            compact = make_buffer(CompactStorage(capacity, shared=SHARED))
            compact.load_state_dict(saved)
        assert_same(compact[:], plain[:])
        assert_same(compact.sample(), plain.sample())
        assert_tables_hold_what_is_pointed_at(compact.storage)


def test_more_rows_than_it_holds_leave_the_last_ones():
    buffer = make_buffer(CompactStorage(4, shared=SHARED))
    rows = make_rows([0, 1, 2, 3, 4, 5], seed=0)
    buffer.extend(rows)
    assert len(buffer) == 4
    assert_same(buffer[:].exclude("index"), rows[[4, 5, 2, 3]].exclude("index"))
    assert_tables_hold_what_is_pointed_at(buffer.storage)


@pytest.mark.parametrize(
    "index", [2, -1, slice(1, 5, 2), [0, 3], torch.tensor([[1, 1], [4, 0]]), torch.arange(6) > 3]
)
def test_every_kind_of_index(index):
    plain, compact = LazyTensorStorage(9), CompactStorage(9, shared=SHARED)
    rows = make_rows([0, 1, 2, 3, 4, 5], seed=0)
    for storage in (plain, compact):
        storage.set(range(6), rows.clone())
    assert_same(compact[index], plain[index])
    for key in ("action", "observation", ("agent", "actions"), ("next", "goal"), "score"):
        assert compact.get_entry(key, index).equal(plain[index][key])
    assert stored_entry(compact, "action").equal(stored_entry(plain, "action"))


def test_one_row_at_a_time():
    plain, compact = make_buffer(LazyTensorStorage(3)), make_buffer(CompactStorage(3))
    rows = make_rows([0, 1, 2, 3, 4], seed=0)
    for row in rows:
        plain.add(row.clone())
        compact.add(row.clone())
    assert_same(compact[:], plain[:])
    plain[1], compact[1] = plain[0], compact[0]
    assert_same(compact[:], plain[:])


def test_what_is_read_is_a_copy():
    storage = CompactStorage(4, shared=SHARED)
    storage.set(range(4), make_rows([0, 1, 2, 3], seed=0))
    before = storage[:]
    storage[:].zero_()
    stored_entry(storage, "action").zero_()
    assert_same(storage[:], before)


def test_equal_states_of_a_call_are_kept_once():
    storage = CompactStorage(10, shared=SHARED)
    state = torch.tensor([[5], [6], [7]])
    rows = {"observation": state[[0, 1, 0, 1]], "next": {"observation": state[[1, 2, 1, 2]]}}
    storage.set(range(4), TensorDict(rows, [4]))
    assert len(storage.tables[0]) == 3


def test_states_of_equal_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(_shared_rows, "_hash", lambda rows: torch.zeros(rows.shape[0]).long())
    rows = make_rows([0, 1, 2, 3, 0], seed=0)
    storage = CompactStorage(9, shared=SHARED)
    storage.set(range(5), rows)
    assert_same(storage[:], rows)


def test_memory_does_not_grow_with_the_number_of_rows_written():
    buffer = make_buffer(CompactStorage(50, shared=SHARED))
    sizes = []
    for number in range(60):
        buffer.extend(make_rows([number % 7] * 20, seed=number))
        sizes.append(buffer.storage.nbytes)
    assert sizes[-1] == sizes[5]


@pytest.mark.parametrize(
    ("values", "kept_as"),
    [
        ([0, 255], "uint8"),
        ([0, 256], "int16"),
        ([-1, 127], "int8"),
        ([-1, 128], "int16"),
        ([0, 32_127], "int16"),  # Flan-T5's vocabulary
        ([0, 50_256], "uint16"),  # GPT-2's
        ([-1, 50_256], "int32"),
        ([0, 2**31], "int64"),
        ([-(2**63), 2**63 - 1], "int64"),
    ],
)
def test_integers_take_the_smallest_type(values, kept_as):
    rows = {"x": torch.tensor(values)}
    layout = RowLayout.of(rows)
    assert layout.fields["x"].kept_as == getattr(torch, kept_as)
    assert layout.unpack(layout.pack(rows))["x"].equal(rows["x"])


def drive(buffer, calls, draws):
    for number, call in calls:
        buffer.extend(make_rows(call, number))
        draws.append(buffer.sample())
    return draws


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_resumed_draws_are_those_of_an_unbroken_run(tmp_path, way):
    def fresh():
        return make_buffer(CompactStorage(30, shared=SHARED))

    calls = [(number, [(number + k) % 5 for k in range(9)]) for number in range(8)]
    unbroken = drive(fresh(), calls, [])
    first, second = fresh(), fresh()
    draws = drive(first, calls[:5], [])
    if way == "dumps":
        first.dumps(tmp_path / "buffer")
        second.loads(tmp_path / "buffer")
    else:
        torch.save(first.state_dict(), tmp_path / "buffer")
        second.load_state_dict(torch.load(tmp_path / "buffer", weights_only=True))
    drive(second, calls[5:], draws)
    for one, other in zip(draws, unbroken, strict=True):
        assert_same(one, other)
    second.empty()
    assert len(second) == 0 and not second.storage.tables


def test_an_empty_storage_is_saved_and_says_that_it_is_empty():
    storage = CompactStorage(5)
    storage.load_state_dict(CompactStorage(5).state_dict())
    assert len(storage) == 0
    with pytest.raises(RuntimeError, match="no transition has been written"):
        storage[:]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda r: r.set("extra", r["action"]), KeyError, r"\['extra'\] are new and \[\]"),
        (lambda r: r.exclude("action"), KeyError, r"\[\] are new and \['action'\] are missing"),
        (lambda r: r.set("action", r["action"].int()), ValueError, "'action' is torch.int32"),
        (lambda r: r.set("goal", r["large"]), ValueError, r"'goal' is .* shape \[\] a row"),
        (lambda r: r["action"], TypeError, "holds tensordicts only"),
    ],
)
def test_rows_of_another_layout_are_refused_and_change_nothing(change, error, message):
    storage = CompactStorage(5, shared=SHARED)
    storage.set(range(3), make_rows([0, 1, 2], seed=0))
    before = storage[:]
    with pytest.raises(error, match=message):
        storage.set(range(3), change(make_rows([3, 4, 5], seed=1)))
    assert_same(storage[:], before)
    assert_tables_hold_what_is_pointed_at(storage)


def test_other_mistakes_are_named():
    storage = CompactStorage(5)
    storage.set(range(3), make_rows([0, 1, 2], seed=0))
    with pytest.raises(IndexError, match="from 1 to 3.* 3 stored"):
        storage[torch.tensor([1, 3])]
    with pytest.raises(KeyError, match="no entry 'nothing'"):
        stored_entry(storage, "nothing")
    with pytest.raises(ValueError, match=r"max_size \(6\) differs .* \(5\)"):
        CompactStorage(6).load_state_dict(storage.state_dict())


@pytest.mark.parametrize("relabel", ["all", "none"])
def test_a_transition_of_the_papers_configuration_takes_at_most_400_bytes(relabel):
    """Six objects, 8,470 goals, prompts as long as Flan-T5's, ids up to its 32,128; n-step 3."""
    env = PlaygroundTextEnv(num_envs=16, num_objects=6, sequential=True, max_steps=16, seed=0)
    tokenizer = make_tokenizer()
    lengths = token_lengths(env, tokenizer)
    tokens = ("goal_tokens", "observation_tokens", "action_tokens")
    hindsight = (("hindsight", "goal_tokens"), ("hindsight", "kind"))
    env = TransformedEnv(
        env,
        Compose(
            TokenizeText(tokenizer, **lengths),
            SelectTransform(*tokens, "action_mask", "goal_kind", *hindsight),
        ),
    )
    buffers = [
        TensorDictReplayBuffer(
            storage=storage(2000),
            transform=Compose(
                SegmentMultiStepTransform(3, 0.99),
                # few goals: of more than 2,000 rows in a call, plain storage keeps any
                HindsightTransform(relabel, goals_per_episode=2, capacity=2000),
            ),
            batch_size=64,
            generator=torch.Generator().manual_seed(0),
        )
        for storage in (LazyTensorStorage, CompactStorage)
    ]
    policy = TensorDictModule(
        lambda mask: mask.float().multinomial(1).squeeze(-1), ["action_mask"], ["action"]
    )
    collector = Collector(
        env,
        policy,
        frames_per_batch=16 * 16,
        total_frames=16 * 16 * 9,
        auto_register_policy_transforms=False,
    )
    for steps in collector:
        for where in (steps, steps["next"]):
            for key in tokens:  # this tokenizer has 200 pieces, of one byte: spread them out
                where[key] = where[key] * 160
        for buffer in buffers:
            buffer.extend(steps.clone())
    collector.shutdown()
    plain, compact = buffers
    assert len(plain) == len(compact) == 2000
    assert_same(compact[:], plain[:])
    assert_same(compact.sample(), plain.sample())
    assert plain[:].bytes() / 2000 > 800
    assert compact.storage.nbytes / 2000 <= 400
