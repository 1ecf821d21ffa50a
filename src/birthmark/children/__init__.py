"""Children: spawn them marked, say who they are, stop them.

Every name of this module can also be had from `birthmark` itself.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from birthmark import (
        AGENT_NAME_ENV as AGENT_NAME_ENV,
    )
    from birthmark import (
        API_SERVER_ENV as API_SERVER_ENV,
    )
    from birthmark import (
        API_SERVER_SERVICE as API_SERVER_SERVICE,
    )
    from birthmark import (
        MCP_SERVICE_ID_ENV as MCP_SERVICE_ID_ENV,
    )
    from birthmark import (
        SUBPROCESS_MARKER_ENV as SUBPROCESS_MARKER_ENV,
    )
    from birthmark import (
        ApiServerStamp as ApiServerStamp,
    )
    from birthmark import (
        BirthId as BirthId,
    )
    from birthmark import (
        Child as Child,
    )
    from birthmark import (
        ChildKind as ChildKind,
    )
    from birthmark import (
        ChildrenAlive as ChildrenAlive,
    )
    from birthmark import (
        Command as Command,
    )
    from birthmark import (
        ConfigError as ConfigError,
    )
    from birthmark import (
        Evidence as Evidence,
    )
    from birthmark import (
        ExitStatus as ExitStatus,
    )
    from birthmark import (
        GaveUp as GaveUp,
    )
    from birthmark import (
        Hurry as Hurry,
    )
    from birthmark import (
        Identity as Identity,
    )
    from birthmark import (
        IdentityMismatch as IdentityMismatch,
    )
    from birthmark import (
        Installation as Installation,
    )
    from birthmark import (
        InstallationBroken as InstallationBroken,
    )
    from birthmark import (
        InstallationId as InstallationId,
    )
    from birthmark import (
        InstallationLocked as InstallationLocked,
    )
    from birthmark import (
        LookFailed as LookFailed,
    )
    from birthmark import (
        NotOurs as NotOurs,
    )
    from birthmark import (
        NotPermitted as NotPermitted,
    )
    from birthmark import (
        NotRunning as NotRunning,
    )
    from birthmark import (
        NotSignalable as NotSignalable,
    )
    from birthmark import (
        NotTrusted as NotTrusted,
    )
    from birthmark import (
        PortHeld as PortHeld,
    )
    from birthmark import (
        ProcessGone as ProcessGone,
    )
    from birthmark import (
        ProcessLiveness as ProcessLiveness,
    )
    from birthmark import (
        Proof as Proof,
    )
    from birthmark import (
        Reason as Reason,
    )
    from birthmark import (
        Receipt as Receipt,
    )
    from birthmark import (
        RecordConflict as RecordConflict,
    )
    from birthmark import (
        RecordUndecodable as RecordUndecodable,
    )
    from birthmark import (
        RegistryError as RegistryError,
    )
    from birthmark import (
        RegistryUnavailable as RegistryUnavailable,
    )
    from birthmark import (
        ServiceName as ServiceName,
    )
    from birthmark import (
        Session as Session,
    )
    from birthmark import (
        SignalFailed as SignalFailed,
    )
    from birthmark import (
        Spawner as Spawner,
    )
    from birthmark import (
        SpawnerClosed as SpawnerClosed,
    )
    from birthmark import (
        SpawnFailed as SpawnFailed,
    )
    from birthmark import (
        Stdio as Stdio,
    )
    from birthmark import (
        StopOutcome as StopOutcome,
    )
    from birthmark import (
        Stopped as Stopped,
    )
    from birthmark import (
        StopPolicy as StopPolicy,
    )
    from birthmark import (
        StopTimedOut as StopTimedOut,
    )
    from birthmark import (
        SubprocessLiveness as SubprocessLiveness,
    )
    from birthmark import (
        SupervisionError as SupervisionError,
    )
    from birthmark import (
        SupervisorUnreachable as SupervisorUnreachable,
    )
    from birthmark import (
        Termination as Termination,
    )
    from birthmark import (
        UnknownService as UnknownService,
    )
    from birthmark import (
        Unsupported as Unsupported,
    )
    from birthmark import (
        Verdict as Verdict,
    )
    from birthmark import (
        WorkerLost as WorkerLost,
    )
    from birthmark import (
        api_server_service as api_server_service,
    )
    from birthmark import (
        environ_from_procargs2 as environ_from_procargs2,
    )
    from birthmark import (
        environ_has_entries as environ_has_entries,
    )
    from birthmark import (
        environ_identifies_api_server as environ_identifies_api_server,
    )
    from birthmark import (
        environ_identifies_child as environ_identifies_child,
    )
    from birthmark import (
        exit_status as exit_status,
    )
    from birthmark import (
        find_carriers as find_carriers,
    )
    from birthmark import (
        identity_verification_supported as identity_verification_supported,
    )
    from birthmark import (
        is_running as is_running,
    )
    from birthmark import (
        is_zombie as is_zombie,
    )
    from birthmark import (
        live_pid_is_subprocess as live_pid_is_subprocess,
    )
    from birthmark import (
        mark_child as mark_child,
    )
    from birthmark import (
        new_birth as new_birth,
    )
    from birthmark import (
        open_installation as open_installation,
    )
    from birthmark import (
        owns as owns,
    )
    from birthmark import (
        parse_lsof_pids as parse_lsof_pids,
    )
    from birthmark import (
        parse_netstat_listeners as parse_netstat_listeners,
    )
    from birthmark import (
        pids_listening_on as pids_listening_on,
    )
    from birthmark import (
        place_in_own_process_group as place_in_own_process_group,
    )
    from birthmark import (
        process_group as process_group,
    )
    from birthmark import (
        prove as prove,
    )
    from birthmark import (
        prove_mark as prove_mark,
    )
    from birthmark import (
        signalable_pid as signalable_pid,
    )
    from birthmark import (
        spawn_owned_supervised as spawn_owned_supervised,
    )
    from birthmark import (
        spawn_supervised as spawn_supervised,
    )
    from birthmark import (
        stamp_api_server as stamp_api_server,
    )
    from birthmark import (
        stop_owned as stop_owned,
    )
    from birthmark import (
        stop_set as stop_set,
    )
    from birthmark import (
        stop_set_now as stop_set_now,
    )
    from birthmark import (
        terminate_gracefully as terminate_gracefully,
    )
    from birthmark import (
        terminate_group_gracefully as terminate_group_gracefully,
    )


def __getattr__(name: str) -> object:
    """Hand on the public names of the package, imported when they are first asked for."""
    front = _import_module("birthmark")
    if name.startswith("_") or name not in front._HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(front, name)
