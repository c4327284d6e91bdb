"""Tokens that wake a service: nobody without one, and nobody at all without its Secret."""

from hypothesis import given
from hypothesis import strategies as st

from bidplane.api.endpoint import WakeAuth, WakeRules
from bidplane.core.activation.wakeauth import digest_of, refusal, token_of

RULES = WakeRules(auth=WakeAuth(secret="wake"))


@given(token=st.binary(min_size=1), other=st.binary(min_size=1))
def test_only_the_token_of_this_endpoint_wakes_it(token, other):
    digest = digest_of("one", token)
    assert refusal(RULES, "one", digest, token) == ""
    assert (refusal(RULES, "one", digest, other) == "") == (other == token)
    assert refusal(RULES, "two", digest, token)
    assert refusal(RULES, "one", digest, b"")
    assert "Secret wake has no key token" in refusal(RULES, "one", "", token)
    assert refusal(WakeRules(), "one", "", b"") == ""


def test_an_empty_token_is_none():
    assert digest_of("one", b"") == ""


def test_a_token_is_in_either_header():
    assert token_of(b"Bearer abc", b"") == b"abc"
    assert token_of(b"bearer  abc ", b"") == b"abc"
    assert token_of(b"Basic abc", b"") == b""
    assert token_of(b"Bearer of-the-service", b"abc") == b"abc"
    assert token_of(b"", b"") == b""
