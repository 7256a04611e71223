"""Connects to a Ray cluster, and checks its nodes before anything runs on them."""

import importlib
import logging
import os
import platform
import secrets
import signal
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from subquad.errors import SubquadError
from subquad.places import probe
from subquad.places.options import CLIENT, RAY
from subquad.places.relay import open_store

INSTALL = "pip install 'subquad[cluster]'"
ANSWER_SECONDS = 10.0
"""Longest time to wait for an address to answer."""
PROBE_SECONDS = 60.0
"""Longest time to wait for what nodes tell about themselves. A new process on a node imports Ray first."""
CURRENT = "ray_current_cluster"
"""Name of the file in which `ray start` leaves the address of the cluster, in the folder `ray` for temporary files."""


@dataclass(frozen=True)
class Node:
    """A node that can do the work of a command."""

    number: str
    """Its id in the cluster."""
    host: str
    machine: str
    """Something that is the same for two nodes of one machine only."""
    cpus: float
    gpus: float


def import_ray() -> Any:
    """Returns the package ray. Raises `SubquadError` if it is not installed. Nothing is reported to Ray's makers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        importlib.import_module("ray.util.scheduling_strategies")
        return importlib.import_module("ray")
    except ImportError:
        raise SubquadError(f"--on needs Ray, which is not installed: {INSTALL}") from None


def connect(on: str) -> Any:
    """Connects to the cluster that --on names and returns the package ray. Raises `SubquadError` if nobody answers."""
    address = on if on.startswith(CLIENT) else _current_address()
    host, port = _host_and_port(address)
    _require_answer(address, host, port)
    if not address.startswith(CLIENT) and _is_loopback(host):
        # Ray would replace a loopback address by that of the network, at which such a cluster does not listen.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    with _own_signals():
        ray = import_ray()
        if address.startswith(CLIENT) and find_spec("grpc") is None:
            raise SubquadError(f"{address} needs the client of Ray, which is not installed: {INSTALL}")
        try:
            with warnings.catch_warnings(action="ignore"):  # what they warn of is raised too
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # of many kinds: other versions of Ray or Python, a port that speaks something else
            ray.shutdown()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]  # the last line of a traceback
            raise SubquadError(f"the Ray cluster at {address} cannot be used: {reason[:300]}") from None
    return ray


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handlers of signals that Ray replaces."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _current_address() -> str:
    """The address of the cluster that this machine belongs to."""
    if address := os.environ.get("RAY_ADDRESS", ""):
        return address
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / CURRENT
    try:
        return noted.read_text().strip()
    except OSError:
        raise SubquadError(
            f"this machine belongs to no Ray cluster: start one with `ray start --head`, or give --on {CLIENT}HOST:PORT"
        ) from None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise SubquadError(f"{address!r:.80} is not the address of a Ray cluster: give --on {RAY} or --on {CLIENT}HOST:PORT")
    return host.strip("[]"), int(port)


def _require_answer(address: str, host: str, port: int) -> None:
    """Raises `SubquadError` if nobody listens at an address. Ray itself would try for minutes."""
    try:
        socket.create_connection((host, port), ANSWER_SECONDS).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SubquadError(
            f"nobody answers at {address} ({why}): check the address and that the cluster runs (`ray status` on its head)"
        ) from None


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def only_on(ray: Any, number: str) -> Any:
    """What makes Ray run something on the node with an id, or fail."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(number, soft=False)


