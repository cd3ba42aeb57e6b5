"""The first methods that read captions with their images, from Cap2Img (2018) to LexiContrastive Grounding (2024)."""

from __future__ import annotations

from groundling.studies.bench.methods import CAPTIONS, CORPUS, GRID, IMAGES, BenchMethod, Stage

VOKENIZATION = BenchMethod(
    name="vokenization",
    paper="Vokenization (Tan and Bansal 2020)",
    data=IMAGES,
    stages=(
        # The paper's matcher reads the last four layers; the bench's encoder has two. See `for_encoder`.
        Stage("token_image_matching", (CAPTIONS,), settings={"vokenizer_layers": 2}),
        Stage(
            "mlm+voken_classification",
            (CORPUS,),
            settings={"voken_matcher": "stage-1/model"},
            images=True,
        ),
    ),
    weight="voken_weight",
    grid=GRID,
)
VIDLANKD = BenchMethod(
    name="vidlankd",
    paper="VidLanKD (Tang et al. 2021)",
    data=IMAGES,
    stages=(
        Stage(
            "mlm+token_image_matching",
            (CAPTIONS,),
            settings={
                "vokenizer_head": "none",
                "vokenizer_layers": 1,
                "vokenizer_margin": 1.0,
                "vokenizer_frozen": False,
            },
        ),
        Stage("mlm+nst+crd", (CORPUS,), settings={"kd_teacher": "stage-1/model"}, images=False),
    ),
    weight="kd_weight",
    grid=GRID,
)
LEXI_CONTRASTIVE = BenchMethod(
    name="lexi_contrastive",
    paper="Lexicon-level contrastive visual grounding (Zhuang et al. 2024)",
    data=IMAGES,
    stages=(Stage("mlm+lexi_contrastive", (CAPTIONS,)),),
    weight="lcg_weight",
    grid=GRID,
)
CLIP_BERT = BenchMethod(
    name="clip_bert",
    paper="CLIP-BERT (Norlund et al. 2021), implicit",
    data=IMAGES,
    stages=(Stage("visual_token_mlm", (CAPTIONS,)),),
)
MCSE = BenchMethod(
    name="mcse",
    paper="MCSE (Zhang et al. 2022), SimCSE included, beside masked LM, which the paper does not train",
    data=IMAGES,
    # The bench's encoder has no dropout, by which the method's two passes differ.
    stages=(Stage("mlm+simcse+mcse", (CORPUS, CAPTIONS), settings={"dropout": 0.1}),),
    weight="mcse_weight",
    grid=GRID,
)
GROUNDED_SPACE = BenchMethod(
    name="grounded_space",
    paper="grounded space, cluster and perceptual losses (Bordes et al. 2019)",
    data=IMAGES,
    stages=(Stage("mlm+grounded_space", (CAPTIONS,)),),
    weight="cluster_weight",
    grid=GRID,
)
MLM_DISTILLATION = BenchMethod(
    name="mlm_distillation",
    paper="distillation of masked-LM logits (ViComTe, Zhang et al. 2022)",
    data=IMAGES,
    stages=(
        Stage("visual_token_mlm", (CAPTIONS,), settings={"save_joint": True}),
        Stage("mlm_distillation", (CAPTIONS,), settings={"mlm_teacher": "stage-1/joint"}),
    ),
)
CAPTION_TO_IMAGE = BenchMethod(
    name="caption_to_image",
    paper="Cap2Img (Kiela et al. 2018)",
    data=IMAGES,
    stages=(Stage("mlm+caption_to_image", (CAPTIONS,), settings={"pooling": "mean"}),),
    weight="caption_to_image_weight",
    grid=GRID,
)
