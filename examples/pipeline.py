"""Crawl a made-up web: async actors fetch, a streaming generator hands pages on.

The "web" is a set of pages that link to each other, held by an async actor which
answers many requests at once, each after a little latency. A crawler actor follows the
links breadth first and yields pages while it goes on; tasks index them as they come.
The index is compared with a plain walk over the same pages.

    python examples/pipeline.py --pages 400
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

import rayshim as ray

WORDS = "tree river stone cloud light field winter paper silver garden".split()


@dataclass(frozen=True)
class Page:
    url: str
    text: str
    links: tuple[str, ...]


def make_page(number: int, pages: int) -> Page:
    """Page `number`, a function of its number; every eighth page is never linked."""
    targets = [number * 2 + 1, number * 2 + 2, number * 7 % pages]
    links = tuple(f"/{t}" for t in targets if t < pages and t % 8 != 7)
    text = " ".join(WORDS[(number * k) % len(WORDS)] for k in range(1, 40))
    return Page(f"/{number}", text, links)


@ray.remote(num_cpus=0, max_concurrency=64)
class Web:
    """Serves pages slowly, many at a time."""

    def __init__(self, pages: int, latency_s: float) -> None:
        self.pages, self.latency_s = pages, latency_s
        self.open, self.most_open = 0, 0

    async def fetch(self, url: str) -> Page:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(self.latency_s)
        self.open -= 1
        return make_page(int(url[1:]), self.pages)

    async def most_at_once(self) -> int:
        return self.most_open


@ray.remote(num_cpus=0)
class Crawler:
    """Follows links; yields every page that it reaches, once."""

    def __init__(self, web) -> None:
        self.web = web

    async def crawl(self, start: str, *, at_once: int) -> AsyncIterator[Page]:
        seen, waiting, fetching = {start}, deque([start]), set()
        while waiting or fetching:
            while waiting and len(fetching) < at_once:
                fetching.add(asyncio.ensure_future(self.fetch(waiting.popleft())))
            done, fetching = await asyncio.wait(
                fetching, return_when=asyncio.FIRST_COMPLETED
            )
            for page in [task.result() for task in done]:
                fresh = [link for link in page.links if link not in seen]
                seen.update(fresh)
                waiting.extend(dict.fromkeys(fresh))
                yield page

    async def fetch(self, url: str) -> Page:
        return await self.web.fetch.remote(url)


@ray.remote
def index_page(page: Page) -> tuple[str, Counter[str]]:
    return page.url, Counter(page.text.split())


def walk_plainly(pages: int) -> dict[str, Counter[str]]:
    index: dict[str, Counter[str]] = {}
    waiting = ["/0"]
    while waiting:
        url = waiting.pop()
        if url not in index:
            page = make_page(int(url[1:]), pages)
            index[url] = Counter(page.text.split())
            waiting.extend(page.links)
    return index


async def crawl_and_index(pages: int, latency_s: float) -> dict[str, Counter[str]]:
    web = Web.remote(pages, latency_s)
    crawler = Crawler.remote(web)
    stream = crawler.crawl.options(num_returns="streaming").remote("/0", at_once=32)
    # The reference of each page goes straight to a task; the driver never reads it.
    indexed = [index_page.remote(page_ref) async for page_ref in stream]
    index = dict(await asyncio.gather(*indexed))
    print(f"up to {await web.most_at_once.remote()} requests at once")
    return index


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=400, help="size of the web")
    parser.add_argument("--latency-s", type=float, default=0.02, help="of one request")
    options = parser.parse_args()

    ray.init()
    start = time.perf_counter()
    index = asyncio.run(crawl_and_index(options.pages, options.latency_s))
    elapsed_s = time.perf_counter() - start

    total = sum(index.values(), Counter())
    print(f"{len(index)} of {options.pages} pages reached in {elapsed_s:.2f} s")
    print("most frequent:", ", ".join(f"{w} {n:,}" for w, n in total.most_common(3)))
    if index != walk_plainly(options.pages):
        print("MISMATCH: a plain walk finds other pages or words", file=sys.stderr)
        return 1
    print("OK")
    return 0


if __name__ == "__main__":
    sys.exit(main())
