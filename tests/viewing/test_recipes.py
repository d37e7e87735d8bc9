"""evaluate.py, watch.py and play.py as a user runs them, and what they refuse."""

import csv
import io
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore
from scipy.stats import norm

from torchrl_glam.models import AgentCard, export_agent, load_language_model
from torchrl_glam.runs.success import Result
from torchrl_glam.viewing import format_results, plot_results, pool

RECIPES = Path(__file__).parents[2] / "recipes"
SIMPLE = {"num_objects": 3, "sequential": False, "max_steps": 10}


def test_intervals_are_wilsons():
    n, k, z = 300, 251, norm.ppf(0.975)
    share = k / n
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    result = Result("agent", "train", 3, "all", n, k, 4.0)
    assert result.interval == pytest.approx((centre - half, centre + half))
    assert Result("agent", "train", 3, "all", 10, 10, 4.0).interval[1] == pytest.approx(1.0)
    assert Result("agent", "train", 3, "all", 10, 0, 4.0).interval[0] == pytest.approx(0.0)


def test_tables_and_pictures_of_any_results(tmp_path):
    alone = [Result("agent", "train", 0, "all", 10, 7, 4.0)]
    assert format_results(alone).split("\n")[1].split()[:4] == ["agent", "train", "all", "0.700"]
    plot_results(alone, tmp_path / "alone.png")
    several = [
        Result(policy, split, objects, kind, 10, objects, 4.0)
        for policy in ("agent", "random play")
        for split in ("train", "test")
        for objects in (3, 6)
        for kind in ("all", "grow")
    ]
    plot_results(several, tmp_path / "several.png")
    sizes = [(tmp_path / f"{name}.png").stat().st_size for name in ("alone", "several")]
    assert 1000 < sizes[0] < sizes[1]


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "model"
    card = AgentCard(environment={"env": SIMPLE}, num_critics=0)
    return export_agent(folder, *load_language_model("tiny"), card=card)


@pytest.fixture
def recipe(monkeypatch, capsys, tmp_path):
    """Runs a recipe in this process, in a folder of its own; its status and what it wrote."""
    monkeypatch.chdir(tmp_path)
    # a group of the recipes that train, where one of them has run in this process
    monkeypatch.delitem(ConfigStore.instance().repo, "model", raising=False)

    def run(name, *overrides):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, overrides)])
        try:
            runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")
            status = 0
        except SystemExit as error:
            status = error.code
        return status, *capsys.readouterr()

    return run


def test_an_agent_is_evaluated(recipe, export, tmp_path):
    sizes = "objects=[3,5]"
    status, said, wrong = recipe("evaluate", f"agent={export}", sizes, "episodes=8", "output=out")
    assert status == 0, wrong
    assert "100%" in wrong and "64/64" not in said  # the progress bar is no result
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    whole = [row for row in rows if row["kind"] == "all"]
    assert len(whole) == 2 * 2 * 4 and {row["episodes"] for row in whole} == {"8"}
    assert {row["policy"] for row in whole} == {
        *("agent, sampled", "agent, greedy", "random play", "oracle")
    }
    assert {row["objects"] for row in whole} == {"3", "5"}
    for row in whole:
        kinds = [r for r in rows if r["kind"] != "all"]
        same = [r for r in kinds if all(r[k] == row[k] for k in ("policy", "split", "objects"))]
        assert sum(int(r["successes"]) for r in same) == int(row["successes"])
        assert float(row["low"]) <= float(row["success"]) <= float(row["high"])
        if row["policy"] == "oracle":
            assert row["success"] == "1.0"
    assert said.count("oracle") == sum(row["policy"] == "oracle" for row in rows)
    assert (tmp_path / "out" / "results.png").stat().st_size > 5000


