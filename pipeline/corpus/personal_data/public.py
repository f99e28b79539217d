"""What belongs to public bodies and to functions instead of persons, and therefore stays."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pipeline.core.normalization import composed
from pipeline.corpus.personal_data.found import Found

# Names of mailboxes that belong to a function (RFC 2142, and those that organisations give to everybody).
_ROLES = """
info@ contact@ gemeente@ provincie@ woo@ postmaster@ hostmaster@ webmaster@ abuse@ noc@ security@ noreply@ no-reply@
git@
"""
# The state, its agencies, the courts, parliament, provinces, water boards, municipalities, and the Union: where they
# receive requests for information (Wet open overheid), and their sites (organisaties.overheid.nl). There is no pattern
# for *gemeente.nl, for the congregations of churches have such domains too.
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
# Municipalities (14 0xx: annex 1 of the Nummerplan telefoon- en ISDN-diensten), and the public lines which the state
# (1400 from abroad), BZ, the Belastingdienst, IND, RDW, AP, RVO, UWV, RvIG and DUO state on their pages or in the
# Staatscourant.
_TELEPHONES = """
+311400* +31774656767 +31702140214 +31247247247 +31555385385 +31880430430 +31880087447 +31881805250 +31880424242
+31888982001 +31889001000 +31793232333 +31793232444 +31793232666 +31505997755 +31505998933
"""
# An initial and a name are a person, whoever gave the address out: j.jansen, ab.de.vries, vries.j. A first name and a
# name are one too, jan.jansen or jan-willem.van.dam2, but where a part is the name of a function: burger.zaken.
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


def _normal(entry: str) -> str:
    """Return an entry as values are compared: numbers and postcodes without separators, with their kind in front."""
    entry = composed(entry)
    if "@" in entry or "." in entry.strip("+*"):
        return entry.lower()
    value = re.sub(r"[^\w+*?]", "", entry).upper()
    if value.startswith("+"):
        return f"telephone:{value}"
    return f"address:{value}" if re.fullmatch(r"\d{4}[A-Z*?]{1,2}", value) else value


class PublicBodies:
    """Tells what stays. An entry is a domain (with its subdomains), a mailbox such as info@, or a value.

    A star stands for any characters and a question mark for one: gemeente*.nl, +3170*, 2595 B*.
    """

    def __init__(self, entries: Iterable[str], known: bool = True) -> None:
        listed = [_normal(entry) for entry in entries]
        if known:
            listed += [_normal(entry) for entry in f"{_ROLES} {_DOMAINS} {_POSTCODES} {_TELEPHONES}".split()]
        self.roles = {entry[:-1] for entry in listed if entry.endswith("@")}
        values = [entry.lstrip("@") for entry in listed if not entry.endswith("@")]
        self.exact = {value for value in values if not re.search(r"[*?]", value)}
        wild = sorted(set(values) - self.exact)
        pattern = "|".join(re.escape(value).replace(r"\*", ".*").replace(r"\?", ".") for value in wild)
        self.wild = re.compile(pattern) if wild else None

    def _lists(self, value: str) -> bool:
        return value in self.exact or bool(self.wild and self.wild.fullmatch(value))

    def holds(self, found: Found) -> bool:
        """Return whether what was found belongs to a public body or to a function."""
        if found.kind != "email":
            return self._lists(found.value) or self._lists(f"{found.kind}:{found.value}")
        local, _, domain = found.value.rpartition("@")
        if local in self.roles or found.value in self.exact:
            return True
        labels = domain.split(".")
        listed = any(self._lists(".".join(labels[place:])) for place in range(len(labels) - 1))
        if not listed or _INITIAL.fullmatch(local):
            return False
        return not _PERSON.fullmatch(local) or bool(_FUNCTION.search(local))
