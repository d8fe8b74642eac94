"""Calls as coroutines, each in a thread of its own, of which only one runs at any time."""

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
    """Raised in a call that will get no answer."""


class CoroutineThread(Generic[Question, Answer, Result]):
    """A call that pauses whenever it asks a question, until it gets the answer.

    It is a coroutine for code that is not written as one: functions may ask at any depth of the call. The caller waits
    while the call runs, so that no two threads run at once.
    """

    result: Result

    def __init__(self, call: Callable[[CoroutineThread[Question, Answer, Result]], Result]) -> None:
        self._call = call
        self._questions: SimpleQueue[Question | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer | Abandoned] = SimpleQueue()
        self._problem: BaseException | None = None
        self._away = 0.0  # seconds that it was paused, not counted by `clock`
        self._thread = Thread(target=self._run)

    def begin(self) -> Question | None:
        """Run up to the first question; None: it has ended, and `result` is set. Its exceptions are raised here."""
        self._thread.start()
        return self._until_asked()

    def answer(self, answer: Answer) -> Question | None:
        """Run on to the next question; None: it has ended."""
        self._answers.put(answer)
        return self._until_asked()

    def abandon(self) -> None:
        """End the call at its current question, or at the next."""
        if self._thread.is_alive():
            self._answers.put(Abandoned("the runs that are trained with it have stopped"))
            self._thread.join()

    def ask(self, question: Question) -> Answer:
        """Pause until the answer comes; called from within."""
        began = time.perf_counter()
        self._questions.put(question)
        answer = self._answers.get()
        self._away += time.perf_counter() - began
        if isinstance(answer, Abandoned):
            raise answer
        return answer

    def clock(self) -> float:
        """Seconds on a clock that counts only while the call runs, and what was charged to it."""
        return time.perf_counter() - self._away

    def charge(self, seconds: float) -> None:
        """Count seconds of work that was done for it elsewhere."""
        self._away -= seconds

    def _until_asked(self) -> Question | None:
        """Wait for the next question, or the end."""
        question = self._questions.get()
        if question is None:
            self._thread.join()
            if self._problem is not None:
                raise self._problem
        return question

    def _run(self) -> None:
        """Run the call in the thread."""
        try:
            self.result = self._call(self)
        except BaseException as problem:  # noqa: BLE001  raised in the caller
            self._problem = problem
        finally:
            self._questions.put(None)
