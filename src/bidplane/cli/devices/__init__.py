"""Commands about nodes and GPUs."""
