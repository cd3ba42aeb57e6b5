"""CLIP-TD's teacher: what it says against a plain restatement, cached and live, over kills, ranks and mistakes."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import homes, toys
from tiny.homes import Killed, digests, put, refused
from tiny.homes import noise as image
from tiny.regions import store
from transformers import AutoModel, AutoTokenizer, CLIPImageProcessorPil, SiglipImageProcessorPil

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Batch, Example, collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, OpenAnswer
from groundling.core.rng import generator
from groundling.data.kmeans import kmeans_1d
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.data.shards import Record, ShardStore
from groundling.data.text import word_spans
from groundling.data.text.keywords import Keyword, select_random_tokens, select_tokens, token_scores
from groundling.models.clip import ClipImageTower, ClipTextTower
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.objectives import ObjectiveSettings, TargetedDistillationSettings
from groundling.teachers import TeacherContext, add_features
from groundling.teachers import feature_cache as cache
from groundling.teachers.clip import FEATURES, ClipTeacher, text_for_clip
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.teachers.loading import load_teachers, make_clip_teacher

TEXTS = [
    "a dog runs in a park",
    "the girl's hat cost $4",
    "two cats",
    "snow_board waits",
    "a dog runs in a park",
    "the old woman's horse eats a crêpe by the river at 10:30 while 7 people watch, isn't it well-known?",
]
"""The last one is longer than the tiny towers' window, in every tokenizer."""
ALL = frozenset(FEATURES[:5])
SQUARE = {"height": 16, "width": 16}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two CLIPs, a SigLIP, and pictures of several shapes, one of them lying on its side."""
    folder = tmp_path_factory.mktemp("clip-teacher")
    clip = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=SQUARE)
    clip.save_pretrained(homes.teacher(folder / "clip"))
    torch.manual_seed(3)
    other = toys.clip(homes.tokens())
    for parameter in other.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    clip.save_pretrained(homes.home(folder / "other", other, homes.tokens()))
    words = toys.siglip_words()
    siglip = homes.home(folder / "siglip", toys.siglip(words), words)
    SiglipImageProcessorPil(size=SQUARE).save_pretrained(siglip)
    for number, size in enumerate([(16, 16), (40, 24), (20, 30), (16, 16)]):
        image(folder / "photos" / "some" / f"{number}.png", size, number)
    lying = Image.open(folder / "photos/some/1.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    lying.save(folder / "photos/some/1.png", exif=exif)
    return folder


def options(place: Path, **changes: object) -> TargetedDistillationSettings:
    return replace(TargetedDistillationSettings(teacher_images=str(place / "photos")), **changes)


def teacher(place: Path, name: str = "clip", wants: Sequence[str] = ALL, **changes) -> ClipTeacher:
    form = changes.pop("form", None)
    settings = ObjectiveSettings(targeted_distillation=options(place, **changes))
    return make_clip_teacher(
        TeacherContext(str(place / name), frozenset(wants), settings, output_type=form)
    )


def examples() -> list[Example]:
    """Six texts with four images; the first and the fifth differ in their image alone."""
    return [
        Example(f"e{n}", text, images=(f"some/{n % 4}",), label=n % 3)
        for n, text in enumerate(TEXTS)
    ]


def choices() -> list[Example]:
    return [
        Example(f"c{n}", f"what is {n} ?", choices=(*TEXTS[:3], "a dog"), images=(f"some/{n}",))
        for n in range(3)
    ]


def samples(some: Sequence[Example]) -> TextDataset:
    return TextDataset(some, TextRowEncoder(homes.words(), 60))


def by_row(taught: object, teachers: Sequence[ClipTeacher] = ()) -> Batch:
    """Everything in one batch, as training has it."""
    batch = collate(taught.get(range(len(taught)), [generator(0)] * len(taught)))
    for one in teachers:
        batch = add_features(one, batch)
    return batch


def of(folder: Path, name: str) -> Path:
    """Where a cache has the features of the one teacher called `name`."""
    (found,) = folder.glob(f"{name}-*")
    return found


def teachers_in(folders: Iterable[Path]) -> list[str]:
    """The teachers whose features are in some folders."""
    return sorted(folder.name.rpartition("-")[0] for folder in folders)


def kept_and_live(one: ClipTeacher, some: Sequence[Example], folder: Path) -> Batch:
    """A batch with features of a cache, after a look that those of a live teacher are the same."""
    kept, live = wrapped(one, some, folder), wrapped(one, some, folder, limit=0.0)
    assert kept.truncated_tokens == live.truncated_tokens
    for name, features in live.features.items():
        tolerance = 1e-4 if name in ("clip_similarity", "clip_confidence") else 1e-6
        close(kept.features[name].double(), features.double(), tolerance)
    return kept


def wrapped(one: ClipTeacher, some: Sequence[Example], folder: Path, limit: float = 1.0) -> Batch:
    return by_row(*TeacherSet([one], FeatureCache(folder, limit)).wrap(samples(some)))


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


# -- what it says ------------------------------------------------------------------------------------------------------


def nothing(text: str) -> list[Keyword]:
    """An extractor of keywords that finds none, so that visual relevance decides alone."""
    return []


NOTHING = f"{__name__}:nothing"


def plainly(folder: Path, photos: Path, example: Example) -> tuple[torch.Tensor, ...]:
    """Image, text, scaled cosine, and each token's projected state with its characters: by transformers alone."""
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    siglip = model.config.model_type == "siglip"
    kind = SiglipImageProcessorPil if siglip else CLIPImageProcessorPil
    with Image.open(photos / f"{example.images[0]}.png") as opened:
        turned = opened.transpose(Image.Transpose.ROTATE_270) if opened.getexif() else opened
        pixels = kind.from_pretrained(folder)(images=turned.convert("RGB"), return_tensors="pt")
    text = example.text if example.text_pair is None else f"{example.text} {example.text_pair}"
    pad = {"padding": "max_length", "max_length": toys.WINDOW} if siglip else {}
    tokens = tokenizer(text, return_tensors="pt", return_offsets_mapping=True, **pad)
    offsets = tokens.pop("offset_mapping")[0]
    if siglip:
        tokens.pop("attention_mask", None)
    with torch.no_grad():
        of_image = F.normalize(model.get_image_features(**pixels).pooler_output, dim=-1)[0]
        of_text = F.normalize(model.get_text_features(**tokens).pooler_output, dim=-1)[0]
        states = model.text_model(**tokens).last_hidden_state[0]
        project = model.text_model.head if siglip else model.text_projection
        states = F.normalize(project(states), dim=-1)
        scaled = model.logit_scale.exp() * of_image @ of_text
    return of_image, of_text, scaled, states, offsets


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_features_are_transformers_own(name, place, tmp_path):
    some = [*examples()[:5], Example("p", "two dogs", "in a park !", images=("some/1",), label=0)]
    batch = wrapped(teacher(place, name, keyword_extractor=NOTHING), some, tmp_path)
    width = 32 if name == "siglip" else 24
    assert {key: value.shape[1:] for key, value in batch.features.items()} == {
        "clip_image": (width,),
        "clip_text": (width,),
        "clip_similarity": (),
        "clip_words": (2, width),
        "clip_word": (2,),
    }
    for row, example in enumerate(some):
        of_image, of_text, scaled, states, offsets = plainly(
            place / name, place / "photos", example
        )
        close(batch.features["clip_image"][row], of_image)
        close(batch.features["clip_text"][row], of_text)
        close(batch.features["clip_similarity"][row], scaled, 1e-4)
        text = text_for_clip(example)
        places = word_spans(text)
        last = [np.flatnonzero((offsets[:, 1] > s) & (offsets[:, 0] < e)) for s, e in places]
        is_word = np.array([text[s].isalnum() for s, _ in places])
        cosines = np.array([float(states[at[-1]] @ of_image) for at in last])
        shares = np.where(is_word, cosines, 0) / np.abs(cosines[is_word]).sum()
        chosen = np.argsort(np.where(is_word, -shares, np.inf), kind="stable")[:2]
        assert batch.features["clip_word"][row].tolist() == chosen.tolist()
        close(batch.features["clip_words"][row], states[[last[word][-1] for word in chosen]])


