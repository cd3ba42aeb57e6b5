"""What the attention heads of vision-language models look at.

`commands`: the settings of all commands, their checks, and what tells their runs apart.
`heads`: every head as a classifier of phrases (`grounding`); the best ones, on images that did not choose them
(`leaderboard`).
`syntax`: the same from a word to the thing of its syntactic neighbour (`dependencies`: the labels of parsers).
`modality`: how much goes to text and image (`importance`), what answers lose beside other inputs (`ablation`), what
they owe to each input (`attribution`), whether the words are looked at that CLIP-TD's teacher selects
(`selected_words`).
`figures`: all of these, drawn for papers.
`visualize`: the page to look at, whose parts are in `page`.

Below them: models and what they read, with controls (`attending`) and with their answers (`subjects`); passes over them
that hold no attention (`passes`); models that can only be inspected (`models`).
"""
