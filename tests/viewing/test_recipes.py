"""evaluate.py, watch.py and play.py as a user runs them, and what they refuse."""

import io
import shutil
from unittest import mock

import pytest
from run_metrics import read_csv

from torchrl_glam.models import AgentCard, export_agent, load_language_model
from torchrl_glam.runs.config.viewing import ViewConfig
from torchrl_glam.runs.success import Result
from torchrl_glam.viewing import choose_game, pool

from .records import SIMPLE, write_run


def export_for(folder, **environment):
    card = AgentCard(environment=environment, num_critics=0)
    return export_agent(folder, *load_language_model("tiny"), card=card)


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    return export_for(tmp_path_factory.mktemp("run") / "model", env=SIMPLE)


def test_an_agent_is_evaluated(succeeds, export, tmp_path):
    said = succeeds("evaluate", f"agent={export}", "objects=[3,5]", "episodes=8", "output=out")
    assert "16/16" not in said  # the progress bar is no result
    rows = read_csv(tmp_path / "out" / "results.csv")
    whole = [row for row in rows if row["kind"] == "all"]
    policies = {"agent, sampled", "agent, greedy", "random play", "oracle"}
    assert len(whole) == 2 * 2 * 4 and {row["policy"] for row in whole} == policies
    assert {(row["objects"], row["episodes"]) for row in whole} == {("3", "8"), ("5", "8")}
    for row in whole:
        kinds = [r for r in rows if r["kind"] != "all"]
        same = [r for r in kinds if all(r[k] == row[k] for k in ("policy", "split", "objects"))]
        assert sum(int(r["successes"]) for r in same) == int(row["successes"])
        assert float(row["low"]) <= float(row["success"]) <= float(row["high"])
        assert row["policy"] != "oracle" or row["success"] == "1.0"
    assert said.count("oracle") == sum(row["policy"] == "oracle" for row in rows)
    assert (tmp_path / "out" / "results.png").stat().st_size > 5000


SHORT = ("splits=[train]", "modes=[greedy]", "episodes=4")


def test_seeds_of_a_setting_are_evaluated_together(succeeds, refused, export, tmp_path):
    """Agents of a folder and of its copy are the same, and so is their mean, to the last digit."""
    shutil.copytree(export, tmp_path / "again" / "model")
    agents = f"agent=[{export},{tmp_path / 'again' / 'model'}]"
    said = succeeds("evaluate", agents, *SHORT, "output=out")
    assert "that of their mean is over agents" in said
    rows = read_csv(tmp_path / "out" / "results.csv")
    whole = {row["policy"]: row for row in rows if row["kind"] == "all"}
    one, other, both, chance, _ = whole.values()
    assert list(whole)[2:] == ["2 agents, greedy", "random play", "oracle"]
    assert one["success"] == other["success"] == both["success"] == both["low"] == both["high"]
    assert (both["agents"], both["episodes"], chance["agents"]) == ("2", "8", "1")
    # Agents of different environments are not averaged.
    other = export_for(tmp_path / "other", env=SIMPLE | {"num_objects": 4})
    last = refused("evaluate", f"agent=[{export},{other}]", *SHORT, "output=other")
    assert f"agent ({other}) was trained with another env than" in last


def test_the_mean_of_agents_has_the_interval_of_its_bootstrap():
    """Three agents: one of the 27 resamples is all of the worst, so it lies above 2.5 %."""
    apart = [Result(f"s{i}", "train", 3, "all", 10, n, 4.0 + i) for i, n in enumerate((9, 5, 7))]
    kinds = [Result(f"s{i}", "train", 3, "grow", 4, n, 1.0) for i, n in enumerate((4, 2))]
    whole, grow = pool([*apart, *kinds], "agents")
    assert (whole.kind, whole.success, whole.length) == ("all", 0.7, 5.0)
    assert whole.interval == pytest.approx((0.5, 0.9))
    assert (grow.by_agent, grow.success) == ((1.0, 0.5), 0.75)


def test_what_an_agent_keeps_in_another_game_and_in_its_own():
    splits = {"train": {}, "test": {"first": 1000}}
    own = {"env_class": "mine:one", "env": {"size": 3}, "memory": 64, "eval_splits": splits}
    card = AgentCard(environment=own)
    named = {"train": {}, "new": {}}
    same = choose_game(ViewConfig(env_class="mine:one", eval_splits=named), card)
    assert (same["memory"], same["env"]) == (64, {"size": 3})
    assert same["eval_splits"] == {**splits, "new": {}}
    other = choose_game(ViewConfig(env_class="mine:two", eval_splits={"train": {}}), card)
    assert (other["memory"], other["env"], other["eval_splits"]) == (64, {}, {"train": {}})
    # Impossible goals are played where they are asked for.
    card = AgentCard(environment={"env": {**SIMPLE, "impossible": 0.9}})
    assert choose_game(ViewConfig(), card)["env"] == SIMPLE
    asked = {"impossible": 0.5}
    assert choose_game(ViewConfig(env=asked), card)["env"] == SIMPLE | asked


