"""
The page that a browser gets while a service wakes: it waits with one held request, then loads the
real page. Without scripts it asks again every few seconds.
"""

from __future__ import annotations

import html

WAITING_HEADER = b"bidplane-wait"  # of the page's own request, which is held like any other

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{host} is waking</title><noscript><meta http-equiv="refresh" content="5"></noscript>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto;padding:0 1rem}}
progress{{width:100%}}small{{color:#666}}</style></head>
<body><h1>Waking up</h1><p><b>{host}</b> was asleep. It has been asked to start.</p>
<progress id="p" max="{expected}" value="{waited}"></progress>
<p id="s">{state}</p>
<p><small>Usually about {expected} seconds.
This page loads the service as soon as it answers.</small></p>
<script>
const begin = Date.now() - {waited} * 1000, bar = document.getElementById("p");
setInterval(() => {{ bar.value = (Date.now() - begin) / 1000; }}, 500);
async function wait() {{
  try {{
    const headers = {{"Bidplane-Wait": "1"}};
    const answer = await fetch(location.href, {{headers, cache: "no-store"}});
    if (answer.headers.get("Bidplane-State") === null) {{ location.reload(); return; }}
    document.getElementById("s").textContent = await answer.text();
  }} catch (error) {{ }}
  setTimeout(wait, 3000);
}}
wait();
</script></body></html>
"""


def page(host: str, state: str, *, expected: int, waited: int) -> str:
    """Return the page; `expected` and `waited` are seconds."""
    return _PAGE.format(
        host=html.escape(host),
        state=html.escape(state or "Waiting for a GPU and a pod."),
        expected=max(1, expected),
        waited=max(0, waited),
    )


def is_navigation(accept: bytes, mode: bytes, waiting: bytes) -> bool:
    """Tell if a request is a person opening a page, by its Accept and Sec-Fetch-Mode headers."""
    if waiting or (mode and mode != b"navigate"):
        return False
    return accept.lower().startswith(b"text/html")
