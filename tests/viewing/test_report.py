"""The page of a run: what its charts show, in a real browser too, and what cannot be shown."""

import json
import math
import re

import pytest

from torchrl_glam.report import Chart, Line, Run, make_page, read_run
from torchrl_glam.report import record as run_record
from torchrl_glam.report.charts import HEIGHT, WIDTH, draw, number
from torchrl_glam.report.contents import sections
from torchrl_glam.report.record import RunRecord
from torchrl_glam.runs.records.metrics import MetricsTable

from .browser import Reader, contrast, themes

EVALUATED = {
    **{"eval/train/sampled/success": 0.5, "eval/test/sampled/success": 0.25},
    **{"eval/train/greedy/success": 0.75, "eval/train/sampled/length": 7.5},
    **{"eval/train/sampled/success/grasp": 1.0, "eval/train/sampled/success/grow_then_grasp": 0.0},
    **{"probe/q_error": 0.25, "probe/q_correlation": 0.5, "probe/plan/policy": 0.5},
    **{"probe/calibration/1/q": 0.25, "probe/calibration/1/return": 0.0},
    **{"probe/calibration/2/q": 0.75, "probe/calibration/2/return": 1.0},
}
LOGGED = {
    **{"success": 0.125, "entropy": 1.5, "alpha": 0.05, "td_error": 0.1, "loss_actor": -0.5},
    **{"grad_norm/critic": 0.3, "hindsight_in_batch": 0.5, "policy_lag/batch/mean": 8.0},
    **{"seconds": 10.0, "updates": 40, "time/update": 0.1, "seconds/time/update": 4.0},
    **{"tea/cups": 3.0, "<b>bold": 1.0},
}
ROWS = [
    {"step": 0, **EVALUATED},
    {"step": 800, **LOGGED},
    {"step": 1600, **EVALUATED, **LOGGED, "seconds": 30.0, "seconds/time/update": 5.0},
]
CONFIG = "gamma: 0.9\nmodel: </pre><script>alert(1)</script>\n"
RECORD = {
    "unit": "environment steps",
    "starts": [{"time": "now", "command": "python recipes/sac_glam.py", "commit": "abc"}],
    "references": {"random play": [0.375, 0.354, 0.396]},
}


def charts(rows=ROWS, references=None):
    parts = sections(rows, references or {}, "environment steps")
    return {chart.title: chart for _, charts in parts for chart in charts}


def test_every_measurement_has_a_chart_and_stands_once():
    drawn = sum(len(chart.lines) for chart in charts().values() if chart.title != "Calibration")
    apart = {"step", "updates", "seconds/time/update"}
    apart |= {name for name in EVALUATED if "calibration" in name}
    measured = {name for row in ROWS for name in row} - apart
    assert drawn == len(measured) + 1  # and the share of time
    assert "Loss: policy" in charts([{"step": 0, "loss_policy": 1.0}])
    assert charts()["tea"].lines == [Line("cups", [800, 1600], [3.0, 3.0])]
    few = sections([{"step": 0, "entropy": 1.0, "tea/cups": 2}], {}, "")
    assert [heading for heading, _ in few] == ["Policy", "Other measurements"]


def test_charts_have_the_lines_that_belong_together():
    found = charts(references={"random play": [0.375]})
    success = found["Success, actions sampled"]
    assert {line.label: line.y for line in success.lines} == {
        **{"train": [0.5, 0.5], "test": [0.25, 0.25], "while training": [0.125, 0.125]}
    }
    assert success.references == {"random play": [0.375]} and success.x_limits == (0, 1600)
    kinds = found["Success by goal kind, train, sampled"].lines
    assert [line.label for line in kinds] == ["grasp", "grow then grasp"]
    assert found["Actions on a shortest plan, states of a plan"].lines[0].y == [0.5, 0.5]
    assert found["Entropy coefficient"].log and not found["Entropy"].log
    assert found["Entropy"].references == {}
    [time] = found["Where time went"].lines  # 4 s of the first 10, then 5 s of the 20 after them
    assert (time.label, time.x, time.y) == ("update", [800, 1600], [0.4, 0.25])
    [newest] = found["Calibration"].lines  # return by Q
    assert (newest.x, newest.y, newest.label) == ([0.25, 0.75], [0.0, 1.0], "step 1,600")


