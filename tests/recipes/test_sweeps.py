"""Many runs by one command: figures and tables of games, broken off, resumed and drawn."""

import json
import shutil
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
        for group in ("figure", "games", "game", "arm"):
            monkeypatch.delitem(ConfigStore.instance().repo, group, raising=False)
        register(recipe, KINDS[recipe], folder)
        GlobalHydra.instance().clear()
        return ConfigStore.instance().repo

    return again


@pytest.mark.parametrize("scale", [[], ["+scale=smoke"], ["+scale=paper"]], ids=str)
@pytest.mark.parametrize(("recipe", "number"), [("sac_glam", 12), ("ppo_glam", 5)])
def test_every_arm_of_every_figure_is_a_good_configuration(recipe, number, scale, registered):
    repo, figures = registered(recipe), options_of("figure")
    assert len(figures) == number
    with initialize_config_dir(str(CONFIG / recipe), version_base=None):
        for name in figures:
            spell_out([f"+figure={name}"])
            arms = [file.removesuffix(".yaml") for file in repo[f"arm_{name}"]]
            for arm in arms[:2] if "smoke" in str(scale) else arms:
                arguments = [f"+arm_{name}={arm}", "seed=1", f"+figure={name}", *scale]
                config = read_config(KINDS[recipe], compose("sequential", spell_out(arguments)[2:]))
                assert config.output == f"multirun/figure_{name}/{arm}/1"
                assert config.resume is None and config.seed == 1


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
        ("{", "games/bad.yaml: "),  # no YAML
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


def test_a_sweep_over_models_keeps_their_options():
    assert spell_out(["model=tiny,qwen_qlora"]) == ["model=tiny,qwen_qlora"]
    assert spell_out(["model=me/flan"]) == ["language_model=me/flan"]


SHORT = ("+scale=smoke", "total_steps=128", "log_every=64", "eval_episodes=4", "device=cpu")
SHORT += ("autocast=false",)
SMALL = (*SHORT, "eval_every=0", "checkpoint_every=64")
SMALL += ("env.num_objects=3", "env.sequential=false", "env.max_steps=8")


def test_a_figure_is_broken_off_resumed_and_drawn(here, succeeds, tmp_path):
    """Two arms of figure 9 with two seeds, and one of them by itself."""
    sweep = ("--multirun", "+figure=9", "+arm_9=n1_100k,n3_50k", "seed=0,1", *SMALL)
    succeeds("sac_glam", *sweep)
    figure = tmp_path / "multirun" / "figure_9"
    runs = sorted(figure.glob("*/*/metrics.csv"))
    names = ["/".join(path.parts[-3:-1]) for path in runs]
    assert names == ["n1_100k/0", "n1_100k/1", "n3_50k/0", "n3_50k/1"]
    whole = [metrics(path.parent) for path in runs]
    # A run of a sweep is that of a process of its own.
    alone = ("--config-name", "sequential", "n_step=3", "capacity=50000", "seed=1")
    succeeds("sac_glam", *alone, "lr_trunk=1.2e-3", *SMALL, "output=alone")
    assert metrics(tmp_path / "alone") == whole[3] and int(whole[3][-1]["updates"]) > 0

    # One is lost, and one was killed before its end.
    shutil.rmtree(runs[0].parent)
    killed = runs[3].parent
    shutil.rmtree(killed / "model")
    shutil.rmtree(max((killed / "checkpoints").glob("step-*")))
    before = [path.stat().st_mtime for path in runs[1:3]]
    assert succeeds("sac_glam", *sweep).count(" is done") == 2
    assert [metrics(path.parent) for path in runs] == whole
    assert [path.stat().st_mtime for path in runs[1:3]] == before

    status, *words = here("sac_glam", *sweep, "gamma=0.5")  # each at once, and the first
    assert status == 1 and "".join(words).count("gamma was 0.8, is 0.5") == 4 + 1
    status, _, wrong = here("sac_glam", "--multirun", "+figure=99")
    assert status == 1 and "Available options in 'figure'" in wrong and "warmup" in wrong
    status, _, wrong = here("sac_glam", "--multirun", "+figure=10")
    assert status == 1 and "its runs are those of ppo_glam.py" in wrong

    succeeds("compare", "--out", "drawn", figure)
    assert "| n3_50k | 2 | " in (tmp_path / "drawn" / "comparison.md").read_text()


def test_a_run_that_diverges_ends_alone(here, succeeds, tmp_path):
    arms = ("seed=0", "+arm_share=share25,share50", "lr_heads=1e30")
    for told in ("failed: ", " diverged: "):  # and is passed over the next time
        status, *words = here("sac_glam", "--multirun", "+figure=share", *SMALL, *arms)
        assert "".join(words).count(told) == 2, words
    assert status == 0
    figure = tmp_path / "multirun" / "figure_share"
    for arm in ("share25", "share50"):
        words = (figure / arm / "0" / "diverged.txt").read_text()
        assert "at step" in words and "lr_heads=1e+30" in words
    assert "share25 (1 diverged)" in succeeds("compare", "--out", "drawn", figure)


def test_runs_of_a_plain_sweep_have_folders_of_their_own(succeeds, tmp_path):
    succeeds("sac_glam", "--multirun", "seed=0,1", *SMALL)
    assert len([*tmp_path.glob("runs/sac_glam/*/report.html")]) == 2


