"""A token is what was signed, or nothing."""

import base64
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bidplane.errors import UserError
from bidplane.runtime.identity.credentials import Identity, InvalidToken, Tokens, load_key

NOW = 1_700_000_000.0
KEY = b"k" * 32
ANN = Identity(plane="trainer", uid="p1", user="ann", groups=("g",), expires=int(NOW) + 60)
TOKENS = Tokens(KEY)
GOOD = TOKENS.issue(ANN)


def test_what_was_issued_is_verified():
    assert TOKENS.verify(GOOD, now=NOW) == ANN
    assert not ANN.is_owner
    assert msgspec.structs.replace(ANN, plane="host").is_owner


@pytest.mark.parametrize(("later", "good"), [(0, True), (59.9, True), (60, False), (1e9, False)])
def test_a_token_ends(later, good):
    if good:
        assert TOKENS.verify(GOOD, now=NOW + later)
        return
    with pytest.raises(InvalidToken, match="expired"):
        TOKENS.verify(GOOD, now=NOW + later)


def test_another_installations_token_is_worth_nothing():
    with pytest.raises(InvalidToken, match="not made by this installation"):
        Tokens(b"o" * 32).verify(GOOD, now=NOW)


@given(st.integers(0, len(GOOD) - 1), st.characters(codec="utf-8"))
def test_a_token_with_any_character_changed_is_refused(index, character):
    changed = GOOD[:index] + character + GOOD[index + 1 :]
    if changed != GOOD:
        with pytest.raises(InvalidToken):
            TOKENS.verify(changed, now=NOW)


def test_a_body_cannot_be_exchanged():
    header, _, signature = GOOD.split(".")
    owner = msgspec.json.encode(msgspec.structs.replace(ANN, plane="host"))
    body = base64.urlsafe_b64encode(owner).rstrip(b"=").decode()
    with pytest.raises(InvalidToken):
        TOKENS.verify(f"{header}.{body}.{signature}", now=NOW)
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    with pytest.raises(InvalidToken):
        TOKENS.verify(f"{unsigned}.{body}.", now=NOW)


@given(st.text() | st.text(alphabet=st.characters(categories=["Cs"])))
def test_any_text_is_refused_with_a_reason(text):
    with pytest.raises(InvalidToken):
        TOKENS.verify(text, now=NOW)


@given(st.binary(max_size=64))
def test_a_signed_body_that_is_no_identity_is_refused(body):
    """Signed by us, so from another version of us."""
    signed = body.replace(b".", b"")
    token = signed + b"." + base64.urlsafe_b64encode(TOKENS._sign(signed)).rstrip(b"=")
    with pytest.raises(InvalidToken):
        TOKENS.verify(token.decode(errors="replace"), now=NOW)


def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path):
    file = tmp_path / "token.key"
    key = load_key(file)
    assert len(key) == 32
    assert load_key(file) == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["token.key"], "nothing is left beside it"


def test_whoever_made_the_key_first_is_followed(tmp_path, monkeypatch):
    """Two processes start at once: both must end up with the same key."""
    file = tmp_path / "token.key"
    link = os.link

    def beaten(source, target):
        file.write_bytes(b"f" * 32)
        link(source, target)

    monkeypatch.setattr(os, "link", beaten)
    assert load_key(file) == b"f" * 32
    assert os.listdir(tmp_path) == ["token.key"]


@pytest.mark.parametrize("left", [b"", b"short"])
def test_a_key_that_was_cut_short_is_not_used(tmp_path, left):
    """With an empty key anyone could sign."""
    file = tmp_path / "token.key"
    file.write_bytes(left)
    with pytest.raises(UserError, match="damaged"):
        load_key(file)
