"""How a run is stopped, by signals and by errors, and what it says and saves then."""

import os
import pty
import signal
import sys
import textwrap
from contextlib import nullcontext

import pytest

from torchrl_glam.runs.interrupt import StopSignal
from torchrl_glam.runs.program import program


@pytest.fixture(autouse=True)
def started_from_a_terminal():
    """Where the tests themselves run under nohup, a hang-up would be ignored by them and theirs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_asks_to_stop_and_a_second_one_interrupts(name, capfd):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert not stop.requested
        signal.raise_signal(number)
        assert stop.requested
        assert "Stopping after this round, with a checkpoint" in capfd.readouterr().err
        # a terminal that closes may send several
        with nullcontext() if name == "SIGHUP" else pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_under_nohup_a_terminal_that_closes_is_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.requested


def test_a_closed_terminal_does_not_end_the_run_before_it_saves(tmp_path):
    """Every print fails from then on, and the progress bar prints."""
    mark = tmp_path / "saved"
    program = f"""
        import signal, time
        from torchrl_glam.runs.interrupt import StopSignal
        signal.alarm(60)  # ends it if it waits in vain
        with StopSignal() as stop:
            print("ready", flush=True)
            while not stop.requested:
                time.sleep(0.01)
            for _ in range(3):
                print("a progress bar", flush=True)
            open({str(mark)!r}, "w").close()
    """
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", textwrap.dedent(program)])
    heard = b""
    while b"ready" not in heard:
        heard += os.read(terminal, 1000)
    os.close(terminal)
    os.waitpid(process, 0)
    assert mark.exists()


@program
def fails(error):
    raise error


@pytest.mark.parametrize(
    ("error", "status", "last"),
    [
        (ValueError("gamma (2)\n  must be less"), 1, "ValueError: gamma (2) must be less"),
        (KeyboardInterrupt(), 130, "Interrupted; the checkpoints saved so far stand."),
    ],
)
def test_a_program_ends_by_a_line_on_what_was_wrong(error, status, last, capfd):
    with pytest.raises(SystemExit) as end:
        fails(error)
    assert end.value.code == status
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == last
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("error", [TypeError("a bug"), ValueError("a bug too?")])
def test_bugs_keep_their_traceback(error, monkeypatch):
    if isinstance(error, ValueError):
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    before = os.environ.get("HYDRA_FULL_ERROR")
    with pytest.raises(type(error)):
        fails(error)
    assert os.environ.get("HYDRA_FULL_ERROR") == before
