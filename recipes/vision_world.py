"""VisualBERT, UNITER and VL-BERT on the data sets of the rendered world of docs/results/12_image_tasks.md.

    groundling run recipes/vision_world.py --table VisualBERT --out runs/vision-models

VisualBERT runs with and without pre-training, on all examples and on 500. In the controls, regions have boxes but no
features.
"""

from groundling.recipes import Table, row, settings

TUNE = dict(
    seeds=3, regions="runs/vision/store", epochs=10, batch=64, lr=5e-4, max_length=64, cpu=True
)
FOLDERS = {
    "vqa": "vqa",
    "refcoco+": "refcoco+",
    "snli-ve": "snli_ve",
    "nlvr2": "nlvr2",
    "vcr/answer": "vcr",
    "flickr30k": "flickr30k",
    "vcr/rationale": "vcr",
}
TASKS = {
    name: settings(TUNE, data=f"runs/vision/{folder}", epochs=5 if folder == "vcr" else 10)
    for name, folder in FOLDERS.items()
}


def full_and_control(name, tasks):
    """A pre-trained model with and without the regions' features."""
    model = f"runs/vision/{name.lower().replace('-', '')}/model"
    return [
        row(f"{name}, no features", model, tasks, zero_region_features=True),
        row(f"{name}, full", model, tasks),
    ]


def visualbert():
    """All data sets, with and without pre-training."""
    pretrained = "runs/vision/visualbert/model"
    new = dict(model="runs/vision/bert", architecture="visualbert")
    few = dict(limit_train=500, epochs=40)
    return Table(
        "VisualBERT",
        [
            *full_and_control("VisualBERT", TASKS),
            row("VisualBERT, full, not pre-trained", tasks=TASKS, **new),
            row("VisualBERT, 500 examples, not pre-trained", tasks=TASKS, **new, **few),
            row("VisualBERT, 500 examples, pre-trained", pretrained, TASKS, few),
        ],
    )


def some_tasks(name, *tasks):
    """A model on some of the data sets."""
    return Table(name, full_and_control(name, {task: TASKS[task] for task in tasks}))


TABLES = [
    visualbert(),
    some_tasks("UNITER", "vqa", "nlvr2", "refcoco+", "snli-ve"),
    some_tasks("VL-BERT", "vqa", "refcoco+"),
]