def test_seeds_of_a_setting_are_evaluated_together(recipe, export, tmp_path):
    """Agents of a folder and of its copy are the same, and so is their mean, to the last digit."""
    shutil.copytree(export, tmp_path / "again" / "model")
    agents = f"agent=[{export},{tmp_path / 'again' / 'model'}]"
    options = ("splits=[train]", "modes=[greedy]", "episodes=8", "output=out")
    status, said, wrong = recipe("evaluate", agents, *options)
    assert status == 0, wrong
    assert "100%" in wrong and "those of all of them over agents" in said
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        whole = {r["policy"]: r for r in csv.DictReader(file) if r["kind"] == "all"}
    one, other, both, chance, _ = whole.values()
    assert list(whole)[2:] == ["2 agents, greedy", "random play", "oracle"]
    assert one["success"] == other["success"] == both["success"] == both["low"] == both["high"]
    assert (both["agents"], both["episodes"], chance["agents"]) == ("2", "16", "1")


def test_agents_of_different_environments_are_not_averaged(recipe, export, tmp_path):
    card = AgentCard(environment={"env": SIMPLE | {"num_objects": 4}}, num_critics=0)
    other = export_agent(tmp_path / "other", *load_language_model("tiny"), card=card)
    status, _, wrong = recipe("evaluate", f"agent=[{export},{other}]", "episodes=8", "output=out")
    assert status == 1 and f"agent ({other}) was trained in another environment than" in wrong
    assert not (tmp_path / "out").exists()


def test_the_mean_of_agents_has_the_interval_of_its_bootstrap():
    """Three agents: one of the 27 resamples is all of the worst, so it lies above 2.5 %."""
    apart = [Result(f"s{i}", "train", 3, "all", 10, n, 4.0 + i) for i, n in enumerate((9, 5, 7))]
    kinds = [
        Result("s0", "train", 3, "grow", 4, 4, 1.0),
        Result("s1", "train", 3, "grow", 4, 2, 1.0),
    ]
    whole, grow = pool([*apart, *kinds], "agents")
    assert (whole.kind, whole.success, whole.length) == ("all", 0.7, 5.0)
    assert whole.interval == pytest.approx((0.5, 0.9))
    assert (grow.by_agent, grow.success) == ((1.0, 0.5), 0.75)


def test_a_language_model_alone_is_evaluated(recipe, tmp_path):
    options = ("splits=[train]", "modes=[greedy]", "references=false", "episodes=4", "output=out")
    status, said, wrong = recipe("evaluate", "model=tiny", *options)
    assert status == 0, wrong
    assert "zero-shot, greedy" in said and "random play" not in said
    status, said, wrong = recipe("evaluate", "model=tiny", *options)  # once more
    assert status == 1 and "results.csv' is there, and would be overwritten" in wrong and not said


@pytest.mark.hostile
def test_outputs_are_opened_first_and_through_no_link(recipe, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "linked").mkdir()
    for name in ("results.csv", "page.html"):
        (tmp_path / "linked" / name).symlink_to(tmp_path / "elsewhere")
    for name, output, message in (
        ("evaluate", "file", "output ('file') is a file: give a folder"),
        ("evaluate", "linked", "is a symbolic link"),
        ("watch", "file/page.html", "output ('file') is a file: give a folder"),
        ("watch", "linked/page.html", "is a symbolic link"),
    ):
        status, said, wrong = recipe(name, "model=tiny", "episodes=4", f"output={output}")
        assert status == 1 and message in wrong and not said
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


