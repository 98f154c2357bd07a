"""The attacks, as data. Each is the function of its name in the module of its place (`MODULES`).

A row: name, what keeps the attacker away, the canary that it must not get, the code with which it is turned away, and
how the positive control leaves the defence out.
"""

from __future__ import annotations

from types import ModuleType

from attacker import acceptors, kept, machine, moves, network, sessions, taken_over
from attacker.attack import Attack, Control, How, Where

MODULES: dict[Where, ModuleType] = {
    Where.NETWORK: network,
    Where.MOVE: moves,
    Where.SESSION: sessions,
    Where.KEPT: kept,
    Where.TAKEN_OVER: taken_over,
    Where.ACCEPTOR: acceptors,
    Where.MACHINE: machine,
}


def _build(name: str) -> Control:
    return Control(How.BUILD, name)


def _patch(name: str) -> Control:
    return Control(How.PATCH, name)


def _none(why: str) -> Control:
    return Control(How.NONE, why)


_NETWORK = (
    ("no_token", "tokens", "alice's lease in the inventory", "UNAUTHENTICATED", _patch("any-caller")),
    ("wrong_token", "tokens", "alice's lease in the inventory", "UNAUTHENTICATED", _patch("any-token")),
    ("leases_of_others", "roles", "alice's lease in the inventory", "OK", _patch("no-roles")),
    ("drain_as_a_user", "roles", "an appliance that takes leases", "PERMISSION_DENIED", _patch("no-roles")),
    ("suspend_of_another", "roles", "alice's lease, which runs", "NOT_FOUND", _patch("no-roles")),
    ("resize_of_another", "roles", "the size of alice's lease", "NOT_FOUND", _patch("no-roles")),
    ("page_without_a_token", "tokens", "alice's lease on the page", "401", _patch("any-caller")),
    ("page_of_another", "roles", "alice's lease on the page", "200", _patch("no-roles")),
    ("look_into_a_lease", "secret of a lease", "the name of alice's process", "NOT_FOUND", _patch("any-secret")),
    ("open_a_session_in_a_lease", "secret of a lease", "a ticket for alice's share", "NOT_FOUND", _patch("any-secret")),
    ("close_a_session", "secret of a lease", "alice's session", "NOT_FOUND", _patch("any-secret")),
    ("end_a_lease", "secret of a lease", "alice's lease", "NOT_FOUND", _patch("any-secret")),
    ("replay_a_ticket", "a ticket counts once", "a connection to alice's worker", "closed", _patch("tickets-for-ever")),
    ("take_a_session_over", "tickets are compared", "a connection to alice's worker", "closed", _build("ticket")),
    ("hold_a_lease", "tickets are compared", "alice's share, kept from others", "closed", _build("ticket")),
    ("older_tls", "TLS 1.3 alone", "a connection by TLS 1.2", "handshake", _build("tls-version")),
    ("plaintext_at_the_tls_port", "TLS", "an answer that all can read", "closed", _build("plaintext")),
    ("flipped_bits", "TLS", "a wrong number that alice takes for right", "20 of 20 connections ended",
     Control(How.SET_UP, "no-tls")),
    ("false_appliance", "certificates are checked", "alice's token", "certificate", Control(How.SET_UP, "trusted")),
    ("large_message", "256 KiB a request", "the appliance's memory", "RESOURCE_EXHAUSTED", _patch("large-messages")),
    ("slow_handshake", "5 s to prove oneself", "a place for ever", "closed", _build("patience")),
    ("all_places", "64 places for a peer", "more places than that", "closed", _build("crowd")),
    ("path_in_names", "names are keys of tables", "the token file", "NOT_FOUND", _none("no path is made of a name")),
    ("lines_in_the_log", "names are one line", "a line of the appliance's log", "OK", _patch("names-as-they-come")),
    ("leases_without_end", "--max-leases", "the appliance's memory", "RESOURCE_EXHAUSTED",
     _patch("leases-without-end")),
    ("sessions_without_end", "--sessions-per-lease", "processes of the machine", "refused",
     _patch("sessions-without-end")),
)  # fmt: skip

_MOVE = (
    ("move_another_lease", "roles", "the secret of alice's lease, sent elsewhere", "NOT_FOUND", _patch("no-roles")),
    ("look_around", "--move-to", "who listens in the appliance's network", "PERMISSION_DENIED",
     _patch("any-destination")),
    ("forged_invitation", "invitations", "a part of the GPU", "PERMISSION_DENIED", _patch("any-invitation")),
    ("invitation_used_twice", "an invitation counts once", "a second part of the GPU", "FAILED_PRECONDITION",
     _patch("invitations-for-ever")),
    ("name_of_anothers_session", "names are taken once", "the connections of alice's session", "FAILED_PRECONDITION",
     _patch("any-name")),
    ("one_name_for_two_that_come", "names are taken once", "user ids and processes of the machine", "1 of 2",
     _patch("names-twice")),
)  # fmt: skip

