"""Writing never follows a link out of its folder, and reading never takes more than it should."""

import os

import pytest

from torchrl_glam._files import open_below, path_below, read_json, read_text, shorten


@pytest.mark.hostile
def test_what_is_written_stays_in_its_folder(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    folder.mkdir()
    (folder / "results.csv").symlink_to(outside / "results.csv")
    (folder / "logs").symlink_to(outside)
    os.mkfifo(folder / "pipe")  # opening it would wait for a reader for ever
    for name in ("results.csv", "logs/loss.csv", "pipe", "../outside/x", outside / "x"):
        for write in (path_below, open_below):
            with pytest.raises(ValueError, match="only plain files and folders|leads out of"):
                write(folder, name)
    assert not any(outside.iterdir())


def test_a_linked_folder_that_was_named_is_meant(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for mode in ("x", "w", "a"):
        with open_below(tmp_path / "link", "deep/note.txt", mode) as file:
            file.write("é")
    assert (tmp_path / "run/deep/note.txt").read_text(encoding="utf-8") == "éé"
    with pytest.raises(FileExistsError):
        open_below(tmp_path / "run", "deep/note.txt", "x")


def test_small_files_are_read_and_no_others(tmp_path):
    path = tmp_path / "value.json"
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    with pytest.raises(ValueError, match=r"value.json' has 8 bytes, expected at most 7"):
        read_text(path, 7)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError):
        read_json(path)
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is a folder, expected a plain file"):
        read_text(tmp_path)


def test_messages_are_one_short_line():
    assert shorten(ValueError("a\n\x1b]0;title\x07b" + "c" * 10**6), 20) == "a ]0;titlebcccccc..."
