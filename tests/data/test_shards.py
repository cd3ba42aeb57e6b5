"""The ragged store: what was written is what is read, from any process; what is damaged is named in one line."""

import io
import json
import pickle
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tiny.homes import digests, put

from groundling.core.errors import InputError
from groundling.data import shards
from groundling.data.shards import ProcessRank, Record, ShardStore, ShardWriter
from groundling.runs.folder import wait_for_folder

KEY = {"checkpoint": {"sha256": "abc", "layer": 3}, "input": "def"}


def record(name: str, words: int = 3, **facts: object) -> Record:
    """Features of a text, with arrays of four types and lengths of their own, and a number."""
    rng = np.random.default_rng([words, len(name)])
    arrays = {
        "sentence": rng.normal(size=(1, 5)).astype(np.float32),
        "words": rng.normal(size=(words, 5)).astype(np.float16),
        "has": rng.random(words) < 0.5,
        "ids": rng.integers(0, 1 << 30, 2 * words).astype(np.int32),
        "score": np.float32(rng.random()),
    }
    return Record(name, arrays, facts)


def written(folder: Path, records: list[Record], size: int = 2, **options: object) -> Path:
    writer = ShardWriter(folder, **options)
    for number in writer.pending(-(-len(records) // size)):
        writer.write(number, records[number * size : (number + 1) * size])
    writer.close({"teacher": "none"})
    return folder


def same(one: Record, other: Record) -> None:
    assert (one.id, one.facts) == (other.id, other.facts)
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype
        assert array.shape == other.arrays[name].shape
        np.testing.assert_array_equal(array, other.arrays[name])


RECORDS = [
    record("a", 3, split="dev"),
    record("bb", 0),
    record("c", 1),
    record("d", 4),
    record("e"),
]


def test_records_come_back_as_they_were_from_any_process(tmp_path):
    store = pickle.loads(pickle.dumps(ShardStore(written(tmp_path, RECORDS))))
    assert list(store) == store.ids == [one.id for one in RECORDS] and len(store) == 5
    assert "bb" in store and "x" not in store
    for number in (4, 1, 0, 3, 2):
        same(store[RECORDS[number].id], RECORDS[number])
        same(store.record_at(number), RECORDS[number])
    assert store.length(3, "ids") == 8 and store.index_of("d") == 3
    assert np.array_equal(store.rows(3, "ids", 2, 5), RECORDS[3].arrays["ids"][2:5])
    assert store.arrays(3, without="ids").keys() == {"sentence", "words", "has", "score"}
    assert store.shapes["words"] == [5] and store.manifest["teacher"] == "none"
    counts = {"sentence": 5, "words": 11, "has": 11, "ids": 22, "score": 5}
    assert store.manifest["counts"] == {"records": 5, **counts, "skipped": 0}
    with pytest.raises(InputError, match="no record 'x' among 5"):
        store["x"]
    with pytest.raises(IndexError):
        store.record_at(5)
    store["a"].arrays["ids"][:] = 0  # in memory of its own: the store is as it was
    same(store["a"], RECORDS[0])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {stat.S_IMODE(put(tmp_path / "other", b"").stat().st_mode)}


@pytest.mark.parametrize("dtype", ["f2", "f8", "i8", "u2", "?", ">f4"])
def test_arrays_come_back_whatever_their_memory_looks_like(dtype: str, tmp_path: Path) -> None:
    plain = (np.arange(24) % 2 if dtype == "?" else np.arange(24)).reshape(4, 6).astype(dtype)
    layouts = [plain, np.asfortranarray(plain), np.repeat(plain, 2, 0)[::2], plain[::-1]]
    records = [Record(f"{n}", {"x": array}) for n, array in enumerate(layouts)]
    store = ShardStore(written(tmp_path, records, size=1))
    for one in records:
        found = store[one.id].arrays["x"]
        assert np.array_equal(found, one.arrays["x"])
        assert found.dtype == np.dtype(dtype).newbyteorder("=")


def test_shards_are_mapped_when_they_are_read_and_few_stay_mapped(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_FILES", 2)
    opened = []
    usual = shards._open
    written(tmp_path, RECORDS, size=1)
    monkeypatch.setattr(shards, "_open", lambda path: opened.append(path.name[8:11]) or usual(path))
    store = ShardStore(tmp_path)
    opened.clear()
    assert "a" in store and store.length(0, "ids") == 6 and not opened
    for name in ("a", "a", "bb", "a", "c", "a", "bb"):
        store[name]
    assert opened == ["000", "001", "002", "001"]


def test_stores_without_rows_or_records(tmp_path):
    empty = [record(name, 0) for name in "ab"]
    store = ShardStore(written(tmp_path / "a", empty))
    for one in empty:
        same(store[one.id], one)
    writer = ShardWriter(tmp_path / "b")
    writer.write(0, [], ["x: unreadable"])
    writer.write(1, [Record("bare", {}, {"n": 1})], ["y: unreadable"])
    assert writer.close({}, ["z: gone"])["skipped"] == ["z: gone", "x: unreadable", "y: unreadable"]
    store = ShardStore(tmp_path / "b")
    assert store["bare"].arrays == {} and store["bare"].facts == {"n": 1}
    writer = ShardWriter(tmp_path / "c")
    writer.close({})
    with pytest.raises(InputError, match="no record 'x' among 0"):
        ShardStore(tmp_path / "c")["x"]


def test_a_killed_writer_resumes_to_the_same_bytes(tmp_path):
    whole = digests(written(tmp_path / "whole", RECORDS, key=KEY))
    ShardWriter(tmp_path / "cut", KEY).write(1, RECORDS[2:4])
    put(tmp_path / "cut" / "shard-00000.safetensors.partial", b"half of a shard")
    with pytest.raises(InputError, match="not a complete store"):
        ShardStore(tmp_path / "cut")
    writer = ShardWriter(tmp_path / "cut", KEY)
    assert [writer.is_complete(n) for n in range(3)] == [False, True, False]
    assert digests(written(tmp_path / "cut", RECORDS, key=KEY)) == whole


def test_shards_go_by_rank_and_the_first_rank_closes(tmp_path):
    barrier = threading.Barrier(2)
    manifests = {}

    def work(rank: int) -> None:
        writer = ShardWriter(tmp_path / "two", KEY, ProcessRank(rank, 2))
        for number in writer.pending(3):
            assert number % 2 == rank
            writer.write(number, RECORDS[2 * number : 2 * number + 2])
        manifests[rank] = writer.close({"teacher": "none"}, barrier=barrier.wait)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2), timeout=60))
    assert manifests[0] == manifests[1] == json.loads((tmp_path / "two/manifest.json").read_text())
    assert digests(tmp_path / "two") == digests(written(tmp_path / "one", RECORDS, key=KEY))


