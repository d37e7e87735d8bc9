"""The page of episodes in a real browser."""

import json
import re

import pytest

from torchrl_glam.envs import PlaygroundTextEnv
from torchrl_glam.envs.playground.vocabulary import COLOURS, TYPES
from torchrl_glam.viewing import record, write_page

from .browser import Reader, asset, contrast, themes
from .records import READER, Dabbler, by_hand

KINDS = ("grasp", "grow")


@pytest.fixture
def shown(browser, tmp_path):
    """Writes a page of one agent's episodes, or of two agents', and opens it."""

    def show(width=1280, **agents):
        runs = {name: (READER, episodes) for name, episodes in agents.items()}
        write_page(tmp_path / "page.html", runs, KINDS, "three episodes")
        return Reader(browser, tmp_path / "page.html", width)

    return show


@pytest.fixture
def reader(shown):
    return shown(agent=by_hand())


@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_without_errors_and_without_a_network_and_fits_the_screen(shown, width):
    reader = shown(width, agent=by_hand())
    assert reader.text("#goal") == "Grow red lion"
    assert reader.text("#about") == "three episodes"
    assert reader.text("#where") == "Step 1 of 3"
    assert reader.run("return document.querySelector('.list').open") == (width > 600)
    assert reader.each("#where", "e.getAttribute('aria-live')") == ["polite"]
    for _ in range(4):
        reader.click("#next-surprise")
    reader.assert_sound()


def test_buttons_and_keys_step(reader):
    assert reader.run("return document.getElementById('back').disabled")
    reader.click("#forward")
    assert reader.text("#where") == "Step 2 of 3"
    steps = (("ARROW_RIGHT", 3), ("ARROW_RIGHT", 3), ("ARROW_LEFT", 2), ("END", 3), ("HOME", 1))
    for key, where in steps:
        reader.press(key)
        assert reader.text("#where") == f"Step {where} of 3"
    reader.press("j")
    assert reader.text("#goal") == "Grasp </script><b>lion"  # as text, not as markup
    reader.press("k")
    assert reader.text("#goal") == "Grow red lion"


def test_a_step_tells_what_was_read_considered_and_done(reader):
    assert reader.texts("pre") == [
        "Goal: Grow red lion\nYou see: red lion, blue water\nYou are on: nothing\nAction:"
    ]
    rows = reader.each("tbody tr", "[...e.cells].map(cell => cell.firstChild?.textContent)")
    assert [row[0].removeprefix("▸ ") for row in rows] == [
        *("Go to blue water", "Go to red lion", "Grasp")
    ]
    assert [row[1] for row in rows] == ["60.0 %", "25.0 %", "15.0 %"]
    assert [float(row[3]) for row in rows] == [0.5, 0.1, -0.2]
    assert reader.text("tr.chosen th") == "▸ Go to blue water (chosen)"
    # Q runs from -0.2 to 0.9 in this episode: 0.5 stands for 0.5 / 1.1 of the bar, from zero on.
    widths = reader.each(".fill.value", "parseFloat(e.style.width)")
    assert widths == pytest.approx([100 * 0.5 / 1.1, 100 * 0.1 / 1.1, 100 * 0.2 / 1.1], abs=0.01)
    reader.click("#forward")
    assert "named 1" in reader.text("#runs") and reader.texts(".named li") == ["Grasp blue water"]
    reader.click("#last")
    assert "goal reached" in reader.text(".facts") and "reward 1" in reader.text(".facts")


def test_a_record_that_breaks_off_is_no_failure(reader):
    for about, end in (
        ("does not reach the goal", "ended without success"),
        ("does not reach the goal in 1 steps", "the record breaks off"),
    ):
        reader.press("j")
        assert reader.text("#runs h3").endswith(about)
        reader.click("#last")
        assert end in reader.text(".facts")


def test_the_scene_is_drawn_and_told(reader):
    told = "return document.querySelector('.scene').getAttribute('aria-label')"
    assert "The agent is on nothing and holds nothing. Grown: nothing." in reader.run(told)
    assert len(reader.texts(".scene .thing")) == 2 and not reader.texts(".scene .here")
    reader.click("#forward")
    assert "is on blue water" in reader.run(told) and len(reader.texts(".scene .here")) == 1
    reader.click("#forward")
    assert "holds blue water" in reader.run(told) and len(reader.texts(".scene .gap")) == 1
    reader.press("k")
    reader.press("j")
    reader.press("j")
    assert "Grown: red lion." in reader.run(told) and len(reader.texts(".scene .star")) == 1


