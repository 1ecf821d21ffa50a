"""birthmark: process supervision for AI agents and MCP servers.

Every child is stamped at birth, and nothing without the mark is ever signalled. These are the
public names and nothing else; the rooms behind them are free to move.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from birthmark.children.command import (
        Command as Command,
    )
    from birthmark.children.command import (
        Stdio as Stdio,
    )
    from birthmark.children.command import (
        mark_child as mark_child,
    )
    from birthmark.children.command import (
        new_birth as new_birth,
    )
    from birthmark.children.command import (
        place_in_own_process_group as place_in_own_process_group,
    )
    from birthmark.children.control import (
        ProcessLiveness as ProcessLiveness,
    )
    from birthmark.children.control import (
        SubprocessLiveness as SubprocessLiveness,
    )
    from birthmark.children.control import (
        is_running as is_running,
    )
    from birthmark.children.control import (
        live_pid_is_subprocess as live_pid_is_subprocess,
    )
    from birthmark.children.control import (
        owns as owns,
    )
    from birthmark.children.control import (
        pids_listening_on as pids_listening_on,
    )
    from birthmark.children.control import (
        process_group as process_group,
    )
    from birthmark.children.control import (
        stop_owned as stop_owned,
    )
    from birthmark.children.control import (
        stop_set as stop_set,
    )
    from birthmark.children.control import (
        terminate_gracefully as terminate_gracefully,
    )
    from birthmark.children.control import (
        terminate_group_gracefully as terminate_group_gracefully,
    )
    from birthmark.children.installation import (
        Installation as Installation,
    )
    from birthmark.children.installation import (
        open_installation as open_installation,
    )
    from birthmark.children.proving import (
        find_carriers as find_carriers,
    )
    from birthmark.children.proving import (
        prove as prove,
    )
    from birthmark.children.proving import (
        prove_mark as prove_mark,
    )
    from birthmark.children.spawning import (
        Child as Child,
    )
    from birthmark.children.spawning import (
        Spawner as Spawner,
    )
    from birthmark.children.spawning import (
        exit_status as exit_status,
    )
    from birthmark.children.spawning import (
        spawn_owned_supervised as spawn_owned_supervised,
    )
    from birthmark.children.spawning import (
        spawn_supervised as spawn_supervised,
    )
    from birthmark.children.stamping import (
        identity_verification_supported as identity_verification_supported,
    )
    from birthmark.children.stamping import (
        is_zombie as is_zombie,
    )
    from birthmark.children.stamping import (
        stamp_api_server as stamp_api_server,
    )
    from birthmark.children.stopping import (
        Hurry as Hurry,
    )
    from birthmark.children.stopping import (
        stop_set_now as stop_set_now,
    )
    from birthmark.core.identity import (
        Evidence as Evidence,
    )
    from birthmark.core.identity import (
        Identity as Identity,
    )
    from birthmark.core.identity import (
        Proof as Proof,
    )
    from birthmark.core.identity import (
        Reason as Reason,
    )
    from birthmark.core.identity import (
        Verdict as Verdict,
    )
    from birthmark.core.markers import (
        AGENT_NAME_ENV as AGENT_NAME_ENV,
    )
    from birthmark.core.markers import (
        API_SERVER_ENV as API_SERVER_ENV,
    )
    from birthmark.core.markers import (
        MCP_SERVICE_ID_ENV as MCP_SERVICE_ID_ENV,
    )
    from birthmark.core.markers import (
        SUBPROCESS_MARKER_ENV as SUBPROCESS_MARKER_ENV,
    )
    from birthmark.core.markers import (
        ChildKind as ChildKind,
    )
    from birthmark.core.markers import (
        environ_has_entries as environ_has_entries,
    )
    from birthmark.core.markers import (
        environ_identifies_api_server as environ_identifies_api_server,
    )
    from birthmark.core.markers import (
        environ_identifies_child as environ_identifies_child,
    )
    from birthmark.core.outcomes import (
        ApiServerStamp as ApiServerStamp,
    )
    from birthmark.core.outcomes import (
        ExitStatus as ExitStatus,
    )
    from birthmark.core.outcomes import (
        NotOurs as NotOurs,
    )
    from birthmark.core.outcomes import (
        NotRunning as NotRunning,
    )
    from birthmark.core.outcomes import (
        Receipt as Receipt,
    )
    from birthmark.core.outcomes import (
        StopOutcome as StopOutcome,
    )
    from birthmark.core.outcomes import (
        Stopped as Stopped,
    )
    from birthmark.core.outcomes import (
        Termination as Termination,
    )
    from birthmark.core.parsers import (
        environ_from_procargs2 as environ_from_procargs2,
    )
    from birthmark.core.parsers import (
        parse_lsof_pids as parse_lsof_pids,
    )
    from birthmark.core.parsers import (
        parse_netstat_listeners as parse_netstat_listeners,
    )
    from birthmark.core.parsers import (
        signalable_pid as signalable_pid,
    )
    from birthmark.core.policies import (
        StopPolicy as StopPolicy,
    )
    from birthmark.core.service import (
        API_SERVER_SERVICE as API_SERVER_SERVICE,
    )
    from birthmark.core.service import (
        BirthId as BirthId,
    )
    from birthmark.core.service import (
        InstallationId as InstallationId,
    )
    from birthmark.core.service import (
        ServiceName as ServiceName,
    )
    from birthmark.core.service import (
        api_server_service as api_server_service,
    )
    from birthmark.errors import (
        ChildrenAlive as ChildrenAlive,
    )
    from birthmark.errors import (
        ConfigError as ConfigError,
    )
    from birthmark.errors import (
        GaveUp as GaveUp,
    )
    from birthmark.errors import (
        IdentityMismatch as IdentityMismatch,
    )
    from birthmark.errors import (
        InstallationBroken as InstallationBroken,
    )
    from birthmark.errors import (
        InstallationLocked as InstallationLocked,
    )
    from birthmark.errors import (
        LookFailed as LookFailed,
    )
    from birthmark.errors import (
        NotPermitted as NotPermitted,
    )
    from birthmark.errors import (
        NotSignalable as NotSignalable,
    )
    from birthmark.errors import (
        NotTrusted as NotTrusted,
    )
    from birthmark.errors import (
        PortHeld as PortHeld,
    )
    from birthmark.errors import (
        ProcessGone as ProcessGone,
    )
    from birthmark.errors import (
        RecordConflict as RecordConflict,
    )
    from birthmark.errors import (
        RecordUndecodable as RecordUndecodable,
    )
    from birthmark.errors import (
        RegistryError as RegistryError,
    )
    from birthmark.errors import (
        RegistryUnavailable as RegistryUnavailable,
    )
    from birthmark.errors import (
        SignalFailed as SignalFailed,
    )
    from birthmark.errors import (
        SpawnerClosed as SpawnerClosed,
    )
    from birthmark.errors import (
        SpawnFailed as SpawnFailed,
    )
    from birthmark.errors import (
        StopTimedOut as StopTimedOut,
    )
    from birthmark.errors import (
        SupervisionError as SupervisionError,
    )
    from birthmark.errors import (
        SupervisorUnreachable as SupervisorUnreachable,
    )
    from birthmark.errors import (
        UnknownService as UnknownService,
    )
    from birthmark.errors import (
        Unsupported as Unsupported,
    )
    from birthmark.errors import (
        WorkerLost as WorkerLost,
    )
    from birthmark.platforms.launch import (
        Session as Session,
    )

__version__ = "0.1.0"

_HOME: Final = {
    "AGENT_NAME_ENV": "birthmark.core.markers",
    "API_SERVER_ENV": "birthmark.core.markers",
    "API_SERVER_SERVICE": "birthmark.core.service",
    "ApiServerStamp": "birthmark.core.outcomes",
    "BirthId": "birthmark.core.service",
    "Child": "birthmark.children.spawning",
    "ChildKind": "birthmark.core.markers",
    "ChildrenAlive": "birthmark.errors",
    "Command": "birthmark.children.command",
    "ConfigError": "birthmark.errors",
    "Evidence": "birthmark.core.identity",
    "ExitStatus": "birthmark.core.outcomes",
    "GaveUp": "birthmark.errors",
    "Hurry": "birthmark.children.stopping",
    "Identity": "birthmark.core.identity",
    "IdentityMismatch": "birthmark.errors",
    "Installation": "birthmark.children.installation",
    "InstallationBroken": "birthmark.errors",
    "InstallationId": "birthmark.core.service",
    "InstallationLocked": "birthmark.errors",
    "LookFailed": "birthmark.errors",
    "MCP_SERVICE_ID_ENV": "birthmark.core.markers",
    "NotOurs": "birthmark.core.outcomes",
    "NotPermitted": "birthmark.errors",
    "NotRunning": "birthmark.core.outcomes",
    "NotSignalable": "birthmark.errors",
    "NotTrusted": "birthmark.errors",
    "PortHeld": "birthmark.errors",
    "ProcessGone": "birthmark.errors",
    "ProcessLiveness": "birthmark.children.control",
    "Proof": "birthmark.core.identity",
    "Reason": "birthmark.core.identity",
    "Receipt": "birthmark.core.outcomes",
    "RecordConflict": "birthmark.errors",
    "RecordUndecodable": "birthmark.errors",
    "RegistryError": "birthmark.errors",
    "RegistryUnavailable": "birthmark.errors",
    "SUBPROCESS_MARKER_ENV": "birthmark.core.markers",
    "ServiceName": "birthmark.core.service",
    "Session": "birthmark.platforms.launch",
    "SignalFailed": "birthmark.errors",
    "SpawnFailed": "birthmark.errors",
    "Spawner": "birthmark.children.spawning",
    "SpawnerClosed": "birthmark.errors",
    "Stdio": "birthmark.children.command",
    "StopOutcome": "birthmark.core.outcomes",
    "StopPolicy": "birthmark.core.policies",
    "StopTimedOut": "birthmark.errors",
    "Stopped": "birthmark.core.outcomes",
    "SubprocessLiveness": "birthmark.children.control",
    "SupervisionError": "birthmark.errors",
    "SupervisorUnreachable": "birthmark.errors",
    "Termination": "birthmark.core.outcomes",
    "UnknownService": "birthmark.errors",
    "Unsupported": "birthmark.errors",
    "Verdict": "birthmark.core.identity",
    "WorkerLost": "birthmark.errors",
    "api_server_service": "birthmark.core.service",
    "environ_from_procargs2": "birthmark.core.parsers",
    "environ_has_entries": "birthmark.core.markers",
    "environ_identifies_api_server": "birthmark.core.markers",
    "environ_identifies_child": "birthmark.core.markers",
    "exit_status": "birthmark.children.spawning",
    "find_carriers": "birthmark.children.proving",
    "identity_verification_supported": "birthmark.children.stamping",
    "is_running": "birthmark.children.control",
    "is_zombie": "birthmark.children.stamping",
    "live_pid_is_subprocess": "birthmark.children.control",
    "mark_child": "birthmark.children.command",
    "new_birth": "birthmark.children.command",
    "open_installation": "birthmark.children.installation",
    "owns": "birthmark.children.control",
    "parse_lsof_pids": "birthmark.core.parsers",
    "parse_netstat_listeners": "birthmark.core.parsers",
    "pids_listening_on": "birthmark.children.control",
    "place_in_own_process_group": "birthmark.children.command",
    "process_group": "birthmark.children.control",
    "prove": "birthmark.children.proving",
    "prove_mark": "birthmark.children.proving",
    "signalable_pid": "birthmark.core.parsers",
    "spawn_owned_supervised": "birthmark.children.spawning",
    "spawn_supervised": "birthmark.children.spawning",
    "stamp_api_server": "birthmark.children.stamping",
    "stop_owned": "birthmark.children.control",
    "stop_set": "birthmark.children.control",
    "stop_set_now": "birthmark.children.stopping",
    "terminate_gracefully": "birthmark.children.control",
    "terminate_group_gracefully": "birthmark.children.control",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: importing this package stays cheap."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
