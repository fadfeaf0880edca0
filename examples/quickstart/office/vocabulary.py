"""The words that the office is made of; everything else in it is numbers and fixed phrases."""


def _words(text: str) -> list[str]:
    return text.split()


ITEMS = _words("""
    binder cabinet cable chair charger desk envelope headset keyboard ladder lamp marker
    monitor mouse notebook printer projector router scanner sofa stapler tablet trolley whiteboard
""")
"""What the company stocks and orders."""

PEOPLE = _words("""
    Amara Bruno Carla Dina Elif Farid Greta Hugo Irene Jonas Keiko Lars
    Mona Nadia Oscar Petra Quentin Rosa Samir Tessa Umar Vera Wendell Yusuf
""")
"""Who works there, or for its vendors."""

CITIES = _words("Accra Bern Cairo Delhi Kyoto Leeds Lima Lyon Oslo Perth Porto Quito Rome Seoul Tokyo Turin")
"""Where they sit."""

VENDORS = _words("""
    Acmeco Brightline Coppermill Dunmore Eastgate Fairfield Glenrock Harborside
    Inkwell Juniper Kestrel Lakeview Meridian Northwind Oakhurst Pinecrest
""")
"""Who sends invoices."""

TEAMS = _words("design legal logistics marketing payroll research sales support")
"""Who has a budget."""

STATUSES = _words("approved disputed open overdue paid")
"""What an invoice can be."""

MONTHS = _words("january february march april may june july august september october november december")
"""When the stock was counted."""

COLUMNS = _words("""
    amount budget city contact counted discount extension invoice item name order owner price
    quantity shelf spending status team vendor
""")
"""Headers of the sheets."""

REPLIES = [f"{word}.txt" for word in _words("answer figure note reply result summary")]
"""Names of files that an answer goes to, in `outbox/`."""
