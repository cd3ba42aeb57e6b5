"""The names of the package's tasks, for what loads no torch and so cannot look for the tasks themselves."""

TASKS = (
    *("glue/cola", "glue/mnli", "glue/mrpc", "glue/qnli", "glue/qqp", "glue/rte"),
    *("glue/sst-2", "glue/sts-b", "glue/wnli", "readability", "swag", "swag/full"),
    *("vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale", "snli-ve", "nlvr2"),
    *("flickr30k", "flickr30k/merged"),
    *("refcoco", "refcoco/mattnet", "refcoco+", "refcoco+/mattnet"),
    *("refcocog", "refcocog/google", "refcocog/mattnet"),
    *("world/category", "world/odd", "world/order", "world/truth"),
)
"""A test compares them with what is there."""

TOLD = ("swag", "swag/full", "vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale")
"""Those whose texts tell their labels in pre-training, being followed by what is right; a test compares these, too."""
