"""A call that the model asked for carries a proof which the agent cannot make, alter or use twice.

The broker mints one proof for each tool call of a completion that it relays: HMAC-SHA256 over
{run, call id, tool, sha256 of the arguments, expiry} under a key that is the run's own and never
leaves the host. It travels as the call's id, so an agent that sends ids back proves its calls
without knowing that proofs exist; `X-Palio-Nonce` (or `X-Tool-Nonce`) may carry it as well.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from palio.broker.ledger import Emitted, argument_key
from palio.records import FunctionCall, NonceStatus, Record, ToolCall

PREFIX = "call_"
_TOKEN = re.compile(r"call_([0-9]{1,9})-([0-9]{1,9})-([A-Za-z0-9_-]{43})\Z")
_SHAPED = re.compile(r"call_[0-9]*-[0-9]*-")
NONCES_FIELD = "palio_nonces"
"""Beside `choices`: proofs of calls written as text, which have no id that could carry one."""


class NoncePolicy(Record, frozen=True, omit_defaults=False):
    """What is done with proofs.

    Attributes:
        mode: "observe" records each call's status; "strict" also refuses a call without a valid
            proof, as an observation; "off" mints none.
        ttl_s: seconds from the completion's arrival in which a proof is good.
        arguments: what is bound: "canonical" arguments (aliases resolved, defaults dropped), which
            an agent may parse and write again, or the very "bytes" that the model wrote.
    """

    mode: Literal["off", "observe", "strict"] = "observe"
    ttl_s: float = 60.0
    arguments: Literal["canonical", "bytes"] = "canonical"


class Minted(NamedTuple):
    """One proof on the host's side."""

    call_id: str
    expiry_ms: int
    token: str
    call: FunctionCall


class Proof(NamedTuple):
    """What a dispatch proves, and of which emitted call it is the proof."""

    status: NonceStatus
    place: Emitted | None = None


class Mint:
    """Proofs of one run; its owner holds the lock.

    Args:
        policy: see there.
        run: the run's id, bound into every proof.
        key: 32 secret bytes; None: fresh random ones. Only a replay gives a recorded key.
        expiries: recorded expiry times by place, for a replay; times that are not there are made.
    """

    def __init__(
        self,
        policy: NoncePolicy,
        run: str,
        key: bytes | None = None,
        expiries: Mapping[Emitted, int] | None = None,
    ) -> None:
        self.policy = policy
        self.key = key or secrets.token_bytes(32)
        self._run = run
        self._expiries = expiries or {}
        self._minted: dict[Emitted, Minted] = {}
        self._used: set[Emitted] = set()
        self._theirs: dict[str, str] = {}

    def mint(self, seq: int, calls: Sequence[ToolCall], now_s: float) -> tuple[Minted, ...]:
        """Proofs of the calls that the completion of event `seq` asked for."""
        if self.policy.mode == "off":
            return ()
        expiry = round((now_s + self.policy.ttl_s) * 1000)
        made = []
        for position, call in enumerate(calls):
            place = Emitted(seq, position)
            until = self._expiries.get(place, expiry)
            function = call.function
            mac = self._mac(place, call.id, function.name, function.arguments, until)
            minted = Minted(call.id, until, f"{PREFIX}{seq}-{position}-{mac}", function)
            self._minted[place] = minted
            self._theirs[minted.token] = call.id
            made.append(minted)
        return tuple(made)

    def check(self, tool: str, arguments: str, token: str, call_id: str, now_s: float) -> Proof:
        """Check and use up the proof of a dispatch.

        Args:
            tool: the tool that is called.
            arguments: argument JSON as received.
            token: what the nonce header holds, "" when there is none; the call id may be a proof.
            call_id: the id that the dispatch names.
            now_s: seconds of the run.
        """
        if self.policy.mode == "off":
            return Proof("")
        given = token or (call_id if _SHAPED.match(call_id) else "")
        if not given:
            return Proof("missing")
        parts = _TOKEN.match(given)
        if parts is None:
            return Proof("malformed")
        place = Emitted(int(parts[1]), int(parts[2]))
        minted = self._minted.get(place)
        # The same work for a place that never was: what is wrong cannot be told by the time.
        known = minted or Minted("", 0, "", FunctionCall(name="", arguments=""))
        mac = self._mac(place, known.call_id, tool, arguments, known.expiry_ms)
        same = hmac.compare_digest(mac.encode(), parts[3].encode())
        # A call written as text has no id of the model's; what the harness calls it is its own.
        named = not known.call_id or call_id in ("", given, known.call_id)
        if minted is None or not same or not named:
            return Proof("mismatch")
        if place in self._used:
            return Proof("replayed", place)
        if now_s * 1000 > minted.expiry_ms:
            return Proof("expired", place)
        self._used.add(place)
        return Proof("valid", place)

    def own_id(self, call_id: Any) -> Any:
        """The model's own id for one that the agent was shown; any other value unchanged."""
        return self._theirs.get(call_id, call_id) if isinstance(call_id, str) else call_id

    def _mac(self, place: Emitted, call_id: str, tool: str, arguments: str, until: int) -> str:
        exact = self.policy.arguments == "bytes"
        bound = arguments if exact else argument_key(tool, arguments)
        facts = [
            self._run,
            f"{place.seq}-{place.position}",
            call_id,
            tool,
            hashlib.sha256(bound.encode("utf-8", "surrogatepass")).hexdigest(),
            until,
        ]
        # A JSON list, because fields that are only joined can be shifted into each other.
        text = json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()
        mac = hmac.new(self.key, text, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(mac).decode("ascii").rstrip("=")


def veiled(response: dict[str, Any], minted: Sequence[Minted]) -> dict[str, Any]:
    """A response whose tool calls carry their proofs as ids.

    Calls that were written as text keep their text; their proofs stand in `palio_nonces`.
    """
    if not minted:
        return response
    choice, *others = response["choices"]
    calls = choice["message"].get("tool_calls") or ()
    if len(calls) != len(minted):
        listed = [
            {"name": each.call.name, "arguments": each.call.arguments, "nonce": each.token}
            for each in minted
        ]
        return {**response, NONCES_FIELD: listed}
    shown = [{**call, "id": each.token} for call, each in zip(calls, minted, strict=True)]
    message = {**choice["message"], "tool_calls": shown}
    return {**response, "choices": [{**choice, "message": message}, *others]}


def unveiled(messages: Any, own_id: Callable[[Any], Any]) -> Any:
    """The messages of a request with the model's own ids, as the model server knows them."""
    if not isinstance(messages, list | tuple):
        return messages
    return [_unveiled(message, own_id) for message in messages]


def _unveiled(message: Any, own_id: Callable[[Any], Any]) -> Any:
    if not isinstance(message, Mapping):
        return message
    changed = dict(message)
    if "tool_call_id" in changed:
        changed["tool_call_id"] = own_id(changed["tool_call_id"])
    calls = changed.get("tool_calls")
    if isinstance(calls, list | tuple):
        changed["tool_calls"] = [
            {**call, "id": own_id(call["id"])}
            if isinstance(call, Mapping) and "id" in call
            else call
            for call in calls
        ]
    return changed
