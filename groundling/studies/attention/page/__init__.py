"""The page of `look`: which regions a model's words attend to, head by head, and what regions read of words."""
