"""What the attention heads of vision-language models attend to.

- `commands`: the settings of all commands, their checks, and the inputs that identify a run.
- `grounding`: every head as a classifier of phrases, with the best heads scored on held-out images.
- `syntax`: the same from a word to the region of its syntactic neighbour.
- `modality`: the shares of attention on text and image (`importance`), answers with ablated inputs
  (`answers`), integrated gradients, and attention to the words that CLIP-TD's teacher selects.
- `figures`: figures of all these results.
- `page`: the page of `groundling visualize`.

These use the analysed models, with passes that keep no attention maps and controls
(`inspected_models`), and models that can be inspected but not trained (`models`).
"""
