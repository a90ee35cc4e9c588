"""Places that all share, such as watches and readers: who may take one, whose turn is next, who gives one up.

All is divided in one way: first between namespaces, in each between its users, and of a user by age. `FairPlaces`
admits, `FairThreads` gives turns, and `Shares`, which both are made of, is pure.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

from headgate.auth.user import ANONYMOUS_NAME
from headgate.observe.metrics import PLACES, PLACES_REFUSED
from headgate_api.errors import OverloadedError
from headgate_api.limits import SHARE_OF_FREE_PLACES

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Item = TypeVar("_Item")
_ALL: Final = (None, None)
_HINT: Final = "have fewer at the same time, or try again later"


class PlacesTakenError(OverloadedError):
    """A user or a namespace has its share of what all share, or all of it is taken; the code names what it is."""

    code = "places"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message, hint=_HINT)
        self.code = name


class Shares(Generic[_Item]):
    """Items by namespace and user, those of a user in the order in which they were added. Pure; each is there once."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, dict[_Item, None]]] = {}

    def add(self, namespace: str, user: str, item: _Item) -> None:
        """Puts an item behind all others of its user."""
        self._items.setdefault(namespace, {}).setdefault(user, {})[item] = None

    def remove(self, namespace: str, user: str, item: _Item) -> None:
        users = self._items[namespace]
        del users[user][item]
        if not users[user]:
            del users[user]
        if not users:
            del self._items[namespace]

    def __len__(self) -> int:
        return sum(map(_size, self._items.values()))

    def largest(self) -> _Item:
        """The one to give up: of the namespace that has most, in it of the user who has most, the oldest."""
        users = max(self._items.values(), key=_size)
        items = max(users.values(), key=len)
        return next(iter(items))

    def pop_next(self) -> _Item:
        """Takes out the one whose turn it is: it goes round by namespace, in each by user, and then by age."""
        namespace, users = next(iter(self._items.items()))
        return self._pop(namespace, next(iter(users)))

    def pop_next_of(self, may: Callable[[str, str], bool]) -> _Item | None:
        """The same of those namespaces and users who may have a turn now; None when none may."""
        found = ((namespace, user) for namespace, users in self._items.items() for user in users)
        chosen = next((one for one in found if may(*one)), None)
        return self._pop(*chosen) if chosen is not None else None

    def _pop(self, namespace: str, user: str) -> _Item:
        users = self._items.pop(namespace)
        items = users.pop(user)
        item = next(iter(items))
        del items[item]
        if items:
            users[user] = items
        if users:
            self._items[namespace] = users
        return item


def has_share(held: int, free: int) -> bool:
    """Whether who holds so many places may have no more of those that are free."""
    return held >= SHARE_OF_FREE_PLACES * free


