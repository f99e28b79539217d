"""Separates mailboxes of functions, such as helpdesk@ and payroll.finance@, from those of persons."""

from __future__ import annotations

import re

# An office that one person holds (koster@, voorzitter@) is not among them, nor a surname (post@).
_WORDS = """
info informatie contact mail email kantoor office admin administratie administration beheer help helpdesk servicedesk
service services support ondersteuning care klantenservice klantcontact klanten klant customer customers client clients
sales verkoop inkoop purchasing procurement order orders bestelling bestellingen retour retouren returns shop winkel
webshop webwinkel store finance financien finances payroll salaris salarissen salary accounting accounts payable
receivable billing invoice invoices invoicing factuur facturen facturatie crediteuren debiteuren boekhouding betalingen
betaling payments payment treasury tax hr hrm personeel recruitment recruiting jobs careers career vacature vacatures
sollicitatie sollicitaties stage stages press pers media pr communicatie communications communication marketing
redactie editorial newsroom news nieuws nieuwsbrief newsletter tips lezers abonnement abonnementen subscription
subscriptions subscribe unsubscribe advertenties advertising events evenementen agenda legal juridisch privacy avg gdpr
dpo data protection officer compliance security abuse fraude fraud meldpunt infopunt melding meldingen klacht klachten
complaints feedback vragen questions enquiries inquiries bezwaar ict it tech technical techniek netwerk network noc
hostmaster webmaster postmaster web website webredactie site development developers git bug bugs issues tickets
systeem systems servers monitoring alerts notifications notificaties notification noreply donotreply reply
bounces mailer daemon mailing list lists lijst users announce discuss receptie reception frontdesk front desk balie
loket bureau secretariaat directie management bestuur board commissie committee team teams groep group afdeling
department dienst diensten unit reserveringen reservering reservations reservation booking bookings boekingen planning
logistiek logistics transport magazijn warehouse expeditie verzending shipping leden members membership donateurs
vrijwilligers volunteers onderwijs studenten students alumni bibliotheek library zorg praktijk apotheek polikliniek
recepten afspraak afspraken project projecten projects programma program onderzoek research offerte offertes onderhoud
reparatie reparaties storing storingen aanmelden aanmelding aanmeldingen inschrijven inschrijving inschrijvingen
algemeen general binnenland buitenland economie cultuur
"""
# Regions, and words that may be a name, an initial or a code: they count only next to a function.
_QUALIFYING_WORDS = """
noord zuid oost west nl be eu uk us benelux nederland europe international internationaal global regio no do not dev
devel
"""
_QUALIFIERS = frozenset(_QUALIFYING_WORDS.split())
_FUNCTION_WORDS = frozenset(_WORDS.split())
_FUNCTION_ENDING = re.compile(
    r".{3,}(?:desk|balie|loket|meldpunt|dienst|team|administratie|zaken|service|beheer|secretariaat|redactie|commissie|"
    r"afdeling|voorziening|voorlichting|management|support|planning)"
)
# Reserved for documentation and tests (RFC 2606, RFC 6761): such mailboxes belong to nobody.
_RESERVED_DOMAIN = re.compile(r"(?:.+\.)?(?:example\.(?:com|net|org)|example|test|invalid|localhost)")
_MAILBOX_PROVIDER = re.compile(
    r"(?:gmail|googlemail|hotmail|outlook|live|yahoo|icloud|aol|gmx|proton|protonmail|ziggo|kpnmail|kpnplanet|planet|xs4all|"
    r"home|hetnet|upcmail|casema|chello|quicknet|solcon|zonnet|freedom|online|wxs|tiscali|telenet|skynet|btinternet|"
    r"t-online|msn|me|mac|web)\.(?:com|nl|be|de|me|net|fr|co\.uk)"
)
# The name of a mailing list: python-users.
_LIST_NAME = re.compile(r"[\w+-]+-(?:users|dev|devel|announce|discuss|bugs|issues|commits|list|lijst)")
_MAILING_LISTS = re.compile(r"(?:lists?|lijst(?:en)?|groups|mailman)\..*|googlegroups\.com")


def is_function_mailbox(local: str, domain: str) -> bool:
    """Return whether each word of a mailbox is a function or a region, and one is a function (payroll-nl@…).

    A word of the domain is none, because it may be a name (verkoop.jansen@jansen.nl). A mailing list also has names
    such as python-users. Mailboxes at providers for persons are none; those at domains for documentation, such as
    example.com, count as if they were.
    """
    if _RESERVED_DOMAIN.fullmatch(domain):
        return True
    if _MAILBOX_PROVIDER.fullmatch(domain):
        return False
    if _MAILING_LISTS.fullmatch(domain) and _LIST_NAME.fullmatch(local):
        return True
    words = {word for part in re.split(r"[._+-]", local) if (word := part.rstrip("0123456789"))} - _QUALIFIERS
    return bool(words) and all(word in _FUNCTION_WORDS or _FUNCTION_ENDING.fullmatch(word) for word in words)
