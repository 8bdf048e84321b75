"""How tokens and other text from the data are shown to people."""

import hashlib

import pytest

from embedding_core.display import printable, shown_token

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Café 東京", "Café 東京"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\tb\nc\r", r"a\tb\nc\r"),
        ("\u202eevil", r"\u202eevil"),  # shows what follows from right to left
        ("\x9b2J", r"\x9b2J"),  # the control sequence introducer in one character
        ("\udcff", r"\udcff"),
    ],
)
def test_printable_escapes_what_a_terminal_would_obey(text, shown):
    assert printable(text) == shown


def test_printable_keeps_the_line_breaks_that_it_is_told_to_keep():
    assert printable("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


def test_token_of_a_private_vocabulary_is_shown_as_a_digest():
    assert shown_token(b"alice", private=True) == f"sha256:{hashlib.sha256(b'alice').hexdigest()[:12]}"


def test_token_is_shown_on_one_line_whatever_its_bytes():
    assert shown_token(b"a\x1b[2J\t\xff", private=False) == r"a\x1b[2J\t\xff"
