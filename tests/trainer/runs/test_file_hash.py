import hashlib
import os

from gavel.trainer.runs.file_hash import file_sha256


def test_a_file_is_known_by_its_content_alone(tmp_path):
    content = os.urandom(3 << 20)
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(content)
        assert file_sha256(tmp_path / name) == hashlib.sha256(content).hexdigest()
    (tmp_path / "empty").touch()
    assert file_sha256(tmp_path / "empty") == hashlib.sha256(b"").hexdigest()
