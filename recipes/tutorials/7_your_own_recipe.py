"""
A recipe of your own
====================

Advantage-weighted regression (Peng et al., 2019): the policy imitates what was played, each action
weighted by how much better it turned out than its state. The run is that of ``sac_glam.py``:
checkpoints, resumption, metrics, evaluations, a page, an exported agent, several processes.

.. code-block:: bash

   python recipes/tutorials/7_your_own_recipe.py output=runs/awr total_steps=6400
   python recipes/tutorials/7_your_own_recipe.py resume=runs/awr total_steps=9600
   torchrun --nproc-per-node=2 recipes/tutorials/7_your_own_recipe.py output=runs/awr2
"""

# %%
# The configuration has the keys that all recipes share, and one more.

import sys
import tempfile
from dataclasses import dataclass

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import Compose

from torchrl_glam.models import CandidateActor, OnDevice, ScoresOnly, ValueHead, make_trunk
from torchrl_glam.objectives import ClippedAdam
from torchrl_glam.replay import HindsightRatioSampler, HindsightTransform, SegmentMultiStepTransform
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.config import RecipeConfig, read_config
from torchrl_glam.runs.program import program
from torchrl_glam.runs.run import Run


@dataclass
class AWRConfig(RecipeConfig):
    temperature: float = 0.1  # the lower, the more the best actions count


# %%
# The loss reads each state once. In the place of the reward stands the discounted return of the
# whole episode, so nothing bootstraps, and there are no target weights.


class AWRLoss(torch.nn.Module):
    def __init__(self, trunk, actor, value, temperature):
        super().__init__()
        self.trunk, self.actor, self.value, self.temperature = trunk, actor, value, temperature

    def forward(self, batch):
        states = self.value(self.trunk(batch.select(*self.trunk.in_keys)))
        policy = self.actor.get_dist(states)
        advantage = (batch["next", "reward"] - states["state_value"]).squeeze(-1)
        weight = (advantage.detach() / self.temperature).exp().clamp_max(20)
        return TensorDict(
            loss_policy=-(weight * policy.log_prob(batch["action"])).mean(),
            loss_value=advantage.square().mean(),
            entropy=policy.entropy().detach().mean(),
        )


# %%
# The run: parts, what a checkpoint keeps, an update, the loop. What is wrong with the settings is
# told in a line, without a traceback, by ``program``.


@program
def main(overrides):
    cfg = OmegaConf.merge(OmegaConf.structured(AWRConfig), OmegaConf.from_dotlist(overrides))
    config = read_config(AWRConfig, cfg)
    with Run(config, "awr", record=RunRecord) as run:
        model, tokenizer = run.load_model()
        env = run.make_envs(tokenizer)
        trunk = ScoresOnly(make_trunk(model, tokenizer, **run.scoring(tokenizer)))
        actor = CandidateActor()
        value = ValueHead(trunk.trunk.embedding_dim, config.critic_hidden_sizes)
        policy = OnDevice(TensorDictSequential(trunk, actor, selected_out_keys=["action"]))
        loss = AWRLoss(trunk, actor, value, config.temperature).to(run.device)
        rates = {trunk: config.lr_trunk, value: config.lr_heads}
        groups = [{"params": list(part.parameters()), "lr": lr} for part, lr in rates.items()]
        optimizer = ClippedAdam(groups, max_grad_norm=config.max_grad_norm, group=run.ranks.group)
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(20_000),
            sampler=HindsightRatioSampler(0.5),
            transform=Compose(SegmentMultiStepTransform(9_999, config.gamma), HindsightTransform()),
            batch_size=run.mine.batch_size,
            generator=torch.Generator().manual_seed(run.mine.seed),
        )
        collector = run.collect(env, policy)
        run.keeps(loss=loss, optimizer=optimizer, buffer=buffer, collector=collector)

        for steps in run.rounds(collector, policy):
            buffer.extend(steps)
            if run.ranks.all(len(buffer) >= run.mine.batch_size):
                for _ in range(4):
                    terms, _ = run.step(loss, buffer.sample().to(run.device))
                if run.logs:
                    run.log(run.total(terms), {})
        run.finish(model, critics=TensorDict.from_module(value).unsqueeze(0))


if __name__ == "__main__":  # without arguments, a minute in a folder that is thrown away
    main(sys.argv[1:] or [f"output={tempfile.mkdtemp()}/awr", "total_steps=1600", "loggers=[]"])
