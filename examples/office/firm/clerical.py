"""Work with contracts, meetings, minutes and decks."""

from datetime import timedelta

from firm.facts import QUARTERS, Firm
from firm.requests import new_price
from firm.task import Task, letter_id, post_id


def notice_period(firm: Firm, number: int) -> Task:
    """Answer a question in the chat from a contract."""
    channel, post = post_id(firm, f"notice-{number}")
    vendor = firm.vendors[number + 2]
    return Task(
        f"Ann Lee has a question about {vendor.name} in the channel {channel}. Answer it in its thread; the"
        " contracts are in contracts/.",
        [{"kind": "said", "channel": channel, "thread": post, "says": [str(vendor.notice_days)]}],
        [
            ("chat_get_channel_history", {"channel": channel}),
            ("docs_search_doc", {"path": vendor.file, "query": "notice"}),
            ("chat_reply_to_thread", {"post_id": f"{channel}/{post}", "text": f"{vendor.notice_days} days."}),
        ],
        [f"chat/channels/{channel}.jsonl"],
    )


def price_change(firm: Firm, number: int) -> Task:
    """Take prices from a mail's attachment into a contract."""
    mail, vendor = letter_id(firm, f"prices-{number}"), firm.vendors[number + 3]
    part, price = new_price(firm, number)
    index = list(vendor.prices).index(part) + 1
    rows = [["part", "price"], *([name, str(price if name == part else old)] for name, old in vendor.prices.items())]
    return Task(
        f"{vendor.name} has mailed new prices. Take them into the table of its contract and confirm by mail which price"
        " changed, and to what.",
        [
            {"kind": "table", "path": vendor.file, "rows": rows},
            {"kind": "sent", "to": vendor.mail, "says": [part, str(price)]},
        ],
        [
            ("mail_search_mails", {"query": "prices"}),
            ("mail_read_mail", {"mail_id": mail}),
            ("mail_save_attachment", {"mail_id": mail, "name": "prices.csv", "path": "outbox/prices.csv"}),
            ("filesystem_read_text_file", {"path": "outbox/prices.csv"}),
            ("docs_read_doc", {"path": vendor.file}),
            ("docs_set_text", {"path": vendor.file, "element": f"t0.r{index}.c1", "text": str(price)}),
            ("mail_reply", {"mail_id": mail, "body": f"The price of the {part} is {price} now."}),
        ],
        [vendor.file, "mail/Sent.mbox", "outbox/prices.csv"],
    )


def longer_payment(firm: Firm, number: int) -> Task:
    """Change a term of a contract, and say so by mail."""
    vendor = firm.vendors[number]
    days = vendor.payment_days + 5
    return Task(
        f"{vendor.name} agrees to be paid five days later. Change that in its contract, and write to its accounts"
        f" ({vendor.mail}) within how many days bills are paid now.",
        [
            {
                "kind": "document",
                "path": vendor.file,
                "says": [f"paid within {days} days", f"{vendor.notice_days} days"],
            },
            {"kind": "sent", "to": vendor.mail, "says": [f"{days} days"]},
        ],
        [
            ("docs_search_doc", {"path": vendor.file, "query": "paid"}),
            (
                "docs_replace_text",
                {"path": vendor.file, "old": f"within {vendor.payment_days} days", "new": f"within {days} days"},
            ),
            (
                "mail_send_mail",
                {"to": [vendor.mail], "subject": "Payment", "body": f"Bills are paid within {days} days now."},
            ),
        ],
        [vendor.file, "mail/Sent.mbox"],
    )


def meeting_by_mail(firm: Firm, number: int) -> Task:
    """Put a meeting that was asked for by mail into the calendar."""
    mail, person = letter_id(firm, f"meet-{number}"), list(firm.people.values())[1 + number]
    title = ("fair", "audit", "move")[number]
    day, hour = 10 + number, 13 + number
    times = {"start": f"2026-03-{day}T{hour}:00", "end": f"2026-03-{day}T{hour + 1}:00"}
    return Task(
        f"{person.name} asks by mail for a meeting. Put it into the calendar, with what it is about in its title and"
        f" {person.name} as the one who takes part, and confirm date and time by mail.",
        [
            {"kind": "event", "title": title, "people": [person.mail], **times},
            {"kind": "sent", "to": person.mail, "says": [f"2026-03-{day}", f"{hour}:00"]},
        ],
        [
            ("mail_search_mails", {"query": "meeting", "sender": person.id}),
            ("mail_read_mail", {"mail_id": mail}),
            ("calendar_create_event", {"title": f"About the {title}", "attendees": [person.mail], **times}),
            ("mail_reply", {"mail_id": mail, "body": f"It is in the calendar: 2026-03-{day}, {hour}:00."}),
        ],
        ["calendar/work.ics", "mail/Sent.mbox"],
    )