def test_the_page_shows_which_kinds_were_pursued_and_what_was_predicted_of_them():
    first = {"kinds/pursued/grasp": 0.25, "kinds/pursued/impossible": 0.75, "goals/error": 0.5}
    later = {"kinds/pursued/grasp": 1.0, "goals/predicted/grasp": 0.5, "goals/reached": 3}
    later |= {"kinds/buffer/impossible": 0.5}
    found = charts([{"step": 32, **first}, {"step": 64, **later}])
    grasp, impossible = found["Goal kinds: pursued"].lines
    assert (grasp.label, grasp.x, grasp.y) == ("grasp", [32, 64], [0.25, 1.0])
    assert (impossible.label, impossible.x, impossible.y) == ("impossible", [32], [0.75])
    # A kind has one style wherever it occurs.
    assert grasp.style != impossible.style == found["Goal kinds: buffer"].lines[0].style
    assert found["Goal kinds: pursued"].limits == (0, 1)
    assert found["Success of goal kinds, predicted"].lines[0].y == [0.5]
    assert {"Error of predicted success", "Goals reached"} < found.keys()


def drawn(values, **options):
    """The drawing of a line whose points were measured at 0, 1, 2 and so on."""
    return draw(Chart("t", "", [Line("a", range(len(values)), values)], **options))


def points(drawing):
    """Of the first line."""
    told = " ".join(path["points"] for path in drawing["lines"][0]["paths"])
    return [tuple(map(float, point.split(","))) for point in told.split()]


def heights(drawing):
    return [y for _, y in points(drawing)]


def test_points_lie_where_they_belong_and_what_is_not_finite_is_a_gap():
    """Axes from 0 to 40 over 340 units, and from 0 to 1 over 192, downwards."""
    line = Line("a", [0, 10, 40], [0.0, 1.0, 0.5])
    drawing = draw(Chart("t", "", [line], limits=(0, 1), references={"oracle": [0.75, 0.7, 0.8]}))
    [path] = drawing["lines"][0]["paths"]
    assert path == {"points": "58.0,202.0 143.0,10.0 398.0,106.0", "x": "0 10 40", "y": "0 1 0.5"}
    assert drawing["y_ticks"] == [
        (202.0, "0"),
        *((163.6, "0.2"), (125.2, "0.4"), (86.8, "0.6"), (48.4, "0.8"), (10.0, "1")),
    ]
    assert drawing["references"] == [(58.0, "oracle", "0.75 (0.7 to 0.8)")]
    broken = drawn([1.0, math.nan, 2.0, 3.0])["lines"][0]["paths"]
    assert [path["y"] for path in broken] == ["1", "2 3"]


def test_a_diagonal_crosses_axes_of_one_range():
    """Also where what was promised and what came have no value in common."""
    drawing = draw(Chart("t", "", [Line("a", [0.3, 0.4], [0.0, 0.05])], diagonal=True))
    assert drawing["diagonal"] == [(58.0, 202.0), (398.0, 10.0)]
    labels = ([label for _, label in drawing[ticks]] for ticks in ("x_ticks", "y_ticks"))
    assert next(labels) == next(labels) == ["0", "0.1", "0.2", "0.3", "0.4"]


def test_a_number_has_four_digits():
    shown = {9999.4: "9999", 9999.7: "10,000", -9999.7: "-10,000", 1e5 - 0.4: "100,000"}
    assert [*map(number, shown)] == [*shown.values()]


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios():
    assert heights(drawn([1, 100, 10_000], log=True)) == [202.0, 106.0, 10.0]
    assert heights(drawn([0.05, 0.05], log=True)) == [92.7, 92.7]  # log(2.5) / log(5) of the way
    labels = [label for _, label in drawn([1e-9, 2e4], log=True)["y_ticks"]]
    assert labels == ["1e-09", "1e-06", "0.001", "1", "1,000", "1,000,000"]  # thirteen decades
    for values, limits in (([0.0, 1.0], None), ([0.5, 1.0], (0, 1))):  # 0 has no logarithm
        assert drawn(values, log=True, limits=limits)["y_ticks"][0][1] == "0"


