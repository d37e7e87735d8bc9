"""The social partner of Playground-Text: names the goals that the agent's actions reach."""

import torch
from torch import Tensor

from torchrl_glam.envs.playground.dynamics import NO_EVENT
from torchrl_glam.envs.playground.goals import GoalSpace
from torchrl_glam.envs.playground.vocabulary import OBJECTS, SUPPLIES, VERBS, type_of


class SocialPartner:
    """Names, after each step, every goal that the step reached, once per episode.

    Hindsight of SAC-GLAM (Gaven et al., 2024), section 3. Reached are the simple goals that match
    the step's event, and ``a then b`` for each ``Grow`` goal ``a`` named on an earlier step and
    each simple goal ``b`` reached now. The goal that the agent pursues is not named.

    What was named follows from a record of step numbers, which the caller keeps: when a ``Grow``
    goal was *first* reached, and when a simple goal was *last* reached. Reaching ``b`` now
    completes a new ``a then b`` if ``b`` was not reached after ``a`` first was. A simple goal is
    ``b`` after nothing, and nothing counts as reached at step 0.

    ``max_names`` bounds the new goals of a step.
    """

    def __init__(
        self,
        goals: GoalSpace,
        num_objects: int,
        max_steps: int,
        device: torch.device | None = None,
    ) -> None:
        num_simple, num_grasp = goals.num_simple, goals.num_grasp
        self.max_names = most_names(goals, num_objects, max_steps)
        # For each event the simple goals that it reaches, filled up with `num_simple`.
        reached = goals.reached_by.permute(1, 2, 0).flatten(0, 1)  # [2 * 96, S]
        self._width = width = int(reached.sum(1).max())
        matches = torch.arange(num_simple).where(reached, num_simple).sort(1).values[:, :width]
        # Columns of the records: first reached are nothing, the Grow goals, a spare one for the
        # others; last reached are the simple goals, and a spare one.
        self._spare = spare = 1 + (num_simple - num_grasp if goals.sequential else 0)
        first = 1 + matches - num_grasp
        first = first.masked_fill((first < 1) | (first > spare), spare)
        entries = torch.cat((spare + 1 + matches, first), dim=1)
        # What was first reached at step 0 or later stays; what was last reached is reached again.
        never = torch.iinfo(torch.int16).max
        stays_from = torch.tensor(width * [never] + width * [0], dtype=torch.int16)
        empty = torch.cat((torch.full((spare + 1,), -1), torch.zeros(num_simple + 1).long()))
        empty[0] = 0
        # By column of a simple goal last reached: the goal that it completes after each of the
        # first columns.
        completes = torch.full((len(empty), spare), -1)
        completes[spare + 1 : -1, 0] = torch.arange(num_simple)
        if goals.sequential:
            completes[spare + 1 : -1, 1:] = goals.sequence_ids[num_grasp:].T
        # By event, match and first column.
        self._names = completes[entries[:, :width]].flatten().to(device)
        self._entries, self._empty = entries.to(device), empty.short().to(device)
        self._stays_from = stays_from.to(device)

    def empty_records(self, num_envs: int) -> Tensor:
        """Returns the records of fresh episodes, ``int16 [B, R]``; steps count from 1."""
        return self._empty.repeat(num_envs, 1)

    def forget(self, records: Tensor, envs: Tensor) -> None:
        """Empties the records of environments, in place."""
        records.index_copy_(0, envs, self._empty.expand(len(envs), -1))

    def name(
        self, event: Tensor, step: Tensor, pursued: Tensor, records: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Names the goals that a step reached, and enters them in the records, in place.

        Args:
            event: events, or ``NO_EVENT``, ``int64 [B]``.
            step: number of the step, from 1, ``int16 [B]``.
            pursued: ids of the goals that are not named, ``int64 [B]``.
            records: ``int16 [B, R]``.

        Returns:
            The place ``env * max_names + slot`` and the id of each named goal, ``int64 [n]``.
        """
        envs = (event != NO_EVENT).nonzero().squeeze(1)
        event, step = event.index_select(0, envs), step.index_select(0, envs).unsqueeze(1)
        record, entries = records.index_select(0, envs), self._entries.index_select(0, event)
        before = record.gather(1, entries)
        last, first = before[:, : self._width], record[:, : self._spare]
        fresh = last.unsqueeze(2) <= first.unsqueeze(1)  # [k, width, first columns]
        row, cell = fresh.flatten(1).nonzero().unbind(1)
        cell = torch.add(cell, event.index_select(0, row), alpha=self._width * self._spare)
        names, env = self._names.take(cell), envs.index_select(0, row)
        kept = ((names >= 0) & (names != pursued.index_select(0, env))).nonzero().squeeze(1)
        env, names = env.index_select(0, kept), names.index_select(0, kept)
        # `env` ascends, so its names start where its number is first found.
        slot = torch.arange(len(env), device=env.device) - torch.searchsorted(env, env)

        now = torch.where(before >= self._stays_from, before, step)
        records.index_copy_(0, envs, record.scatter_(1, entries, now))
        return slot.add_(env, alpha=self.max_names), names


def most_names(goals: GoalSpace, num_objects: int, max_steps: int) -> int:
    """Bounds the number of goals that one step reaches and no earlier one did.

    Most are reached when as many ``Grow`` goals as possible were before: all objects but one
    supply grow, then comes one more event. Which objects to grow is a coverage problem, solved
    greedily. The train split attains the bound if ``max_steps >= num_objects + 4``.
    """
    grows = goals.reached_by[goals.num_grasp :, 1].T.float()  # [96, Grow goals]
    follows = (goals.sequence_ids[goals.num_grasp :] >= 0).float()  # [Grow goals, S]
    best = 0
    for verb, item in [(verb, item) for verb in VERBS for item in range(len(OBJECTS))]:
        reached = goals.reached_by[:, VERBS.index(verb), item].float()
        # How many sequences each Grow goal reached before completes; those of chosen objects go
        # over into the total.
        weight = follows @ reached
        total = reached.sum()
        others = num_objects - (1 if type_of(item) in SUPPLIES else 2)
        if verb == "Grasp":  # what is grasped may have grown before
            total, weight = total + grows[item] @ weight, weight * (1 - grows[item])
        # Taking the supply takes two steps; a grasp comes two after the last growth.
        for _ in range(min(others, max_steps - (4 if verb == "Grasp" else 3))):
            chosen = int((grows @ weight).argmax())
            total, weight = total + grows[chosen] @ weight, weight * (1 - grows[chosen])
        best = max(best, int(total))
    return best
