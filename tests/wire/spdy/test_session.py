"""Streams from both ends: any conversation arrives whole, in order, and is forgotten after."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bidplane.wire.streams.spdy import frames, session
from bidplane.wire.streams.spdy.session import (
    Code,
    Ended,
    Opened,
    Received,
    Replied,
    Session,
    WasReset,
)


class End:
    """One end, and a simple model of what it should have heard."""

    def __init__(self, *, client):
        self.session = Session(client=client)
        self.sent = bytearray()
        self.heard, self.ended, self.opened, self.reset = {}, set(), {}, set()

    def hear(self, data):
        for event in self.session.receive(data):
            match event:
                case Opened():
                    self.opened[event.stream] = event.headers
                    self.sent += self.session.reply(event.stream)
                case Received():
                    assert event.stream not in self.ended
                    self.heard[event.stream] = self.heard.get(event.stream, b"") + event.data
                case Ended():
                    assert event.stream not in self.ended
                    self.ended.add(event.stream)
                case WasReset():
                    self.reset.add(event.stream)
        self.sent += self.session.take_answers()


class Conversation(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.ends = End(client=True), End(client=False)
        self.said = [{}, {}]  # by each end, by stream
        self.finished = [set(), set()]
        self.reset = set()

    def streams(self):
        return [s for s in self.said[0] | self.said[1] if s not in self.reset]

    @rule(who=st.integers(0, 1), headers=st.dictionaries(st.just("port"), st.text(max_size=9)))
    def open(self, who, headers):
        end = self.ends[who]
        stream, wire = end.session.open(headers)
        end.sent += wire
        self.said[who][stream] = self.said[1 - who][stream] = b""
        self.deliver(who, 10**9)
        assert self.ends[1 - who].opened[stream] == headers

    @precondition(lambda self: self.streams())
    @rule(
        who=st.integers(0, 1),
        which=st.integers(0, 99),
        data=st.binary(max_size=40) | st.just(b"z" * 70_000),
        fin=st.booleans(),
    )
    def say(self, who, which, data, fin):
        streams = self.streams()
        stream = streams[which % len(streams)]
        wire = self.ends[who].session.send(stream, data, fin=fin)
        if stream in self.finished[who]:
            assert wire == b"", "nothing is said after the end"
            return
        self.ends[who].sent += wire
        self.said[who][stream] += data
        if fin:
            self.finished[who].add(stream)

    @precondition(lambda self: self.streams())
    @rule(who=st.integers(0, 1), which=st.integers(0, 99))
    def give_up(self, who, which):
        self.settle()
        streams = self.streams()
        stream = streams[which % len(streams)]
        over = stream in self.finished[0] and stream in self.finished[1]
        wire = self.ends[who].session.reset(stream)
        assert bool(wire) != over, "a stream that is over cannot be reset"
        self.ends[who].sent += wire
        self.reset.add(stream)
        self.settle()
        assert (stream in self.ends[1 - who].reset) != over

    @rule(who=st.integers(0, 1), size=st.integers(0, 30_000))
    def deliver(self, who, size):
        end = self.ends[who]
        wire = bytes(end.sent[:size])
        del end.sent[:size]
        self.ends[1 - who].hear(wire)

    def settle(self):
        for _ in range(2):  # an answer may follow
            for who in (0, 1):
                self.deliver(who, 10**9)

    @invariant()
    def nothing_is_heard_that_was_not_said(self):
        for who in (0, 1):
            for stream, heard in self.ends[1 - who].heard.items():
                assert self.said[who][stream].startswith(heard)

    def teardown(self):
        if not hasattr(self, "ends"):
            return
        self.settle()
        for who in (0, 1):
            other = self.ends[1 - who]
            for stream in self.streams():
                assert other.heard.get(stream, b"") == self.said[who][stream]
                assert (stream in other.ended) == (stream in self.finished[who])
        live = [s for s in self.streams() if not all(s in done for done in self.finished)]
        for end in self.ends:
            assert f" {len(live)} streams" in repr(end.session), "what is over is forgotten"


TestConversation = Conversation.TestCase
TestConversation.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def frames_of(wire):
    return list(frames.Decoder().feed(wire))


def server():
    return Session(client=False), frames.Encoder()


def test_pings_of_the_peer_come_back_and_our_own_do_not():
    end, peer = server()
    assert list(end.receive(peer.encode(frames.Ping(3)) + peer.encode(frames.Ping(2)))) == []
    assert frames_of(end.take_answers()) == [frames.Ping(3)]
    assert end.take_answers() == b""


@pytest.mark.parametrize("streams", [[2], [5, 3], [5, 5]])
def test_a_stream_number_that_is_not_the_peers_to_take(streams):
    end, peer = server()
    wire = b"".join(peer.encode(frames.SynStream(s, {})) for s in streams)
    opened = [event.stream for event in end.receive(wire)]
    assert opened == streams[:-1]
    (refused,) = frames_of(end.take_answers())
    assert refused == frames.RstStream(streams[-1], Code.PROTOCOL_ERROR)


def test_too_many_streams_are_refused(monkeypatch):
    monkeypatch.setattr(session, "MOST_STREAMS", 2)
    end, peer = server()
    wire = b"".join(peer.encode(frames.SynStream(s, {})) for s in (1, 3, 5))
    assert len(list(end.receive(wire))) == 2
    assert frames_of(end.take_answers()) == [frames.RstStream(5, Code.REFUSED_STREAM)]


def test_windows_neither_open_nor_close_anything():
    """Kubernetes' clients never widen a window; nobody may wait for it."""
    end, peer = server()
    assert list(end.receive(peer.encode(frames.SynStream(1, {})))) == [Opened(1, {})]
    assert list(end.receive(peer.encode(frames.WindowUpdate(1, 10)))) == []
    assert list(end.receive(peer.encode(frames.Settings(bytes(12))))) == []
    assert len(end.send(1, b"x" * (1 << 20))) > 1 << 20


def test_a_stream_that_ends_where_it_begins():
    end, peer = server()
    got = list(end.receive(peer.encode(frames.SynStream(1, {"a": "b"}, fin=True))))
    assert got == [Opened(1, {"a": "b"}), Ended(1)]


def test_data_after_a_reset_is_dropped():
    end, peer = server()
    list(end.receive(peer.encode(frames.SynStream(1, {}))))
    assert frames_of(end.reset(1)) == [frames.RstStream(1, Code.CANCEL)]
    assert list(end.receive(peer.encode(frames.Data(1, b"late")))) == []
    assert end.send(1, b"x") == end.reset(1) == end.reply(1) == b""


def test_a_reply_is_heard_once():
    end = Session(client=True)
    stream, _ = end.open({})
    peer = frames.Encoder()
    reply = peer.encode(frames.SynReply(stream))
    assert list(end.receive(reply)) == [Replied(stream)]
    assert list(end.receive(peer.encode(frames.SynReply(stream)))) == []


@given(st.integers(0, 3))
def test_going_away_names_the_last_stream(count):
    end, peer = server()
    for at in range(count):
        list(end.receive(peer.encode(frames.SynStream(2 * at + 1, {}))))
    assert frames_of(end.go_away()) == [frames.GoAway(max(2 * count - 1, 0))]
    assert list(end.receive(peer.encode(frames.GoAway(0)))) == [session.WentAway()]
