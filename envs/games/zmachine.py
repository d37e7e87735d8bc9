"""Story files of the z-machine: which are whole, how they are played, and what can be done."""

import hashlib
import os
import re
import warnings
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

from torchrl_glam._extras import needs
from torchrl_glam.envs.games.common import tidy

with needs("jericho", "A game in a z-machine file"):
    from jericho import FrotzEnv, UnsupportedGameWarning
    from jericho.defines import BASIC_ACTIONS, BINDINGS_DICT
    from jericho.util import recognized, verb_usage_count

COMMANDS = (
    *("north", "south", "east", "west", "northeast", "northwest", "southeast", "southwest"),
    *("up", "down", "in", "out"),
    *("take OBJ", "drop OBJ", "open OBJ", "close OBJ", "enter OBJ", "climb OBJ", "push OBJ"),
    *("pull OBJ", "turn OBJ", "switch on OBJ", "light OBJ", "wear OBJ", "eat OBJ", "drink OBJ"),
    *("search OBJ", "attack OBJ", "put OBJ on OBJ", "put OBJ in OBJ", "give OBJ to OBJ"),
    *("unlock OBJ with OBJ", "cut OBJ with OBJ"),
)
"""Commands to try in a game whose own ones Jericho does not know; ``OBJ`` is a thing."""

# Words that a game understands, and that name no thing.
_NO_THINGS = {*BASIC_ACTIONS, *"a an all everything it its me some that the this you your".split()}
# A line such as "*** You have won ***", before a game asks whether to begin again.
_END = re.compile(r"\*{3,4}\s+(.+?)\s+\*{3,4}.*restart", re.IGNORECASE | re.DOTALL)
_LONGEST = 3  # words of a name, such as "block of cheese"
# What games reply to the name of no thing, besides what Jericho recognizes.
_NO_REPLY = re.compile(
    "which do you mean|only understood|didn't understand|not sure what|multiple objects"
    "|beg your pardon|in that direction",
    re.IGNORECASE,
)