def test_words_are_numbered_as_the_students(place, tmp_path):
    some = [Example("p", "isn't a dog", "girl's café, 1", images=("some/0",))]
    batch = kept_and_live(teacher(place, num_words=20), some, tmp_path)
    numbers = batch.features["clip_word"][0]
    chosen = numbers[numbers >= 0].tolist()
    text = text_for_clip(some[0])
    there = [text[s:e] for s, e in word_spans(text)]
    # CLIP's token 's is that of the apostrophe, so that s has none
    assert {there[word] for word in chosen} == {"isn", "a", "dog", "girl", "café", "1"}
    assert (numbers[len(chosen) :] == -1).all()
    assert not batch.features["clip_words"][0, len(chosen) :].any()
    for word in chosen:
        tokens = batch.text.input_ids[0, batch.text.word_ids[0] == word]
        assert homes.words().decode(tokens).replace(" ", "") == there[word].replace("é", "e")


@pytest.mark.parametrize("way", ["top", "random"])
def test_words_are_selected_among_those_that_the_student_reads(way, place, tmp_path):
    # methods A2: a candidate has a token on both sides after truncation
    def chosen(length: int, limit: float = 1.0) -> Batch:
        short = TextDataset(examples(), TextRowEncoder(homes.words(), length))
        one = teacher(place, word_selection=way)
        return by_row(*TeacherSet([one], FeatureCache(tmp_path, limit)).wrap(short))

    whole = chosen(60)
    before = len(ShardStore(of(tmp_path, "clip_words")))
    cut = chosen(9)
    assert torch.equal(cut.features["clip_word"], chosen(9, 0.0).features["clip_word"])
    read_by = [[set(row.tolist()) for row in some.text.word_ids] for some in (cut, whole)]
    same = [one == other for one, other in zip(*read_by, strict=True)]
    for row, words in enumerate(read_by[0]):
        assert set(cut.features["clip_word"][row].tolist()) <= words | {-1}
    for name in ("clip_word", "clip_words"):
        assert torch.equal(cut.features[name][same], whole.features[name][same])
    lost = [not one for one in same]
    assert not torch.equal(cut.features["clip_word"][lost], whole.features["clip_word"][lost])
    # what was not cut for the student is kept once for both
    assert len(ShardStore(of(tmp_path, "clip_words"))) == before + sum(lost)


