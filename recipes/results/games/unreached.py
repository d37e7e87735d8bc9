"""sac_glam.py that also stores episodes under goals of others that they did not reach.

    python recipes/results/games/unreached.py --multirun +games=small +game=pickup +arm=hindsight \\
        seed=0 num_updates=32 hindsight_ratio=0.667 eval_every=800 log_every=800

Each episode is stored twice more, under goals that were pursued in other episodes, without reward.
An episode that ended by success is truncated there: its last state goes on under another goal.
"""

import runpy
import sys
from pathlib import Path

import torch

import torchrl_glam.replay

COPIES = 2
REMEMBERED = 512  # goals


class Unreached(torchrl_glam.replay.HindsightTransform):
    pool = None

    def _rows_of(self, episodes):
        parts = [super()._rows_of(episodes)]
        slots, episode, spans = episodes
        steps, key = self._log.steps, self.hindsight_goal_key
        own = {name: steps[places[0]][slots[spans.first]] for name, places in self._goals.items()}
        before = self.pool or {name: goals[:0] for name, goals in own.items()}
        self.pool = {n: torch.cat([before[n], goals])[-REMEMBERED:] for n, goals in own.items()}
        named = steps[self.hindsight_kind_key][slots] >= 0
        for _ in range(COPIES):
            number = len(own[key])
            chosen = torch.randint(len(self.pool[key]), (number,), generator=self._rng)
            goals = self.pool[key][chosen]
            same = (goals == own[key]).all(-1)
            reached = (steps[key][slots] == goals[episode][:, None]).all(-1) & named
            same[episode[reached.any(1)]] = True
            other = ~same[episode]
            if not other.any():
                continue
            rows = self._copy(slots[other], 0)
            for name, places in self._goals.items():
                for place in places:
                    values = self.pool[name][chosen][episode[other]]
                    rows[place][:] = values.to(rows[place].dtype)
            won = rows[self.reward_key] > self.reward_scale[0]
            rows[self.reward_key][:] = self.reward_scale[0]
            rows[self.terminated_key][won] = False
            if rows.get(self.truncated_key, None) is not None:
                rows[self.truncated_key][won] = True
            parts.append(rows)
        return torch.cat(parts)


torchrl_glam.replay.HindsightTransform = Unreached
sys.argv[0] = str(Path(__file__).parents[2] / "sac_glam.py")
runpy.run_path(sys.argv[0], run_name="__main__")