def find_nodes(ray: Any, cpus: float, gpus: float) -> list[Mapping[str, Any]]:
    """The nodes that have so many CPUs and GPUs, as Ray describes them."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [node for node in alive if _amount(node, "CPU") >= cpus and _amount(node, "GPU") >= gpus]


def _amount(node: Mapping[str, Any], resource: str) -> float:
    return float(node["Resources"].get(resource, 0.0))


def inspect(ray: Any, store: str, *, cpus: float, gpus: float, paths: Sequence[Path] = ()) -> list[Node]:
    """Returns the nodes that can do the work. Raises `SubquadError` if one of them would fail at it."""
    nodes = find_nodes(ray, cpus, gpus)
    if not nodes:
        raise SubquadError(_too_much(ray.nodes(), cpus, gpus))
    told = _ask(ray, nodes, store, [os.path.abspath(path) for path in paths])  # noqa: PTH100, links are kept
    for node in nodes:
        _require_alike(told[node["NodeID"]], store)
    found = [
        Node(node["NodeID"], about["host"], about["machine"], _amount(node, "CPU"), _amount(node, "GPU"))
        for node in nodes
        for about in [told[node["NodeID"]]]
    ]
    return sorted(found, key=lambda node: (node.host, node.number))


def _too_much(nodes: Sequence[Mapping[str, Any]], cpus: float, gpus: float) -> str:
    alive = [node for node in nodes if node["Alive"]]
    if not alive:
        return "the Ray cluster has no node that is alive: start some with `ray start --address=HOST:PORT`"
    most = {name: max(_amount(node, name) for node in alive) for name in ("CPU", "GPU")}
    for name, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > most[name]:
            return f"--{name.lower()}s {wanted:g} is more than any node of the Ray cluster has: give at most {most[name]:g}"
    return f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs: give smaller numbers"


def _ask(ray: Any, nodes: Sequence[Mapping[str, Any]], store: str, paths: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What nodes tell about themselves, by id."""
    system, root = open_store(store)
    token = f".probe-{secrets.token_hex(8)}"
    _write_token(system, root, token, store)
    ray.cloudpickle.register_pickle_by_value(probe)
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(probe.look_around)
        answers = {
            look.options(scheduling_strategy=only_on(ray, number)).remote(token, store, number, list(paths)): node
            for node in nodes
            for number in [node["NodeID"]]
        }
        done, late = ray.wait(list(answers), num_returns=len(answers), timeout=PROBE_SECONDS)
        for answer in late:
            raise SubquadError(
                f"the node {_address(answers[answer])} of the Ray cluster does not answer: restart or remove it"
            )
        told = {answers[answer]["NodeID"]: _get(ray, answer, answers[answer]) for answer in done}
        for number, about in told.items():
            if not about["store"] and not system.exists(f"{root}/{token}-{number}"):
                about["store"] = "what it writes is not seen here"
        return told
    finally:
        ray.cloudpickle.unregister_pickle_by_value(probe)
        for name in [token, *(f"{token}-{node['NodeID']}" for node in nodes)]:
            if system.exists(f"{root}/{name}"):
                system.rm_file(f"{root}/{name}")


def _get(ray: Any, answer: Any, node: Mapping[str, Any]) -> dict[str, Any]:
    try:
        told: dict[str, Any] = ray.get(answer)
    except Exception as error:  # Ray wraps whatever happens on a node
        sentence = " ".join(str(error).split())[-200:]
        raise SubquadError(f"the node {_address(node)} of the Ray cluster cannot be used: {sentence}") from None
    return told


def _write_token(system: Any, root: str, token: str, store: str) -> None:
    try:
        system.makedirs(root, exist_ok=True)
        system.pipe_file(f"{root}/{token}", token.encode())
    except Exception as error:  # whatever a file system raises
        raise SubquadError(f"the store {store} cannot be written: {error}; choose another with --store") from None


def _address(node: Mapping[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _require_alike(about: Mapping[str, Any], store: str) -> None:
    """Raises `SubquadError` for a node with other packages than this machine, or without its files."""
    host, theirs = about["host"], about["versions"]
    for package in ("subquad", "torch"):
        ours = version(package)
        if not theirs[package]:
            raise SubquadError(f"the node {host} lacks {package}: install {package} {ours} there, or remove the node")
        if theirs[package] != ours:
            raise SubquadError(
                f"the node {host} has {package} {theirs[package]}, and this machine {ours}, which may give other numbers: "
                f"install the same there, or remove the node"
            )
    ours, minor = platform.python_version(), theirs["python"].rpartition(".")[0]
    if minor != ours.rpartition(".")[0]:
        raise SubquadError(f"the node {host} has Python {theirs['python']}, and this machine {ours}: use the same")
    if about["store"]:
        raise SubquadError(
            f"the node {host} does not share {store} with this machine ({about['store']}): give --store a folder or URL "
            "that all nodes can read and write"
        )
    if missing := about["missing"]:
        raise SubquadError(f"the node {host} has nothing at {missing[0]}: put the data at the same path on every node")