def test_a_heads_mask_is_not_read():
    plain = Example("q", "is it red ?", images=("some/0",))
    assert text_for_clip(replace(plain, text_pair="[MASK]", prompt_suffix="[MASK]")) == plain.text
    assert text_for_clip(replace(plain, text_pair="yes [MASK]")) == "is it red ? yes [MASK]"


def test_only_what_is_asked_for_is_loaded_and_computed(place, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ClipImageTower, "forward", homes.never)
        alone = teacher(place, wants=["clip_text"], teacher_images="")
        assert alone.clip.image is None and alone.image_width == 0
        batch = kept_and_live(alone, [Example("t", "a dog")], tmp_path)
        assert list(batch.features) == ["clip_text"]
    monkeypatch.setattr(ClipTextTower, "forward_unprojected", homes.never)
    seen = teacher(place, wants=["clip_image"])
    assert seen.clip.text is None and seen.width == 0 and seen.image_width == 24
    kept_and_live(seen, examples(), tmp_path)


def test_space_before_the_projection(place, tmp_path):
    wide = teacher(place, teacher_space="pre_projection")
    assert (wide.width, wide.image_width) == (32, 32)
    ours = kept_and_live(wide, examples(), tmp_path).features
    joint = wrapped(teacher(place), examples(), tmp_path / "joint").features
    close(ours["clip_similarity"], joint["clip_similarity"], 1e-4)
    assert torch.equal(ours["clip_word"], joint["clip_word"])
    model = AutoModel.from_pretrained(place / "clip")
    for name, project in (
        ("clip_image", model.visual_projection),
        ("clip_words", model.text_projection),
    ):
        close(F.normalize(project(ours[name][:1]), dim=-1), joint[name][:1])


