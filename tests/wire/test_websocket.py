"""WebSockets from both ends."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.wire.streams import websocket
from bidplane.wire.streams.websocket import Closed, HandshakeError, Message, WebSocket

# A busy machine is not a fault.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455's own example


def test_the_handshake_of_the_rfc():
    said = dict(
        websocket.accept({b"sec-websocket-version": b"13", b"sec-websocket-key": KEY}, "v5")
    )
    assert said["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert said["Sec-WebSocket-Protocol"] == "v5"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "Version"),
        ({b"sec-websocket-version": b"8", b"sec-websocket-key": KEY}, "Version"),
        ({b"sec-websocket-version": b"13"}, "Key"),
        ({b"sec-websocket-version": b"13", b"sec-websocket-key": b"YQ=="}, "Key"),
        ({b"sec-websocket-version": b"13", b"sec-websocket-key": b"?"}, "Key"),
    ],
)
def test_a_handshake_that_is_none(headers, words):
    with pytest.raises(HandshakeError, match=words):
        websocket.accept(headers, "")


def test_the_client_chooses_among_what_we_speak():
    theirs = websocket.offered("x, v5.channel.k8s.io ,v4.channel.k8s.io")
    assert theirs == ["x", "v5.channel.k8s.io", "v4.channel.k8s.io"]
    ours = ["v4.channel.k8s.io", "v5.channel.k8s.io"]
    assert websocket.choose(theirs, ours) == "v5.channel.k8s.io"
    assert websocket.choose(["x"], ours) is None


@BUSY
@given(
    messages=st.lists(st.binary(max_size=70_000), max_size=4),
    places=st.lists(st.integers(0, 10**6), max_size=6),
)
def test_messages_arrive_whole_in_any_pieces(messages, places):
    for client in (True, False):
        sender, receiver = WebSocket(client=client), WebSocket(client=not client)
        wire = b"".join(map(sender.send, messages)) + sender.close()
        at = sorted({place % (len(wire) + 1) for place in places} | {0, len(wire)})
        got = [e for a, b in itertools.pairwise(at) for e in receiver.receive(wire[a:b])]
        assert got == [*map(Message, messages), Closed(1000)]
        assert list(sender.receive(receiver.take_answers())) == [Closed(1000)]
        assert sender.send(b"x") == receiver.send(b"x") == b"", "nothing after the end"


def test_pings_are_answered():
    server = WebSocket()
    ping = bytes([0x89, 0x82, 0, 0, 0, 0]) + b"hi"
    assert list(server.receive(ping)) == []
    assert server.take_answers() == b"\x8a\x02hi"


def test_too_large_a_message_ends_it(monkeypatch):
    monkeypatch.setattr(websocket, "LARGEST_MESSAGE", 10)
    client, server = WebSocket(client=True), WebSocket()
    assert list(server.receive(client.send(b"x" * 11))) == [Closed(1009)]
    assert list(client.receive(server.take_answers())) == [Closed(1009)]


def test_what_is_no_websocket_ends_it():
    server = WebSocket()
    assert list(server.receive(b"\xff" * 20)) == [Closed(1002)]


def test_text_is_text():
    client, server = WebSocket(client=True), WebSocket()
    assert list(server.receive(client.send(b"0YQ==", text=True))) == [Message(b"0YQ==", text=True)]
