"""Goals composed from the words of known ones, and an environment that pursues them."""

import itertools

import pytest
import stairs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_card import PretendCard
from tensordict import TensorDict
from torchrl.envs import TransformedEnv, check_env_specs

from torchrl_glam.envs import GoalSpace, PlaygroundTextEnv
from torchrl_glam.goals import ImaginedGoals, UniformGoals, imagine_goals
from torchrl_glam.text import decode_text

WORDS = ("red", "blue", "cat", "cow")
SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 6}


def by_definition(known):
    """All that one exchange gives: two goals that differ in one word make its words equivalent."""
    goals, pairs = [text.split() for text in known], set()
    for a, b in itertools.product(goals, goals):
        differ = [pair for pair in zip(a, b, strict=False) if pair[0] != pair[1]]
        if len(a) == len(b) and len(differ) == 1:
            pairs.add(differ[0])
    made = {
        " ".join([*goal[:at], new, *goal[at + 1 :]])
        for goal in goals
        for at, word in enumerate(goal)
        for old, new in pairs
        if old == word
    }
    longest = max(map(len, known))
    return {text for text in made - set(known) if len(text) <= longest}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), min_size=1, max_size=6))
def test_an_exchange_of_equivalent_words(goals):
    known = [" ".join(goal) for goal in goals]
    expected, found = by_definition(known), imagine_goals(known, 100)
    assert set(found) == expected
    for text, origin in found.items():
        differ = sum(a != b for a, b in zip(text.split(), goals[origin], strict=True))
        assert differ == 1
    assert len(imagine_goals(known, 1)) == min(1, len(expected))
    assert set(imagine_goals(["", *known], 100)) == expected
    assert imagine_goals([""], 9) == imagine_goals(known, 0) == imagine_goals(known, -1) == {}


def test_held_out_goals_and_impossible_ones_are_imagined():
    """None is known, and each is made of words of the training goals."""
    known, held_out = (GoalSpace(split, sequential=False).texts for split in ("train", "test"))
    found = imagine_goals(known, 1000)
    assert set(found) == by_definition(known) and not set(found) & set(known)
    assert {"Grow red rose", "Grasp red tree"} < set(found) & set(held_out)
    assert {"Grow red lamp", "Grow any water"} < set(found) - set(held_out)
    assert not any("flower" in text for text in found)  # a word that no training goal has
    some = imagine_goals(known, 20)
    assert len(some) == 20 and some == imagine_goals(known, 20) != imagine_goals(known, 20, seed=1)


class Judge:
    """Names every goal whose last word is in what was played."""

    def __init__(self, texts):
        self.words = [text.split()[-1] for text in texts]

    def read(self, before, actions, after):
        assert all(text.startswith("You see") for text in (*before, *after))
        return actions

    def __call__(self, actions):
        return torch.tensor([[2.0 if w in a else 1.0 for w in self.words] for a in actions])


class Drawn(UniformGoals):
    """Draws what it is told to, and then the same again."""

    def sample(self, count):
        drawn, self.ids = self.ids[:count], self.ids.roll(-count)
        return drawn


def made(num_envs, ids, **settings):
    goals = GoalSpace("train", sequential=False)
    table = (*goals.texts, "Grow red rose", "Grasp any tree")
    sampler = Drawn(table, kinds=[*goals.kind_ids.tolist(), 1, 0])
    sampler.ids = torch.tensor(ids)
    chosen = ImaginedGoals(sampler, len(goals), Judge(table))
    env = PlaygroundTextEnv(num_envs, **SIMPLE, goal_sampler=chosen.draw, seed=0, **settings)
    return TransformedEnv(env, chosen), len(goals), table


def test_the_environment_shows_the_imagined_goal_and_plays_under_a_hidden_one():
    env, known, table = made(4, [3, 182, 5, 183])
    assert known == 182
    state = env.reset()
    assert state["goal_id"].tolist() == [3, 182, 5, 183]
    assert decode_text(state["goal"]) == [table[i] for i in (3, 182, 5, 183)]
    assert state["goal_kind"].tolist() == [0, 1, 0, 0]
    hidden = env.base_env._goal_id.tolist()
    assert hidden[::2] == [3, 5] and max(hidden) < 182
    check_env_specs(made(4, [3, 182, 5, 183])[0])