@pytest.mark.parametrize(
    "values", [[math.nan], [math.inf, 1.0], [0.0], [-3.0, -3.0], [1e300, -1e300]]
)
def test_any_numbers_can_be_drawn(values):
    found = points(drawn(values))
    assert len(found) == sum(map(math.isfinite, values))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in found)


def test_a_single_measurement_is_a_number_and_no_chart():
    """As of a short run, all of whose lines have one point."""
    alone = Chart("t", "", [Line("a", [8], [0.5]), Line("b", [], [])])
    assert draw(alone)["newest"] == [("a", "0.5")]
    page = make_page(Run("short", [{"step": 8, "entropy": 0.0625}]))
    assert "<svg" not in page and "0.0625" in page


def test_a_long_run_keeps_its_peaks_in_a_page_below_a_megabyte():
    names = [(i, j) for i in range(12) for j in range(5)]
    rows = [{f"a{i}/b{j}": math.sin(step + i * j) for i, j in names} for step in range(2_000)]
    for step, row in enumerate(rows):
        row["step"] = step
    rows[1_234]["a0/b0"] = 50.0
    assert len(make_page(Run("long", rows))) < 1_000_000
    found = heights(draw(charts(rows)["a0"]))
    assert len(found) <= 240 and min(found) == 34.0  # 50 on an axis from -20 to 60


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(make_page(Run("my run", ROWS, CONFIG, RECORD)), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_without_errors_and_fits_the_screen(browser, page, width):
    reader = Reader(browser, page, width)
    reader.assert_sound()
    assert reader.text("h1") == "my run"
    assert len(set(reader.each("figure", "e.offsetLeft"))) == (1 if width == 390 else 3)


def test_the_page_says_what_it_draws(browser, page):
    reader = Reader(browser, page)
    assert len(reader.texts("figure")) == len(charts()) == len(reader.texts("h3")) - 1
    assert reader.texts("dl.newest dd")[:2] == ["1,600", "0.500 at 1,600"]
    cells = "[...e.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent))"
    assert reader.each("figure table", cells)[0] == [
        ["0", "0.5", "0.25", ""],
        ["800", "", "", "0.125"],
        ["1,600", "0.5", "0.25", "0.125"],
    ]
    assert reader.text("pre") == CONFIG and "recipes/sac_glam.py" in reader.text(".facts")
    assert "random play" not in reader.text("svg")  # not over the curves
    assert "random play 0.375 (0.354 to 0.396)" in reader.texts(".legend li")
    assert "<b>bold" in reader.texts("h3")


def test_the_pointer_reads_the_values_under_it(browser, page):
    """Over the first chart, at a quarter of its width: the rows of steps 0 and 800 are nearest."""
    reader = Reader(browser, page)
    assert reader.run("return document.querySelector('.values').hidden")
    over = """
        const chart = document.querySelector('svg.chart'), box = chart.getBoundingClientRect();
        const at = { clientX: box.left + box.width * arguments[0], clientY: box.top + 9 };
        chart.dispatchEvent(new PointerEvent('pointermove', at));
        const values = document.querySelector('.values').children;
        return [...values].map(e => e.innerText);
    """
    said = reader.driver.execute_script(over, 0.55)
    assert said[0] == "at 800" and "while training 0.125" in said
    assert reader.driver.execute_script(over, 0.95) == [
        *("at 1,600", "train 0.5", "test 0.25", "while training 0.125")
    ]
    reader.run("document.querySelector('svg.chart').dispatchEvent(new Event('pointerleave'))")
    assert reader.run("return document.querySelector('.values').hidden")


def test_lines_stand_out_by_day_and_by_night_and_not_by_colour_alone(page):
    """WCAG 2.2: 3 for lines, and another pattern of dashes for each."""
    for colours in themes(("base.css",), ("report.css", "report")):
        for index in range(6):
            for ground in ("paper", "raised"):
                assert contrast(colours[f"c{index}"], colours[ground]) >= 3, index
    dashes = re.findall(r"\.l\d \{.*?(?:dasharray: ([\d ]+);)? \}", page.read_text())
    assert len(dashes) == len(set(dashes)) == 6


def test_a_table_keeps_the_page_of_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "_REST", 0)
    (tmp_path / "config.yaml").write_text("gamma: 0.875\n")
    record = RunRecord(tmp_path, pretraining="words, labels")
    table = MetricsTable(tmp_path, record=record)
    assert not list(tmp_path.glob("*.html"))  # a run that is refused leaves nothing
    table.add(8, {"entropy": 0.5})
    table.add(16, {"entropy": 0.0625})
    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("words, labels", "0.0625", "gamma: 0.875"))
    assert "random play" not in page
    table.write_page({"random play": 0.3})
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["references"] == {"random play": 0.3} and len(record["starts"]) == 1
    assert "torchrl_glam" in record["starts"][0]["versions"]
    resumed = MetricsTable(tmp_path, record=RunRecord(tmp_path))
    resumed.load_state_dict(table.state_dict())
    resumed.add(24, {"entropy": 0.25})
    record = json.loads((tmp_path / "run.json").read_text())
    assert len(record["starts"]) == 2 and record["references"] == {"random play": 0.3}