class FairPlaces:
    """A bounded number of places, or of bytes. Belongs to one event loop.

    A namespace may have SHARE_OF_FREE_PLACES times as many places as are free, and so may a user; of what his namespace
    may still have, a user may have as many times. So one alone may have three quarters of all, many have less each, and
    there is always room for who has none. Nobody who has a place loses it, but what grows may be refused more. Those of
    whom nobody knows who they are count as one user in each namespace, and not across them.

    `name` says in the plural what the places are for: a value of the metrics' label and the code of a refusal.
    """

    def __init__(self, name: str, limit: str, most: int, unit: str = "places") -> None:
        self._name = name
        self._limit = limit
        self._most = most
        self._unit = unit
        self._held: dict[tuple[str | None, str | None], int] = {}
        """By namespace and user; None stands for all of them. A plain dictionary costs a fifth of a Counter."""

    def __len__(self) -> int:
        return self._held.get(_ALL, 0)

    def check(self, namespace: str, user: str, size: int = 1) -> None:
        """Refuses one place too many, by PlacesTakenError.

        The namespace is empty for what is in none, where users alone count; the user is empty where nobody is known. Of
        several places at once (`size`) the last may exceed a share: it is used up by what is held before them.
        """
        held = self._held.get
        free = self._most - held(_ALL, 0)
        if free < size:
            raise self._refused("all", f"all {self._most} {self._unit} for {self._name} are taken ({self._limit})")
        if namespace:
            left = SHARE_OF_FREE_PLACES * free - held((namespace, None), 0)
            if left <= 0:
                raise self._refused("namespace", self._share(f"the namespace {namespace!r}"))
            if has_share(held((namespace, user), 0), left):
                raise self._refused("user", self._share(f"the user {user!r} in the namespace {namespace!r}"))
        if user and has_share(held(("" if user == ANONYMOUS_NAME else None, user), 0), free):
            raise self._refused("user", self._share(f"the user {user!r}"))

    @contextlib.contextmanager
    def held(self, namespace: str, user: str, size: int = 1) -> Iterator[Callable[[int], None]]:
        """So many places for as long as the block lasts, which may ask for more of them; both raise as `check`."""
        held, taken = 0, PLACES.labels(self._name)

        def grow(more: int) -> None:
            nonlocal held
            self.check(namespace, user, more)
            self.take(namespace, user, more)
            held += more
            taken.set(len(self))

        grow(size)
        try:
            yield grow
        finally:
            self.take(namespace, user, -held)
            taken.set(len(self))

    def take(self, namespace: str, user: str, size: int = 1) -> None:
        """So many places are taken, whether or not there are any; below zero they are given back."""
        held = self._held
        for key in (_ALL, (namespace, None), (None, user), (namespace, user)):
            if left := held.get(key, 0) + size:
                held[key] = left
            else:
                held.pop(key, None)

    def _share(self, who: str) -> str:
        return f"{who} has its share of the {self._most} {self._unit} for {self._name} ({self._limit})"

    def _refused(self, by: str, message: str) -> PlacesTakenError:
        PLACES_REFUSED.labels(by).inc()
        return PlacesTakenError(self._name, message)


class FairThreads:
    """Threads that give turns by namespace, in each by user, and then in the order in which work came.

    Work that `hangs` may take long and do nothing: then turns alone help nobody, so that a namespace, and a user of it,
    may have its share of the threads at the same time, as `FairPlaces` divides places, and no more.
    """

    def __init__(self, count: int, name: str, *, hangs: bool = False) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._waiting = Shares[_Work]()
        self._lock = threading.Lock()
        self._count = count
        self._hangs = hangs
        self._running = Counter[tuple[str, str | None]]()
        """By namespace and user; None stands for all of them."""
        self._busy = 0

    def of(self, namespace: str, user: str = "") -> Executor:
        """What runs a user's work for a namespace."""
        return _Share(partial(self._submit, namespace, user))

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True)

    def give_up(self) -> None:
        """Begins nothing more, and does not wait for what is under way."""
        with self._lock:
            self._waiting = Shares()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, namespace: str, user: str, work: _Work) -> None:
        work.keys = (namespace, None), (namespace, user)
        with self._lock:
            self._waiting.add(namespace, user, work)
        self._threads.submit(self._turns)

    def _turns(self) -> None:
        # A thread goes on while there is work: who has his share waits for the end of what is under way.
        while (work := self._begin()) is not None:
            work.run()
            self._end(work.keys)
            del work

    def _begin(self) -> _Work | None:
        with self._lock:
            work = self._waiting.pop_next_of(self._may_begin)
            if work is not None:
                self._busy += 1
                self._running.update(work.keys)
            return work

    def _may_begin(self, namespace: str, user: str) -> bool:
        if not self._hangs:
            return True
        free = self._count - self._busy
        left = SHARE_OF_FREE_PLACES * free - self._running[namespace, None]
        return left > 0 and not has_share(self._running[namespace, user], left)

    def _end(self, keys: Iterable[tuple[str, str | None]]) -> None:
        with self._lock:
            self._busy -= 1
            for key in keys:
                self._running[key] -= 1
                if not self._running[key]:
                    del self._running[key]


class _Work:
    keys: tuple[tuple[str, str | None], ...] = ()
    """Whose it is, as `FairThreads` counts what is under way."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future = Future[Any]()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:  # noqa: BLE001 - it is of who waits
            self.future.set_exception(error)
            del self  # the error has this frame: a cycle


class _Share(Executor):
    def __init__(self, submit: Callable[[_Work], None]) -> None:
        self._submit = submit

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        work = _Work(partial(fn, *args, **kwargs))
        self._submit(work)
        return work.future


def _size(users: dict[str, dict[_Item, None]]) -> int:
    return sum(map(len, users.values()))
