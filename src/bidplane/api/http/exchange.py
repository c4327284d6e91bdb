"""
The answers of the exchange over HTTP (`/exchange/v1/…`). Amounts and prices are text, as
people write them: credits, and credits per GPU-hour.

    GET  prices                        Prices            anybody with a token
    GET  rounds?after=N&follow=true    Round per line    an agent sees its own outcomes
    GET  rounds/N                      RoundRecord       owners: input and result as saved
    GET  bids/UID/explain              Explanation       the agent itself, owners
    GET  wallets/NAME                  Wallet            the agent itself, owners
    GET  wallets/NAME/statement        Statement         the agent itself, owners
    POST wallets/NAME/fund             FundRequest → Wallet     owners
    POST wallets/NAME/transfer         TransferRequest → Wallet   the agent itself, owners
    POST orders                        OrderRequest → Order     the agent itself
    GET  prices/POOL/history           PriceHistory      anybody with a token
    GET  leases                        Leases            an agent sees its own
    GET  healthz                       "ok"              anybody
"""

from __future__ import annotations

import msgspec

from bidplane.api.lease import DeviceRef
from bidplane.api.pool import CHAIN


class PoolPrice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pool: str  # of a pool with several lots, POOL/LOT
    price: str  # what one more GPU would have cost in the last round
    base: str  # the least a new bid must offer
    devices: int
    leased: int
    list_price: str = ""  # a bid that names no price offers its agent's priority times this
    instant: str = ""  # what one GPU costs without waiting for a round; "" when none is kept
    # By class ("8", "1", "0.5", "1g.10gb"): what one more would have cost, per GPU-hour. A class
    # that is not there could not be had at any price.
    classes: dict[str, str] = {}
    stay: str = ""  # the most that a running lease pays to stay
    chain: tuple[int, ...] = CHAIN  # the sizes its GPUs are sold in, each block in one link domain
    next_low: str = ""  # between these the base price will be a minute from now
    next_high: str = ""
    withheld: str = ""  # what of it nobody new gets now, and why


class Prices(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pools: list[PoolPrice]
    round: int


class BidOutcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a round for one bid, or for one running lease."""

    agent: str
    event: str  # Won | Lost | Displaced | Moved
    message: str
    pool: str = ""
    bid: str = ""  # its uid
    lease: str = ""
    gpus: int = 0
    share: str = ""  # the part of a GPU, if it is one; `gpus` says how many
    offer: str = ""  # the most it would pay
    price: str = ""  # what it pays, if it won
    price_to_win: str = ""
    compensation: str = ""


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    number: int
    at: str
    pools: list[PoolPrice]
    outcomes: list[BidOutcome]
    bids: int  # how many took part, everybody's


class RoundRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    A round as it was saved: `core.market.RoundInput` and `RoundResult` in JSON, to the
    byte. Clearing the input again gives the result again.
    """

    number: int
    at: str
    input: msgspec.Raw
    result: msgspec.Raw


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reason that a bid won or lost the last recorded round it took part in."""

    bid: str  # its uid
    agent: str
    event: str  # Won | Lost
    reason: str  # a BidReason
    message: str  # one sentence
    round: int
    at: str
    pool: str = ""
    gpus_asked: int = 0
    gpus_sold: int = 0  # the block it was, or would have been, sold
    share: str = ""  # or the part of a GPU
    offer: str = ""  # credits per GPU-hour
    price: str = ""  # what it won at
    price_to_win: str = ""  # "" when it won, and when no price would have won
    cost_per_hour: str = ""  # of the whole block, at the price it won at or would have won at
    lease: str = ""


class Wallet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent: str
    balance: str
    held: str  # of the balance, promised to what runs and what was won
    available: str
    accruing: str  # used since the last bill; will be paid from what is held
    state: str  # Open | Closed
    refill: str = "0"  # credits granted each hour, priority included
    default_refill: bool = False  # its share of the list price of all GPUs, as its Agent names none
    carry_over: str = "0"  # the balance at which refills stop


class StatementLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at: str
    kind: str
    text: str
    amount: str  # negative: it left the wallet
    balance: str
    lease: str = ""


class StatementView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    agent: str
    lines: list[StatementLine]
    balance: str
    held: str
    accruing: str
    earlier: int = 0  # lines that are older than these; ?limit= asks for more


class FundRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    amount: str
    key: str  # the caller's: asking twice with one key funds once
    memo: str = ""


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    to: str  # the agent that gets it
    amount: str
    key: str  # the caller's: asking twice with one key moves once
    memo: str = ""


class OrderRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """
    One GPU, or one part of one, now or not at all, at the pool's instant price if that is no
    more than offered.
    """

    pool: str
    max_price: str
    key: str  # the caller's: asking twice with one buys once
    share: str = ""  # "0.3", or a MIG profile, where the pool sells parts


class Order(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    lease: str
    bid: str  # what a pod says in `bidplane.dev/bid` to run on it
    pool: str
    price: str  # credits per GPU-hour; in the first epoch it may only fall
    max_price: str
    node: str
    device: str
    held: str
    share: str = ""


class PriceAt(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    at: str
    round: int
    price: str
    base: str
    devices: int
    leased: int


class PriceHistory(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pool's prices in the rounds that changed something, the oldest first."""

    pool: str
    prices: list[PriceAt]


class LeaseView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    agent: str
    pool: str
    node: str
    devices: list[DeviceRef]
    phase: str
    ready: bool
    price: str
    max_price: str
    charged: str
    accruing: str
    won_at: str
    active_at: str = ""
    reclaim_at: str = ""
    idle_since: str = ""
    message: str = ""  # that it is idle, or breached, and what that means


class Leases(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    leases: list[LeaseView]
