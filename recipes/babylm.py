"""Does looking help a BabyLM? A decoder from scratch on text and captions: the next token alone, with each caption's own
image to predict (Cap2Img), and with another image, so that all three read the same words. Then minimal pairs.

    groundling run recipes/babylm.py --table decoder --out runs/babylm

`--table BERT` is the same with masked tokens. The working folder needs student/ (a GPT-2's config.json and a tokenizer
that was made from the same texts) or, for BERT, masked/ (a BERT's, whose tokenizer has a mask token), text.txt,
captions.token.txt (or another layout of captions), vectors/ (vectors of its images by an encoder that has read no text)
and blimp/. With BUDGET = "100M" and a student of GPT-2's size it is the Strict track's run (docs/results/22_babylm.md).
"""

from groundling.recipes import Row, Table, slug, step

BUDGET = "10M"
TRAIN = dict(
    from_scratch=True,
    text=["text.txt", "captions.token.txt"],
    word_budget=BUDGET,
    max_length=64,
    epochs=1,
    batch=64,
    lr=3e-3,
    freeze_encoder_ratio=0.0,
    head_lr=1.0,
    schedule="cosine",
    cpu=True,
)
LOOKING = dict(
    caption_to_image_weight=0.04,  # its sum over a batch's captions starts ten times as high as the other loss
    teacher="vectors:vectors",
    teacher_words=0,  # of an encoder of images alone
)
STUDENTS = {
    "decoder": dict(student="student", arm="clm"),
    "BERT": dict(student="masked", arm="mlm"),
}
ARMS = {"text": {}, "images": LOOKING, "other images": dict(LOOKING, shuffle_images=True)}


def row(family, arm, settings):
    """A row: one student of this arm, and its minimal pairs."""
    name = f"{family} {arm}"
    student = dict(STUDENTS[family])
    if settings:
        student["arm"] += "+caption_to_image"
    train = f"{slug(name)}/train"
    model = step("adapt", TRAIN, student, settings, name=f"{slug(name)}: train", out=train)
    scored = dict(model=model, data="blimp", limit=100, cpu=True)
    pairs = step("pairs", scored, name=f"{slug(name)}: pairs", out=f"{slug(name)}/pairs")
    return Row(name, (pairs,))


TABLES = [
    Table(family, [row(family, name, settings) for name, settings in ARMS.items()])
    for family in STUDENTS
]
