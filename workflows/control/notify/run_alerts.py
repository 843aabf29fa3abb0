"""The program `notify FOLDER`, which finds a run's events and sends alerts about them.

The supervisor restarts the program until the run is over and each alert is sent or abandoned.

As long as a problem lasts, each check finds the same event, with the same id. The outbox, a
database of alerts, stores an id only once. So only one alert is sent. A problem that may pass by
itself, such as a restarting service, becomes an event only after ten minutes.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trialfleet.errors import InputError, TrialfleetError
from trialfleet.files import shell_quoted_anywhere
from trialfleet.workflows.control.dagman.alert_and_export_processes import be_watcher
from trialfleet.workflows.control.notify.delivery import LOOK_SECONDS, deliver
from trialfleet.workflows.facts.journal.event import Event, event_id
from trialfleet.workflows.facts.journal.outbox import Outbox
from trialfleet.workflows.facts.models.approval import promote_command
from trialfleet.workflows.facts.run_folder.folder import RunFolder
from trialfleet.workflows.facts.runs.failed_attempts import error_kind
from trialfleet.workflows.facts.runs.run_storage import is_taken_over
from trialfleet.workflows.facts.runs.spending import scaling_notes
from trialfleet.workflows.formatting import in_one_line, result_text, usd
from trialfleet.workflows.rules.states import RunState, Stage
from trialfleet.workflows.status.status_reader import StatusReader
from trialfleet.workflows.status.status_types import RegionStatus, RunStatus
from trialfleet.workflows.study.frozen import FrozenStudy, load_frozen
from trialfleet.workflows.study.notify import EventKind

LASTING = 600.0  # seconds after which a trouble becomes an event
_SHARE = 0.8  # of a limit: an alert is sent while there is still time to raise the limit


class RunEvents:
    """Finds a run's events; its method `poll` is called repeatedly."""

    def __init__(self, folder: RunFolder) -> None:
        """Read the run's study. InputError if the folder is not a run's folder."""
        self._folder = folder
        self._frozen = load_frozen(folder.study)
        self._reader = StatusReader(folder, brief=True)
        self._since: dict[tuple[EventKind, str], float] = {}
        self.is_over = False

    def poll(self) -> list[Event]:
        """Return all events that apply now, including events that were returned before.

        That the run can't be read is an event, too. InputError or OSError if the run was removed.
        """
        try:
            status = self._reader.read()
        except (InputError, OSError) as error:
            if not self._folder.study.exists():
                raise
            return [*self._lasting_trouble_events("attention", [f"it can't be read: {error}"])]
        self.is_over = status.ended
        found = [
            *self._region_events(status),
            *self._money_events(status),
            *map(self._attention, status.failing),
            *self._job_events(status),
            *self._lasting_trouble_events("attention", _list_troubles(status)),
        ]
        if not self.is_over:
            found += self._lasting_trouble_events("fleet-short", self._shortage_lines(status))
            found += self._sick_gpus()
        if status.state in {RunState.DONE, RunState.FAILED}:
            found.append(self._end(status))
        return found

    def _region_events(self, status: RunStatus) -> Iterator[Event]:
        for region in status.regions:
            if region.stage is Stage.FAILED:
                yield self._failure_event(region)
            if region.kept:
                promote = promote_command(Path(region.published or ""))
                text = f"The new model is in {region.published}.\nTo promote it anyway: {promote}"
                what = f"the current model was kept: {region.kept}"
                yield self._build_event("champion-kept", what, text, key=region.kept, region=region)
            if region.awaits_approval:
                yield self._approval_event(region)
            if region.drift:
                of = shlex.quote(f"{self._frozen.study.name}/{region.name}")
                what = f"the current model has drifted: {region.drift}"
                text = f"History: trialfleet models {of}"
                yield self._build_event("drift", what, text, key=region.drift, region=region)

    def _approval_event(self, region: RegionStatus) -> Event:
        path = Path(region.published or "")
        why = f" ({region.gate.why})" if region.gate else ""
        text = (
            f"The new model is in {path}.\nTo promote it: {promote_command(path)} --why REASON\n"
            "Until then the current model stays."
        )
        what = f"its new model passed the gate{why} and waits for approval"
        data = {"model": str(path), "since": region.awaits_approval}
        return self._build_event("awaits-approval", what, text, region=region, data=data)

    def _failure_event(self, region: RegionStatus) -> Event:
        why = region.reason or (str(region.cause) if region.cause else "its DAG ended early")
        log = region.cause.log if region.cause else None
        lines = [
            f"{region.done} of {region.budget} trials completed.",
            f"Log: {shlex.quote(log)}" if log else "",
            f"More: trialfleet status {shell_quoted_anywhere(self._folder.root)}",
            f"To resume: trialfleet resume {shell_quoted_anywhere(self._folder.root)}",
        ]
        text = "\n".join(filter(None, lines))
        what, same = f"failed: {why}", error_kind(why)
        return self._build_event("region-failed", what, text, key=same, region=region)

    def _job_events(self, status: RunStatus) -> Iterator[Event]:
        """Yield an event for each cause of stalled trials, and one if much work was lost."""
        text = f"More: trialfleet why --run {shell_quoted_anywhere(self._folder.root)}"
        for cause, trouble in {
            error_kind(each.cause): each for each in status.job_troubles
        }.items():
            data = {"node": trouble.node, "machine": trouble.machine, "log": trouble.log}
            yield self._build_event("attention", str(trouble), text, key=cause, data=data)
        if status.work.is_much_lost:
            yield self._build_event("attention", str(status.work), text, key="lost work")

    def _money_events(self, status: RunStatus) -> Iterator[Event]:
        """Yield the events about budgets in USD and about the fleet's price cap.

        The event "budget-80" counts only spent money. The event "budget-spent" also counts money
        that is reserved for running jobs. So "budget-spent" may come without "budget-80".
        """
        budget = self._frozen.study.budget
        for region in status.regions:
            own = self._frozen.study.region_budget(region.name).usd
            if region.spent:
                yield self._budget_event(region)
            elif own and (region.usd or 0.0) >= _SHARE * own:
                what = f"{usd(region.usd)} USD of {usd(own)} spent (budget.usd)"
                yield self._build_event("budget-80", what, key=str(own), region=region)
        spent = sum(region.usd or 0.0 for region in status.regions)
        used_up = [region.spent for region in status.regions if region.spent]
        for key in ("usd_per_run", "usd_per_day"):
            most = getattr(budget, key)
            is_used_up = any(reason.startswith(f"budget.{key} ") for reason in used_up)
            if most and spent >= _SHARE * most and not is_used_up:
                what = f"{usd(spent)} USD of {usd(most)} spent (budget.{key})"
                yield self._build_event("budget-80", what, key=f"{key} {most}")
        yield from self._cap_events(status)

    def _budget_event(self, region: RegionStatus) -> Event:
        lines = [
            f"{region.finished} of {region.budget} trials have ended.",
            "The best settings are trained in full.",
            f"Cost: trialfleet cost {shell_quoted_anywhere(self._folder.root)}",
            "To run more trials next time, raise that budget in the study's file.",
        ]
        what = f"no more trials start: {region.spent}"
        return self._build_event("budget-spent", what, "\n".join(lines), region=region)

    def _cap_events(self, status: RunStatus) -> Iterator[Event]:
        money = status.money
        if money is None or not money.cap:
            return
        cap = {"cap": money.cap, "spent": money.spent}
        if money.ended:
            what = f"no more trials start: {money.ended}"
            text = "To run more trials next time, raise fleet.price_cap.run in the study's file."
            yield self._build_event("budget-spent", what, text, data=cap)
        elif money.spent >= _SHARE * money.cap:
            yield self._build_event("budget-80", str(money), key=str(money.cap), data=cap)

    def _shortage_lines(self, status: RunStatus) -> list[str]:
        fleet = self._frozen.study.fleet
        if fleet is None:
            return []
        notes = scaling_notes(self._folder, self._frozen.run, fleet)
        trouble = status.money.trouble if status.money else None
        return [*notes, *([trouble] if trouble else [])]

    def _sick_gpus(self) -> list[Event]:
        fleet = self._frozen.study.fleet
        if fleet is None or not fleet.brings_gpus:
            return []
        from trialfleet.infra.fleet.htcondor.demand import fleet_machines

        try:
            found = fleet_machines(fleet.full_name)
        except TrialfleetError:  # HTCondor is unreachable, which is another event
            return []
        return [
            self._build_event(
                "sick-gpu",
                f"{node.instance} ({node.gpu or 'no GPU'}) gets no GPU trials: {node.reason}",
                "The node costs money until it is terminated. "
                f"More: trialfleet fleet status {self._frozen.study_file}",
                key=node.instance,
                data={"instance": node.instance, "gpu": node.gpu, "reason": node.reason},
            )
            for node in found
            if node.is_sick()
        ]

    def _lasting_trouble_events(self, kind: EventKind, troubles: Iterable[str]) -> Iterator[Event]:
        now = time.monotonic()
        kinds = {error_kind(trouble): trouble for trouble in troubles}
        keys = {(kind, each) for each in kinds}
        self._since = {
            key: since for key, since in self._since.items() if key[0] != kind or key in keys
        }
        for key in keys:
            self._since.setdefault(key, now)
            if now - self._since[key] >= LASTING:
                yield self._attention(kinds[key[1]], kind)

    def _attention(self, trouble: str, kind: EventKind = "attention") -> Event:
        text = f"More: trialfleet status {shell_quoted_anywhere(self._folder.root)}"
        return self._build_event(kind, trouble, text, key=error_kind(trouble))

    def _end(self, status: RunStatus) -> Event:
        good = sum(region.stage.is_good for region in status.regions)
        lines = [_line(region, status.metric) for region in status.regions]
        return self._build_event(
            "run-done",
            f"{status.state}: {good} of {len(status.regions)} regions succeeded",
            "\n".join([*lines, f"Report: {self._folder.report_page}"]),
            key=f"{status.state} {good}",
            data={
                "state": str(status.state),
                "regions": [
                    {
                        "region": region.name,
                        "state": str(region.stage),
                        "best": region.best,
                        "model": region.published,
                    }
                    for region in status.regions
                ],
            },
        )

    def _build_event(
        self,
        kind: EventKind,
        what: str,
        text: str = "",
        *,
        key: str = "",
        region: RegionStatus | None = None,
        data: dict[str, Any] | None = None,
    ) -> Event:
        """Return an event. The same folder, `kind`, region and `key` always give the same id.

        `what` is the title without the names of study, run and region. `key` distinguishes several
        events of one kind and region. `data` has values for programs, by default the best result
        and the published model of `region`.
        """
        study, run = self._frozen.study.name, self._frozen.run
        own = (region.slug,) if region else ()
        called = f"{study} {run}: {region.name}" if region else f"{study} {run}"
        of_region = {"best": region.best, "model": region.published} if region else {}
        return Event(
            id=event_id(self._folder.root, kind, *own, key),
            kind=kind,
            study=study,
            run=run,
            region=region.name if region else None,
            title=in_one_line(f"{called}: {what}"),
            text=text,
            data=data or of_region,
        )


