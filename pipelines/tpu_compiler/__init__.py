"""Room of Google's TPU compiler: `preflight --compiler tpu`."""
