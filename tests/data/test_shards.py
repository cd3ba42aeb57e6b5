"""The ragged store: what was written is what is read, from any process; what is damaged is named in one line."""

import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from homes import digests, put

from groundling.core.errors import InputError
from groundling.data import shards
from groundling.data.shards import ProcessRank, Record, ShardStore, ShardWriter

KEY = {"checkpoint": {"sha256": "abc", "layer": 3}, "input": "def"}


def record(name: str, words: int = 3, **facts: object) -> Record:
    """What a teacher may say of a text, with arrays of four types and lengths of their own."""
    rng = np.random.default_rng([words, len(name)])
    arrays = {
        "sentence": rng.normal(size=(1, 5)).astype(np.float32),
        "words": rng.normal(size=(words, 5)).astype(np.float16),
        "has": rng.random(words) < 0.5,
        "ids": rng.integers(0, 1 << 30, 2 * words).astype(np.int32),
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
    assert store.manifest["teacher"] == "none"
    counts = {"sentence": 5, "words": 11, "has": 11, "ids": 22}
    assert store.manifest["counts"] == {"records": 5, **counts, "skipped": 0}
    with pytest.raises(InputError, match="no record 'x' among 5; the first is 'a'"):
        store["x"]
    with pytest.raises(IndexError):
        store.record_at(5)
    store["a"].arrays["ids"][:] = 0  # a copy: the store is as it was
    same(store["a"], RECORDS[0])


@pytest.mark.parametrize(
    ("limits", "asked", "kept"),
    [
        ((1024, 1 << 20), [(1 << 16, 1 << 20)], 1 << 13),
        ((1024, 4096), [(4096, 4096)], 512),
        ((-1, -1), [], 1 << 13),
        ((1 << 17, 1 << 17), [], 1 << 13),
    ],
)
def test_the_system_is_asked_for_as_many_open_files_as_it_gives(
    limits: tuple[int, int], asked: list, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(shards.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(shards.resource, "setrlimit", lambda which, pair: given.append(pair))
    assert shards.open_file_limit() == kept
    assert given == asked


def test_nothing_is_opened_before_it_is_asked_for_and_few_shards_stay_open(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "open_file_limit", lambda: 8)  # two shards of four arrays
    store = ShardStore(written(tmp_path, RECORDS, size=1))
    opened = []
    mapped = np.lib.format.open_memmap
    monkeypatch.setattr(
        np.lib.format,
        "open_memmap",
        lambda path, mode: opened.append(path.name) or mapped(path, mode=mode),
    )
    assert "a" in store and not opened
    for name in ("a", "a", "bb", "a", "c", "a", "bb"):
        store[name]
    assert [name for name in opened if name.startswith("ids")] == [
        f"ids-0000{n}.npy" for n in (0, 1, 2, 1)
    ]


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
    assert store["bare"].arrays == {} and store["bare"].facts == {"n": 1} and not store.faults()
    writer = ShardWriter(tmp_path / "c")
    writer.close({})
    with pytest.raises(InputError, match="no record 'x' among 0; the store is empty"):
        ShardStore(tmp_path / "c")["x"]


def test_a_killed_writer_resumes_to_the_same_bytes(tmp_path):
    whole = digests(written(tmp_path / "whole", RECORDS, key=KEY))
    ShardWriter(tmp_path / "cut", KEY).write(1, RECORDS[2:4])
    put(tmp_path / "cut" / "words-00000.npy", b"half of a shard")
    put(tmp_path / "cut" / "index-00002.json.partial", b"{")
    with pytest.raises(InputError, match="not a complete store"):
        ShardStore(tmp_path / "cut")
    writer = ShardWriter(tmp_path / "cut", KEY)
    assert [writer.is_complete(n) for n in range(3)] == [False, True, False]
    with pytest.raises(InputError, match=r"index-00000.json: this shard is missing; resume"):
        writer.close({})
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

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manifests[0] == manifests[1] == json.loads((tmp_path / "two/manifest.json").read_text())
    assert digests(tmp_path / "two") == digests(written(tmp_path / "one", RECORDS, key=KEY))


def test_a_store_of_something_else_is_refused_by_the_first_difference(tmp_path):
    written(tmp_path, RECORDS, key=KEY)
    ShardWriter(tmp_path, KEY)
    other = {"checkpoint": {"sha256": "abc", "layer": 4}, "input": "xyz"}
    with pytest.raises(InputError, match=r"\(key.checkpoint.layer: 3 there, 4 now\)") as caught:
        ShardWriter(tmp_path, other)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"key.checkpoint: .* there, None now"):
        ShardWriter(tmp_path, {"input": "def"})


def test_what_no_store_can_hold_is_refused(tmp_path):
    writer = ShardWriter(tmp_path)
    for records, message in (
        ([record("a"), record("a")], "two records are called 'a'"),
        ([record("a"), Record("b", {"ids": np.zeros(1, int)})], "records differ: 'a' has sentence"),
        ([Record("a", {"x": np.array([{}], object)})], "'x' of 'a' holds object, expected numbers"),
        ([Record("a", {"x": np.array(["t"])})], "holds <U1"),
        ([Record("a", {"x": np.array(1.0)})], "has no first axis"),
        ([Record("a", {"../x": np.zeros(1)})], "names are a-z"),
        ([Record("a", {"index": np.zeros(1)})], "and not index"),
    ):
        with pytest.raises(InputError, match=message):
            writer.write(0, records)
    assert not list(tmp_path.iterdir())
    writer.write(0, [record("a")])
    writer.write(1, [Record("b", {"ids": np.zeros(1)})])
    with pytest.raises(
        InputError, match=r"index-00001.json: type or shape differs from shard 0 \(arrays"
    ):
        writer.close({})
    writer.write(1, [record("a")])
    with pytest.raises(InputError, match="'a' is in shard 0 and in shard 1"):
        writer.close({})


def test_hashes_and_numbers_are_verified(tmp_path):
    store = ShardStore(written(tmp_path, RECORDS))
    assert store.faults(verify=True) == []
    path = tmp_path / "words-00001.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert store.faults() == []
    assert store.faults(verify=True) == [f"{path}: changed since it was written (SHA-256)"]
    content[-1] = 0x7C  # infinite, as half precision has it
    content[-2] = 0
    path.write_bytes(content)
    assert ShardStore(tmp_path).faults() == [f"{path}: record 'd': a number is not finite"]
    index = tmp_path / "index-00002.json"
    put(index, index.read_text().replace('"e"', '"f"'))
    assert f"{index}: changed since it was written (SHA-256)" in ShardStore(tmp_path).faults(True)


HOSTILE = [
    ("manifest.json", "[]", "holds a list, expected an object"),
    ("manifest.json", "[" * 100_000, "nested too deep"),
    ("manifest.json", '{"shards": ' + "9" * 5000 + "}", "a number of too many digits"),
    ("manifest.json", '{"shards": null, "counts": {}}', "shards or counts are missing"),
    ("manifest.json", '{"shards": 9, "counts": {}, "format": 2}', "index-00003.json: no such"),
    (
        "manifest.json",
        '{"shards": 3, "counts": {}, "format": 3}',
        "a newer version of groundling wrote it",
    ),
    ("index-00000.json", "{}", "not the index of a shard"),
    ("index-00000.json", "not json", "line 1: not valid JSON"),
    ("index-00000.json", b"\xff\xfe", "cannot be read .UnicodeDecodeError"),
]
"""File, content, and what is said of it."""


@pytest.mark.parametrize(("file", "content", "message"), HOSTILE)
def test_foreign_files_give_one_line(tmp_path, file, content, message):
    written(tmp_path, RECORDS)
    put(tmp_path / file, content)
    with pytest.raises(InputError, match=message) as caught:
        ShardStore(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_every_mistyped_field_of_an_index_gives_one_line(tmp_path):
    written(tmp_path, RECORDS)
    path = tmp_path / "index-00000.json"
    sound = json.loads(path.read_text())
    wrong = [None, 1, -1, "x", [], [1], {}, {"x": None}, [None, None], {"ids": [1, -1]}]
    for name in sound:
        if name == "format":
            continue
        for value in wrong:
            put(path, json.dumps(sound | {name: value}))
            if value == sound[name] or (name, value) in (("facts", []), ("skipped", [])):
                continue
            if name in ("key", "facts") and isinstance(value, dict):
                continue
            with pytest.raises(InputError) as caught:
                ShardStore(tmp_path)
            assert "\n" not in str(caught.value)
    for name, value in (("dtype", "|O"), ("dtype", "(" * 99), ("shape", [-1]), ("rows", 10**30)):
        columns = {**sound["columns"], "ids": {**sound["columns"]["ids"], name: value}}
        put(path, json.dumps(sound | {"columns": columns}))
        with pytest.raises(InputError, match="index of a shard"):
            ShardStore(tmp_path)


def test_damaged_arrays_give_one_line(tmp_path):
    written(tmp_path, RECORDS)
    path = tmp_path / "ids-00000.npy"
    sound = path.read_bytes()
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "short.npy", np.zeros(2, np.int32))
    np.save(tmp_path / "wide.npy", np.zeros((6, 2), np.int32))
    np.save(tmp_path / "other.npy", np.zeros(6, np.float32))
    np.savez(tmp_path / "zip.npz", ids=np.zeros(6, np.int32))
    for content in (
        b"",
        b"x",
        sound[:-1],
        sound[:40],
        sound[:8] + b"\xff" * 200,
        sound.replace(b"(6,)", b"(-6)"),
        sound.replace(b"(6,)", b"((((")[:128] + sound[128:],
        sound.replace(b"<i4", b"|O8"),
        *((tmp_path / name).read_bytes() for name in ("objects.npy", "short.npy", "wide.npy")),
        *((tmp_path / name).read_bytes() for name in ("other.npy", "zip.npz")),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"ids-00000.npy: ") as caught:
            ShardStore(tmp_path)["a"]
        assert "\n" not in str(caught.value)
        same(ShardStore(tmp_path)["c"], RECORDS[2])  # of another shard
    path.unlink()
    with pytest.raises(InputError, match=r"ids-00000.npy: damaged or missing"):
        ShardStore(tmp_path)["a"]
    assert len(ShardStore(tmp_path).faults()) == 1