_SESSION = (
    ("memory_of_another_lease", "exports are a lease's", "bytes in alice's memory", "CUDA error 400",
     _patch("one-list-of-exports")),
    ("memory_before_it_is_written", "zeroing", "bytes that alice left", "zero",
     _none("the software GPU's memory is new files, which the kernel zeroes")),
    ("outside_of_the_arena", "copies stay in the arena", "page-locked memory of the worker", "CUDA error 1",
     _build("range")),
    ("forged_handles", "a table of ids for each session", "alice's module, stream or event", "CUDA error 400",
     _none("each session is a process of its own, with its own table")),
    ("write_outside_of_the_arena", "copies stay in the arena", "page-locked memory of the worker", "CUDA error 1",
     _build("range")),
    ("stripe_of_another_session", "tickets are compared", "the bytes of alice's copies", "closed", _build("ticket")),
    ("memory_for_another_session", "tickets are compared", "what alice's worker copies from", "closed",
     _build("ticket")),
    ("grant_beyond_the_share", "quota of the appliance", "alice's part of the GPU", "CUDA error 2",
     _patch("any-grant")),
    ("map_without_a_grant", "quota of the worker", "alice's part of the GPU", "CUDA error 2", _build("room")),
    ("array_without_a_grant", "quota of the worker", "alice's part of the GPU", "CUDA error 2", _build("room")),
    ("heap_without_a_grant", "quota of the worker", "alice's part of the GPU", "CUDA error 2", _build("room")),
    ("module_without_a_grant", "quota of the worker", "alice's part of the GPU", "CUDA error 2", _build("room")),
    ("module_that_lies", "bytes of an image are counted", "alice's part of the GPU", "CUDA error 1",
     _build("image-size")),
    ("return_what_is_used", "only what is free goes back", "alice's part of the GPU", "CUDA error 1",
     _build("return")),
    ("images_beyond_the_budget", "--image-memory", "the appliance's memory", "NEED_IMAGE", _build("image-budget")),
    ("commands_that_wait", "2^20 of them", "the appliance's memory", "CUDA error 999", _build("parked")),
    ("frame_that_lies", "16 MiB a frame", "the appliance's memory", "closed",
     _none("the length is checked in the crate protocol, which has no test build")),
    ("contexts_without_end", "a process for each session", "alice's session", "OK",
     _none("nothing limits contexts; the sessions of others are what is protected")),
    ("after_the_lease", "a worker ends with its lease", "alice's part of the GPU", "ended",
     _patch("workers-outlive-their-lease")),
    ("read_the_token_file", "sandbox", "alice's token", "refused", _build("sandbox")),
    ("read_another_worker", "sandbox", "variables of alice's worker", "refused", _build("sandbox")),
    ("kill_another_worker", "sandbox", "alice's session", "refused", _build("sandbox")),
    ("limit_another_worker", "sandbox", "files of alice's worker", "refused", _build("sandbox")),
    ("socket_of_the_machine", "sandbox", "a connection", "refused", _build("sandbox")),
    ("connect_to_the_appliance", "sandbox", "a connection", "refused", _build("sandbox")),
    ("run_a_program", "sandbox", "a process", "refused", _build("sandbox")),
)  # fmt: skip

_KEPT = (
    ("code_of_another_tenant", "a cache for each tenant", "whether alice runs a program", "NEED_IMAGE",
     _patch("one-code-cache")),
    ("image_of_a_suspended_session", "images are sealed", "bytes in alice's memory", "sealed", _build("image-key")),
)  # fmt: skip

_TAKEN_OVER = (
    ("descriptors_without_end", "what is no packet ends the channel", "the appliance's descriptors", "closed",
     _patch("descriptors-stay-open")),
    ("usage_of_another", "the gateway alone measures", "what alice has used", "0 ns", _patch("events-of-workers")),
    ("memory_that_another_leaves", "memory is handed on within a lease", "alice's memory", "its own",
     _patch("heirs-of-any-lease")),
    ("image_that_grows", "files of images are sealed", "64 MiB of the machine", "ended", _patch("images-that-grow")),
    ("turn_without_end", "turns are passed on", "the GPU's time", "over", _build("turn-ends")),
    ("turn_of_another", "a turn is its worker's", "alice's turn", "asked", _build("turn-owner")),
)  # fmt: skip

_MACHINE = (
    ("look_at_an_appliance", "the appliance's own token", "the GPUs that there are", "DENIED", _patch("any-caller")),
    ("look_at_the_appliance_of_a_run", "the appliance's own token", "the GPUs that there are", "DENIED",
     Control(How.SET_UP, "anybody")),
    ("token_of_another_user", "modes of files", "the appliance's own token", "PermissionError",
     _patch("token-for-all")),
    ("socket_of_the_control_service", "modes of folders", "a connection past the gateway", "PermissionError",
     _patch("sockets-for-all")),
)  # fmt: skip

_ACCEPTOR = (
    ("token_file", "Landlock", "alice's token", "PermissionError", _patch("files")),
    ("folder_of_another_session", "Landlock", "alice's file", "PermissionError", _patch("files")),
    ("memory_of_another_session", "Landlock, not dumpable", "bytes in alice's memory", "PermissionError",
     _patch("others")),
    ("kill_another_session", "seccomp, Landlock", "alice's session", "PermissionError", _patch("files-and-calls")),
    ("network", "seccomp, Landlock", "a connection", "PermissionError", _patch("files-and-calls")),
    ("socket_of_the_appliance", "seccomp", "a connection past the gateway", "PermissionError", _patch("calls")),
    ("variables_of_the_appliance", "a list of variables", "a variable of the appliance", "nothing",
     _patch("own-variables-for-acceptors")),
    ("packages_of_the_environment", "Landlock", "what alice's session imports", "PermissionError", _patch("files")),
    ("fork_bomb", "seccomp", "100 processes", "PermissionError", _patch("calls")),
    ("memory_beyond_the_share", "a cgroup", "512 MiB of the machine", "killed", _patch("memory-without-end")),
    ("key_of_another_session", "seccomp", "alice's key", "PermissionError", _patch("calls")),
)  # fmt: skip

_ROWS = {
    Where.NETWORK: _NETWORK,
    Where.MOVE: _MOVE,
    Where.SESSION: _SESSION,
    Where.KEPT: _KEPT,
    Where.TAKEN_OVER: _TAKEN_OVER,
    Where.ACCEPTOR: _ACCEPTOR,
    Where.MACHINE: _MACHINE,
}

ATTACKS = tuple(Attack(where, *row) for where, rows in _ROWS.items() for row in rows)
