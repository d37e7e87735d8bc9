"""How a run is stopped, by signals and by errors, and what it says and saves then."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from torchrl_glam.objectives import UpdateFailedError
from torchrl_glam.runs.interrupt import Rescue, StopSignal
from torchrl_glam.runs.processes.ranks import Ranks
from torchrl_glam.runs.program import program


@pytest.fixture(autouse=True)
def started_from_a_terminal():
    """Where the tests themselves run under nohup, a hang-up would be ignored by them and theirs."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_the_first_signal_asks_to_stop_and_is_answered_at_once(name, capfd):
    before = signal.getsignal(getattr(signal, name))
    with StopSignal() as stop:
        assert not stop.requested
        signal.raise_signal(getattr(signal, name))
        assert stop.requested
        assert "Stopping after this round, with a checkpoint" in capfd.readouterr().err
    assert signal.getsignal(getattr(signal, name)) == before


@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_a_second_signal_interrupts(second):
    with StopSignal():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(getattr(signal, second))


def test_a_terminal_that_closes_may_send_more_than_one_signal():
    with StopSignal() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
        assert stop.requested


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_does_not_end_the_run_before_it_saves(tmp_path):
    """Every print fails from then on, and the progress bar prints."""
    mark = tmp_path / "saved"
    program = f"""
        import signal, time
        from torchrl_glam.runs.interrupt import StopSignal
        with StopSignal() as stop:
            print("ready", flush=True)
            while not stop.requested:
                time.sleep(0.01)
            for _ in range(3):
                print("a progress bar", flush=True)
            open({str(mark)!r}, "w").close()
    """
    terminal, end = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        preexec_fn=lambda: __import__("fcntl").ioctl(end, __import__("termios").TIOCSCTTY, 0),
    )
    os.close(end)
    heard = b""
    while b"ready" not in heard:
        heard += os.read(terminal, 1000)
    os.close(terminal)
    process.wait(timeout=300)
    assert mark.exists()


class Saves:
    def __init__(self, error=None):
        self.count, self.error = 0, error

    def __call__(self):
        self.count += 1
        if self.error:
            raise self.error
        return "step-000000000008"


def run_into(error, save, stored):
    with Rescue(save) as rescue:
        for _ in rescue.batches([1, 2]):
            rescue.whole = stored
            raise error


def test_an_error_after_a_batch_was_stored_is_saved(capfd):
    save = Saves()
    with pytest.raises(RuntimeError, match="out of memory"):
        run_into(RuntimeError("out of memory"), save, stored=True)
    assert save.count == 1
    assert "saved as step-000000000008" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (RuntimeError("before the batch was stored"), False),
        (FloatingPointError("would stop again"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_what_could_not_be_gone_on_from_is_not_saved(error, stored):
    save = Saves()
    with pytest.raises(type(error)):
        run_into(error, save, stored)
    assert save.count == 0


@pytest.mark.parametrize(("error", "saved"), [(UpdateFailedError(), 1), (RuntimeError(), 0)])
def test_of_several_processes_only_what_strikes_all_is_saved_after(error, saved):
    """The others would not come to save their shares."""
    save = Saves()
    with pytest.raises(type(error)), Rescue(save, Ranks(0, 2).shared_errors) as rescue:
        rescue.whole = True
        raise error
    assert save.count == saved


def test_an_error_while_collecting_is_not_saved():
    save = Saves()

    def collect():
        yield 1
        raise RuntimeError("the environment fell over")

    with pytest.raises(RuntimeError, match="environment"), Rescue(save) as rescue:
        for _ in rescue.batches(collect()):
            rescue.whole = True
    assert save.count == 0


def test_a_save_that_fails_is_not_tried_again_and_hides_nothing(capfd):
    save = Saves(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"), Rescue(save) as rescue:
        for _ in rescue.batches([1]):
            rescue.whole = True
            rescue.save()
    assert save.count == 1
    with pytest.raises(RuntimeError, match="first"):
        run_into(RuntimeError("first"), save, stored=True)
    assert "could not be saved: disk full" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "last"),
    [
        (ValueError("gamma (2)\n  must be less"), 1, "ValueError: gamma (2) must be less"),
        (KeyboardInterrupt(), 130, "Interrupted; the checkpoints saved so far stand."),
    ],
)
def test_a_program_ends_by_a_line_on_what_was_wrong(error, status, last, capfd):
    @program
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == status
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1] == last
    assert not any("Traceback" in line for line in lines)


def test_bugs_keep_their_traceback(monkeypatch):
    @program
    def main():
        raise error

    error = TypeError("a bug")
    with pytest.raises(TypeError):
        main()
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    error = ValueError("a bug too?")
    with pytest.raises(ValueError):
        main()
    assert os.environ["HYDRA_FULL_ERROR"] == "1"