@pytest.mark.parametrize(
    ("key", "value"), [("eval_splits", {"train": 3}), ("env", []), ("goal_length", "x")]
)
def test_settings_of_another_kind_on_a_card_are_named(key, value):
    with pytest.raises(ValueError, match=rf"{key} \(.*\) of the agent's card must be as recipes"):
        choose_game(ViewConfig(), AgentCard(environment={key: value}))


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("command", "ends"),
    [
        ("evaluate model=tiny episodes=4 output=linked", 1),
        ("watch model=tiny episodes=4 output=linked/page.html", 1),
        ("compare --out linked a run", 2),
    ],
)
def test_outputs_are_opened_first_and_through_no_link(here, tmp_path, command, ends):
    write_run(tmp_path / "run", [0.2, 0.9])
    (tmp_path / "linked").mkdir()
    for link in ("results.csv", "page.html", "steps.png"):
        (tmp_path / "linked" / link).symlink_to(tmp_path / "elsewhere")
    status, said, wrong = here(*command.split())
    assert status == ends and "is a symbolic link" in wrong and not said
    assert not (tmp_path / "elsewhere").exists()


def test_figures_are_printed_whatever_happens(here, monkeypatch, tmp_path):
    """As when the disk is full by the time that the picture is drawn, or the oracle breaks."""
    broken = mock.Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("torchrl_glam.viewing.plot_results", broken)
    status, said, wrong = here("evaluate", "model=tiny", *SHORT, "env=playground_simple")
    assert status == 1 and "oracle" in said and "No space left" in wrong
    monkeypatch.setattr("torchrl_glam.envs.playground.oracle.OraclePolicy.__init__", broken)
    status, said, wrong = here("evaluate", "model=tiny", *SHORT, "output=again")
    assert status == 1 and "random play" in said and not (tmp_path / "again").exists()


def test_two_agents_are_watched(succeeds, export, tmp_path):
    agents = (f"agent={export}", f"beside={export.parent}")
    said = succeeds("watch", *agents, "episodes=3", "output=page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "of 3 episodes reach their goal" in said and '"agents":[{"name":"model"' in page
    (export.parent / "metrics.csv").write_text("step,entropy\n0,0.5\n")  # of the agent's run
    succeeds("watch", f"agent={export.parent}", "episodes=2")
    [page] = export.parent.glob("episodes_*.html")
    assert f'href="{page.name}"' in (export.parent / "report.html").read_text(encoding="utf-8")


def test_any_environment_of_the_contract_will_do(succeeds, refused, tmp_path):
    """The corridor: success is not reward, one split, and no oracle, objects or scene."""
    game = ("env=corridor:Corridor", "env.names_goals=true", "episodes=4")
    succeeds("evaluate", "model=tiny", *game, "modes=[sampled]", "output=out")
    rows = read_csv(tmp_path / "out" / "results.csv")
    assert {row["policy"] for row in rows} == {"zero-shot, sampled", "random play"}
    assert {row["kind"] for row in rows} <= {"all", "red", "blue"}
    export_for(tmp_path / "model", env_class="corridor:Corridor", env={})
    watch = ("watch", f"agent={tmp_path}", "output=page.html")
    assert "env_class (corridor:Corridor) is what the agent's card names" in refused(*watch)
    succeeds(*watch, *game)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"kinds":["red","blue"]' in page and '"objects"' not in page


def test_without_an_agent_the_embedded_one_plays_the_papers_task(succeeds):
    said = succeeds("evaluate", *SHORT[:2], "episodes=60", "references=false")
    [success] = [line.split(" all ")[1].split()[0] for line in said.splitlines() if " all " in line]
    assert float(success) >= 0.9 and "random play" not in said


def test_a_person_plays(succeeds, export, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("h\nGo to red lion\nq\n"))
    said = succeeds("play", f"agent={export}", "goal='grasp red lion'")
    assert "Goal: Grasp red lion (step 1 of 10)" in said and "%" in said


@pytest.mark.parametrize("floor", [-2, 2])  # whatever the seed would draw
def test_a_person_chooses_the_goal_of_a_game_that_is_made_alone(succeeds, floor, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("up\nup\n" if floor > 0 else "down\ndown\n"))
    said = succeeds("play", "env=stairs:alone_chosen", f"goal='reach floor {floor}'", "model=tiny")
    assert f"Goal: Reach floor {floor}" in said and "Goal reached in 2 steps" in said


def test_sizes_of_a_game_that_does_not_tell_its_own_are_told_apart(succeeds, tmp_path):
    game = ("model=tiny", "env=stairs:of_size", "objects=[1,8]")
    succeeds("evaluate", *game, *SHORT, "episodes=20", "output=out")
    rows = [r for r in read_csv(tmp_path / "out" / "results.csv") if r["policy"] == "random play"]
    length = {r["objects"]: float(r["length"]) for r in rows if r["kind"] == "all"}
    assert length["1"] == 1.0 < length["8"]
