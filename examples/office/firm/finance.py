"""Work with invoices, budgets, sales and hours."""

from firm.facts import QUARTERS, Firm
from firm.task import Task, letter_id


def invoice_status(firm: Firm, number: int) -> Task:
    """Answer a vendor's question about an invoice."""
    mail = letter_id(firm, f"status-{number}")
    bill = firm.of(firm.vendors[number].name, "open")[0]
    return Task(
        f"{bill.vendor} asks by mail about one of its invoices. Answer that mail with the status and the amount that"
        " finance/invoices.xlsx has for it.",
        [{"kind": "sent", "to": firm.vendor(bill.vendor).mail, "says": [bill.number, bill.status, str(bill.amount)]}],
        [
            ("mail_search_mails", {"query": "invoice", "sender": bill.vendor.lower().replace(" ", "-")}),
            ("mail_read_mail", {"mail_id": mail}),
            ("sheets_lookup", {"path": "finance/invoices.xlsx", "row": bill.number, "column": "status"}),
            ("sheets_lookup", {"path": "finance/invoices.xlsx", "row": bill.number, "column": "amount"}),
            ("mail_reply", {"mail_id": mail, "body": f"{bill.number} is {bill.status}; the amount is {bill.amount}."}),
        ],
        ["mail/Sent.mbox"],
    )


def overdue_reminder(firm: Firm, number: int) -> Task:
    """Pass a reminder on, with the invoice that it is about."""
    mail, vendor = letter_id(firm, f"reminder-{number}"), firm.vendors[number + 3]
    bill = firm.of(vendor.name, "overdue")[0]
    return Task(
        f"{vendor.name} has sent a reminder. Forward it to Ann Lee, with the number and the amount of the overdue"
        " invoice, which is in finance/invoices.xlsx.",
        [
            {
                "kind": "sent",
                "to": firm.people["ann"].mail,
                "says": [bill.number, str(bill.amount), "Whom may we call"],
            }
        ],
        [
            ("mail_search_mails", {"query": "overdue"}),
            ("sheets_read_tab", {"path": "finance/invoices.xlsx", "tab": "Invoices"}),
            ("chat_get_users", {}),
            ("chat_get_user_profile", {"user": "ann"}),
            (
                "mail_forward",
                {"mail_id": mail, "to": [firm.people["ann"].mail], "body": f"It is {bill.number} over {bill.amount}."},
            ),
        ],
        ["mail/Sent.mbox"],
    )


def sales_from_report(firm: Firm, number: int) -> Task:
    """Take a report's figures into a workbook, and tell their sum."""
    quarter = QUARTERS[number]
    sales = firm.sales[quarter]
    row = number + 2
    cells = zip("BCDE", sales.values(), strict=True)
    return Task(
        f"Take the sales of all regions from reports/{quarter.lower()}.pdf into the row {quarter} of"
        " finance/sales.xlsx, and tell the channel board what they sum up to.",
        [
            *(
                {"kind": "cell", "path": "finance/sales.xlsx", "tab": "Sales", "cell": f"{column}{row}", "value": value}
                for column, value in cells
            ),
            {
                "kind": "cell",
                "path": "finance/sales.xlsx",
                "tab": "Sales",
                "cell": f"F{row}",
                "value": sum(sales.values()),
            },
            {"kind": "said", "channel": "board", "says": [str(sum(sales.values()))]},
        ],
        [
            ("pdf_read_pdf_pages", {"path": f"reports/{quarter.lower()}.pdf"}),
            (
                "workbooks_write_cells",
                {"path": "finance/sales.xlsx", "cell": f"B{row}", "rows": [[str(value) for value in sales.values()]]},
            ),
            ("sheets_lookup", {"path": "finance/sales.xlsx", "row": quarter, "column": "sum"}),
            ("chat_post_message", {"channel": "board", "text": f"{quarter} sums up to {sum(sales.values())}."}),
        ],
        ["finance/sales.xlsx", "chat/channels/board.jsonl"],
    )


def budget_slide(firm: Firm, number: int) -> Task:
    """Put a figure of a workbook on a slide, and mail it."""
    team, (budget, spent) = list(firm.budgets.items())[number]
    slide = number + 2
    return Task(
        f"The slide about the budget of {team} in slides/board.pptx still lacks what is left. Take it from"
        " finance/budget.xlsx, and mail Eva Lund (eva@halden.example) the same figure.",
        [
            {"kind": "slide", "path": "slides/board.pptx", "slide": slide, "says": [str(budget - spent)]},
            {"kind": "sent", "to": "eva@halden.example", "says": [str(budget - spent)]},
        ],
        [
            ("slides_search_slides", {"path": "slides/board.pptx", "query": team}),
            ("sheets_lookup", {"path": "finance/budget.xlsx", "row": team, "column": "left"}),
            (
                "slides_set_table_cell",
                {"path": "slides/board.pptx", "slide": slide, "shape": 1, "cell": "r1.c0", "text": str(budget - spent)},
            ),
            (
                "mail_send_mail",
                {"to": ["eva@halden.example"], "subject": team, "body": f"{team} has {budget - spent} left."},
            ),
        ],
        ["slides/board.pptx", "mail/Sent.mbox"],
    )


