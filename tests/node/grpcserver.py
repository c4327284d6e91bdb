"""
A gRPC health server, as small as can be: imported by tests, and run in a pod by itself.

    grpcserver.py      on $POD_IP, port 8080
"""

import asyncio
import os

import h2.config
import h2.connection
import h2.events

SICK = "sick"
WORDS = {
    "": b"\0\0\0\0\x02\x08\x01",  # SERVING
    SICK: b"\0\0\0\0\x02\x08\x02",
    "long" * 50: b"\0\0\0\0\x02\x08\x01",
    "unknown": b"\0\0\0\0\0",  # its zero is left out
}
GOOD = [(":status", "200"), ("content-type", "application/grpc")]


async def serve(reader, writer):
    """One client of a health server, for as long as it stays."""
    link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    link.initiate_connection()
    asked = {}
    while True:
        writer.write(link.data_to_send())
        data = await reader.read(65536)
        if not data:
            writer.close()
            return
        for event in link.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                asked[event.stream_id] = b""
                path = dict(event.headers)[b":path"]
                assert path == b"/grpc.health.v1.Health/Check", path
            elif isinstance(event, h2.events.DataReceived):
                asked[event.stream_id] += event.data
            elif isinstance(event, h2.events.StreamEnded):
                answer(link, event.stream_id, asked.pop(event.stream_id))


def answer(link, stream, request):
    start = 7 if request[6:7] < b"\x80" else 8  # of the name: a length of one byte, or of two
    service = request[start:].decode()
    if service == "none":
        link.send_headers(stream, [*GOOD, ("grpc-status", "12")], end_stream=True)
    elif service == "refused":
        said = [("grpc-status", "7"), ("grpc-message", "not for you")]
        link.send_headers(stream, [*GOOD, *said], end_stream=True)
    elif service == "empty":
        link.send_headers(stream, GOOD)
        link.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    elif service != "hangs":
        link.send_headers(stream, GOOD)
        link.send_data(stream, WORDS[service])
        link.send_headers(stream, [("grpc-status", "0")], end_stream=True)


async def main():
    server = await asyncio.start_server(serve, os.environ["POD_IP"], 8080)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
