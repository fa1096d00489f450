"""An episode plays a script in a world and keeps what happened as a trajectory of record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
from scenes import Scene, voucher_arguments

from palio.broker.conversation import build_messages
from palio.records import (
    AgentRef,
    DispatchEvent,
    Ending,
    Event,
    FunctionCall,
    InferenceEvent,
    Message,
    ToolCall,
    Trajectory,
    Usage,
    bytes_digest,
)
from palio.world.tools import Toolbox, ToolReply, tool_message

Tamper = Callable[[Any], Any]
AGENTS = (
    "atlas", "basil", "corvo", "delfin", "errand", "fennec", "gable", "hazel", "indigo", "jackdaw",
    "kestrel", "lumen",
)  # fmt: skip
SYSTEM = "You shop for a customer. Use the tools, think before each call, and end with terminate."


class Episode:
    """One run in the making; calls are executed for real, then tampered with where asked."""

    def __init__(
        self, scene: Scene, rng: random.Random, *, channel: str, tamper: Tamper | None = None
    ) -> None:
        self.scene, self.rng, self.channel, self.tamper = scene, rng, channel, tamper
        self.agent = rng.choice(AGENTS)
        self.toolbox = Toolbox(scene.world)
        self.events: list[Event] = []
        self.history: list[Message] = []
        self.waiting: list[Message] = []
        self.answer: str | None = None
        self.terminated = False
        self.page = self.detail = "[]"
        self._clock = 0.0

    def open(self) -> None:
        """Put the request before the model."""
        if self.scene.rows == "full" and self.rng.random() < 0.5:
            self.waiting.append(Message(role="system", content=SYSTEM))
        self.waiting.append(Message(role="user", content=self.scene.problem.query))

    def think(self, text: str, calls: list[tuple[str, str]]) -> None:
        """One completion with its text and calls, and what the tools answer."""
        made = tuple(
            ToolCall(
                id=f"call_{len(self.events)}_{place}",
                function=FunctionCall(name=name, arguments=arguments),
            )
            for place, (name, arguments) in enumerate(calls)
        )
        seq = self._infer(self._completion(text, made))
        for call in made:
            reply = self.dispatch(call.function.name, call.function.arguments, call.id, seq)
            self.waiting.append(
                Message(role="tool", content=tool_message(reply), tool_call_id=call.id)
            )

    def say(self, text: str) -> None:
        """The harness adds a user message to the same conversation."""
        self.waiting.append(Message(role="user", content=text))

    def ask(self, prompt: str, text: str) -> None:
        """The harness opens a new conversation, with its own prompt, for one completion."""
        self.history, self.waiting = [], [Message(role="user", content=prompt)]
        self._infer(self._completion(text, ()))

    def _completion(self, text: str, calls: tuple[ToolCall, ...]) -> Message:
        if self.channel == "reasoning" and text:
            return Message(role="assistant", reasoning_content=text, tool_calls=calls)
        if self.channel == "tags" and text:
            text = f"<think>{text}</think>"
        return Message(role="assistant", content=text, tool_calls=calls)

    def _infer(self, completion: Message) -> int:
        event = InferenceEvent(
            seq=len(self.events),
            at_ms=self._tick(),
            duration_ms=200.0,
            prefix=len(self.history),
            request=tuple(self.waiting),
            completion=completion,
            params={"model": "default", "temperature": 0.0},
            finish_reason="tool_calls" if completion.tool_calls else "stop",
            usage=self._usage(completion),
        )
        self.events.append(event)
        self.history += [*self.waiting, completion]
        self.waiting = []
        return event.seq

    def _usage(self, completion: Message) -> Usage:
        """What the server claims: nothing, about right, far too few, or far too many."""
        size = completion_bytes(completion)
        claims = (None, max(1, size // 4), max(1, size // 9), 60 + 3 * size)
        claim = self.rng.choice(claims)
        return Usage(prompt_tokens=None if claim is None else 300, completion_tokens=claim)

    def dispatch(
        self, tool: str, arguments: str, call_id: str = "", emitted_by: int | None = None
    ) -> ToolReply:
        """Carry out one call and record it."""
        reply = self.toolbox.call(tool, arguments)
        if self.tamper is not None and not reply.error:
            data = self.tamper(msgspec.json.decode(reply.result))
            reply = ToolReply(result=msgspec.json.encode(data).decode(), warnings=reply.warnings)
        self.events.append(
            DispatchEvent(
                seq=len(self.events),
                at_ms=self._tick(),
                duration_ms=1.0,
                tool=tool,
                arguments=arguments,
                result=reply.result,
                call_id=call_id,
                emitted_by=emitted_by,
                error=reply.error,
                warnings=reply.warnings,
            )
        )
        if tool == "find_product":
            self.page = reply.result
        elif tool == "view_product_information":
            self.detail = reply.result
        elif tool == "recommend_product":
            self.answer = msgspec.json.decode(arguments)["product_ids"]
        self.terminated = self.terminated or tool == "terminate"
        return reply

    def _tick(self) -> float:
        self._clock += self.rng.randrange(150, 2500)
        return self._clock

    def close(self, key: str) -> Trajectory:
        """The trajectory; its id is a digest of `key`."""
        problem, world = self.scene.problem, self.scene.world
        return Trajectory(
            trajectory_id=bytes_digest(key.encode())[7:39],
            problem_id=problem.problem_id,
            query=problem.query,
            kind=problem.kind,
            agent=AgentRef(name=self.agent, kind="external"),
            events=tuple(self.events),
            messages=build_messages(problem.query, self.events),
            answer=self.answer,
            ending=Ending.terminated if self.terminated else Ending.returned,
            catalogue=world.catalogue.catalogue_id,
            catalogue_digest=world.catalogue.digest,
            duration_s=self._clock / 1000,
            source="labelled set",
            tool_version="labelled-1",
            schema_version="1.1",
        )


def completion_bytes(completion: Message) -> int:
    """UTF-8 bytes of everything that the model wrote: thinking, text, calls."""
    parts = [completion.reasoning_content or "", completion.content or ""]
    for call in completion.tool_calls:
        parts += [call.function.name, call.function.arguments]
    return len("".join(parts).encode())


def calls_of(operation: str, scene: Scene) -> list[tuple[str, str]]:
    """The tool calls that a script's operation stands for.

    Operations: none, search, again, page N, empty, view a[,b], voucher, give a, end, done a.
    """
    verb, _, rest = operation.partition(" ")
    chosen = [] if verb == "page" else [scene.slots[name] for name in rest.split(",") if name]
    ids = ",".join(each.id for each in chosen)
    recommend = ("recommend_product", _json(product_ids=ids))
    terminate = ("terminate", _json(status="success"))
    table: dict[str, list[tuple[str, str]]] = {
        "none": [],
        "search": [("find_product", _json(q=scene.words))],
        "again": [("find_product", _json(q=scene.words, page=2))],
        "page": [("find_product", _json(q=scene.words, page=int(rest) if verb == "page" else 1))],
        "empty": [("find_product", _json(q=scene.words, price="99990-99999"))],
        "view": [("view_product_information", _json(product_ids=ids))],
        "give": [recommend],
        "end": [terminate],
        "done": [recommend, terminate],
    }
    if verb == "voucher":
        price = float(scene.slots["a"].price)
        return [("calculate_voucher", voucher_arguments(scene.problem, price))]
    return table[verb]


def _json(**arguments: Any) -> str:
    return msgspec.json.encode(arguments).decode()