def budget_letter(firm: Firm, number: int) -> Task:
    """Write a page about a team's budget, and send it."""
    team, (budget, spent) = list(firm.budgets.items())[number + 3]
    path = f"outbox/{team.lower()}.pdf"
    return Task(
        f"Write {path}, a page with the budget, the spending and what is left of {team} (finance/budget.xlsx), and"
        " send it to Ann Lee (ann@halden.example).",
        [
            {"kind": "pdf", "path": path, "says": [team, str(budget), str(spent), str(budget - spent)]},
            {"kind": "sent", "to": "ann@halden.example", "says": [], "attached": [path.rpartition("/")[2]]},
        ],
        [
            ("sheets_read_tab", {"path": "finance/budget.xlsx"}),
            (
                "pdf_create_pdf",
                {
                    "path": path,
                    "markdown": f"# {team}\n\nBudget {budget}, spent {spent}, left {budget - spent}.",
                },
            ),
            (
                "mail_send_mail",
                {"to": ["ann@halden.example"], "subject": team, "body": "Attached.", "attachments": [path]},
            ),
        ],
        [path, "mail/Sent.mbox"],
    )


def hours_report(firm: Firm, number: int) -> Task:
    """Make a workbook of timesheets, and tell the sum."""
    month = ("january", "february", "january")[number]
    people = list(firm.people)[2 * number : 2 * number + 2]
    total = sum(firm.hours[month][who] for who in people)
    path = f"outbox/hours-{number}.xlsx"
    return Task(
        f"Write {path} with a tab Hours: a header (person, hours) and the hours that {people[0]} and {people[1]} have"
        f" in timesheets/{month}.csv, one row each. Post their sum in the channel general.",
        [
            {"kind": "cell", "path": path, "tab": "Hours", "cell": "B2", "value": firm.hours[month][people[0]]},
            {"kind": "cell", "path": path, "tab": "Hours", "cell": "B3", "value": firm.hours[month][people[1]]},
            {"kind": "said", "channel": "general", "says": [str(total)]},
        ],
        [
            ("filesystem_list_files", {"path": "timesheets"}),
            ("code_code_exec", {"code": f"grep -E '{people[0]}|{people[1]}' timesheets/{month}.csv"}),
            (
                "workbooks_create_spreadsheet",
                {
                    "path": path,
                    "tab": "Hours",
                    "rows": [["person", "hours"], *([who, str(firm.hours[month][who])] for who in people)],
                },
            ),
            ("chat_post_message", {"channel": "general", "text": f"Together they worked {total} hours."}),
        ],
        [path, "chat/channels/general.jsonl"],
    )


def wrong_amount(firm: Firm, number: int) -> Task:
    """Correct an invoice by the price of its contract."""
    vendor = firm.vendors[number + 1]
    bill = firm.of(vendor.name, "paid")[0]
    amount = bill.quantity * 2 * vendor.prices[bill.part]
    row = firm.invoices.index(bill) + 2
    sheet = {"kind": "cell", "path": "finance/invoices.xlsx", "tab": "Invoices"}
    return Task(
        f"Invoice {bill.number} in finance/invoices.xlsx has the wrong quantity: it is {bill.quantity * 2}. Correct"
        f" it, and the amount by the price in the contract with {vendor.name}. Then tell the channel purchasing the new"
        " amount.",
        [
            {**sheet, "cell": f"D{row}", "value": bill.quantity * 2},
            {**sheet, "cell": f"E{row}", "value": amount},
            {"kind": "said", "channel": "purchasing", "says": [bill.number, str(amount)]},
        ],
        [
            ("docs_read_doc", {"path": vendor.file}),
            ("sheets_lookup", {"path": "finance/invoices.xlsx", "row": bill.number, "column": "part"}),
            *(
                (
                    "sheets_edit_cell",
                    {"path": "finance/invoices.xlsx", "row": bill.number, "column": column, "value": str(value)},
                )
                for column, value in (("quantity", bill.quantity * 2), ("amount", amount))
            ),
            ("chat_post_message", {"channel": "purchasing", "text": f"{bill.number} comes to {amount} now."}),
        ],
        ["finance/invoices.xlsx", "chat/channels/purchasing.jsonl"],
    )
