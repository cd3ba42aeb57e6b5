"""Published scores, to compare with measured ones: by system and task, in the metric's unit.

XDBERT (Hsu et al., ACL 2022): medians of 5 runs (9 on RTE) on the dev sets, READ on its test set. Encoders, text and
sizes differ from the runs of this package on two cores: use the values for orientation, not for a test. RTE, SST-2,
QNLI, MNLI and SWAG are accuracies, MRPC is F1, CoLA Matthews; QQP fits the mean of accuracy and F1 (the released code's
`combined_score`); for STS-B the paper states only a correlation, here Pearson's is measured. READ is RMSE.
"""

TASKS = (
    "glue/rte",
    "glue/mrpc",
    "glue/sts-b",
    "glue/cola",
    "glue/sst-2",
    "glue/qnli",
    "glue/qqp",
    "glue/mnli",
    "swag",
    "readability",
)
"""Columns of the paper's tables, in order."""

_ROWS: dict[str, tuple[float | None, ...]] = {
    # Table 1: fine-tuning the text encoder alone
    "CLIP-T": (51.62, 76.20, 22.07, 25.41),
    "BERT-b": (66.43, 87.38, 88.64, 56.52, 92.46, 90.92, 89.51, 84.35, 81.0),
    "XDBERT-b": (69.31, 88.02, 89.32, 57.55, 92.78, 91.52, 89.57, 84.75, 81.35),
    "ELECTRA-b": (78.70, 89.49, 90.77, 66.09, 94.5, 92.69, 90.29, 88.23, 88.60),
    "XDELECTRA-b": (80.51, 90.55, 91.04, 66.76, 95.20, 93.03, 90.4, 88.75, 88.73),
    "ELECTRA-l": (86.64, 91.53, 91.88, 69.27, 96.90, 94.78, 91.34, 90.99, 92.46, 0.685),
    "XDELECTRA-l": (87.73, 92.12, 91.97, 70.98, 97.36, 94.93, 91.29, 91.02, 92.59, 0.635),
    # Table 3: ablations of XDBERT-b (CoLA at another learning rate than in Table 1)
    "MLM+MATCH+CLIPTC": (69.31, 88.02, 89.32, 56.27),
    "MLM+MATCH": (70.04, 86.93, 88.8, 54.62),
    "MLM": (68.23, 87.25, 89.29, 54.78),
    "1 cross attention layer": (66.79, 87.66, 89.32, 53.62),
    "2 epochs": (69.31, 88.04, 89.31, 55.91),
    "20 epochs": (57.4, 87.74),
    "wiki (14G), same steps": (65.3, 87.78, 89.1),
    # Table 7: vision-language models as text encoders (Tan and Bansal 2020)
    "VL-BERT": (None, None, None, None, 90.1, 89.5, 88.6, 82.9),
    "VisualBERT": (None, None, None, None, 90.3, 88.9, 88.4, 82.4),
    "Oscar": (None, None, None, None, 87.3, 50.5, 86.6, 77.3),
    "LXMERT": (None, None, None, None, 82.4, 50.5, 79.8, 31.8),
    "ViLBERT": (None, None, None, None, 90.3, 89.6, 88.4, 82.4),
    # Table 8: fine-tuning the whole cross-modal model
    "XBERT-b": (69.31, 88.46, 89.59, 59.05, 92.89, 91.47, 89.37, 84.62, 81.34),
    "XELECTRA-b": (79.78, 91.06, 91.46, 66.8, 95.06, 93.04, 90.62, 88.97, 88.91),
    "XELECTRA-l": (88.45, 92.33, 92.04, 70.51, 97.36, 94.97, 91.4, 91.03, 92.83, 0.565),
}

PUBLISHED = {
    system: {task: value for task, value in zip(TASKS, row, strict=False) if value is not None}
    for system, row in _ROWS.items()
}
"""Published scores by system; the tables' rows may lack the last tasks."""

PWCCA = {
    ("BERT", "ELECTRA"): 0.5498,
    ("BERT", "CLIP"): 0.4980,
    ("ELECTRA", "CLIP"): 0.4645,
    ("BERT", "RANDOM"): 0.3569,
}
"""XDBERT, Table 2: similarity of word embeddings."""
