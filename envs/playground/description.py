"""Text of states, put together on tensors (SAC-GLAM, Gaven et al., 2024, figure 3)."""

import torch
from torch import Tensor
from torch.nn.functional import embedding

from torchrl_glam.envs.playground.dynamics import Dynamics
from torchrl_glam.envs.playground.vocabulary import OBJECTS
from torchrl_glam.text import encode_text

_SEE, _ON, _HOLD = "You see: ", "\nYou are on: ", "\nYou are holding: "
_GROWN = "\nYou have grown: "
# The phrase table: names, and names after a comma, by object id; in between an empty phrase, and
# at the end the words around the names. A scene ends in the ids of "nothing" and of no object.
_NAMES = (*OBJECTS, "nothing", "")
_PHRASES = (
    *_NAMES,
    *(f", {name}" for name in OBJECTS),
    *("", ""),  # what follows a list
    *len(_NAMES) * ("",),
    *(_SEE, _ON, _HOLD, _GROWN),
)
_FIRST, _NEXT, _EMPTY = 0, len(_NAMES), 2 * len(_NAMES)


class Describer:
    """Writes states as text tensors.

    Tables turn a state into phrase numbers, one or none for each object seen, stood on, held and
    grown; the phrases' bytes are laid end to end. ``longest_texts`` has an observation for each
    object, in which it stands wherever any can: the text with the most tokens is one of these.
    """

    def __init__(self, dynamics: Dynamics, device: torch.device | None = None) -> None:
        num_objects = dynamics.num_objects
        longest = max(OBJECTS, key=len)
        many = ", ".join([longest] * num_objects)
        # All objects are seen and have grown, and the agent is on one of them.
        self.length = len(f"{_SEE}{many}{_ON}{longest}{_HOLD}nothing{_GROWN}{many}")
        moves = [f"Go to {name}" for name in OBJECTS]
        alike = [(", ".join([name] * num_objects), name) for name in OBJECTS]
        observations = [f"{_SEE}{many}{_ON}{one}{_HOLD}{one}{_GROWN}{many}" for many, one in alike]
        self.longest_texts = {"observation": observations, "action": moves}
        actions = encode_text([*moves, "Grasp", "Release"])
        self.action_length = actions.shape[1]
        phrases = encode_text(_PHRASES)
        lengths = (phrases != 0).sum(1)
        width = phrases.shape[1]
        # Bytes of a phrase stand at the end of its row, so that they end where the phrase does.
        shift = (torch.arange(width) + lengths.unsqueeze(1)) % width
        self._phrases = phrases.gather(1, shift).to(device)
        self._lengths, self._bytes = lengths.to(device), torch.arange(width, device=device)
        self._actions = actions.to(device)
        self._columns, self._blocks = _standing_phrases(dynamics).to(device)
        # By the number of objects grown up to and including this one; 0 if it has not grown.
        grown = [_EMPTY, _FIRST] + num_objects * [_NEXT]
        self._grown = torch.tensor(grown, device=device)

    def observation(self, place: Tensor, scene: Tensor, grown: Tensor) -> Tensor:
        """Describes states, given as in ``Dynamics.step``: ``uint8 [B, length]``."""
        standing = scene.gather(1, self._columns.index_select(0, place))
        standing += self._blocks.index_select(0, place)
        # The last column of `grown` stands for nothing, which is only said if it comes first.
        count = grown.cumsum(1).mul_(grown)
        phrases = torch.cat((standing, self._grown.take(count) + scene[:, :-1]), dim=1)
        text = embedding(phrases, self._phrases)
        width = text.shape[2]
        # The phrases' bytes are laid end to end.
        place = self._lengths.take(phrases).cumsum(1).unsqueeze(2) + self._bytes
        # Padding falls onto the bytes of phrases before: adding it, it is zero, leaves them.
        joined = text.new_zeros((len(text), width + self.length))
        return joined.scatter_add_(1, place.flatten(1), text.flatten(1))[:, width:]

    def actions(self, scene: Tensor) -> Tensor:
        """Lists the actions of a scene, admissible or not, ``uint8 [B, N + 2, action_length]``.

        ``Grasp`` and ``Release`` stand for the two marks at the end of a scene.
        """
        return embedding(scene, self._actions)


def _standing_phrases(dynamics: Dynamics) -> Tensor:
    """The phrases of each place, up to the words before what has grown, ``int64 [2, P, N + 6]``.

    First the column of the scene that each names, then the start of its block in the phrase table.
    """
    nothing, none = dynamics.num_objects, dynamics.num_objects + 1
    rows = []
    for on, holding in zip(dynamics.on.tolist(), dynamics.holding.tolist(), strict=True):
        seen = [slot for slot in range(dynamics.num_objects) if slot != holding]
        see = [(slot, _FIRST if slot == seen[0] else _NEXT) for slot in seen]
        see += [(none, _EMPTY)] * (dynamics.num_objects - len(seen))
        on_what = (nothing if on < 0 else on, _FIRST)
        what = (nothing if holding < 0 else holding, _FIRST)
        words = [(none, len(_PHRASES) - 4 + word - (len(_NAMES) - 1)) for word in range(4)]
        rows.append([words[0], *see, words[1], on_what, words[2], what, words[3]])
    return torch.tensor(rows).movedim(-1, 0).contiguous()
