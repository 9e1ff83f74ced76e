"""Connections between the processes of one port: a busy process hands a connection to the least busy one.

    handovers = Handovers(3, context)        in the process that starts the others
    handovers.of(place)                      sent to each of them
    handover.hand_over(descriptor, data)     there, when a request begins on a connection

A connection stays with the process that accepted it, and clients use theirs in turns of their own: without this, many
requests in a row meet one process while the others have none. The connection is sent between two requests, with the
first bytes of the next one, so that nothing is lost and no request is seen by two processes.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from multiprocessing.context import BaseContext

from gavel.judge.service.http.process_load import ProcessLoad

_MARGIN = 2
"""Requests that a process must have more than another one."""
_MESSAGE_BYTES = 2**18
"""What a connection reads at once."""
_BUFFER_BYTES = 2**18
"""Of a channel; Linux doubles it."""
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class Handovers:
    """The channels of all processes. The process that starts the others keeps them open, so that what was sent to one
    that has ended reaches the one after it."""

    def __init__(self, processes: int, context: BaseContext) -> None:
        self.load = ProcessLoad(processes, context)
        self._channels = [_channel() for _ in range(processes)]

    def of(self, place: int) -> "Handover":
        """The part of one process."""
        senders = [sender for _, sender in self._channels]
        return Handover(place, self.load, self._channels[place][0], senders)

    def close(self) -> None:
        for receiver, sender in self._channels:
            receiver.close()
            sender.close()


def _channel() -> tuple[socket.socket, socket.socket]:
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for end in (receiver, sender):
        end.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
    return receiver, sender


class Handover:
    """One process's part: what it hands to others, and takes from them. Works between `taking` and its end."""

    def __init__(self, place: int, load: ProcessLoad, receiver: socket.socket, senders: list[socket.socket]) -> None:
        self._place = place
        self._load = load
        self._receiver = receiver
        self._senders = senders
        self._requests = 0
        self._sent = [load.taken(other, place) for other in range(load.processes)]
        self._judging: Callable[[], int] = _none
        self._has_room: Callable[[], bool] = _always
        self._is_taking = False

    @contextlib.contextmanager
    def taking(
        self,
        adopt: Callable[[socket.socket, bytes], None],
        judging: Callable[[], int],
        has_room: Callable[[], bool],
    ) -> Generator[None]:
        """Takes connections in the running event loop.

        `adopt` gets a connection and what was read of it, the beginning of a request, and sees to its `end`; `judging`
        says how many groups are judged here, and `has_room` whether there is room for another connection.
        """
        loop, self._judging, self._has_room = asyncio.get_running_loop(), judging, has_room
        loop.add_reader(self._receiver.fileno(), self._take, adopt)
        self._is_taking = True
        self.update()
        try:
            yield
        finally:
            self.stop_taking()
            loop.remove_reader(self._receiver.fileno())

    def stop_taking(self) -> None:
        """Others hand nothing to this process from now on."""
        self._is_taking = False
        self._load.close(self._place)

    def begin(self) -> None:
        """A request has come to this process."""
        self._requests += 1
        self.update()

    def end(self) -> None:
        """It is answered, or does nothing but wait for others."""
        self._requests -= 1
        self.update()

    def update(self) -> None:
        """Shows the others how busy this process is."""
        if not self._is_taking:
            return
        if self._has_room():
            self._load.set(self._place, self._own)
        else:
            self._load.close(self._place)

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Sends a connection, and what was read of it, to a process that has less to do; whether it has been sent."""
        own = self._own
        if own < _MARGIN or (found := self._least_busy()) is None:
            return False
        load, place = found
        if own - load < _MARGIN:
            return False
        try:
            socket.send_fds(self._senders[place], [bytes([self._place]), data], [descriptor])
        except OSError:  # the channel is full, or the message is too large for it: it is answered here
            return False
        self._sent[place] += 1
        return True

    @property
    def _own(self) -> int:
        return max(self._requests, self._judging())

    def _least_busy(self) -> tuple[int, int] | None:
        """The load of the least busy other process, with what is on its way there, and its place."""
        loads = list[tuple[int, int]]()
        for place in range(self._load.processes):
            if place != self._place and (load := self._load.of(place)) is not None:
                under_way = self._sent[place] - self._load.taken(place, self._place)
                loads.append((load + under_way, place))
        return min(loads, default=None)

    def _take(self, adopt: Callable[[socket.socket, bytes], None]) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._receiver, 1 + _MESSAGE_BYTES, 1, _CLOEXEC)
            except BlockingIOError:
                return
            self.begin()  # before it is no longer on its way
            self._load.take(self._place, data[0])
            connection = socket.socket(fileno=descriptors[0])
            connection.setblocking(False)
            adopt(connection, data[1:])


def _none() -> int:
    return 0


def _always() -> bool:
    return True