def test_words_by_themselves(place, tmp_path):
    lonely = teacher(place, relevance="isolated", keyword_extractor=NOTHING)
    batch = wrapped(lonely, examples()[:3], tmp_path)
    one = teacher(place, wants=["clip_text", "clip_image"])
    for row, example in enumerate(examples()[:3]):
        words = [example.text[s:e] for s, e in word_spans(example.text)]
        alone = [Example(str(n), word, images=example.images) for n, word in enumerate(words)]
        lone = wrapped(one, alone, tmp_path / f"{row}").features
        cosines = (lone["clip_text"] * lone["clip_image"]).sum(-1).numpy()
        is_word = np.array([word.isalnum() and word != "s" for word in words])
        scores = token_scores(cosines, np.zeros(len(words)), is_word)
        chosen = select_tokens(scores, is_word, 2)
        assert batch.features["clip_word"][row].tolist() == chosen.tolist()


def test_words_by_chance(place, tmp_path):
    wants = ["clip_words", "clip_word"]
    chance = teacher(place, wants=wants, word_selection="random", teacher_images="")
    chosen = kept_and_live(chance, examples(), tmp_path).features["clip_word"].tolist()
    assert chosen[0] == chosen[4]
    rng = generator("clip_words", TEXTS[0])
    assert chosen[0] == select_random_tokens(np.ones(6, bool), 2, rng).tolist()
    assert len(ShardStore(of(tmp_path, "clip_words"))) == 5


def important(text: str) -> list[Keyword]:
    """An extractor of keywords: the last word of a text."""
    start, stop = word_spans(text)[-1]
    return [Keyword(text[start:stop], ((int(start), int(stop)),), 0.0)]


def test_keywords_count_as_much_as_relevance(place, tmp_path):
    name = f"{__name__}:important"
    one = teacher(place, keyword_extractor=name, num_words=1)
    batch = kept_and_live(one, examples()[:3], tmp_path)
    assert batch.features["clip_word"].tolist()[0] == [5]
    assert "important" in one.key()["clip_words"]["keywords"]["name"]


def test_confidence_of_answers(place, tmp_path):
    # methods: cosines .20, .25, .22, .21 are .9304 sure with CLIP's scale of 100
    form = OpenAnswer(("yes", "no", "<unk>", "a dog"), excluded_answers=("<unk>",))
    sure = teacher(place, wants=["clip_confidence", "clip_image"], form=form)
    found = kept_and_live(sure, examples(), tmp_path).features
    texts = [Example(answer, answer) for answer in ("yes", "no", "a dog")]
    own = wrapped(teacher(place, wants=["clip_text"]), texts, tmp_path / "own").features
    logits = found["clip_image"] @ own["clip_text"].T
    scale = AutoModel.from_pretrained(place / "clip").logit_scale.exp()
    close(found["clip_confidence"], (scale * logits).softmax(-1).amax(-1))
    # whatever the answers: other runs share images and texts
    assert teachers_in(tmp_path.glob("clip*")) == ["clip_images"]
    sure.clip.text.logit_scale.data = torch.tensor(100.0).log()
    sure.answer_embeddings = torch.tensor([[0.2], [0.25], [0.22], [0.21]])
    said = sure._confidence({sure.scored_image: torch.ones(1, 1)})
    assert said.item() == pytest.approx(0.9304, abs=1e-4)


