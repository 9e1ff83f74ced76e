"""The store on disk: what is appended is read again, whatever happened to the process that wrote it."""

import fcntl
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zstandard

from gavel.scenarios.group import PendingGroupError, TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from gavel.scenarios.trajectory_store import CHUNK, StoreError, TrajectoryStore
from tests.limits import HANG_SECONDS
from tests.scenarios.scripts import act

WRITER = """
import random, sys
from gavel.scenarios.trajectory_store import TrajectoryStore
from gavel.scenarios.group import TrajectoryGroup

path, writer, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = TrajectoryStore(path)
for number in range(count):
    noise = random.Random(f"{writer} {number}").randbytes(size).hex()
    store.append(TrajectoryGroup(metadata={"writer": writer, "number": number, "noise": noise}))
    print(number, flush=True)
"""


def group(number: int, noise: str = "") -> TrajectoryGroup:
    return TrajectoryGroup(
        [Trajectory(messages_and_choices=[{"role": "user", "content": f"task {number}"}], reward=number / 10)],
        metadata={"number": number, "noise": noise},
    )


def numbers(store: TrajectoryStore) -> list[object]:
    return [group.metadata["number"] for group in store]


def three(path: Path) -> list[int]:
    """Appends three groups; returns where each ends, after 0."""
    ends = [0]
    for number in range(3):
        TrajectoryStore(path).append(group(number))
        ends.append(path.stat().st_size)
    return ends


def start_writer(path: Path, writer: str, count: int, size: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(path), writer, str(count), str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trajectories" / "train" / "0001.jsonl.zst"


def test_groups_come_back_in_order_from_new_directories_across_chunks(path: Path) -> None:
    store = TrajectoryStore(path)
    store.append(group(0))
    big = [group(number, random.Random(number).randbytes(size).hex()) for number, size in enumerate((5, CHUNK * 40, 5))]
    store.extend(each for each in big)
    assert path.stat().st_size > CHUNK * 40
    assert list(TrajectoryStore(path)) == [group(0), *big]


def test_a_pending_group_is_refused_before_anything_is_written(path: Path) -> None:
    pending = TrajectoryGroup([act()])
    with pytest.raises(PendingGroupError, match="1 rollouts"):
        TrajectoryStore(path).extend([group(0), pending])
    assert not path.exists()
    pending.discard_pending()


def test_a_file_cut_at_any_byte_is_readable_and_can_be_appended_to(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends, whole = three(path), path.read_bytes()
    sizes = sorted({*range(0, len(whole), 5), *(end + near for end in ends[:-1] for near in range(3))})
    for content in (*(whole[:size] for size in sizes), whole + bytes(CHUNK * 3)):
        path.write_bytes(content)
        kept = sum(end <= len(content) for end in ends) - 1
        torn = len(content) - ends[kept]
        cut = TrajectoryStore(path)
        caplog.clear()
        assert numbers(cut) == list(range(kept))
        cut.append(group(7))
        told = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
        assert told == [torn] * 2 * bool(torn)
        assert numbers(cut) == [*range(kept), 7]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_writer_loses_at_most_the_record_it_was_writing_beside_another(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = TrajectoryStore(path)
    other, count = start_writer(path, "other", count=40, size=60_000), 40
    writer = start_writer(path, "w", count=10_000, size=400_000)
    assert writer.stdout is not None
    confirmed = -1
    for _ in range(chance.randint(1, 6)):
        confirmed = int(writer.stdout.readline())
    threading.Event().wait(chance.random() * 0.05)
    writer.send_signal(signal.SIGKILL)
    confirmed = max([confirmed, *map(int, writer.stdout.read().split())])
    writer.wait()
    other.communicate(timeout=HANG_SECONDS)
    by_writer = {name: [g.metadata["number"] for g in store if g.metadata["writer"] == name] for name in ("w", "other")}
    assert by_writer == {"w": list(range(len(by_writer["w"]))), "other": list(range(count))}
    assert len(by_writer["w"]) in (confirmed + 1, confirmed + 2)
    found = numbers(store)
    store.append(group(99))
    assert numbers(store) == [*found, 99]


def test_a_full_disk_leaves_the_store_as_it_was(path: Path) -> None:
    store = TrajectoryStore(path)
    store.append(group(0))
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 1000, hard))
    try:
        with pytest.raises(StoreError, match="cannot write"):
            store.append(group(1, random.Random(0).randbytes(5000).hex()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


def test_a_lock_that_is_never_released_is_an_error(path: Path) -> None:
    store = TrajectoryStore(path, lock_seconds=0.05)
    store.append(group(0))
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="locked by another process") as caught:
            store.append(group(1))
    assert "fuser" in caught.value.remedy
    store.append(group(2))
    assert numbers(store) == [0, 2]


def test_damage_before_the_end_is_an_error_and_nothing_is_cut(path: Path) -> None:
    (_, *ends), whole = three(path), path.read_bytes()
    for offset in range(ends[0], ends[1]):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0xFF]) + whole[offset + 1 :])
        damaged = TrajectoryStore(path)
        reader = damaged.read()
        assert next(reader) == group(0)
        with pytest.raises(StoreError, match=f"damaged at byte {ends[0]}") as caught:
            next(reader)
        assert f"head -c {ends[0]}" in caught.value.remedy
        with pytest.raises(StoreError, match="damaged"):
            damaged.append(group(3))
        assert path.stat().st_size == len(whole)


def test_no_file_is_an_error_and_one_of_another_kind_is_never_written_to(path: Path) -> None:
    with pytest.raises(StoreError, match=f"cannot read {path}"):
        list(TrajectoryStore(path))
    path.parent.mkdir(parents=True)
    path.write_text("the only copy of my thesis")
    for use in (lambda store: store.append(group(0)), lambda store: list(store.rows())):
        with pytest.raises(StoreError, match="no trajectory store"):
            use(TrajectoryStore(path))
    assert path.read_text() == "the only copy of my thesis"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        *((line, "is no trajectory group") for line in ('{"trajectories": 3}', "[]", "{", "\x00")),
        ('{"format_version":2,"trajectories":[]}', "format_version 2(.|\n)*upgrade Gavel"),
    ],
)
def test_a_record_that_is_no_group_of_this_version_is_an_error(path: Path, line: str, told: str) -> None:
    store = TrajectoryStore(path)
    store.append(group(0))
    with open(path, "ab") as file:
        file.write(zstandard.compress(line.encode()))
    with pytest.raises(StoreError, match=f"record 1 of .* {told}"):
        list(store)


def test_the_file_is_plain_jsonl_and_a_record_without_a_version_is_read(path: Path) -> None:
    store = TrajectoryStore(path)
    store.append(group(1))
    with path.open("ab") as file:
        file.write(zstandard.ZstdCompressor(write_checksum=True).compress(f"{group(2).to_json()}\n".encode()))
    assert numbers(store) == [1, 2]
    with open(path, "rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        lines = reader.read().decode("ascii").splitlines()
    assert lines[0].startswith('{"format_version":1,"trajectories":')
    assert [TrajectoryGroup.from_json(line) for line in lines] == [group(1), group(2)]
