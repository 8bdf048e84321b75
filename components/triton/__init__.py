"""Room of Triton: makes a folder of served versions a model of Triton Inference Server."""
