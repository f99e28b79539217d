"""Function mailboxes are kept; possibly personal ones are not."""

from __future__ import annotations

import pytest

from pipeline.corpus.personal_data.function_mailboxes import is_function_mailbox
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.text_masking import mask_personal_data

ALL = PersonalData()


@pytest.mark.parametrize(
    ("address", "is_function"),
    [
        ("payroll.finance@firma.nl", True),
        ("sales2@firma.nl", True),  # a number does not make it personal
        ("parkeerdienst@gemeente.nl", True),  # by its ending
        ("noord@firma.nl", False),  # a region alone may be a surname
        ("2024@firma.nl", False),
        ("jan.sales@firma.nl", False),
        ("verkoop@gmail.com", False),  # a person's shop, at a provider for private customers
        ("anna@example.com", True),  # belongs to nobody
        ("anna@firma.test", True),
        ("anna@example.nl", False),  # not reserved
        ("python-users@lists.python.org", True),
        ("python-users@firma.nl", False),  # not a domain of mailing lists
        ("python@lists.python.org", False),
    ],
)
def test_function_mailbox_is_recognized_unless_it_may_be_a_name(address: str, is_function: bool) -> None:
    assert is_function_mailbox(*address.split("@")) == is_function


def test_regions_and_domain_words_are_not_function_mailboxes() -> None:
    persons = (
        "west@huisartsen.nl do@bakkerij.nl dev@firma.nl jansen.nl@jansen.nl verkoop.jansen@jansen.nl "
        "support.jan@lists.x.nl jan@lists.x.nl vries.help@googlegroups.com no.be@x.nl"
    )
    assert mask_personal_data(persons, ALL)[0] == " ".join(["<EMAIL>"] * 9)
    functions = "sales-nl@x.nl no-reply@x.nl do-not-reply@x.nl dev.team@x.nl python-dev@lists.x.nl help@groups.x.nl"
    assert mask_personal_data(functions, ALL) == (functions, {})


def test_function_mailboxes_can_be_replaced() -> None:
    text = "Mail helpdesk@bakkerijsmit.nl of alice@example.com."
    assert mask_personal_data(text, ALL) == (text, {})
    every = PersonalData(function_mailboxes=False)
    assert mask_personal_data(text, every) == ("Mail <EMAIL> of <EMAIL>.", {"email": 2})
    assert "<FUNCTION_MAILBOXES>" not in every.list_replacement_markers() + ALL.list_replacement_markers()
