"""Give text encoders visual knowledge from CLIP, and measure whether they really got it.

`groundling.batch` has Batch and Encoded, `groundling.objectives` Objective, `groundling.tasks` Task; the verbs are
`groundling.train.train` and `groundling.evaluate.evaluate`. Importing the package itself costs nothing.
"""
