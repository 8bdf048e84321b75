"""ExampleGen: the user's rows as train and eval splits of tf.Examples."""

from components.example_gen.component import ExampleGen

__all__ = ["ExampleGen"]