def test_figures_are_printed_whatever_happens(recipe, monkeypatch, tmp_path):
    """As when the disk is full by the time that the picture is drawn, or the oracle breaks."""
    options = ("splits=[train]", "modes=[greedy]", "episodes=4", "output=out")

    def broken(*given, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torchrl_glam.viewing.plot_results", broken)
    status, said, wrong = recipe("evaluate", "model=tiny", *options)
    assert status == 1 and "oracle" in said and "No space left" in wrong
    monkeypatch.setattr("torchrl_glam.envs.playground.oracle.OraclePolicy.__init__", broken)
    status, said, wrong = recipe("evaluate", "model=tiny", *options[:3], "output=again")
    assert status == 1 and "random play" in said and not (tmp_path / "again").exists()


def test_two_agents_are_watched(recipe, export, tmp_path):
    overrides = (f"agent={export}", f"beside={export.parent}", "episodes=3", "output=page.html")
    status, said, wrong = recipe("watch", *overrides)
    assert status == 0, wrong
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "of 3 episodes reach their goal" in said and '"agents":[{"name":"model"' in page
    (export.parent / "metrics.csv").write_text("step,entropy\n0,0.5\n")  # of the agent's run
    status, _, wrong = recipe("watch", f"agent={export.parent}", "episodes=2")
    assert status == 0, wrong
    [page] = export.parent.glob("episodes_*.html")
    assert f'href="{page.name}"' in (export.parent / "report.html").read_text(encoding="utf-8")


def test_an_episode_moves(recipe, export, tmp_path):
    status, said, wrong = recipe("watch", f"agent={export}", "episodes=1", "output=a.gif")
    assert status == 0, wrong
    assert "Open a.gif" in said and (tmp_path / "a.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.parametrize("game", ["playground", "playground_simple"])
def test_a_game_is_chosen_by_name(recipe, game):
    options = ("episodes=5", "references=false", "modes=[greedy]", "splits=[train]")
    status, _, wrong = recipe("evaluate", "model=tiny", f"env={game}", *options)
    assert status == 0, wrong


def test_the_goals_of_a_named_game_replace_those_of_the_run(recipe, tmp_path):
    """The run was evaluated on training goals alone."""
    card = AgentCard(environment={"eval_splits": {"train": {"split": "train"}}}, num_critics=0)
    export_agent(tmp_path / "model", *load_language_model("tiny"), card=card)
    options = (f"agent={tmp_path}", "episodes=5", "references=false", "modes=[greedy]")
    status, _, wrong = recipe("evaluate", *options, "splits=[test]")
    assert status == 1 and "split (test) must be one of ['train']" in wrong
    status, _, wrong = recipe("evaluate", *options, "splits=[test]", "env=playground_simple")
    assert status == 0, wrong


def test_any_environment_of_the_contract_will_do(recipe, tmp_path):
    """The corridor: success is not reward, one split, and no oracle, objects or scene."""
    game = ("env=corridor:Corridor", "env.names_goals=true", "episodes=4")
    status, said, wrong = recipe("evaluate", "model=tiny", *game, "modes=[sampled]", "output=out")
    assert status == 0, wrong
    with open(tmp_path / "out" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == {"zero-shot, sampled", "random play"}
    assert {row["kind"] for row in rows} <= {"all", "red", "blue"}
    card = AgentCard(environment={"env_class": "corridor:Corridor", "env": {}}, num_critics=0)
    export_agent(tmp_path / "model", *load_language_model("tiny"), card=card)
    agent = f"agent={tmp_path}"
    status, _, wrong = recipe("watch", agent, "output=page.html")
    assert status == 1 and "env_class (corridor:Corridor) is what the agent's card names" in wrong
    status, _, wrong = recipe("watch", agent, *game, "output=page.html")
    assert status == 0, wrong
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"kinds":["red","blue"]' in page and '"objects"' not in page


def test_without_an_agent_the_embedded_one_plays_the_papers_task(recipe):
    options = ("episodes=60", "references=false", "modes=[greedy]", "splits=[train]")
    status, said, wrong = recipe("evaluate", *options)
    assert status == 0, wrong
    [success] = [line.split(" all ")[1].split()[0] for line in said.splitlines() if " all " in line]
    assert float(success) >= 0.9


def test_a_person_plays(recipe, export, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("h\nGo to red lion\nq\n"))
    status, said, wrong = recipe("play", f"agent={export}", "goal='grasp red lion'")
    assert status == 0, wrong
    assert "Goal: Grasp red lion (step 1 of 10)" in said and "%" in said
