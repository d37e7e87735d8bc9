"""Playground-Text as pictures: what is drawn where, and TorchRL's recorders on it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchrl.envs import TransformedEnv, check_env_specs
from torchrl.envs.transforms import Compose
from torchrl.record import PixelRenderTransform, VideoRecorder

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.drawings import DRAWINGS
from torchrl_glam.envs.playground.picture import draw_scene
from torchrl_glam.viewing import write_animation

RED, BLUE, STAR = (0xD8, 0x43, 0x3B), (0x3F, 0x7F, 0xD4), (0xE8, 0xBF, 0x3A)
THINGS = ["red lion", "blue water", "green desk"]
FIRST, SECOND = (slice(52, 156), slice(0, 104)), (slice(52, 156), slice(104, 208))


def count(picture, colour, place=(slice(None), slice(None))):
    return int((picture[place] == colour).all(-1).sum())


def test_things_stand_in_their_places_in_their_colours():
    picture = draw_scene(THINGS)
    assert picture.shape == (52 + 104 + 64, 3 * 104, 3) and picture.dtype == np.uint8
    assert count(picture, RED, FIRST) == count(picture, RED) > 200
    assert count(picture, BLUE, SECOND) == count(picture, BLUE) > 200
    assert count(picture, STAR) == 0
    assert draw_scene(THINGS, scale=1.5).shape == (330, 468, 3)


def test_what_is_held_is_gone_from_its_place_and_what_has_grown_is_larger():
    before, held = draw_scene(THINGS), draw_scene(THINGS, holding=0)
    assert count(held, RED, FIRST) == 0 and 0 < count(held, RED) < count(before, RED)
    grown = draw_scene(THINGS, grown=[1])
    assert count(grown, BLUE, SECOND) > 1.5 * count(before, BLUE, SECOND)
    assert count(grown, STAR, SECOND) > 30 and count(grown, STAR, FIRST) == 0
    assert count(draw_scene(THINGS, on=0), RED, FIRST) > 0


def test_the_agent_goes_to_what_it_is_on_with_what_it_holds():
    accent = tuple(bytes.fromhex(DRAWINGS["colours"]["accent"][1:]))
    nowhere, there = draw_scene(THINGS), draw_scene(THINGS, on=1)
    assert count(nowhere, accent, SECOND) == 0 < count(nowhere, accent)
    assert count(there, accent, SECOND) > 100
    things = ["green desk"] * 4 + ["red lion"]
    shown = [count(draw_scene(things, on=slot, holding=4), RED) for slot in range(-1, 4)]
    assert shown == pytest.approx([shown[0]] * 5, rel=0.1)  # within the picture everywhere


@pytest.mark.parametrize("kind", DRAWINGS["things"])
def test_every_thing_can_be_drawn_within_its_place(kind):
    picture = draw_scene([f"red {kind}", "blue water", "blue water"])
    assert count(picture, RED, FIRST) == count(picture, RED) > 20


def test_an_environment_draws_itself():
    env = PlaygroundTextEnv(num_envs=2, num_objects=3, seed=0)
    state = env.reset()
    pictures = env.render(mode="rgb_array")
    assert pictures.shape == (2, 220, 312, 3) and pictures.dtype == np.uint8
    assert (env.render(1, mode="rgb_array") == pictures[1]).all()
    assert not (pictures[0] == pictures[1]).all()
    env.step(state.set("action", torch.tensor([0, 0])))
    assert not (env.render(0, mode="rgb_array") == pictures[0]).all()
    assert env.render(0, mode="rgb_array", scale=0.5).shape == (110, 156, 3)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"mode": "human"}, ValueError, "mode must be 'text' or 'rgb_array', got 'human'"),
        ({"mode": "rgb_array", "index": 2}, IndexError, r"index must be in \[0, 2\), got 2"),
        ({"mode": "rgb_array", "scale": 0}, ValueError, "scale must be above 0 and finite, got 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, error, message):
    env = PlaygroundTextEnv(num_envs=2, num_objects=3)
    env.reset()
    with pytest.raises(error, match=message):
        env.render(**options)


def test_torchrls_recorders_take_the_pictures_of_a_rollout():
    videos = {}
    logger = SimpleNamespace(log_video=lambda name, video, **_: videos.update({name: video}))
    transforms = Compose(PixelRenderTransform(mode="rgb_array"), VideoRecorder(logger, "play"))
    env = TransformedEnv(PlaygroundTextEnv(num_envs=2, num_objects=3, seed=0), transforms)
    check_env_specs(env)
    env.transform.dump()
    videos.clear()
    steps = env.rollout(3)
    env.transform.dump()
    video = videos["play"]  # both environments side by side, after reset and each step
    assert video.shape == (1, 4, 3, 220, 2 * 312)
    last = torch.cat(steps["next", "pixels"][:, -1].unbind(), 1)
    assert torch.equal(video[0, -1].permute(1, 2, 0), last)


def test_episodes_move(tmp_path):
    scene = {"objects": THINGS, "holding": -1, "grown": []}
    steps = [
        {"candidates": ["Go to red lion", "Grasp"], "probability": [0.9, 0.1], "chosen": chosen}
        | {"scene": scene | {"on": on}}
        for chosen, on in ((0, -1), (1, 0))
    ]
    episode = {"goal": "Grasp red lion", "success": True, "steps": steps}
    write_animation(tmp_path / "deep" / "a.gif", [episode, episode])
    with Image.open(tmp_path / "deep" / "a.gif") as image:
        assert image.size == (312, 220) and image.n_frames == 2 * 3
    with pytest.raises(ValueError, match="episodes are none"):
        write_animation(tmp_path / "b.gif", [])
    plain = {"goal": "Leave", "success": True, "steps": [{"candidates": ["Open"], "chosen": 0}]}
    with pytest.raises(ValueError, match="only Playground-Text has scenes; write a page"):
        write_animation(tmp_path / "b.gif", [plain])
    assert not (tmp_path / "b.gif").exists()
