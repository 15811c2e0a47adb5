"""A program for the tests of network namespaces: makes three machines in a folder, parts them, cuts them off
and slows them down, and prints as JSON what each sees of the others. It stays until it is killed.

``namespace_router.py FOLDER``; as ``serve FOLDER`` it answers each connection with the machine's name, and as
``ask ADDRESS`` it prints that answer.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

from chaos_parts.namespaces import Machine, Network, enter_router, is_router

PORT = 7
SECONDS = 1.0


def serve() -> None:
    with socket.create_server(("", PORT)) as listener:
        print(flush=True)
        while True:
            with listener.accept()[0] as connection:
                connection.sendall(socket.gethostname().encode())


def ask(address: str) -> str:
    try:
        with socket.create_connection((address, PORT), SECONDS) as connection:
            return connection.recv(100).decode()
    except TimeoutError:
        return "silent"
    except OSError:
        return "no way"


def _seen(one: Machine, other: Machine) -> str:
    command = one.command(sys.executable, __file__, "ask", other.address)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def route(folder: Path) -> dict[str, list[str]]:
    network = Network(folder)
    a, b, c = machines = [network.add(name, folder / name) for name in "abc"]
    for machine in machines:
        command = machine.command(sys.executable, __file__, "serve", str(folder))
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
    found = {"whole": [_seen(a, b), _seen(b, a), _seen(c, a)]}
    network.part(a, [b])
    found["parted"] = [_seen(a, b), _seen(b, a), _seen(a, c), _seen(c, b)]
    network.heal()
    network.cut(c)
    found["cut"] = [_seen(a, c), _seen(a, b)]
    network.heal()
    network.slow(b, 100)
    found["slow"] = [_seen(a, b), _seen(a, c)]
    network.heal()
    return found


def main() -> None:
    match sys.argv[1:]:
        case ["serve", _]:
            serve()
        case ["ask", address]:
            print(ask(address))
        case [folder]:
            if not is_router():
                enter_router()
            print(json.dumps(route(Path(folder))), flush=True)
            signal.pause()


if __name__ == "__main__":
    main()
