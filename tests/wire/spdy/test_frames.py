"""SPDY frames: what is written is read, in any pieces; what is not SPDY is refused."""

import contextlib
import itertools
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bidplane.wire.streams.spdy import frames
from bidplane.wire.streams.spdy.dictionary import DICTIONARY
from bidplane.wire.streams.spdy.frames import Decoder, Encoder, SpdyError

# A busy machine is not a fault.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
STREAMS = st.integers(1, 2**31 - 1)
WORDS = st.integers(0, 2**31 - 1)
# Go's header names are ASCII; what else comes is kept as it can be read.
NAMES = st.text(st.characters(codec="ascii", categories=["Ll", "Nd"]), min_size=1, max_size=20)
HEADERS = st.dictionaries(NAMES, st.text(max_size=50), max_size=5)
FRAMES = st.one_of(
    st.builds(frames.SynStream, STREAMS, HEADERS, st.booleans(), st.booleans()),
    st.builds(frames.SynReply, STREAMS, HEADERS, st.booleans()),
    st.builds(frames.Headers, STREAMS, HEADERS, st.booleans()),
    st.builds(frames.Data, STREAMS, st.binary(max_size=300), st.booleans()),
    st.builds(frames.RstStream, STREAMS, WORDS),
    st.builds(frames.Ping, WORDS),
    st.builds(frames.GoAway, WORDS, WORDS),
    st.builds(frames.WindowUpdate, WORDS, WORDS),
    st.builds(frames.Settings, st.binary(max_size=40)),
)


def joined(found):
    """Pieces of one data frame are one again: only the last may carry the end."""
    whole = []
    for frame in found:
        before = whole[-1] if whole else None
        if isinstance(frame, frames.Data) and isinstance(before, _Open):
            before.data += frame.data
        elif isinstance(frame, frames.Data):
            whole.append(_Open(frame.stream, frame.data))
        else:
            whole.append(frame)
            continue
        whole[-1].fin = frame.fin
    return whole


class _Open:
    def __init__(self, stream, data):
        self.stream, self.data, self.fin = stream, data, False


def cut(data, places):
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@BUSY
@given(frame=FRAMES, places=st.lists(st.integers(0, 10_000), max_size=8), times=st.integers(1, 3))
def test_a_frame_is_read_back_in_any_pieces(frame, places, times):
    encoder, decoder = Encoder(), Decoder()
    for _ in range(times):  # headers lean on those before them
        wire = encoder.encode(frame)
        found = joined([f for piece in cut(wire, places) for f in decoder.feed(piece)])
        (only,) = found
        if isinstance(frame, frames.Data):
            assert (only.stream, only.data, only.fin) == (frame.stream, frame.data, frame.fin)
        else:
            assert only == frame


@BUSY
@given(st.lists(FRAMES, max_size=6))
def test_frames_in_a_row_keep_their_order(sent):
    encoder, decoder = Encoder(), Decoder()
    wire = b"".join(map(encoder.encode, sent))
    assert list(decoder.feed(wire)) == sent


@BUSY
@given(st.binary(max_size=200))
def test_noise_is_refused_or_waited_on(noise):
    with contextlib.suppress(SpdyError):
        for frame in Decoder().feed(noise):
            assert isinstance(frame, frames.Frame)


def test_the_dictionary_is_the_drafts():
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_large_data_frame_is_handed_on_in_pieces():
    """Nothing waits for 16 MiB: what came is passed on."""
    decoder = Decoder()
    head = (5).to_bytes(4, "big") + (1 << 24 | frames.LARGEST_DATA).to_bytes(4, "big")
    assert list(decoder.feed(head)) == []
    assert list(decoder.feed(b"x" * 1000)) == [frames.Data(5, b"x" * 1000, False)]
    rest = b"y" * (frames.LARGEST_DATA - 1000)
    assert list(decoder.feed(rest)) == [frames.Data(5, rest, True)]


def control(kind, body, *, version=3, flags=0):
    head = ((0x8000 | version) << 16 | kind).to_bytes(4, "big")
    return head + (flags << 24 | len(body)).to_bytes(4, "big") + body


def block(raw):
    pack = zlib.compressobj(zdict=DICTIONARY)
    return pack.compress(raw) + pack.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (control(6, b"\0\0\0\1", version=2), "version 2"),
        (control(5, b""), "type 5"),
        (control(6, b"\0"), "ends too early"),
        (control(3, bytes(8)), "stream 0"),
        (bytes(8), "stream 0"),
        (control(1, b"\0\0\0\1" + bytes(6) + b"not zlib"), "cannot be unpacked"),
        (control(2, b"\0\0\0\1" + block(b"\0\0\0\1\0\0\0\7ab")), "end too early"),
        (control(2, b"\0\0\0\1" + block(b"\0\0\0\2\0\0\0\1a\0\0\0\1b")), "ends too early"),
        (control(2, b"\0\0\0\1" + block(bytes(1 << 20))), "bytes of headers"),
        (control(2, b"x" * (65 << 10)), "control frame of"),
    ],
)
def test_what_is_not_spdy_says_why(wire, words):
    with pytest.raises(SpdyError, match=words):
        list(Decoder().feed(wire))
