"""What fine-tuning consists of: its checks, its examples, what a model sees of them, the model, its result."""
