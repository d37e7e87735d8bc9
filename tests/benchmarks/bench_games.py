"""What a game costs: steps of random play, candidates, and states scored, a line for each game.

    python tests/benchmarks/bench_games.py                      # every file of recipes/config/env
    python tests/benchmarks/bench_games.py babyai env.level=GoToObj textworld env.num_games=5
    python tests/benchmarks/bench_games.py scienceworld --steps 32 --states 32        # a smoke run

A name is that of a file there; keys after it change it, as for the recipes. Instances play side by
side, resets included. Scored are the log-likelihoods of all candidates, forward alone, for as many
states of random play at once as there are instances, by a model as recipes/pretrain.py makes it,
with random weights and the game's words as tokens. Seconds are those of processors, Java's
included, where the game runs on Java; the fastest of three runs counts for scoring.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from statistics import fmean

import psutil
import torch
from omegaconf import OmegaConf

from torchrl_glam.models import ScoresOnly, make_trunk
from torchrl_glam.pretraining import GameExercises, make_word_tokenizer, record_play
from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.runs.device import choose_autocast
from torchrl_glam.runs.environments import make_bare_env, make_env

RECIPES = Path(__file__).parents[2] / "recipes"
sys.path.insert(0, str(RECIPES))
from pretrain import make_model  # noqa: E402

GAMES = sorted(f.stem for f in (RECIPES / "config" / "env").glob("*.yaml") if f.stem != "custom")
CPU = torch.device("cpu")


def processor_seconds() -> float:
    """What this process and those that it started have used."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(used.user + used.system for used in times)


def measure(config: PretrainConfig, num_envs: int, num_steps: int, num_states: int) -> list[float]:
    """Steps a second, candidates (mean and most), tokens of a prompt, states scored a second."""
    env = make_bare_env(config.tasks(), num_envs, config.seed)
    env.reset()  # the first of all makes and loads games
    start = processor_seconds()
    moves = record_play(env, num_steps, config.seed)
    played = len(moves) / (processor_seconds() - start)
    env.close()
    candidates = [len(move.actions) for move in moves]

    tokenizer = make_word_tokenizer(GameExercises(moves).texts(), config.vocabulary)
    env = make_env(config.tasks(), tokenizer, num_envs=num_envs)
    env.set_seed(config.seed)
    play = env.rollout(-(-num_states // num_envs), break_when_any_done=False)
    env.close()
    model = make_model(config, tokenizer).eval()
    model.set_attn_implementation("eager")
    trunk = make_trunk(model, tokenizer, autocast=choose_autocast("auto", CPU))
    score, keys = ScoresOnly(trunk), ("goal_tokens", "observation_tokens")
    states = play.select(*keys, "action_tokens", "action_mask").unbind(1)
    taken = []
    for _ in range(3):
        start = processor_seconds()
        with torch.no_grad():
            for batch in states:
                score(batch.copy())
        taken.append(processor_seconds() - start)
    tokens = sum((play[key] != tokenizer.pad_token_id).sum().item() for key in keys)
    scored = play.numel() / min(taken)
    return [played, fmean(candidates), max(candidates), tokens / play.numel(), scored]


def read(words: list[str]) -> list[tuple[str, PretrainConfig]]:
    """Names, each with the keys that follow it."""
    named: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            named.append((word, []))
        elif named:
            named[-1][1].append(word)
        else:
            raise ValueError(f"games: {word!r} must follow the name of a game, one of {GAMES}")
    configs = []
    for name, keys in named:
        if name not in GAMES:
            raise ValueError(f"games: {name!r} must be one of {GAMES}")
        file = OmegaConf.load(RECIPES / "config" / "env" / f"{name}.yaml")
        settings = OmegaConf.merge(file, OmegaConf.from_dotlist(keys))
        configs.append((" ".join([name, *keys]), PretrainConfig(**OmegaConf.to_object(settings))))
    return configs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("games", nargs="*", default=GAMES, help=f"of {GAMES}, keys after each")
    parser.add_argument("--num-envs", type=int, default=32, help="side by side (default: 32)")
    parser.add_argument("--steps", type=int, default=512, help="of random play (default: 512)")
    parser.add_argument("--states", type=int, default=256, help="to score (default: 256)")
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of texts that are cut
    print(f"{'steps/s':>9} {'candidates':>10} {'most':>5} {'tokens':>6} {'states/s':>8}")
    for name, config in read(arguments.games):
        sizes = (arguments.num_envs, arguments.steps, arguments.states)
        played, mean, most, tokens, scored = measure(config, *sizes)
        print(
            f"{played:9.0f} {mean:10.1f} {most:5} {tokens:6.0f} {scored:8.0f}  {name}", flush=True
        )


if __name__ == "__main__":
    main()
