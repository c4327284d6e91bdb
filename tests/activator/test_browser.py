"""Chromium opens a service that sleeps: it sees the waiting page, then the service's own."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from .conftest import Service

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_the_waiting_page_loads_the_real_one(play, tmp_path):
    body = b"<html><body>awake</body></html>"
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b"

    def navigations(service: Service) -> list[bytes]:
        return [head for head in service.requests if b"Sec-Fetch-Mode: navigate" in head]

    async def story(service):
        service.answers = lambda head: page % (len(body), body)
        await service.endpoint()
        browser = await asyncio.create_subprocess_exec(
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",  # else it ends once the first page is loaded
            f"--user-data-dir={tmp_path / 'browser'}",
            f"http://llm.alice.localhost:{service.url[1]}/",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            number = await service.demanded(awake=True)
            while not len(service.live().holds):  # the page's own request
                await asyncio.sleep(0.01)
            assert not service.requests
            await service.start_pod()
            await service.ready(number)
            while not navigations(service):
                await asyncio.sleep(0.01)
        finally:
            browser.terminate()
            await browser.wait()
        assert any(b"Bidplane-Wait: 1" in head for head in service.requests)
        assert len(navigations(service)) == 1, "the first one got the waiting page"

    play(story)
