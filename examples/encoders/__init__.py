"""The models of `examples.sentences` and `examples.multimodal`: plain functions over a mapping of weights."""