def test_confidence_of_classes_by_clusters_of_similarities(place, tmp_path):
    form = Classification(("entailment", "neutral", "contradiction"))
    wants = ["clip_confidence", "clip_similarity"]
    one = teacher(place, wants=wants, form=form)
    batch = kept_and_live(one, examples(), tmp_path)
    similarity = batch.features["clip_similarity"].double()
    clusters = kmeans_1d(similarity.numpy(), 3)
    logits = -((similarity[:, None] - torch.from_numpy(clusters.centres)) ** 2)
    sure = (logits / (2 * clusters.variance)).softmax(-1).amax(-1)
    close(batch.features["clip_confidence"].double(), sure, 1e-4)
    assert one.answers == len(one.clusters.centres) == 3
    first = one.clusters
    wrapped(one, examples()[:3], tmp_path)
    assert one.clusters is first, "those of the training data, not of what is read later"
    live = wrapped(teacher(place, wants=wants, form=form), examples(), tmp_path, limit=0.0)
    close(batch.features["clip_confidence"], live.features["clip_confidence"], 1e-4)


def test_towers_of_different_models(place, tmp_path):
    both = {"teacher_text": str(place / "siglip")}
    apart = kept_and_live(
        teacher(place, wants=["clip_image", "clip_text"], **both), examples(), tmp_path / "a"
    )
    seen = wrapped(teacher(place), examples(), tmp_path / "b")
    read = wrapped(teacher(place, "siglip"), examples(), tmp_path / "c")
    assert torch.equal(apart.features["clip_image"], seen.features["clip_image"])
    close(apart.features["clip_text"], read.features["clip_text"], 1e-6)
    for name in ("clip_similarity", "clip_words"):
        with pytest.raises(InputError, match="share no space; pass teacher_scorer=MODEL"):
            teacher(place, wants=[name], **both)
    teacher(place, wants=["clip_words"], word_selection="random", **both)

    scored = teacher(place, teacher_scorer=str(place / "other"), **both)
    found = kept_and_live(scored, examples(), tmp_path / "d").features
    others = wrapped(teacher(place, "other"), examples(), tmp_path / "e").features
    close(found["clip_similarity"], others["clip_similarity"], 1e-4)
    whole = [0, 2, 3, 4]  # those that fit into both windows
    assert torch.equal(found["clip_word"][whole], others["clip_word"][whole])
    assert found["clip_words"].shape == (6, 2, 32)
    assert set(found) > ALL, "the scorer's embeddings are what pairs are made from"


# -- kept and live ---------------------------------------------------------------------------------------------------