def test_the_judge_ends_an_imagined_episode_and_nothing_else_does():
    """It is reached where its last word is in the action; its hidden goal may cut it off."""
    env, known, _ = made(64, [*range(32), *[182, 183] * 16])
    steps = env.rollout(30, break_when_any_done=False)
    after, ids = steps["next"], steps["goal_id"]
    ends = ("done", "terminated", "truncated", "reward")
    done, terminated, truncated, reward = (after[key].squeeze(-1) for key in ends)
    played = steps["actions"].take_along_dim(steps["action"][..., None, None], 2).squeeze(2)
    rose, tree = (
        torch.tensor([[word in text for text in row] for row in decode_text(played)])
        for word in ("rose", "tree")
    )
    rows, said = ids >= known, (rose & (ids == 182)) | (tree & (ids == 183))
    assert said.any() and torch.equal(reward[rows] > 0, said[rows])
    assert torch.equal(terminated, reward > 0)  # of the environment's own goals, too
    assert done[said].all() and (done & ~said & rows).any()
    assert torch.equal(truncated[rows], (done & ~said)[rows])
    # An episode that goes on pursues the same goal.
    on = ~done[:, :-1]
    assert torch.equal(ids[:, 1:][on], ids[:, :-1][on])
    assert torch.equal(steps["goal"][:, 1:][on], after["goal"][:, :-1][on])


def test_instances_that_the_step_mask_leaves_out_stand_still():
    """Three, of which one goes on, one has reached its goal, and one has been cut off."""
    env, *_ = made(4, [182, 183, 182, 183])
    env.transform.judge.words = [""] * 184  # names every goal
    state = env.reset()
    marks = {"_step": [1, 0, 0, 0], "terminated": [0, 0, 1, 0], "truncated": [0, 0, 0, 1]}
    marks = {key: torch.tensor(rows).bool().unsqueeze(1) for key, rows in marks.items()}
    state.update({**marks, "done": marks["terminated"] | marks["truncated"]})
    after = env.step(state.set("action", torch.full((4,), 3)))["next"]
    assert after["reward"].flatten().tolist() == [1, 0, 0, 0]
    assert after["terminated"].flatten().tolist() == [True, False, True, False]
    assert after["truncated"].flatten().tolist() == [False, False, False, True]
    assert after["done"].flatten().tolist() == [True, False, True, True]


def test_steps_on_a_gpu_are_those_on_the_cpu():
    def play(device):
        torch.manual_seed(0)
        env, known, _ = made(6, [3, 182, 183, 5, 182, 183], device=device)
        steps = env.rollout(20, break_when_any_done=False)
        return steps.cpu(), (steps["next", "reward"][steps["goal_id"] >= known] > 0).any()

    expected, reached = play("cpu")
    with PretendCard():
        steps, _ = play("cuda")
    assert (steps == expected).all() and reached


@pytest.mark.parametrize("ids", [[1, 4, 1], [4, 1, 4]])
def test_a_first_reset_may_be_of_some_instances(ids):
    """Stairs then begin an episode each, which counts where it was asked for."""
    table = (*stairs.FLOORS, "Reach floor 0")
    sampler = Drawn(table)
    sampler.ids = torch.tensor(ids)
    chosen = ImaginedGoals(sampler, 4, None)
    env = TransformedEnv(stairs.make_chosen(3, goal_sampler=chosen.draw, seed=0), chosen)
    state = TensorDict(batch_size=[3])
    for mask, drawn in (([False, True, False], ids[1:2]), ([True, False, True], ids[:2])):
        mask = torch.tensor(mask)
        state = env.reset(state.set("_reset", mask.unsqueeze(1)))
        assert state["goal_id"][mask].tolist() == drawn
        assert decode_text(state["goal"][mask]) == [table[goal] for goal in drawn]


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"num_known \(2\) must be from 1 to 1: sampler has 2 goals"
    ):
        ImaginedGoals(UniformGoals(["Grasp", "Grow"]), 2, None)
    known = GoalSpace("train", sequential=False).texts
    sampler = UniformGoals([*known, "Grasp a rose of any colour that there is"])
    goals = ImaginedGoals(sampler, 182, None)
    env = PlaygroundTextEnv(2, **SIMPLE, goal_sampler=goals.draw)
    with pytest.raises(ValueError, match=r"up to 40 bytes, and 'goal' .* has room for 24"):
        TransformedEnv(env, goals).reset()
    with pytest.raises(ValueError, match="2 episodes begin, and goals were drawn for 0: give the"):
        TransformedEnv(PlaygroundTextEnv(2, **SIMPLE), goals.clone()).reset()
