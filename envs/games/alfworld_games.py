"""Games of ALFWorld: files of its data, and games made here by its rules and in its words."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from torchrl_glam._extras import needs

with needs("alfworld", "ALFWorld"):
    from alfworld.gen import constants
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS as HOLDS
    from alfworld.gen.goal_library import gdict
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

Game = str | dict[str, Any]  # a file, or what is in it
FOLDS = ("train", "valid_seen", "valid_unseen")
TASKS = (
    "pick_and_place_simple look_at_obj_in_light pick_clean_then_place_in_recep "
    "pick_heat_then_place_in_recep pick_cool_then_place_in_recep pick_two_obj_and_place"
).split()
# Of each room: four places that it always has, others of which three are drawn; and things.
_ROOMS = {
    "Kitchen": (
        "Fridge Microwave SinkBasin CounterTop DiningTable GarbageCan Cabinet Cabinet Drawer Shelf",
        "Apple Potato Tomato Egg Bread Mug Cup Plate Fork SaltShaker",
    ),
    "Bathroom": (
        "SinkBasin Toilet CounterTop GarbageCan BathtubBasin Cabinet Cabinet Drawer Shelf Cart",
        "SoapBar Cloth DishSponge Candle SoapBottle ToiletPaper",
    ),
    "Bedroom": (
        "Bed Desk Drawer SideTable Dresser Sofa ArmChair GarbageCan Shelf Safe",
        "Book CellPhone Laptop Pencil Pen CD KeyChain CreditCard Watch",
    ),
}
_TOOLS = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}


def wordings(task: str, thing: str, place: str) -> list[str]:
    """How ALFWorld words a task; the place may be the lamp under which to look at the thing."""
    return [w.format(obj=thing, recep=place, toggle=place) for w in gdict[task]["templates"]]


@cache
def find_games(data: str, fold: str, tasks: tuple[str, ...], num_games: int | None) -> list[Game]:
    """The games that :func:`~torchrl_glam.envs.games.alfworld.make_alfworld` is to play."""
    if data == "made":
        return [make_game(fold, tasks[i % len(tasks)], i) for i in range(num_games or 60)]
    found, folder = [], Path(data) / "json_2.1.1" / fold
    for file in sorted(folder.glob("*/*/game.tw-pddl")):
        name = file.parent.parent.name  # such as pick_and_place_simple-Book-None-Desk-301
        if name.split("-")[0] in tasks and not re.search("movable|Sliced", name):
            try:
                game = json.loads(file.read_text(encoding="utf-8"))
                # ALFWorld's own loader leaves out those that cannot be won, too
                found += [str(file)] if game["pddl_problem"] and game.get("solvable") else []
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file} is no game of ALFWorld: {error!r}") from error
    if not found:
        raise FileNotFoundError(
            f"{folder} has no game.tw-pddl of {[*tasks]} that can be won: alfworld-download fills "
            "$ALFWORLD_DATA, data=... names another folder, and data=made needs none"
        )
    return random.Random(0).sample(found, min(num_games or len(found), len(found)))


def make_game(fold: str, task: str, seed: int) -> dict[str, Any]:
    """A game that can be won; as JSON it is a ``game.tw-pddl`` of ALFWorld's data.

    Games of ``"valid_seen"`` are played in the rooms of ``"train"``, where other things lie
    elsewhere; those of ``"valid_unseen"`` in other rooms.

    Args:
        fold: ``"train"``, ``"valid_seen"`` or ``"valid_unseen"``.
        task: family of tasks.
        seed: draws room, things and what the task is about.

    Examples:
        >>> sorted(make_game("train", "pick_and_place_simple", seed=0))
        ['grammar', 'pddl_domain', 'pddl_problem', 'solvable', 'walkthrough']
    """
    draw = random.Random(f"{fold}, {task}, {seed}")
    room = draw.choice([room for room in _ROOMS if room in constants.GOALS_VALID[task]])
    ends, kinds = (names.split() for names in _ROOMS[room])
    others = sorted(set(combinations(ends[4:], 3)))[fold == "valid_unseen" :: 2]
    ends = [*ends[:4], *draw.choice(others)]
    action = task.split("_")[1]  # clean, of pick_clean_then_place_in_recep
    able = constants.VAL_ACTION_OBJECTS.get(f"{action.title()}able", kinds)
    # The thing lies in a place of another kind first, and is not put where it was treated.
    choices = [
        (kind, end)
        for kind in kinds
        for end in dict.fromkeys(ends)
        if kind in able and kind in HOLDS[end] and end != _TOOLS.get(action)
        if any(kind in HOLDS[start] for start in ends if start != end)
    ]
    kind, end = draw.choice(choices)
    wanted = {"two": [kind, kind], "at": [kind, "DeskLamp"]}.get(action, [kind])
    things = _ids([*wanted, *draw.sample([k for k in kinds if k != kind], 4)])
    places, lies = _ids(ends), {}
    for thing, its in things.items():
        free = [p for p, e in places.items() if its in HOLDS[e] and (its, e) != (kind, end)]
        lies[thing] = draw.choice(free or [p for p in places if places[p] == "Desk"])  # the lamp
    lamp = wanted[-1]  # where the task is to look at something under one
    goal = gdict[task]["pddl"].format(obj=kind, recep=end, toggle=lamp).replace("#", "-")
    said = draw.choice(wordings(task, kind, lamp if action == "at" else end)).lower()
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace("UNKNOWN GOAL", said)
    problem = _problem(places, things, lies) + goal
    domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    game = {"pddl_domain": domain, "pddl_problem": problem, "grammar": grammar}
    return {**game, "solvable": True, "walkthrough": None}  # which TextWorld plans when asked


def _ids(kinds: Sequence[str]) -> dict[str, str]:
    """Kinds by ids, of which ALFWorld makes names such as ``cabinet 2`` or ``sinkbasin 1``."""
    return {
        f"{kind.removesuffix('Basin')}_bar_{kinds[:place].count(kind)}_{kind}": kind
        for place, kind in enumerate(kinds)
    }


def _problem(places: Mapping[str, str], things: Mapping[str, str], lies: Mapping[str, str]) -> str:
    """Objects and first state of a game in PDDL; the goal is to follow, and closes it."""
    # The domain names some types, whether there is something of them or not.
    ends = sorted({*places.values(), *_TOOLS.values()})
    kinds = sorted({*things.values(), "Knife", "ButterKnife"})
    typed = {"agent1": "agent", "loc_0": "location"}
    typed |= {f"{end}Type": "rtype" for end in ends} | {f"{kind}Type": "otype" for kind in kinds}
    facts = ["atLocation agent1 loc_0"]
    facts += [f"canContain {e}Type {k}Type" for e in ends for k in kinds if k in HOLDS[e]]
    for place, end in places.items():
        typed |= {place: "receptacle", f"loc_{place}": "location"}
        facts += [f"receptacleType {place} {end}Type", f"receptacleAtLocation {place} loc_{place}"]
        facts += [f"openable {place}"] if end in constants.OPENABLE_CLASS_SET else []
    for thing, kind in things.items():
        typed[thing] = "object"
        facts += [f"objectType {thing} {kind}Type", f"inReceptacle {thing} {lies[thing]}"]
        able = [name for name, those in constants.VAL_ACTION_OBJECTS.items() if kind in those]
        able += ["pickupable"] if "Toggleable" not in able else []
        facts += [f"{name} {thing}" for name in able if name != "Sliceable"]
    named = "\n".join(f"{name} - {kind}" for name, kind in typed.items())
    first = "\n".join(f"({fact})" for fact in facts)
    return f"(define (problem made) (:domain alfred)\n(:objects\n{named})\n(:init\n{first})\n"
