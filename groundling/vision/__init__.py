"""From pixels to regions: boxes, and their features."""
