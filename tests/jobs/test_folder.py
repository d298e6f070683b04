"""A job's files are read, and nothing beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from apps.jobs.folder import Outside, list_inside, open_inside, read_range


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "job"
    (root / "out").mkdir(parents=True)
    (root / "log").write_bytes(b"0123456789")
    (root / "out" / "result.txt").write_text("42")
    (tmp_path / "secret").write_text("secret")
    return root


def test_ranges(root):
    assert read_range(root, "log", 2, 3).data == b"234"
    assert read_range(root, "log", -4, 100).data == b"6789"
    past = read_range(root, "log", 50, 10)
    assert (past.data, past.start, past.end, past.size_bytes) == (b"", 50, 50, 10)
    assert read_range(root, "out/result.txt", 0, 10).data == b"42"


@pytest.mark.parametrize("path", ["../secret", "out/../../secret", "/etc/passwd", "a\0b", ""])
def test_paths_that_leave_are_refused(root, path):
    with pytest.raises(Outside):
        open_inside(root, path)


def test_links_are_refused_at_every_step(root, tmp_path):
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    for path in ("link", "up/secret"):
        with pytest.raises(Outside):
            open_inside(root, path)


def test_pipes_and_folders_are_refused_without_waiting(root):
    os.mkfifo(root / "pipe")
    for path in ("pipe", "out"):
        with pytest.raises(Outside):
            open_inside(root, path)


@pytest.mark.skipif(os.geteuid() != 0, reason="making another person's file needs root")
def test_a_hard_link_to_somebody_elses_file_is_refused(root, tmp_path):
    os.chown(root, 12345, 12345)
    os.link(tmp_path / "secret", root / "hard")
    with pytest.raises(Outside):
        open_inside(root, "hard")


def test_a_listing_shows_folders_first_and_no_links(root, tmp_path):
    (root / "link").symlink_to(tmp_path / "secret")
    listing = list_inside(root)
    assert [(e.name, e.is_folder, e.size_bytes) for e in listing.entries] == [("out", True, None), ("log", False, 10)]
    assert [e.path for e in list_inside(root, "out").entries] == ["out/result.txt"]


def test_a_huge_file_is_read_in_parts_only(root):
    with (root / "big").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(-3, os.SEEK_END)
        file.write(b"end")
    chunk = read_range(root, "big", -3, 1000)
    assert (chunk.data, chunk.size_bytes) == (b"end", 1 << 30)
