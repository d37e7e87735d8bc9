"""What a game costs: steps of random play a second, and candidate actions, a line for each game.

    python tests/benchmarks/bench_games.py                    # recipes/config/env, all but jericho
    python tests/benchmarks/bench_games.py babyai env.level=GoToObj textworld env.num_games=5
    python tests/benchmarks/bench_games.py scienceworld --steps 32                   # a smoke run

A name is that of a file there; keys after it change it, as for the recipes. Instances play side by
side, resets included. Seconds are those of processors, Java's included, where the game runs on it.
"""

import argparse
import time
import warnings
from pathlib import Path
from statistics import fmean

import psutil
from omegaconf import OmegaConf

from torchrl_glam.pretraining import record_play
from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.runs.environments import make_bare_env

FOLDER = Path(__file__).parents[2] / "recipes" / "config" / "env"
GAMES = sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem != "custom")


def processor_seconds() -> float:
    """What this process and those that it started have used."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(used.user + used.system for used in times)


def measure(config: PretrainConfig, num_envs: int, num_steps: int) -> tuple[float, float, int]:
    """Steps a second, and candidates of a state, in the mean and at most."""
    env = make_bare_env(config.tasks(), num_envs, config.seed)
    env.reset()  # the first of all makes and loads games
    start = processor_seconds()
    moves = record_play(env, num_steps, config.seed)
    played = len(moves) / (processor_seconds() - start)
    env.close()
    candidates = [len(move.actions) for move in moves]
    return played, fmean(candidates), max(candidates)


def read(words: list[str]) -> list[list[str]]:
    """Names, each followed by its keys."""
    named: list[list[str]] = []
    for word in words:
        if word in GAMES:
            named.append([word])
        elif "=" in word and named:
            named[-1].append(word)
        else:
            raise ValueError(f"games: {word!r} must be one of {GAMES}, or a key after one")
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    all_games = [name for name in GAMES if name != "jericho"]  # whose files are the user's
    parser.add_argument("games", nargs="*", default=all_games, help=f"of {GAMES}, keys after each")
    parser.add_argument("--num-envs", type=int, default=32, help="side by side (default: 32)")
    parser.add_argument("--steps", type=int, default=512, help="of random play (default: 512)")
    arguments = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")  # of texts that are cut
    print(f"{'steps/s':>9} {'candidates':>10} {'most':>5}")
    for name, *keys in read(arguments.games):
        file = OmegaConf.load(FOLDER / f"{name}.yaml")
        settings = OmegaConf.to_object(OmegaConf.merge(file, OmegaConf.from_dotlist(keys)))
        played, mean, most = measure(
            PretrainConfig(**settings), arguments.num_envs, arguments.steps
        )
        print(f"{played:9.0f} {mean:10.1f} {most:5}  {' '.join([name, *keys])}", flush=True)


if __name__ == "__main__":
    main()