class Reads:
    """Counts the pictures and texts that go through the towers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = Counter()
        look, read = ClipImageTower.forward, ClipTextTower.forward_unprojected

        def looked(side: ClipImageTower, pixels: torch.Tensor) -> torch.Tensor:
            self.seen["pictures"] += len(pixels)
            return look(side, pixels)

        def was_read(side: ClipTextTower, windows: object) -> tuple[torch.Tensor, torch.Tensor]:
            self.seen["texts"] += len(windows.input_ids)
            return read(side, windows)

        monkeypatch.setattr(ClipImageTower, "forward", looked)
        monkeypatch.setattr(ClipTextTower, "forward_unprojected", was_read)


@pytest.mark.parametrize(("name", "data"), [("clip", choices), ("siglip", examples)])
def test_cached_and_live_features_are_equal(name, data, place, tmp_path, monkeypatch):
    assert kept_and_live(teacher(place, name), data(), tmp_path).features.keys() == ALL
    reads = Reads(monkeypatch)
    by_row(*TeacherSet([teacher(place, name)]).wrap(samples(data())))
    assert reads.seen["pictures"] == {"clip": 3, "siglip": 4}[name], "once for all its choices"


def test_of_texts_that_are_drawn_anew_only_images_are_cached(place, tmp_path):
    one = teacher(place)
    drawn, live = TeacherSet([one], FeatureCache(tmp_path)).wrap(samples(examples()), fixed=False)
    assert teachers_in(tmp_path.iterdir()) == ["clip_images"]
    kept = wrapped(one, examples(), tmp_path / "all").features
    for name, features in by_row(drawn, live).features.items():
        close(features.double(), kept[name].double(), 1e-4)


def test_an_images_contents_are_its_identity(place, tmp_path):
    photos = shutil.copytree(place / "photos", tmp_path / "photos")
    found = []
    for _ in range(2):
        one = teacher(place, wants=["clip_image"], teacher_images=str(photos))
        found.append(wrapped(one, examples(), tmp_path / "c").features["clip_image"])
        shutil.copy(photos / "some/2.png", photos / "some/0.png")
    assert torch.equal(found[1][0], found[0][2])


@pytest.fixture
def long() -> list[Example]:
    """Two texts that no tower reads whole."""
    return [replace(examples()[5], id=f"l{n}", images=(f"some/{n}",)) for n in range(2)]


def test_truncated_texts_are_counted_once_however_they_are_read(place, long, tmp_path):
    tokens = homes.tokens()(long[0].text, add_special_tokens=False)["input_ids"]
    batch = kept_and_live(teacher(place), long, tmp_path)
    plain = collate(samples(long).get(range(2))).truncated_tokens
    assert 2 * (len(tokens) - toys.WINDOW) < batch.truncated_tokens - plain <= 2 * len(tokens)
    every = wrapped(teacher(place, num_words=99), long, tmp_path / "every")
    there = int((every.features["clip_word"][0] >= 0).sum())
    offsets = homes.tokens()(long[0].text, return_offsets_mapping=True)["offset_mapping"]
    end = offsets[toys.WINDOW - 2][1]  # the end token takes the last place
    text = long[0].text
    whole = [e <= end and text[s].isalnum() and text[s:e] != "s" for s, e in word_spans(text)]
    assert there == sum(whole) < len(whole) - 6, "a word that was cut off is no candidate"
    apart = {"teacher_text": str(place / "other"), "teacher_scorer": str(place / "clip")}
    one = teacher(place, wants=["clip_words", "clip_similarity"], **apart)
    assert kept_and_live(one, long, tmp_path / "apart").truncated_tokens > plain


def test_kept_features_do_not_change_what_is_counted(place, long, tmp_path):
    text, words = ["clip_text"], ["clip_words"]
    for number, (first, second) in enumerate([(words, text + words), (text + words, words)]):
        wrapped(teacher(place, wants=first), long, tmp_path / f"{number}")
        kept_and_live(teacher(place, wants=second), long, tmp_path / f"{number}")


def adding(folder: Path, ids: Sequence[str]) -> None:
    """Keeps some records, each its id's number, slowly."""

    def make(some: Sequence[str]) -> list[Record]:
        time.sleep(0.05)
        return [Record(one, {"number": np.full(2, int(one), np.float32)}) for one in some]

    disk = cache.DiskFeatureStore(folder, {"key": 1})
    disk.fill(ids, make, "features")
    assert [int(disk.get(disk.index_of(one)).arrays["number"][0]) for one in ids] == [
        *map(int, ids)
    ]


def test_two_runs_add_to_one_folder_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SHARD", 2)
    with ThreadPoolExecutor(2) as runs:
        done = [runs.submit(adding, tmp_path, ids) for ids in ("0123", "45678")]
    assert [one.result() for one in done] == [None, None]
    assert sorted(ShardStore(tmp_path).ids) == [str(n) for n in range(9)]


@pytest.fixture
def many(monkeypatch) -> list[Example]:
    """Nine texts on four images, in shards of two records."""
    monkeypatch.setattr(cache, "SHARD", 2)
    texts = enumerate(toys.sentences()[:9])
    return [Example(f"m{n}", text, images=(f"some/{n % 4}",)) for n, text in texts]


