"""What heads of attention look at: one streamed pass over a model's maps, and what is measured on the way."""
