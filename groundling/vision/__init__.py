"""From pixels to regions: where the boxes are, and what features they hold."""
