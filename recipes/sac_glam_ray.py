"""Trains a language-model agent with SAC-GLAM while collectors in other processes play, on Ray.

    python recipes/sac_glam_ray.py                          # a learner and two collectors
    python recipes/sac_glam_ray.py --config-name paper num_collectors=4 collector_gpus=0.25
    python recipes/sac_glam_ray.py ray_address=auto         # collectors on a cluster's machines

It needs pip install "torchrl_glam[ray]". The keys are those of sac_glam.py, and of
torchrl_glam/runs/config/sac_glam_ray.py. As there, the learner makes num_updates updates with each
batch of update_every steps; the collectors play on, with weights at most max_policy_lag updates
old. A run leaves what one of sac_glam.py does.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sac_glam import learn, make_agent, make_buffer
from torchrl._utils import timeit

from torchrl_glam.objectives import trainable_leaves
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.config import SACGLAMRayConfig, read_config, register
from torchrl_glam.runs.processes.async_collection import AsyncCollectors
from torchrl_glam.runs.processes.ray_pool import RayPool, import_ray
from torchrl_glam.runs.processes.ray_worker import make_collector
from torchrl_glam.runs.program import program
from torchrl_glam.runs.run import Run

register("sac_glam", SACGLAMRayConfig, Path(__file__).parent / "config")


@program(config_path="config/sac_glam", config_name="quickstart")
def main(cfg: SACGLAMRayConfig) -> None:
    config = read_config(SACGLAMRayConfig, cfg)
    import_ray()
    with Run(config, "sac_glam_ray", record=RunRecord) as run:
        agent = make_agent(run, config)
        buffer = make_buffer(config, run.game, agent.noise)
        hindsight = buffer.transform[1]
        pool = RayPool(
            partial(make_collector, config),
            config.num_collectors,
            config.ray_address,
            num_cpus=config.collector_cpus,
            num_gpus=config.collector_gpus,
        )
        collectors = AsyncCollectors(
            pool,
            updates_per_batch=config.num_updates,
            max_policy_lag=config.max_policy_lag,
            timeout=config.collector_timeout,
            forget=hindsight.forget,
        )
        run.keeps(**agent.kept, buffer=buffer, collectors=collectors)
        hindsight.clear()  # nobody is left to end the episodes of an earlier start

        def batches() -> Iterator:
            while True:
                # what is trained is all that update_policy_weights_ needs: with adapters a few MB
                weights = trainable_leaves(agent.explorer).data.cpu()
                collectors.publish(weights, run.counters["updates"])
                with timeit("time/wait"):
                    steps = collectors.next()
                yield steps

        def of_collectors() -> dict[str, float]:
            seconds = timeit.todict(percall=False)
            busy = 1 - seconds["time/wait"] / sum(seconds.values())
            return {**collectors.summary(), "learner_busy": busy}

        heads = agent.loss.policy_and_values
        with collectors:
            for steps in run.rounds(batches(), agent.policy, heads=heads, apart=True):
                with timeit("time/store"):
                    buffer.extend(steps)
                if len(buffer) >= config.batch_size:
                    learn(run, agent, buffer, of_collectors)
        run.finish(agent.model, agent.loss.qvalue_network_params)


if __name__ == "__main__":
    main()
