"""Declares the YAML section `push.top_k`: how many candidates a retrieval model serves, and how it finds them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from embedding_core.schema import FROM_NUMPY, Mistakes, Positive, Rule, Section

LARGE = 200_000
"""Number of candidates from which `when: large` searches inverted lists."""


class Approximate(Section):
    """A search that compares a query only with the candidates of some lists.

    k-means divides the candidates into lists (an inverted file; Sivic and Zisserman, 2003). A query is compared with
    the candidates of the `probes` lists that promise the highest scores.

    Attributes:
      when: "never" compares each query with all candidates, "large" searches lists if there are 200,000 candidates or
        more, "always" searches lists.
      lists: number of lists; null is four times the square root of the number of candidates.
      probes: number of lists that are searched for a query. More lists contain more of the best candidates, and take
        longer.
      min_recall: least share of the exact answer that the search must find, on the rows of the proof; below it, nothing
        is pushed.
    """

    SHORT = "when"

    when: Literal["never", "large", "always"] = "never"
    lists: Positive | None = None
    probes: Positive = 64
    min_recall: Annotated[float, Field(ge=0, le=1), FROM_NUMPY, Rule("a number from 0 to 1")] = 0.9

    def mistakes(self) -> Mistakes:
        """Yield what breaks the rules over several fields."""
        if self.lists is not None and self.probes > self.lists:
            yield "probes", f"is {self.probes!r}: it must be at most `lists`, {self.lists!r}."

    def lists_of(self, candidates: int) -> int | None:
        """Return the number of lists for a number of candidates; None if the search is exact."""
        if self.when == "never" or (self.when == "large" and candidates < LARGE):
            return None
        return min(self.lists or math.ceil(4 * math.sqrt(candidates)), candidates)


class TopK(Section):
    """The answers of the signatures `top_k` and `top_k_filtered` of a retrieval model.

    Attributes:
      k: number of candidates that a query gets.
      approximate: when and how candidates are searched without comparing a query with all of them.
    """

    k: Positive = 100
    approximate: Approximate = Approximate()
