"""The inputs that identify a run: every file, folder and model that a setting names."""

from groundling.command_line.names import input_paths
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.settings.fields import make_settings


def test_each_setting_gives_its_paths() -> None:
    config = make_settings(
        FinetuneConfig,
        model="bert",
        task="glue/rte",
        data="glue",
        extra_eval=("shifted=other",),
        regions="store",
        train_regions="more",
        partition="few.json",
    )
    assert input_paths(config) == {
        "model": "bert",
        "data": "glue",
        "extra_eval": "other",
        "regions": "store/manifest.json",
        "train_regions": "more/manifest.json",
        "partition": "few.json",
        "backbone": "microsoft/resnet-101",
    }


def test_files_are_numbered_without_their_weights_and_own_modules_are_no_files() -> None:
    config = make_settings(
        AdaptConfig, student="bert", teacher="mine:Teacher", text=("a.txt=2", "b.txt=1")
    )
    assert input_paths(config) == {"student": "bert", "text": "a.txt", "text:1": "b.txt"}
