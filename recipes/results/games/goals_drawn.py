"""sac_glam.py whose hindsight draws goals without looking at what the episode reached.

    python recipes/results/games/goals_drawn.py --multirun +games=small +game=goto +arm=hindsight

Each episode is stored four times more, under goals that other episodes pursued, drawn alike, and
cut where it reached them, if it did.
"""

import runpy
import sys
from pathlib import Path

import torch

import torchrl_glam.replay

COPIES = 4
REMEMBERED = 512  # goals


class Drawn(torchrl_glam.replay.HindsightTransform):
    pool = None

    def _rows_of(self, episodes):
        slots, episode, spans = episodes
        steps, key = self._log.steps, self.hindsight_goal_key
        parts = [self._copy(slots, slots.shape[0])]
        own = {name: steps[places[0]][slots[spans.first]] for name, places in self._goals.items()}
        before = self.pool or {name: goals[:0] for name, goals in own.items()}
        self.pool = {n: torch.cat([before[n], goals])[-REMEMBERED:] for n, goals in own.items()}
        named = steps[self.hindsight_kind_key][slots] >= 0
        last = torch.zeros(len(slots), dtype=torch.bool)
        last[spans.last] = True
        low, high = self.reward_scale
        for _ in range(COPIES):
            chosen = torch.randint(len(self.pool[key]), (len(own[key]),), generator=self._rng)
            goals = self.pool[key][chosen]
            other = ~(goals == own[key]).all(-1)[episode]
            reached = ((steps[key][slots] == goals[episode][:, None]).all(-1) & named).any(1)
            rows, hit, end = self._copy(slots[other], 0), reached[other], last[other]
            for name, places in self._goals.items():
                for place in places:
                    values = self.pool[name][chosen][episode[other]]
                    rows[place][:] = values.to(rows[place].dtype)
            told = {self.reward_key: torch.where(hit, high, low), self.done_key: hit | end}
            told |= {self.terminated_key: hit, self.truncated_key: end & ~hit}
            for name, value in told.items():
                rows[name][:] = value.view_as(rows[name])
            parts.append(rows)
        return torch.cat(parts)


if __name__ == "__main__":
    torchrl_glam.replay.HindsightTransform = Drawn
    sys.argv[0] = str(Path(__file__).parents[2] / "sac_glam.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
