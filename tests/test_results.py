"""Figures in Markdown are those of the committed measurements, whose origin is written down."""

import json
import re
from pathlib import Path
from statistics import fmean, median

import pytest
from results import tables

ROOT = Path(__file__).parents[1]
RESULTS = tables.RESULTS


@pytest.mark.parametrize("page", tables.pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tables_are_made_from_the_measurements_and_no_success_is_typed_by_hand(page):
    text = page.read_text(encoding="utf-8")
    assert tables.rewrite(text) == text, "run python recipes/results/tables.py"
    text = re.sub(r"<!-- table:.*?<!-- end -->|```.*?```", "", text, flags=re.S)
    # Three digits, as tables give it; 0.005 and the like are settings.
    assert not re.findall(r"(?<![\d.])(?:0\.(?!00)\d{3}|1\.000)(?!\d)", text)


@pytest.fixture
def scripts(monkeypatch):
    """Has the scripts of the folder of results find one another, as where they are run."""
    monkeypatch.syspath_prepend(RESULTS)


# The arms of imagined/ have columns of their own, which the next test is of.
ARMS = {path.parent.name for path in RESULTS.glob("*/arms.csv")} - {"imagined"}


@pytest.mark.parametrize("name", sorted(ARMS))
def test_arms_sum_up_their_runs(name, scripts):
    from arms import sum_up

    summed = [{"folder": name, **row} for row in sum_up(RESULTS / name)]
    committed = tables.read(RESULTS / name / "arms.csv")
    assert summed == committed, f"run python recipes/results/arms.py {name}"


@pytest.mark.parametrize(("arms", "runs"), [("arms", "ends"), ("errors", "errors_runs")])
def test_means_and_medians_of_the_judges_runs(arms, runs):
    summed, single = (tables.read(RESULTS / "imagined" / f"{x}.csv") for x in (arms, runs))
    for row in summed:
        own = [run for run in single if run["label"] == row["label"]]
        assert len(own) == int(row["runs"]) == 5
        for column in ("success", "held_out_success"):
            mean = fmean(float(run[column]) for run in own)
            assert float(row[column]) == pytest.approx(mean, abs=6e-4)
        for column in ("steps_to_0.5", "steps_to_0.8"):
            reached = [float(run[column].replace("nan", "inf")) for run in own]  # inf: never
            assert float(row[column]) == median(reached)


def test_learning_times_before_and_after_the_exchange():
    folder = RESULTS / "exchange"
    lines = tables.read(folder / "curves.csv")
    rows = tables.read(folder / "exchange.csv")
    assert len(rows) == len({(line["label"], line["seed"]) for line in lines}) == 10
    for row in rows:
        own = {
            int(x["step"]): (float(x["success"]), float(x["episodes"]))
            for x in lines
            if (x["label"], x["seed"]) == (row["label"], row["seed"]) and float(x["episodes"]) > 0
        }
        for start, column in ((0, "first"), (6400, "recovery")):
            for end in range(start + 320, start + 6401, 160):
                if end - 160 in own:
                    two = own[end - 160], own[end]
                    if sum(s * n for s, n in two) / sum(n for _, n in two) >= 0.8:
                        break
            assert int(row[column]) == end - start


@pytest.mark.parametrize("name", ["goals", "goals_no_hindsight", "goals_ppo"])
def test_families_sum_up_the_runs_of_the_samplers(name):
    lines = tables.read(RESULTS / name / "curves.csv")
    end = max(int(line["step"]) for line in lines)
    for row in tables.read(RESULTS / name / "families.csv"):
        own = [line for line in lines if line["label"] == row["label"]]
        for column in ("success", "grasp", "grow", "error"):
            last = [float(line[column]) for line in own if line["step"] == f"{end}"]
            mean = pytest.approx(fmean(last), abs=6e-4, nan_ok=True)
            assert len(last) == 5 and float(row[column]) == mean
        late = [float(x["impossible"]) for x in own if int(x["step"]) >= 0.75 * end]
        late = [share for share in late if share == share]
        assert float(row["impossible"]) == pytest.approx(fmean(late), abs=2e-3)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]))


