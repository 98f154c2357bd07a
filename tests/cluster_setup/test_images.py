"""The key of an image: it changes with whatever the image is made of, and with nothing else."""

from __future__ import annotations

from pathlib import Path

from cluster.images import key_of


def test_the_key_follows_texts_contents_and_names_but_not_compiled_python(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.py").write_text("1")
    keys = [key_of(source), key_of(source, "target")]
    (source / "a.py").write_text("2")
    keys.append(key_of(source))
    (source / "a.py").rename(source / "b.py")
    keys.append(key_of(source))
    assert len(set(keys)) == len(keys)
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "b.pyc").write_text("compiled")
    assert key_of(source) == keys[-1]