@pytest.mark.parametrize("at", [1, 5])
def test_a_killed_run_goes_on_to_the_same_bytes(at, place, many, tmp_path, monkeypatch):
    wrapped(teacher(place), many, tmp_path / "whole")
    written = cache.ShardWriter.write
    calls = Counter()

    def dies(writer, number, records):
        calls["write"] += 1
        if calls["write"] == at:
            put(writer.folder / "shard-00000.safetensors.partial", b"half")
            raise Killed
        written(writer, number, records)

    with monkeypatch.context() as patch:
        patch.setattr(cache.ShardWriter, "write", dies)
        with pytest.raises(Killed):
            wrapped(teacher(place), many, tmp_path / "cut")
    reads = Reads(monkeypatch)
    wrapped(teacher(place), many, tmp_path / "cut")
    assert reads.seen["pictures"] == max(0, 4 - 2 * (at - 1))
    found = {name: one for name, one in digests(tmp_path / "cut").items() if "partial" not in name}
    assert found == digests(tmp_path / "whole")


def test_shards_that_another_rank_did_not_write_are_filled(place, many, tmp_path):
    wrapped(teacher(place, wants=["clip_text"]), many, tmp_path)
    folder = of(tmp_path, "clip_texts")
    whole = digests(folder)
    (folder / "shard-00001.safetensors").unlink()
    (folder / "manifest.json").unlink()
    wrapped(teacher(place, wants=["clip_text"]), many, tmp_path)
    assert digests(folder) == whole


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_other_features_lie_beside_in_one_cache(place, tmp_path, monkeypatch):
    def wrap(**changes: object) -> list[str]:
        """The teachers that a run with these settings adds."""
        before = set(folder.glob("*"))
        wrapped(teacher(place, **changes), examples(), folder)
        return teachers_in(set(folder.iterdir()) - before)

    folder = tmp_path / "c"
    images, _, words = all_three = ["clip_images", "clip_texts", "clip_words"]
    assert wrap() == all_three
    first = {path: digests(path) for path in folder.iterdir()}
    other = shutil.copytree(place / "clip", tmp_path / "other")
    CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size=SQUARE).save_pretrained(other)
    for changes, new in (
        ({"teacher_images": str(place / "photos" / ".." / "photos")}, []),
        ({"name": "other"}, all_three),
        ({"name": str(other)}, [images, words]),
        ({"num_words": 3}, [words]),
        ({"relevance": "isolated"}, [words]),
        ({"teacher_space": "pre_projection"}, all_three),
        ({"keyword_extractor": f"{__name__}:important"}, [words]),
    ):
        assert wrap(**changes) == new
    assert {path: digests(path) for path in first} == first
    reads = Reads(monkeypatch)
    wrap()
    assert not reads.seen


PAIR = Example("nlvr2-dev-1", "two dogs", images=("some/0", "some/1"))
GONE = Example("e", "a dog", images=("some/9",))
BROKEN = Example("e", "a dog", images=("some/3",))


@pytest.mark.parametrize(
    ("example", "images", "message"),
    [
        (PAIR, "whole", "nlvr2-dev-1 has 2 images; a teacher of clip_image"),
        (Example("e", "a dog"), "whole", "e has 0 images"),
        (GONE, "whole", "photos: 1 images are missing, the first is 'some/9'"),
        (BROKEN, "broken", "some/3.png: does not decode"),
        (GONE, "none", "images are missing"),
    ],
)
def test_data_that_does_not_fit_is_named(example, images, message, place, tmp_path):
    photos = tmp_path / images / "photos"
    if images != "none":
        shutil.copytree(place / "photos", photos)
    if images == "broken":
        put(photos / "some/3.png", b"no image")
    one = teacher(place, teacher_images=str(photos))
    assert message in refused(wrapped, one, [examples()[0], example], tmp_path / "c")


