from tests.escapes.page import PAGE, page


def test_the_page_lists_what_the_suite_tries() -> None:
    assert PAGE.read_text() == page(), "run `python -m tests.escapes.page`"
