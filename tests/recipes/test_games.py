"""Games by one command: models, runs of all arms and seeds, and their table."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from run_metrics import metrics, read_csv

from torchrl_glam.runs.config import PPOGLAMConfig, SACGLAMConfig, read_config, register
from torchrl_glam.runs.config.groups import options_of, spell_out
from torchrl_glam.runs.config.pretrain import PretrainConfig
from torchrl_glam.text import decode_text

few = "ignore:The replay buffer holds no transitions"  # so early
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(few)]

CONFIG = Path(__file__).parents[2] / "recipes" / "config"
KINDS = {"sac_glam": SACGLAMConfig, "ppo_glam": PPOGLAMConfig, "pretrain": PretrainConfig}


@pytest.fixture
def registered(monkeypatch):
    """Makes a recipe's groups known anew."""

    def again(recipe, folder=CONFIG):
        monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
        for group in ("games", "game", "arm"):
            monkeypatch.delitem(ConfigStore.instance().repo, group, raising=False)
        register(recipe, KINDS[recipe], folder)
        GlobalHydra.instance().clear()
        return ConfigStore.instance().repo

    return again


@pytest.mark.parametrize("scale", [[], ["+scale=smoke"]], ids=str)
@pytest.mark.parametrize("recipe", KINDS)
def test_every_game_of_every_table_is_a_good_configuration(recipe, scale, registered):
    repo = registered(recipe)
    with initialize_config_dir(str(CONFIG / recipe), version_base=None):
        for name in options_of("games"):
            about = OmegaConf.load(CONFIG / "games" / f"{name}.yaml")
            for game, told in [*about.games.items()][: 2 if scale else None]:
                for arm in about.arms[recipe]:
                    given = [f"+game={game}", f"+arm={arm}", "seed=3", f"+games={name}", *scale]
                    given = spell_out([*given, *(["env=stairs:make_stairs"] * (name == "mine"))])
                    assert given[:2] == ["--config-name", "games"]
                    cfg = compose("games", given[2:], return_hydra_config=True)
                    HydraConfig.instance().set_config(cfg)
                    OmegaConf.set_struct(cfg, False)
                    cfg.pop("hydra")
                    config = read_config(KINDS[recipe], cfg)
                    assert config.output == f"multirun/games_{name}/{game}/{arm}/3"
                    if recipe != "pretrain":
                        model = f"multirun/games_{name}/{game}/model/3"
                        assert config.language_model == model and config.resume is None
                    for key, value in (told.get("changed") or {}).items():
                        assert getattr(config, key, value) == value or scale
                    if name == "mine":
                        assert config.env_class == "stairs:make_stairs"
                        continue
                    option = OmegaConf.load(CONFIG / "env" / f"{told.env}.yaml")
                    assert config.env_class == option.env_class
                    assert config.eval_splits == OmegaConf.to_container(option.eval_splits)
                    env = OmegaConf.merge(option.env, told.get("arguments") or {})
                    assert config.env == OmegaConf.to_container(env)
            assert set(repo["game"]) >= {f"{game}.yaml" for game in about.games}


@pytest.mark.parametrize(("game", "goal"), [("coins", "Take the coin"), ("cooking", "Cook and")])
def test_textworlds_games_of_the_table_can_be_made(game, goal):
    needed = pytest.importorskip("torchrl_glam.envs.games.textworld", exc_type=ImportError)
    told = OmegaConf.load(CONFIG / "games" / "small.yaml").games[game]
    option = OmegaConf.load(CONFIG / "env" / "textworld.yaml").env
    settings = {**option, **told.arguments, "num_games": 1}
    assert decode_text(needed.make_textworld(**settings).reset()["goal"])[0].startswith(goal)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ("{env: babyai, changed: {gamma: 1, tau: 1, seed: 1}}", "change 2 keys at most"),
        ("{env: babyai, gamma: 1}", r"games/bad.yaml: chess has keys \['gamma'\]"),
        ("", "games/bad.yaml: "),
        ("{arguments: {}}", "games/bad.yaml: "),
    ],
)
def test_a_table_that_is_none_is_refused(about, message, registered, tmp_path):
    (tmp_path / "games").mkdir()
    text = f"seeds: [0]\narms: {{sac_glam: {{a: {{}}}}}}\ngames:\n  chess: {about}\n"
    (tmp_path / "games" / "bad.yaml").write_text(text)
    registered("sac_glam", tmp_path)
    for other in (["seed=1"], ["--config-name", "games"]):  # do not ask for it
        assert spell_out(other) == other
    with pytest.raises(ValueError, match=message):
        spell_out(["+games=bad"])


SMALL = ("+scale=smoke", "seed=0,1")
SHORT = ("total_steps=128", "eval_every=64", "log_every=64", "checkpoint_every=0")
SHORT += ("eval_episodes=4", "device=cpu", "autocast=false")
TINY = ("num_batches=4", "num_steps=64", "episodes=4", "d_model=16", "d_ff=16", "num_layers=1")


def test_a_table_of_games_by_four_commands(here, succeeds, tmp_path):
    """Two seeds of a game of one's own; then the same commands again."""
    sweep = ("--multirun", "+games=mine", "env=corridor:Corridor", "env.names_goals=true", *SMALL)
    folder = tmp_path / "multirun" / "games_mine" / "mine"
    succeeds("pretrain", *sweep, *TINY)
    assert succeeds("pretrain", *sweep, *TINY).count(" is done") == 2
    succeeds("sac_glam", *sweep, *SHORT)
    succeeds("ppo_glam", *sweep, *SHORT)
    runs = sorted(str(path.parent.relative_to(folder)) for path in folder.glob("*/*/metrics.csv"))
    assert runs == [
        f"{arm}/{seed}" for arm in ("hindsight", "no_hindsight", "ppo") for seed in "01"
    ]
    made = [json.loads((folder / "model" / s / "report.json").read_text()) for s in "01"]
    assert made[0]["settings"]["seed"] == 0 and made[1]["settings"]["seed"] == 1
    assert succeeds("sac_glam", *sweep, *SHORT).count(" is done") == 4

    status, out, err = here("pretrain", *sweep, *TINY, "lr=0.1")
    assert status == 1 and (out + err).count("lr was 0.005, is 0.1") == 2 + 1

    assert "| mine | hindsight | 2 |" in succeeds(
        "compare", "--out", "table", "multirun/games_mine"
    )
    rows = {row["agent"]: row for row in read_csv(tmp_path / "table" / "games.csv")}
    assert list(rows) == ["random play", "pretrained", "hindsight", "no_hindsight", "ppo"]
    assert float(rows["random play"]["success"]) == made[0]["train/random_success"]
    ends = [metrics(folder / "hindsight" / s)[-1] for s in "01"]
    mean = sum(float(end["eval/train/sampled/success"]) for end in ends) / 2
    assert float(rows["hindsight"]["success"]) == pytest.approx(mean)
    assert float(rows["hindsight"]["steps"]) == 128
    assert rows["hindsight"]["pretraining_steps"] == "64" and rows["hindsight"]["changed"] == ""
    succeeds("compare", "--out", "curves", folder)  # of one game, each arm a line


def test_a_game_without_its_model_says_how_to_make_it(here):
    status, _, wrong = here("sac_glam", "--multirun", "+games=small", "+game=goto", *SMALL)
    assert status == 1 and "pretrain.py" in wrong
