"""The room of BabyAI-Text, with a task of one of several kinds in every episode."""

from collections.abc import Sequence

from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    GoToInstr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
)

HELD_OUT = ("yellow box", "red key", "red door", "green ball", "grey door")
"""Things that missions of the fold ``"test"`` name, and those of ``"train"`` never do."""
TASKS = ("go to", "pick up", "put next to", "open", "unlock")
_INSTRUCTIONS = {
    "go to": (GoToInstr, 1),
    "pick up": (PickupInstr, 1),
    "put next to": (PutNextInstr, 2),
}


class TaskRoom(RoomGridLevel):
    """A level of BabyAI: a room full of objects, and one of several tasks in it.

    The first three tasks name objects by kind and colour. "open" and "unlock" name the door to a
    second room, which only they have; to unlock it takes the key of its colour, which lies in the
    room. Every object can be reached without moving another, and objects may be alike.

    Args:
        tasks: some of ``TASKS``; each episode draws one.
        distractors: objects besides those that the mission names.
        room_size: squares along a side, walls included.
        fold: ``"train"`` or ``"test"``, see :data:`HELD_OUT`.

    Raises:
        ValueError: if there is no such task, or the room is too small for the objects.
    """

    def __init__(self, tasks: Sequence[str], distractors: int, room_size: int, fold: str) -> None:
        if not tasks or not set(tasks) <= set(TASKS):
            raise ValueError(f"tasks ({list(tasks)}) must be some of {TASKS}")
        most = (room_size - 2) ** 2 // 2 - 2  # half of the squares stay free
        if not 0 <= distractors <= most:
            raise ValueError(
                f"distractors ({distractors}) must be at least 0 and at most {max(most, 0)}, as "
                f"room_size ({room_size}, which must be at least 4) leaves"
            )
        self.tasks, self.distractors, self.fold = tuple(tasks), distractors, fold
        super().__init__(room_size=room_size, num_rows=1, num_cols=2)

    def gen_mission(self) -> None:
        """Fills the room and draws the mission; BabyAI does so again where it is rejected."""
        task = self.tasks[self.np_random.integers(len(self.tasks))]
        if task in _INSTRUCTIONS:
            kind, number = _INSTRUCTIONS[task]
            things = self.add_distractors(0, 0, self.distractors + number, all_unique=False)
            named = [things[i] for i in self.np_random.permutation(len(things))[:number]]
            self.instrs = kind(*(ObjDesc(thing.type, thing.color) for thing in named))
        else:
            door, _ = self.add_door(0, 0, door_idx=0, locked=task == "unlock")
            if door.is_locked:
                self.add_object(0, 0, "key", door.color)
            self.add_distractors(0, 0, self.distractors, all_unique=False)
            self.instrs = OpenInstr(ObjDesc("door", door.color))
        self.place_agent(0, 0)
        self.check_objs_reachable()
        mission = self.instrs.surface(self)
        if any(thing in mission for thing in HELD_OUT) != (self.fold == "test"):
            raise RejectSampling(mission)