def test_one_run_at_a_time_adds_to_a_folder(tmp_path, monkeypatch):
    order = []
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with wait_for_folder(tmp_path, "adding"):
            inside.set()
            leave.wait()
            order.append("first")

    def second() -> None:
        with wait_for_folder(tmp_path, "adding"):
            order.append("second")

    with ThreadPoolExecutor(2) as pool:
        pool.submit(first)
        inside.wait()
        waiting = pool.submit(second)
        while "waiting for another process, which is adding" not in told.getvalue():
            assert waiting.running()
            time.sleep(0.01)
        leave.set()
    assert order == ["first", "second"]
    blocked = put(tmp_path / "file", "")
    with wait_for_folder(blocked, "adding"):  # which is no folder and cannot be locked
        pass


def test_a_store_of_something_else_is_refused_by_the_first_difference(tmp_path):
    written(tmp_path, RECORDS, key=KEY)
    ShardWriter(tmp_path, KEY)
    other = {"checkpoint": {"sha256": "abc", "layer": 4}, "input": "xyz"}
    with pytest.raises(InputError, match=r"\(key.checkpoint.layer: 3 there, 4 now\)"):
        ShardWriter(tmp_path, other)
    with pytest.raises(InputError, match=r"key.checkpoint: .* there, None now"):
        ShardWriter(tmp_path, {"input": "def"})


def test_what_no_store_can_hold_is_refused(tmp_path):
    writer = ShardWriter(tmp_path)
    for records, message in (
        ([record("a"), Record("b", {"ids": np.zeros(1, int)})], "have different arrays"),
        ([Record("a", {}), record("b")], "have different arrays"),
        ([Record("a", {"x": np.zeros((1, 2))}), Record("b", {"x": np.zeros((1, 3))})], "no store"),
        ([Record("a", {"x": np.array([{}], object)})], "object"),
        ([Record("a", {"x": np.array(["t"])})], "cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            writer.write(0, records)
    writer.write(0, [record("a")])
    writer.write(1, [record("a")])
    with pytest.raises(InputError, match="two records are called 'a'"):
        writer.close({})


SHARD = "shard-00000.safetensors"
DAMAGE = [
    ("manifest.json", lambda content: b"[]", "holds a list, expected an object"),
    ("manifest.json", lambda content: b'{"counts": {}}', "not the manifest of a store"),
    ("manifest.json", lambda content: b'{"shards": [0, 9]}', "shard-00009.safetensors: damaged or"),
    (SHARD, lambda content: content[:-1], "damaged or missing .*; make the store again"),
    (SHARD, lambda content: content + b"x", "damaged or missing"),
    (SHARD, lambda content: content.replace(b"index", b"indes"), "not a shard of a store"),
    (SHARD, lambda content: content.replace(b"skip_reasons", b"skip_seasons"), "not a shard"),
]
"""File, damage, and message."""


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGE)
def test_damaged_and_foreign_files_give_one_line(tmp_path, file, damage, message):
    path = written(tmp_path, RECORDS) / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message) as caught:
        ShardStore(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