def test_a_table_of_games_by_four_commands(here, succeeds, tmp_path):
    """Two seeds of a game of one's own; then the same commands again."""
    sweep = ("--multirun", "+games=mine", "env=corridor:Corridor", "env.names_goals=true")
    sweep += ("seed=0,1",)
    tiny = ("num_batches=4", "num_steps=64", "episodes=4", "d_model=16", "d_ff=16", "num_layers=1")
    models = ("pretrain", *sweep, "+scale=smoke", *tiny)
    runs = (*sweep, *SHORT, "eval_every=64", "checkpoint_every=0")
    succeeds(*models)
    assert succeeds(*models).count(" is done") == 2
    succeeds("sac_glam", *runs)
    succeeds("ppo_glam", *runs)
    folder = tmp_path / "multirun" / "games_mine" / "mine"
    found = {str(path.parent.relative_to(folder)) for path in folder.glob("*/*/metrics.csv")}
    arms = ("hindsight", "no_hindsight", "ppo")
    assert found == {f"{arm}/{seed}" for arm in arms for seed in "01"}
    made = [json.loads((folder / "model" / s / "report.json").read_text()) for s in "01"]
    assert made[0]["settings"]["seed"] == 0 and made[1]["settings"]["seed"] == 1
    assert succeeds("sac_glam", *runs).count(" is done") == 4

    status, out, err = here(*models, "lr=0.1")
    assert status == 1 and (out + err).count("lr was 0.005, is 0.1") == 2 + 1

    said = succeeds("compare", "--out", "table", folder.parent)
    assert "| mine | hindsight | 2 |" in said
    rows = {row["agent"]: row for row in read_csv(tmp_path / "table" / "games.csv")}
    assert list(rows) == ["random play", "pretrained", *arms]
    assert float(rows["random play"]["success"]) == made[0]["train/random_success"]
    ends = [metrics(folder / "hindsight" / s)[-1] for s in "01"]
    mean = sum(float(end["eval/train/sampled/success"]) for end in ends) / 2
    assert float(rows["hindsight"]["success"]) == pytest.approx(mean)
    assert float(rows["hindsight"]["steps"]) == 128
    assert rows["hindsight"]["pretraining_steps"] == "64" and rows["hindsight"]["changed"] == ""
    succeeds("compare", "--out", "curves", folder)  # of one game, each arm a line


def test_a_game_without_its_model_says_how_to_make_it(refused):
    last = refused("sac_glam", "--multirun", "+games=small", "+game=goto", *SHORT, "seed=0,1")
    assert "pretrain.py" in last


def write_shares(folder, cells, steps, num_objects=3):
    """What a run leaves that counts goals of two kinds in batches, and nothing at step 48."""
    kinds = ("kinds/pursued/", "kinds/named/", "kinds/buffer/", "kinds/batch/")
    names = [kind + name for kind in kinds for name in ("grasp", "grow/any")]
    lines = [",".join(["step", *names, "hindsight_in_buffer", "hindsight_in_batch"])]
    lines += [f"{step},{',' * 9 if step == 48 else cells}" for step in steps]
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").write_text("".join(f"{line}\n" for line in lines))
    (folder / "config.yaml").write_text(f"{{env: {{num_objects: {num_objects}}}}}")


def test_shares_of_the_kinds_of_goals(succeeds, refused, tmp_path):
    """The mean of two runs, of which one pursued no goal of a kind before its first row."""
    first, second = "1,,1,0,0.75,0.25,0.5,0.5,0.5,0.5", "1,0,0,1,0.25,0.75,0,1,1,0.5"
    write_shares(tmp_path / "a", first, (32, 48, 64))
    write_shares(tmp_path / "b", second, (32, 48, 64))
    succeeds("shares", "--out", "drawn", "both", "a", "b")
    rows = (tmp_path / "drawn" / "shares.csv").read_text().splitlines()
    assert len(rows) == 1 + (8 + 2) * 2 and "both,pursued,grow/any,32,0.0000,0.0000,0.0000" in rows
    assert "both,buffer,grasp,64,0.5000,0.2500,0.7500" in rows
    assert "both,buffer,relabelled,64,0.7500,0.5000,1.0000" in rows
    assert (tmp_path / "drawn" / "shares.png").stat().st_size > 10_000
    # steps that one of them alone measured are left out, and labels may be long and hold dollars
    write_shares(tmp_path / "b", second, (16, 64))
    succeeds("shares", "--out", "some", "of $1_2_3 and $2", "b", "a")
    rows = (tmp_path / "some" / "shares.csv").read_text().splitlines()
    assert len(rows) == 1 + 8 + 2 and all(row.split(",")[3] == "64" for row in rows[1:])
    write_shares(tmp_path / "other", second, (64,), num_objects=6)
    write_shares(tmp_path / "nothing", second, (48,))
    for arguments, error in (
        (("x", "a", "other"), "runs of different environments"),
        (("both", "a", "nothing"), "run ('nothing') measured no kinds of goals in a replay buffer"),
        (("multirun/figure_7",), "'multirun/figure_7' holds no run of an arm"),
        (("a", "b"), "'a' is a run where a label should stand"),
    ):
        assert error in refused("shares", "--out", "other", *arguments)