def test_ends_of_a_figures_runs(tmp_path, scripts):
    """One run that learned, and one that diverged."""
    from ends import write_ends

    figure, evaluated = tmp_path / "figure_6", tmp_path / "evaluated"
    name = "eval/train/sampled/success"
    head = f"step,{name},entropy,probe/q_error,seconds"
    curve = ["0,0.25,,,", "32,0.75,0.5,0.0625,4", "64,0.5,,,", "96,,0.25,,9.6"]
    write(figure / "few/80/metrics.csv", head, *curve)
    write(figure / "many/81/metrics.csv", f"step,{name}", "0,0.25")
    write(figure / "many/81/diverged.txt")
    write(
        evaluated / "few/80/results.csv",
        "policy,split,kind,success",
        '"agent, sampled",train,all,0.5',
        '"agent, sampled",train,grow,0.25',
        '"agent, greedy",train,all,0.75',
        '"agent, sampled",test,all,0.125',  # and not greedy
        '"agent, sampled",test,grow,0',
        "random play,train,all,0.0625",
    )
    write_ends(tmp_path, figure, evaluated)
    assert (tmp_path / "ends.csv").read_text().splitlines() == [
        "label,seed,steps,steps_to_0.5,steps_to_0.8,success,greedy_success,held_out_success,"
        "held_out_greedy_success,grow,entropy,q_error,plan,seconds",
        "few,80,96,32,nan,0.500,0.750,0.125,nan,0.250,0.250,0.062,nan,10",
        "many,81,0,nan,nan,0.000,0.000,0.000,0.000,nan,nan,nan,nan,nan",
    ]
    with pytest.raises(ValueError, match="give the folder of a figure"):
        write_ends(tmp_path, tmp_path / "few", evaluated)


def test_the_readme_shows_the_recipe():
    def lines(text):
        return "\n".join(line.strip() for line in text.splitlines() if line.strip())

    recipe = lines((ROOT / "recipes" / "sac_glam.py").read_text(encoding="utf-8"))
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    parts = block.split("...\n")
    assert len(parts) == 4 and all(lines(part) in recipe for part in parts)


def test_a_table_of_rows_and_one_across_a_column(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    lines = ["a,0,0.0,0.25", "a,0,8.0,0.5", "b,0,0.0,nan", "c,0,0.0,1"]
    write(tmp_path / "success.csv", "label,run,step,success", *lines)
    write(tmp_path / "report.json", '{"train": {"success": [0.125, 1]}}')

    def rows(file, *description):
        text = "\n".join([f"<!-- table: {file}", *description, "-->", "| old |", "<!-- end -->"])
        return tables.rewrite(text).split("-->\n")[1].split("\n")[3:-2]

    row = "row: {label} | {success:.2f}"
    assert rows("success.csv", "head: a | b", "where: label = a; b", row) == [
        *("| a | 0.25 |", "| a | 0.50 |", "| b | – |")
    ]
    across = ("group: label, run", "across: step", "where: label = a")
    row = "row: {success@0:.2f} | {success@8:.2f} | {step@last}"
    assert rows("success.csv", "head: 0 | 8 | last", *across, row) == ["| 0.25 | 0.50 | 8.0 |"]
    row = "row: {train/success/0:.3f}, {train/success/1:.1f}"
    assert rows("report.json", "head: a", row) == ["| 0.125, 1.0 |"]
    for unknown in ("row: {steps}", "where: steps = 8"):
        with pytest.raises(KeyError, match="table of report.json: 'steps' is none of"):
            rows("report.json", "head: a", unknown)
    with pytest.raises(ValueError, match="'colour: red' must begin with one of"):
        rows("report.json", "colour: red")
    with pytest.raises(ValueError, match="leaves no rows"):
        rows("success.csv", "head: a", "where: label = d", "row: {label}")


def test_measurements_have_a_command_a_commit_seeds_and_a_machine():
    measured = [path for path in RESULTS.rglob("*") if path.suffix in (".csv", ".json")]
    assert len(measured) > 20
    for path in measured:
        record = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        assert all(record[key] for key in ("commands", "commit", "seeds", "machine")), path
