"""All the work that there is, kind by kind."""

from collections.abc import Callable
from dataclasses import replace

from firm import clerical, finance
from firm.facts import Firm
from firm.requests import TRIES
from firm.task import Task

KINDS: dict[str, tuple[Callable[[Firm, int], Task], ...]] = {
    "finance": (
        finance.invoice_status,
        finance.overdue_reminder,
        finance.sales_from_report,
        finance.budget_slide,
        finance.budget_letter,
        finance.hours_report,
        finance.wrong_amount,
    ),
    "office": (
        clerical.notice_period,
        clerical.price_change,
        clerical.longer_payment,
        clerical.meeting_by_mail,
        clerical.moved_meeting,
        clerical.free_hour,
        clerical.region_deck,
        clerical.minutes,
    ),
}
"""Every kind of work by domain."""


def all_tasks(firm: Firm) -> list[Task]:
    """Every task."""
    tasks = []
    for domain, kinds in KINDS.items():
        for kind in kinds:
            for number in range(TRIES):
                task = kind(firm, number)
                servers = sorted({name.partition("_")[0] for name, _ in task.plan})
                name = f"{domain}-{kind.__name__.replace('_', '-')}-{number}"
                tasks.append(replace(task, name=name, domain=domain, servers=servers))
    return tasks