def _list_troubles(status: RunStatus) -> list[str]:
    held = [f"{job.node or job.job}: its job is on hold: {job.reason}" for job in status.held]
    notice = [status.notice] if status.notice else []
    state = [] if status.state.is_well or status.ended else [f"the run is {status.state}"]
    return [*notice, *status.run_troubles, *held, *state]


def _line(region: RegionStatus, metric: str) -> str:
    best = "" if region.best is None else f"  {result_text(metric, region.best)}"
    why = region.reason or (str(region.cause) if region.cause and not region.stage.is_good else "")
    return f"{region.name}: {region.stage}{best}" + (f"  {in_one_line(why)}" if why else "")


def _not_left_to_other(frozen: FrozenStudy, folder: RunFolder, events: list[Event]) -> list[Event]:
    """Return the events that another manager doesn't report.

    While the managers' database is unreachable, both report what needs a person, such as this.
    """
    is_left = is_taken_over(frozen, folder)
    urgent = [event for event in events if event.kind == "attention"]
    return [] if is_left else urgent if is_left is None else events


def _watch(folder: RunFolder) -> None:
    """Send the alerts about a run's events until the run has ended and no alert waits.

    Return at once if another process already sends them, or if the study has no alerts.

    Raises:
        InputError: the folder isn't a run's folder.
        TrialfleetError: the database of alerts can't be used.
    """
    frozen = load_frozen(folder.study)
    study = frozen.study
    if not study.notify:
        return
    outbox = Outbox(folder.alerts)
    with outbox.hold_lock(wait=False) as is_locked:
        if not is_locked:
            return
        events = RunEvents(folder)
        while True:
            try:
                new = [event for event in events.poll() if not outbox.has(event.id)]
                if new and (ours := _not_left_to_other(frozen, folder, new)):
                    outbox.put(ours, study.notify, is_daily=study.daily is not None)
            except (InputError, OSError):
                if not folder.study.exists():  # the run was removed
                    return
                raise
            waiting = deliver(outbox, study.notify)
            if events.is_over and not waiting:
                return
            time.sleep(LOOK_SECONDS)


def main() -> None:
    """Send alerts about a run's events until the run is over."""
    be_watcher(lambda run: _watch(RunFolder(run)), main.__doc__)
