"""SWAG and readability: what their files say, and what training sees of a choice."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny.homes import put, refused, table
from tiny.tasks import COMMA, SWAG_HEAD, swag_row

from groundling.core.batch import Example, collate
from groundling.core.registry import resolve
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.tasks import Task
from groundling.tasks.readability import READABILITY
from groundling.tasks.swag import FORM, REGULAR
from groundling.training.evaluation import evaluate

# -- SWAG ------------------------------------------------------------------------------------------------------------

LABELLED = [*SWAG_HEAD, "label"]


@pytest.fixture
def swag(tmp_path: Path) -> Path:
    for split, size in (("train", 12), ("val", 8)):
        put(tmp_path / f"{split}.csv", table(LABELLED, *(swag_row(n, n % 4) for n in range(size))))
    put(tmp_path / "test.csv", table(SWAG_HEAD, *(swag_row(n) for n in range(5))))
    return tmp_path


def test_swag_reads_its_regular_files(swag: Path) -> None:
    assert f'"{COMMA}"' in (swag / "val.csv").read_text()
    found = REGULAR.read(swag, "val")
    choices = ("He sings 3.", f"He {COMMA}", 'He says "no", twice.', "He waits.")
    text = "A dog runs 3."
    assert found[3] == Example("swag-val-3", text, label=3, choices=choices, official_id="3")
    assert [e.label for e in found] == [0, 1, 2, 3] * 2
    test = REGULAR.read(swag, "test")
    told = [(e.id, e.label, len(e.choices)) for e in test]
    assert told == [(f"swag-test-{n}", None, 4) for n in range(5)]
    sent = REGULAR.submission("test", [e.official_id for e in test[:2]], [3, 0])
    assert sent == "index\tprediction\n0\t3\n1\t0\n"
    assert (REGULAR.train, REGULAR.dev) == ("train", ("val",))
    assert resolve("tasks", Task, "swag") is REGULAR


GOOD = table(LABELLED, swag_row(0, 1))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD + table(swag_row(1, 4)), ", line 3: label '4' is not one of 0, 1, 2, 3"),
        (table(SWAG_HEAD, swag_row(0)), ": no column 'label'; there are: "),
        (GOOD.replace('"', ""), ", line 2: 15 fields, expected 12"),
        (table(LABELLED), ": contains no examples"),
    ],
)
def test_faults_of_swag_name_file_and_line(content: str, complaint: str, tmp_path: Path) -> None:
    path = put(tmp_path / "train.csv", content)
    assert refused(REGULAR.read, tmp_path, "train").startswith(f"{path}{complaint}")


# -- readability -----------------------------------------------------------------------------------------------------

KAGGLE = ["id", "url_legal", "license", "excerpt", "target", "standard_error"]
CLEAR = ["ID", "Author", "Excerpt", "BT_easiness", "s.e."]
PASSAGE = 'The floor was white,\nnot "smooth", but rumpled.\n'


def test_readability_is_split_by_the_passages_id(tmp_path: Path) -> None:
    rows = [(f"c12a{n:05x}", "", "", f"{n}. {PASSAGE}", n / 100 - 3, 0.46) for n in range(1000)]
    put(tmp_path / "train.csv", table(KAGGLE, *rows))
    sides = {split: READABILITY.read(tmp_path, split) for split in ("train", "dev")}
    assert 160 < len(sides["dev"]) < 240
    ids = {split: {e.id.rsplit("-", 1)[1] for e in examples} for split, examples in sides.items()}
    assert len(ids["train"] | ids["dev"]) == len(sides["train"] + sides["dev"]) == 1000
    first = sides["train"][0]
    given = [(i, text, y) for i, _, _, text, y, _ in rows]
    assert (first.id.rsplit("-", 1)[1], first.text, first.label) in given
    put(tmp_path / "train.csv", table(KAGGLE, *rows[300:0:-1]))
    # Each stays on its side.
    assert ids["dev"] > {e.id.rsplit("-", 1)[1] for e in READABILITY.read(tmp_path, "dev")}
    assert [m.name for m in READABILITY.metrics if not m.higher_is_better] == ["rmse", "mse"]
    assert READABILITY.score([1.0, 2.0], [1.0, 4.0]) == {"rmse": pytest.approx(2**0.5), "mse": 2.0}


def test_the_clear_workbook_and_kaggles_test_file(tmp_path: Path) -> None:
    rows = [(400 + n, "Wells", PASSAGE, n / 10, 0.4) for n in range(30)]
    path = put(tmp_path / "any.csv", table(CLEAR, *rows))
    found = READABILITY.read(tmp_path, "train")
    assert READABILITY.read(path, "train") == found  # a file stands for itself
    labels = sorted(e.label for e in found + READABILITY.read(path, "dev"))
    assert labels == [n / 10 for n in range(30)]
    rows = [("c0f722661", "", "", PASSAGE), ("f0953f0a5", "", "", "A.")]
    put(tmp_path / "test.csv", table(KAGGLE[:4], *rows))
    test = READABILITY.read(tmp_path, "test")
    assert [(e.text, e.label) for e in test] == [(PASSAGE, None), ("A.", None)]
    officials = [e.official_id for e in test]
    assert officials == ["c0f722661", "f0953f0a5"]  # C4
    submission = READABILITY.submission("test", officials, np.array([-1.23456, 0.0]))
    assert submission == "id,target\nc0f722661,-1.235\nf0953f0a5,0.000\n"
    put(path, table(CLEAR, (1, "", PASSAGE, 0.1, 0), (2, "", " ", 0.2, 0)))
    assert refused(READABILITY.read, tmp_path, "train") == f"{path}, line 5: the passage is empty"
    put(path, table(CLEAR, *((n, "", "A.", "inf", 0) for n in range(20))))
    assert "label 'inf' is no number in" in refused(READABILITY.read, tmp_path, "train")


# -- choices ---------------------------------------------------------------------------------------------------------


def test_a_choice_is_a_row_and_an_example_one_label(swag: Path, student) -> None:
    model = student()
    choices = TextDataset(REGULAR.read(swag, "train"), TextRowEncoder(model.tokenizer, 64))
    batch = collate(choices.get([1, 5, 2]))
    assert (len(batch), batch.rows, batch.labels["label"].tolist()) == (3, 12, [1, 1, 2])
    for row, choice in enumerate(choices.examples[5].choices, 4):
        expected = model.tokenizer(choices.examples[5].text, choice)["input_ids"]
        assert batch.text.input_ids[row, batch.text.attention_mask[row]].tolist() == expected
    objective = SupervisedObjective(model.sizes, output_type=REGULAR.form).eval()
    encoded = model(batch)
    outputs = objective.outputs(encoded, batch)
    assert (outputs.shape, FORM.head_width) == ((3, 4), 1)
    assert torch.equal(outputs.flatten(), objective.head.classify(encoded.pooler_output).flatten())
    summed = F.cross_entropy(outputs, torch.tensor([1, 1, 2]), reduction="sum")
    assert objective(encoded, batch)["task"].item() == pytest.approx(summed.item())
    assert objective.count(batch) == {"task": 3}
    found = evaluate(model, objective, REGULAR, choices, batch=5)
    # whatever stands beside it
    assert found.outputs[[1, 5, 2]] == pytest.approx(outputs.detach().numpy(), abs=1e-5)
    assert found.predictions.tolist() == found.outputs.argmax(1).tolist()
    assert found.labels.tolist() == [n % 4 for n in range(12)]
    assert found.metrics == {"accuracy": float((found.predictions == found.labels).mean())}
