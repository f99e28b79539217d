"""Finds and replaces personal data in texts, and the datatrove block for documents.

Contact data of public bodies and of functions instead of persons is kept.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep

from pipeline.core.unicode_normalization import normalize_nfc
from pipeline.corpus.personal_data.addresses import find_addresses, find_emails, find_ip_addresses
from pipeline.corpus.personal_data.candidates import find_candidates
from pipeline.corpus.personal_data.function_mailboxes import is_function_mailbox
from pipeline.corpus.personal_data.numeric_identifiers import (
    find_bsns,
    find_credit_cards,
    find_ibans,
    find_kvk_numbers,
    find_number_plates,
    find_passports,
)
from pipeline.corpus.personal_data.settings import PersonalData
from pipeline.corpus.personal_data.spans import Candidates, PersonalDataSpan, normalize_typography
from pipeline.corpus.personal_data.telephone import check_regions, find_telephone_numbers


def searches_by_kind(kinds: PersonalData) -> dict[str, Callable[[str, Candidates], Iterable[PersonalDataSpan]]]:
    """Return the search functions by kind; the first of overlapping matches counts, so check digits come first."""
    return {
        "email": find_emails,
        **{"iban": find_ibans, "credit_card": find_credit_cards, "bsn": find_bsns, "passport": find_passports},
        "telephone": partial(find_telephone_numbers, regions=kinds.telephone_regions),
        **{
            "kvk": find_kvk_numbers,
            "ip": find_ip_addresses,
            "address": find_addresses,
            "number_plate": find_number_plates,
        },
    }


KINDS = tuple(searches_by_kind(PersonalData()))


def find_personal_data(text: str, kinds: PersonalData) -> list[PersonalDataSpan]:
    """Return the personal data of a text, sorted by position, without overlaps and public contacts."""
    public = PublicContacts.cached_contacts(
        tuple(kinds.public_bodies), kinds.known_public_bodies, kinds.function_mailboxes
    )
    spans: list[PersonalDataSpan] = []

    def take(candidates: Iterable[PersonalDataSpan]) -> None:
        for span in candidates:
            place = bisect(spans, span)
            free_before = place == 0 or spans[place - 1].end <= span.start
            if free_before and (place == len(spans) or span.end <= spans[place].start):
                spans.insert(place, span)

    normalized = normalize_typography(text)
    where = find_candidates(normalized)
    for kind, search in searches_by_kind(kinds).items():
        if getattr(kinds, kind):
            take(search(normalized, where))
    if kinds.names is not None:  # spaCy is imported only if a model is configured
        from pipeline.corpus.personal_data import person_names

        take(person_names.find_person_names(text, person_names.load_spacy_pipeline(kinds.names, kinds.names_sha256)))
    return [span for span in spans if not public.is_public_contact(span)]


def mask_personal_data(text: str, kinds: PersonalData) -> tuple[str, dict[str, int]]:
    """Return the text with personal data replaced, and the number of replacements by kind.

    The replacement is a marker such as <EMAIL>, or a synthetic value. The seed of synthetic values is the text:
    duplicates stay duplicates, and without the text nobody can test guesses of the original value.
    """
    spans = find_personal_data(text, kinds)
    synthetic = kinds.replacement == "synthetic"
    if synthetic and spans:
        from pipeline.corpus.personal_data.synthetic_values import is_synthetic, synthetic_value

        spans = [span for span in spans if not is_synthetic(span)]
    seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() if synthetic else b""
    pieces: list[str] = []
    last = 0
    for span in spans:
        put = synthetic_value(span, seed) if synthetic else f"<{span.kind.upper()}>"
        pieces += [text[last : span.start], put]
        last = span.end
    return "".join([*pieces, text[last:]]), dict(Counter(span.kind for span in spans))


class PersonalDataMaskingStep(PipelineStep):  # type: ignore[misc]
    """Replaces personal data, and counts it by kind in `personal_data` of the metadata; values are not stored.

    BSNs, IBANs and payment cards must have correct check digits, and telephone numbers must be in the numbering plans.
    A BSN, KvK number or passport number needs a word for it nearby. Contacts of public bodies are kept.
    """

    type = "🔒 - PERSONAL DATA"
    name = "Mask personal data"

    def __init__(self, kinds: PersonalData) -> None:
        super().__init__()
        check_regions(kinds.telephone_regions)
        self.kinds = kinds
        find_personal_data(
            "", kinds
        )  # a model of names may need torch, so that it is loaded before spaCy's words are, without

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        for document in data:
            with self.track_time():
                document.text, counts = mask_personal_data(document.text, self.kinds)
                document.metadata["personal_data"] = counts
                for kind, number in counts.items():
                    self.stat_update(kind, value=number)
            yield document


# Names of mailboxes of functions (RFC 2142, and common ones of organizations), at any domain.
_ROLES = """
info@ contact@ gemeente@ provincie@ woo@ postmaster@ hostmaster@ webmaster@ abuse@ noc@ security@ noreply@ no-reply@
git@
"""
# Domains of the state, its agencies, the courts, parliament, provinces, water boards, municipalities and the EU: for
# requests for information (Wet open overheid), and their sites (organisaties.overheid.nl). There is no pattern
# *gemeente.nl, because church congregations have such domains.
_DOMAINS = """
overheid.nl rijksoverheid.nl government.nl minaz.nl minbuza.nl minbzk.nl minezk.nl minez.nl minfin.nl minienw.nl
minjenv.nl minlnv.nl minocw.nl minszw.nl minvws.nl mindef.nl belastingdienst.nl douane.nl duo.nl uwv.nl svb.nl cbs.nl
cpb.nl scp.nl pbl.nl kvk.nl kadaster.nl rdw.nl rvo.nl rivm.nl rws.nl knmi.nl nvwa.nl ind.nl coa.nl cjib.nl dji.nl
cak.nl logius.nl digid.nl ictu.nl politie.nl om.nl rechtspraak.nl raadvanstate.nl hogeraad.nl tweedekamer.nl
eerstekamer.nl rekenkamer.nl nationaleombudsman.nl autoriteitpersoonsgegevens.nl acm.nl afm.nl dnb.nl igj.nl rvig.nl
nationaalarchief.nl kb.nl vng.nl ipo.nl uvw.nl drenthe.nl flevoland.nl fryslan.frl gelderland.nl provinciegroningen.nl
prvlimburg.nl limburg.nl brabant.nl noord-holland.nl overijssel.nl provincie-utrecht.nl zeeland.nl pzh.nl
zuid-holland.nl ilent.nl owinsp.nl onderwijsinspectie.nl nza.nl ciz.nl cvte.nl ctgb.nl cbg-meb.nl emissieautoriteit.nl
kiesraad.nl kansspelautoriteit.nl huurcommissie.nl mensenrechten.nl onderzoeksraad.nl hdsr.nl hhdelfland.nl hhnk.nl
hhsk.nl rijnland.net gemeente*.nl haarlemmermeergemeente.nl amsterdam.nl rotterdam.nl denhaag.nl utrecht.nl
eindhoven.nl groningen.nl tilburg.nl almere.nl breda.nl nijmegen.nl apeldoorn.nl arnhem.nl haarlem.nl enschede.nl
amersfoort.nl zaanstad.nl s-hertogenbosch.nl haarlemmermeer.nl zwolle.nl leiden.nl zoetermeer.nl dordrecht.nl
leeuwarden.nl maastricht.nl delft.nl alkmaar.nl deventer.nl heerlen.nl hilversum.nl europa.eu gov.uk *.gov *.gov.??
"""
# Post office boxes of The Hague, ministries and agencies (Turfmarkt, Korte Voorhout, Bezuidenhoutseweg, Rijnstraat,
# Parnassusplein, Binnenhof; Emmasingel in Groningen), and the town halls of the four largest cities.
_POSTCODES = "2500* 9726AH 2511BT 2511CW 2511DP 2511VX 2513AA 2515XP 2594AC 1011PN 3011AD 3521AZ"
_STREETS = "Bezuidenhoutseweg67 Bezuidenhoutseweg73 Parnassusplein5"
# Municipalities (14 0xx: annex 1 of the Nummerplan telefoon- en ISDN-diensten), and the public lines which the state
# (1400 from abroad), BZ, the Belastingdienst, IND, RDW, AP, RVO, UWV, RvIG and DUO state on their pages or in the
# Staatscourant.
_TELEPHONES = """
+311400* +31774656767 +31702140214 +31247247247 +31555385385 +31880430430 +31880087447 +31881805250 +31880424242
+31888982001 +31889001000 +31793232333 +31793232444 +31793232666 +31505997755 +31505998933
"""
# An initial and a name are a person at any domain: j.jansen, ab.de.vries, vries.j. So are a first name and a name,
# jan.jansen or jan-willem.van.dam2, unless a part is a function: burger.zaken.
_NAME = r"[^\W\d_]+(?:-[^\W\d_]+)*"
_INITIAL = re.compile(rf"[^\W\d_](?:\.?[^\W\d_])?\.(?:[^\W\d_]+[-.])*[^\W\d_]{{3,}}\d{{0,3}}|{_NAME}\.[^\W\d_]")
_PERSON = re.compile(rf"{_NAME}(?:\.{_NAME})+\d{{0,3}}")
_FUNCTION = re.compile(
    r"(?:(?:^|[._-])(?:info|contact|afd|griffie|directie|college|kabinet|mail|pers|press|media|redactie|web|website|site|help|"
    r"support|ict|hrm?|po|fg|avg|woo|wob|wmo|privacy|klacht|klachten|bezwaar|beroep|meldingen|vragen|aanvraag|aanvragen|"
    r"project|programma|beleid|receptie|planning|factuur|facturen|crediteuren|debiteuren|inkoop|juridisch|no|reply|"
    r"noreply|admin|data|open|gis|geo|stage|jobs|office|standards|pmo|public|national|general|unit|cluster|regio|district)|"
    r"afdeling|zaken|loket|balie|desk|punt|dienst|diensten|bureau|team|lijn|zorg|beheer|centrum|voorlichting|"
    r"communicatie|administratie|vergunning|vergunningen|belasting|belastingen|handhaving|ontwikkeling|melding|"
    r"secretariaat|archief|commissie|bestuur|service)(?=$|[._-])"
)


def _normalize_entry(entry: str) -> str:
    """Return an entry in normal form: numbers and postcodes without separators, prefixed by their kind."""
    entry = normalize_nfc(entry)
    if "@" in entry or "." in entry.strip("+*"):
        return entry.lower()
    value = re.sub(r"[^\w+*?]", "", entry).upper()
    if value.startswith("+"):
        return f"telephone:{value}"
    return f"address:{value}" if re.fullmatch(r"\d{4}[A-Z*?]{1,2}", value) else value


class PublicContacts:
    """Contacts that are kept. An entry is a domain with its subdomains, a mailbox such as info@, or a value.

    `*` matches any characters and `?` one character: gemeente*.nl, +3170*, 2595 B*.
    """

    def __init__(self, entries: Iterable[str], known: bool = True, functions: bool = True) -> None:
        self.functions = functions
        listed = [_normalize_entry(entry) for entry in entries]
        if known:
            listed += [
                _normalize_entry(entry)
                for entry in f"{_ROLES} {_DOMAINS} {_POSTCODES} {_STREETS} {_TELEPHONES}".split()
            ]
        self.roles = {entry[:-1] for entry in listed if entry.endswith("@")}
        values = [entry.lstrip("@") for entry in listed if not entry.endswith("@")]
        self.exact = {value for value in values if not re.search(r"[*?]", value)}
        wild = sorted(set(values) - self.exact)
        pattern = "|".join(re.escape(value).replace(r"\*", ".*").replace(r"\?", ".") for value in wild)
        self.wild = re.compile(pattern) if wild else None

    @staticmethod
    @cache
    def cached_contacts(entries: tuple[str, ...], known: bool, functions: bool) -> PublicContacts:
        return PublicContacts(entries, known, functions)

    def _is_listed(self, value: str) -> bool:
        return value in self.exact or bool(self.wild and self.wild.fullmatch(value))

    def is_public_contact(self, span: PersonalDataSpan) -> bool:
        """Return whether a match belongs to a public body or a function."""
        if span.kind != "email":
            return self._is_listed(span.value) or self._is_listed(f"{span.kind}:{span.value}")
        local, _, domain = span.value.rpartition("@")
        if local in self.roles or span.value in self.exact:
            return True
        if self.functions and is_function_mailbox(local, domain):
            return True
        labels = domain.split(".")
        listed = any(self._is_listed(".".join(labels[place:])) for place in range(len(labels) - 1))
        if not listed or _INITIAL.fullmatch(local):
            return False
        return not _PERSON.fullmatch(local) or bool(_FUNCTION.search(local))