def moved_meeting(firm: Firm, number: int) -> Task:
    """Move a meeting as somebody asked in the chat."""
    channel, post = post_id(firm, f"move-{number}")
    meeting = firm.meetings[2 + 6 * number]
    start = meeting.start.replace(hour=17)
    return Task(
        f"Bob Reyes asks in the channel {channel} for the meeting of {meeting.start:%Y-%m-%d %H:%M} to be moved. Move"
        " it in the calendar, and mark his post with the reaction 'done'.",
        [
            {
                "kind": "event",
                "uid": meeting.uid,
                "people": [],
                "start": f"{start:%Y-%m-%dT%H:%M}",
                "end": f"{start + timedelta(hours=1):%Y-%m-%dT%H:%M}",
            },
            {"kind": "reaction", "channel": channel, "post": post, "name": "done"},
        ],
        [
            ("chat_search_messages", {"query": "has to move"}),
            ("calendar_list_events", {"first": f"{meeting.start:%Y-%m-%d}", "last": f"{meeting.start:%Y-%m-%d}"}),
            ("calendar_update_event", {"event_id": f"work/{meeting.uid}", "start": f"{start:%Y-%m-%dT%H:%M}"}),
            ("chat_add_reaction", {"post_id": f"{channel}/{post}", "reaction": "done"}),
        ],
        ["calendar/work.ics", f"chat/channels/{channel}.jsonl"],
    )


def free_hour(_: Firm, number: int) -> Task:
    """Find the free hour of a day and fill it."""
    day, hour = 2 + number, (11, 14, 10)[number]
    date = f"2026-03-0{day}"
    times = {"start": f"{date}T{hour}:00", "end": f"{date}T{hour + 1}:00"}
    return Task(
        f"Find the one free hour between 9:00 and 16:00 on {date}, put an event 'Call with the bank' there, and tell"
        " the channel general when it is.",
        [
            {"kind": "event", "title": "Call with the bank", "people": [], **times},
            {"kind": "said", "channel": "general", "says": [f"{hour}:00"]},
        ],
        [
            ("calendar_find_free_time", {"first": f"{date}T09:00", "last": f"{date}T16:00", "minutes": 60}),
            ("calendar_create_event", {"title": "Call with the bank", **times}),
            ("chat_post_message", {"channel": "general", "text": f"The bank calls on {date} at {hour}:00."}),
        ],
        ["calendar/work.ics", "chat/channels/general.jsonl"],
    )


def region_deck(firm: Firm, number: int) -> Task:
    """Make a deck of figures that stand in three reports."""
    channel, post = post_id(firm, f"figures-{number}")
    region = ("North", "East", "West")[number]
    figures = [firm.sales[quarter][region] for quarter in QUARTERS]
    path = f"outbox/{region.lower()}.pptx"
    return Task(
        f"Eva Lund asks for figures in the channel {channel}: the sales of {region}. They are in reports/. Write"
        f" a deck {path} whose first slide has them in a table, and tell her in the thread where it is.",
        [
            {"kind": "slide", "path": path, "slide": 1, "says": [region, *map(str, figures)]},
            {"kind": "said", "channel": channel, "thread": post, "says": [path]},
        ],
        [
            ("chat_get_channel_history", {"channel": channel}),
            *(("pdf_search_pdf", {"path": f"reports/{quarter.lower()}.pdf", "query": region}) for quarter in QUARTERS),
            ("slides_create_deck", {"path": path, "slides": [{"title": f"Sales of {region}"}]}),
            (
                "slides_add_table",
                {"path": path, "slide": 1, "rows": [list(QUARTERS), [str(figure) for figure in figures]]},
            ),
            ("chat_reply_to_thread", {"post_id": f"{channel}/{post}", "text": f"It is in {path}."}),
        ],
        [path, f"chat/channels/{channel}.jsonl"],
    )


def minutes(firm: Firm, number: int) -> Task:
    """Write down what a thread has decided."""
    channel, post = post_id(firm, f"minutes-{number}")
    what = ("a new crane", "two more cars", "a stand at the fair")[number]
    who = ("Joe", "Mia", "Eva")[number]
    path = f"outbox/minutes-{number}.docx"
    return Task(
        f"The channel {channel} has talked about {what}. Write {path}: a heading 'Decision', what was asked, which"
        " budget pays and who orders it by when. Mail the file to Bob Reyes (bob@halden.example).",
        [
            {"kind": "document", "path": path, "says": ["Decision", what, "spring budget", who, "end of March"]},
            {"kind": "sent", "to": "bob@halden.example", "says": [], "attached": [path.rpartition("/")[2]]},
        ],
        [
            ("chat_search_messages", {"query": what, "channel": channel}),
            ("chat_get_thread_replies", {"post_id": f"{channel}/{post}"}),
            (
                "docs_create_doc",
                {
                    "path": path,
                    "markdown": f"# Decision\n\nWe pay for {what}: spring budget. {who} orders it by the end of March.",
                },
            ),
            (
                "mail_send_mail",
                {"to": ["bob@halden.example"], "subject": "Minutes", "body": "Here.", "attachments": [path]},
            ),
        ],
        [path, "mail/Sent.mbox"],
    )