def test_pages_take_no_more_of_a_run_than_they_may(tmp_path, monkeypatch):
    """A clock that every page moves by 2 s: the next one is written 400 s later."""
    now = [1000.0]
    monkeypatch.setattr(run_record.time, "thread_time", lambda: now[0])
    written = []

    def slow(run):
        now[0] += 2
        written.append(len(run.rows))
        return ""

    monkeypatch.setattr(run_record, "make_page", slow)
    record, rows = RunRecord(tmp_path), []
    for _ in range(300):  # a row every 10 s
        rows.append({"step": len(rows)})
        record.write(rows)
        now[0] += 10
    assert written == [1, *range(41, 301, 40)]


def test_a_page_that_cannot_be_written_does_not_end_the_run(tmp_path):
    (tmp_path / "report.html").mkdir()
    table = MetricsTable(tmp_path, record=RunRecord(tmp_path))
    with pytest.warns(UserWarning, match=r"written to .*report.html \(.*\): the run continues"):
        table.add(8, {"entropy": 0.5})
    assert table.path.read_text() == "step,entropy\n8,0.5\n"


@pytest.mark.hostile
@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"starts": 3, "references": {}}', "\x00"])
def test_a_damaged_record_begins_anew(damage, tmp_path):
    (tmp_path / "run.json").write_text(damage)
    RunRecord(tmp_path).write(ROWS)
    assert len(json.loads((tmp_path / "run.json").read_text())["starts"]) == 1


def test_a_folder_is_read_while_it_is_written(tmp_path):
    text = "step,eval/train/sampled/success,entropy\n0,0.25,\n800,,1.5\n1600,0.5,0.1"
    (tmp_path / "metrics.csv").write_text(text)
    page = make_page(read_run(tmp_path))
    assert "up to 800 environment steps" in page  # the last row is not whole
    assert "Nothing is recorded of its command" in page and "no config.yaml" in page


@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "holds no metrics.csv"),
        ({"metrics.csv": "step,loss\n"}, "has no rows yet"),
        ({"metrics.csv": "step,loss\n0,much\n"}, "more than numbers in line 2"),
        ({"metrics.csv": "step,loss\n0,1,2\n"}, "more than numbers in line 2"),
        ({"metrics.csv": "loss\n0\n"}, "no step in line 2"),
        ({"metrics.csv": "step\n0\n", "run.json": "{"}, "run.json' is not JSON"),
        ({"metrics.csv": "step\n0\n", "run.json": "3"}, "must hold an object"),
        ({"metrics.csv": "step\n0\n", "config.yaml": "\xff"}, "config.yaml' is no text in UTF-8"),
    ],
)
def test_what_is_no_run_is_refused(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises((ValueError, OSError), match=message):
        read_run(tmp_path)


@pytest.mark.hostile
def test_records_of_strangers_are_shown_as_text(tmp_path):
    record = {"unit": "<i>", "starts": ["x", {"command": "<script>"}], "references": {"a": "b"}}
    page = make_page(Run("</title><script>", ROWS, "", record))
    assert page.count("<script") == 1 and "script-src 'sha256-" in page
    assert "<i>" not in page and "&lt;script&gt;" in page
