"""Room of `serve`: answers requests to the newest version over HTTP on loopback, for a look, with a page to try it."""