def find_stories(game: str | os.PathLike | Sequence[str | os.PathLike]) -> list[Path]:
    """The whole story files that a path, a folder or several of them name."""
    named = [game] if isinstance(game, (str, os.PathLike)) else list(game)
    stories = []
    for path in map(Path, named):
        files = sorted(path.glob("*.z[1-8]")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            what = "holds no file *.z1 to *.z8" if path.is_dir() else "does not exist"
            raise FileNotFoundError(f"game ({path}) {what}")
        stories += files
    if not stories:
        raise FileNotFoundError("game is empty: name one file of a game, or more")
    for story in stories:
        check_story(story)
    return stories


def check_story(path: Path) -> None:
    """Refuses a file that the interpreter cannot read, which would end the process."""
    data = path.read_bytes()
    if hashlib.md5(data, usedforsecurity=False).hexdigest() in BINDINGS_DICT:
        return  # known to run, whatever its header says
    version = data[0] if len(data) >= 64 else 0
    if not 1 <= version <= 8:
        raise ValueError(f"game ({path}) is no z-machine file: its first byte is no version 1 to 8")
    words = {at: int.from_bytes(data[at : at + 2], "big") for at in (8, 10, 12, 14, 26, 28)}
    size = words[26] * (2 if version <= 3 else 4 if version <= 5 else 8) or len(data)
    if size > len(data):
        raise ValueError(f"game ({path}) is cut off: {len(data):,} bytes of {size:,}")
    tables = [words[at] for at in (8, 10, 12, 14)]  # dictionary, objects, globals, end of memory
    if not all(64 <= table < size for table in tables):
        raise ValueError(f"game ({path}) is broken: its header names places outside of the file")
    if words[26] and words[28] not in (0, sum(data[64:size]) & 0xFFFF):  # 0 where none was written
        raise ValueError(f"game ({path}) is broken: its bytes do not add up to its checksum")


class Story:
    """A game in a story file, with the commands that are worth trying in it.

    By default these are Jericho's for the games it knows, else those of :data:`COMMANDS` whose
    words the game understands. The scores are 0 where Jericho cannot read them.
    """

    def __init__(self, path: Path, commands: Sequence[str] | None = None) -> None:
        with warnings.catch_warnings():  # of a game that Jericho does not know
            warnings.simplefilter("ignore", UnsupportedGameWarning)
            self.game = FrotzEnv(str(path), seed=1)
        self.full_score = self.game.get_max_score()
        words = {word.word: word for word in self.game.get_dictionary()}
        self._length = max(map(len, words), default=0)  # of a word, the rest is not read
        self._nouns = {
            text
            for text, word in words.items()
            if (word.is_noun or word.is_adj or not word.pos()) and not (word.is_prep or word.is_dir)
        } - _NO_THINGS
        own = self.game.act_gen.templates if self.game.act_gen else COMMANDS
        understood = (c for c in own if all(w in words for w in self._cut(c) if w != "OBJ"))
        self.commands = [*(understood if commands is None else commands)]

    def begin(self, seed: int) -> None:
        """Starts the game anew; ``seed`` is of its chances."""
        self.game.seed(seed % 2**30 + 1)  # 0 leaves the choice to Jericho
        self.score = self.game.reset()[1]["score"]

    def do(self, command: str) -> tuple[list[str], bool, bool]:
        """Gives the game a command; returns its reply in lines, whether it is over, and won."""
        reply, _, over, counts = self.game.step(command)
        self.score = counts["score"]
        end = None if self.game.is_fully_supported else _END.search(reply)
        won = self.game.victory() or 0 < self.full_score <= self.score
        won = won or (end is not None and "won" in end[1].lower())
        return _lines(reply), over or won or end is not None, won

    def look(self) -> tuple[list[str], list[str]]:
        """The room and what is carried, in lines, without a turn of the game."""
        state, told = self.game.get_state(), []
        for command in ("look", "inventory"):
            told.append(_lines(self.game.step(command)[0]))
            self.game.set_state(state)
        return told[0], told[1]

    def _cut(self, text: str) -> list[str]:
        return [word[: self._length] for word in text.split()]

    def valid(self, room: Sequence[str], carried: Sequence[str]) -> list[str]:
        """One command for each change that can be made in this state, which :meth:`look` tells.

        This is what Jericho's ``get_valid_actions`` does, but things are words of the game's
        dictionary. Jericho finds them by a model of spaCy, which it downloads when first asked.
        """
        things = self._things("\n".join([*room, *carried]))
        owned = {*re.findall(r"[\w'-]+", " ".join(carried).lower())}
        held = {thing for thing in things if owned.issuperset(thing.split())}
        tried = ["look", "inventory", "wait"]
        pairs = [pair for pair in permutations(things, 2) if not held.isdisjoint(pair)]
        named = {0: [()], 1: [(thing,) for thing in things], 2: pairs}  # one of two is carried
        for command in self.commands:
            words = command.replace("OBJ", "{}")
            tried += [words.format(*names) for names in named.get(command.count("OBJ"), [])]
        changes = self.game._filter_candidate_actions([*dict.fromkeys(tried)])
        # What looking changes too is a mark that the game makes for itself.
        found = [texts for texts in changes.values() if {"look", "inventory"}.isdisjoint(texts)]
        return ["wait" if "wait" in each else max(each, key=verb_usage_count) for each in found]

    def _things(self, text: str) -> list[str]:
        """Names of what is in sight, as the game's own replies tell."""
        replies: dict[str, str] = {}
        for part in re.split(r"[^\w' -]+", text.lower()):
            words = re.findall(r"[\w'-]+", part)
            known = [word[: self._length] in self._nouns for word in words]
            start = 0
            while start < len(words):
                ends = range(min(start + _LONGEST, len(words)), start, -1)
                names = [words[start:end] for end in ends if known[start] and known[end - 1]]
                found = next(
                    (name for name in names if self._is_thing(" ".join(name), replies)), []
                )
                start += len(found) or 1
        # "apple", where that is the red apple, is another name of "red apple".
        seen = {name: {*name.split()} for name, reply in replies.items() if reply}
        return [
            name
            for name, words in seen.items()
            if not any(replies[name] == replies[other] and words < seen[other] for other in seen)
        ]

    def _is_thing(self, name: str, replies: dict[str, str]) -> bool:
        """Whether the game can look at something of this name; remembers what it replies."""
        if name not in replies:
            state = self.game.get_state()
            reply = " ".join(self.game.step(f"examine {name}")[0].split())
            self.game.set_state(state)
            replies[name] = reply if recognized(reply) and not _NO_REPLY.search(reply) else ""
        return bool(replies[name])


def _lines(text: str) -> list[str]:
    """Lines of a reply, without the prompt and the screen's first line, which may follow it."""
    return tidy((text.rpartition("\n>")[0] or text).split("\n"))


def room_name(room: Sequence[str]) -> str:
    """A room's name, which is the first line of its description; ``""`` in the dark."""
    name = room[0].partition("(")[0].strip(" -=") if room else ""
    return "" if name.endswith((".", "!", "?")) else name
