"""A recipe of your own: does XDBERT help on RTE and CoLA, more than as much text without CLIP?

groundling run examples/my_recipe.py --plan
groundling run examples/my_recipe.py --out runs/mine
"""

from groundling.recipes import Table, adapt, row, settings

ADAPT = dict(
    student="bert-base-uncased",
    teacher="openai/clip-vit-base-patch32",
    text=["my_text.txt"],
    steps=1000,
    lr=1e-4,
)
TUNE = dict(data="glue_data", seeds=3, epochs=3)
TASKS = {"glue/rte": settings(TUNE, lr=1e-4), "glue/cola": settings(TUNE, lr=2e-5)}
ROWS = [row(arm, adapt(arm, ADAPT, arm=arm), TASKS) for arm in ("mlm", "xdbert")]
TABLES = [Table("", ROWS)]
