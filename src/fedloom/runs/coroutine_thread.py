"""Calls that wait for one another: each runs in a thread of its own, and only one of them moves at any time."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


class Abandoned(BaseException):
    """Raised in a strand whose answer will never come."""


class Strand(Generic[Question, Answer, Result]):
    """A call that stands still whenever it asks something, until it is answered.

    It is a coroutine for code that knows nothing of coroutines: what it calls may ask at any depth. While a strand
    moves, whoever woke it waits, so nothing is ever touched by two threads at once.
    """

    result: Result

    def __init__(self, call: Callable[[Strand[Question, Answer, Result]], Result]) -> None:
        self._call = call
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer | Abandoned] = SimpleQueue()
        self._problem: BaseException | None = None
        self._away = 0.0  # seconds that it stood still and is not to blame for
        self._thread = Thread(target=self._run)

    def begin(self) -> Question | None:
        """Move up to the first question; None: it is over, and `result` is there. Its errors are raised here."""
        self._thread.start()
        return self._until_asked()

    def answer(self, answer: Answer) -> Question | None:
        """Move on to the next question; None: it is over."""
        self._answers.put(answer)
        return self._until_asked()

    def abandon(self) -> None:
        """End it at the question where it stands, or at the next."""
        if self._thread.is_alive():
            self._answers.put(Abandoned())
            self._thread.join()

    def ask(self, question: Question) -> Answer:
        """Called from within: stand still until the answer comes."""
        began = time.perf_counter()
        self._questions.put(question)
        answer = self._answers.get()
        self._away += time.perf_counter() - began
        if isinstance(answer, Abandoned):
            raise answer
        return answer

    def clock(self) -> float:
        """Seconds on a clock that goes on only while the strand moves, and by what it is charged for."""
        return time.perf_counter() - self._away

    def charge(self, seconds: float) -> None:
        """Count seconds that somebody worked for it."""
        self._away -= seconds

    def _until_asked(self) -> Question | None:
        question = self._questions.get()
        if question is None:
            self._thread.join()
            if self._problem is not None:
                raise self._problem
        return question

    def _run(self) -> None:
        try:
            self.result = self._call(self)
        except BaseException as problem:  # noqa: BLE001  told to whoever waits
            self._problem = problem
        finally:
            self._questions.put(None)