def test_models_that_cannot_teach_are_named(place, tmp_path):
    wrong = shutil.copytree(place / "clip", tmp_path / "wrong")
    CLIPImageProcessorPil(size={"shortest_edge": 16}, do_center_crop=False).save_pretrained(wrong)
    photos = str(place / "photos")
    uncropped = teacher(tmp_path, "wrong", ["clip_image"], teacher_images=photos)
    nan = teacher(place)
    next(nan.clip.image.parameters()).data.fill_(float("nan"))
    for message, call in {
        "a teacher of clip_image needs teacher_images=FOLDER": lambda: teacher(
            place, wants=["clip_image"], teacher_images=""
        ),
        "returns uint8 (3, 26, 16), expected uint8 (3, 16, 16)": lambda: wrapped(
            uncropped, examples(), tmp_path / "c"
        ),
        "this task has no answers to choose from": lambda: teacher(
            place, wants=["clip_confidence"]
        ),
        "two teachers are called 'clip'": lambda: TeacherSet([nan, nan]),
        "the teacher's clip_image is not finite": lambda: wrapped(nan, examples(), tmp_path / "c"),
        "to a word is not finite": lambda: wrapped(nan, examples(), tmp_path / "c", 0.0),
    }.items():
        assert message in refused(call)


def test_images_that_no_objective_reads_are_refused(place):
    settings = make_settings(ObjectiveSettings, teacher_images=str(place / "photos"))
    context = TeacherContext(str(place / "clip"), frozenset({"sentence"}), settings)
    assert "photos: no objective reads images" in refused(load_teachers, context)


# -- whole runs ------------------------------------------------------------------------------------------------------


TERMS = ("td_text", "td_words")


@pytest.fixture(scope="module")
def tune(place: Path) -> FinetuneConfig:
    """Fine-tuning on questions about the pictures; several share one."""
    homes.student(place / "student")
    questions = [(f"is {n} a dog ?", f"some/{n % 4}.png", "yn"[n % 2]) for n in range(20)]
    put(place / "questions.csv", homes.table(("question", "photo", "answer"), *questions))
    return make_settings(
        FinetuneConfig,
        model=str(place / "student"),
        data=str(place / "questions.csv"),
        text="question",
        image="photo",
        label="answer",
        objectives=TERMS,
        teacher=str(place / "clip"),
        teacher_images=str(place / "photos"),
        save_model=True,
    )


BRIEF = replace(homes.STEPS, batch=4)


def test_a_run_reads_everything_once_for_all_its_seeds(tune, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    made = Counter()
    monkeypatch.setattr(ClipTeacher, "to", lambda one, device: made.update(["teacher"]) or one)
    result = finetune(replace_settings(tune, seeds=2), BRIEF, tmp_path / "run")
    assert result["seeds"] == [0, 1] and made["teacher"] == 1
    # texts once for themselves and once for their words
    assert reads.seen["pictures"] <= 4 and reads.seen["texts"] <= 2 * 20
    assert not (tmp_path / "run/teacher").exists(), "a finished run keeps no features"
    kept_for_others = replace_settings(tune, teacher_cache=str(tmp_path / "cache"))
    finetune(kept_for_others, BRIEF, tmp_path / "first")
    reads.seen.clear()
    finetune(replace_settings(kept_for_others, limit_train=8), BRIEF, tmp_path / "second")
    assert not reads.seen
    log = homes.log_of(tmp_path / "run/seed-0")
    assert log == homes.log_of(tmp_path / "first/seed-0")
    assert all({"task", *TERMS} < line.keys() for line in log)


def test_the_papers_terms_and_gate_are_the_same_kept_and_live(tune, tmp_path):
    terms = ("td_image", *TERMS, "contrastive")  # the last one of a teacher of texts
    store(tmp_path / "store", [f"some/{n}" for n in range(4)])
    regions = {"regions": str(tmp_path / "store"), "architecture": "uniter"}
    config = replace_settings(tune, objectives=terms, td_gate="question", **regions)
    logs = []
    for cache_gb in (1.0, 0.0):
        out = tmp_path / f"{cache_gb}"
        finetune(replace_settings(config, cache_gb=cache_gb), BRIEF, out)
        logs.append(homes.log_of(out / "seed-0"))
    monitored = {"td_text_gate_open", "td_words_used"}
    assert {*terms[:3], *monitored, "contrastive_word"} < logs[0][0].keys()
    for one, other in zip(*logs, strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
    wide = replace_settings(config, teacher_space="pre_projection")
    assert "text features of two widths, [24, 32]" in refused(finetune, wide, BRIEF, tmp_path / "w")