def test_the_list_is_filtered_and_ordered(reader):
    assert reader.text("#count") == "3 of 3 episodes"
    assert reader.choose("outcome", "success") == "1 of 3 episodes"
    assert reader.choose("outcome", "failure") == "2 of 3 episodes"
    assert reader.text("#goal").startswith("Grasp")  # the first of those that are left
    assert reader.choose("kind", "grow") == "1 of 3 episodes"
    reader.choose("kind", "all")
    assert reader.choose("surprise", "unlikely action (under 10 %)") == "1 of 3 episodes"
    assert reader.choose("surprise", "not the largest Q") == "1 of 3 episodes"
    reader.choose("surprise", "all")
    reader.choose("outcome", "all")
    reader.choose("order", "most surprising first")
    assert reader.texts("#episodes button")[0].count("Grasp") == 1
    reader.choose("order", "longest first")
    reader.click("#episodes li:nth-child(1) button")
    assert reader.text("#goal") == "Grow red lion"


def test_filters_offer_what_occurs_and_survive_a_reload(shown):
    plain = [episode | {"kind": 1} for episode in by_hand()]
    for episode in plain:
        episode["steps"] = [{k: v for k, v in s.items() if k != "value"} for s in episode["steps"]]
    reader = shown(agent=plain)
    assert [name.lower() for name in reader.texts("#kind option")] == ["all", "grow"]
    assert not any("Q" in name for name in reader.texts("#surprise option"))
    reader.choose("outcome", "failure")
    reader.choose("order", "longest first")
    goal = reader.text("#goal")
    reader.driver.refresh()
    assert reader.text("#count") == "2 of 3 episodes" and reader.text("#goal") == goal
    assert reader.run("return document.getElementById('order').value") == "longest first"


def test_a_game_without_hindsight_has_no_partner(shown):
    episodes = by_hand()
    for step in (step for episode in episodes for step in episode["steps"]):
        step["named"] = []
        del step["scene"]
    reader = shown(agent=episodes)
    assert "partner" not in reader.text("#runs") and "reached" not in reader.text("#runs h3")
    episodes[0]["steps"][0]["named"] = ["Grasp blue water"]
    reader = shown(agent=episodes)
    assert "Goals that the step reached: 1" in reader.text("#runs")
    assert "partner" not in reader.text("#runs")


def test_values_that_are_not_numbers_are_told(shown):
    """As of a critic that diverged: JSON has no NaN, and a browser reads no page with one."""
    episodes, nan = by_hand(), float("nan")
    episodes[0]["steps"][0] |= {"value": [0.5, nan, float("inf")], "state_value": nan}
    reader = shown(agent=episodes)
    assert reader.text("#runs").count("not a number") == 3 and reader.texts("td.largest")
    reader.assert_sound()


def test_two_agents_stand_side_by_side(shown):
    mine, other = by_hand(), by_hand()
    other[0] |= {"success": False, "steps": other[0]["steps"][:1]}
    reader = shown(one=mine, two=other)
    left, right = reader.each(".run", "e.getBoundingClientRect().left")
    assert left < right
    reader.click("#forward")
    assert "two ended after 1 steps" in reader.text(".run:nth-child(2) h3")
    assert reader.choose("outcome", "only one") == "1 of 3 episodes"
    assert reader.choose("outcome", "only two") == "0 of 3 episodes"


def test_contrast_is_that_of_level_aa_by_day_and_by_night():
    """WCAG 2.2: 4.5 for text, 3 for bars."""
    for colours in themes(("base.css",)):
        for text in ("ink", "muted", "good", "bad"):
            for ground in ("paper", "raised", "chosen", "room"):
                if (text, ground) not in (("good", "room"), ("bad", "room")):
                    assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for fill in ("accent", "value"):
            assert contrast(colours[fill], colours["track"]) >= 3, fill


def test_every_thing_has_a_drawing_and_every_colour_a_value():
    drawings = json.loads(asset("drawings.js").partition("const DRAWINGS = ")[2].rstrip(";\n"))
    assert list(drawings["things"]) == list(TYPES)
    for colour in COLOURS:
        assert asset("base.css").count(f"--{colour}: #") == 2


def test_two_hundred_episodes_are_below_two_megabytes(tmp_path):
    agent, env = Dabbler(), PlaygroundTextEnv(200, num_objects=6, max_steps=16)
    path = tmp_path / "page.html"
    write_page(path, {"agent": (agent, record(agent, env))}, env.goals.kinds)
    assert 200_000 < path.stat().st_size < 2_000_000
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(", page)


@pytest.mark.parametrize(
    "runs, message",
    [
        ({}, r"runs \(\[\]\) must be of one agent, or of two"),
        ({"a": (READER, [])}, "no episodes: record at least one"),
        ({"a": (READER, by_hand()), "b": (READER, by_hand()[:2])}, "episodes of other goals"),
    ],
)
def test_what_cannot_be_shown_is_refused(runs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_page(tmp_path / "page.html", runs, KINDS)
    assert not list(tmp_path.iterdir())
