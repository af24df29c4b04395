"""Which language a text in Latin script is written in, told by its function words; and those words, to leave out.

Enough to choose a stemmer, and cheap enough to run over every passage. Words are folded (no case, no accents). The
names are Snowball's. Other scripts choose their stemmer by their letters alone (see ``assay.text``).
"""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice

from assay.words import STOP

DEFAULT = "english"

FUNCTION_WORDS: dict[str, frozenset[str]] = {
    "english": STOP,
    **{
        language: frozenset(words.split())
        for language, words in {
            "german": """
                der die das den dem des ein eine einen einem einer eines und oder aber nicht kein keine ist sind war waren wird
                werden wurde wurden hat haben hatte ich du er sie es wir ihr sich mich mir ihm ihn ihnen mit von zu zum zur
                auf aus bei nach uber unter vor fur durch gegen ohne um im in an am als wie wenn dass weil auch noch nur
                schon so sehr was wer wo wann warum welche welcher welches dieser diese dieses jeder man kann konnen muss
                mussen soll sollte bis seit zwischen sein seine ihre hier dort
            """,
            "french": """
                le la les l un une des du de d et ou mais ne pas n est sont etait etaient ete etre a ont avait avoir je tu il
                elle on nous vous ils elles se s me m lui leur leurs ce cet cette ces c qui que qu quoi dont ou quand comment
                pourquoi quel quelle quels quelles dans en sur sous avec sans pour par entre vers chez au aux plus moins tres
                aussi comme si tout tous toute toutes son sa ses mon ma mes notre votre y peut doit fait depuis
            """,
            "spanish": """
                el la los las un una unos unas y o u pero no es son era eran fue fueron ser ha han habia haber estar esta estan
                yo tu ella ellos ellas nosotros se me te le les lo su sus mi mis nuestro de del a al en con sin por para
                sobre entre hasta desde hacia segun que quien quienes cual cuales como cuando donde cuanto porque este estos
                estas ese esa eso aquel mas menos muy tambien ya si todo todos toda todas puede hay
            """,
            "portuguese": """
                o os as um uma uns umas e ou mas nao sao era eram foi foram ser ha tem tinha estar esta estao eu ele ela
                eles elas nos se me lhe lhes seu sua seus suas meu minha de do da dos das em no na nos nas num numa ao aos
                com sem por pelo pela pelos pelas para sobre entre ate desde que quem qual quais como quando onde quanto
                porque este estes estas esse essa isso isto mais menos muito tambem ja se todo todos toda todas pode
            """,
            "italian": """
                il lo la i gli le l un uno una e ed o ma non e sono era erano fu furono essere ha hanno aveva avere io tu lui
                lei noi voi loro si mi ti ci vi ne suo sua suoi sue mio di del dello della dei degli delle d da dal dalla
                dai in nel nella nei nelle su sul sulla con senza per tra fra a al alla ai alle che chi cui quale quali come
                quando dove quanto perche questo questa questi queste quello quella piu meno molto anche gia se tutto tutti
                puo
            """,
            "dutch": """
                de het een en of maar niet geen is zijn was waren wordt worden werd werden heeft hebben had ik je jij hij zij
                ze we wij jullie zich mij hem haar hun u mijn uw onze van voor met op aan in uit bij naar door over onder
                tegen zonder om tot tussen als dan dat die dit deze wie wat waar wanneer waarom hoe welke er ook nog al te
                kan kunnen moet moeten zal zou meer zeer
            """,
            "swedish": """
                den det en ett och eller men inte ingen inget ar var vara blev blir har hade jag du han hon vi ni de dem sig
                mig dig honom henne oss min din sin sitt sina av for med pa i till fran om under over mellan efter utan mot
                vid som att nar dar hur vad vem vilken vilket varfor denna detta dessa ocka mycket mer kan ska skulle maste
                finns aven
            """,
            "danish": """
                den det en et og eller men ikke ingen intet er var vaere blev bliver har havde jeg du han hun vi i de dem sig
                mig dig ham hende os min din sin sit sine af for med pa til fra om under over mellem efter uden mod ved som
                at nar hvor hvordan hvad hvem hvilken hvilket hvorfor denne dette disse ogsa meget mere kan skal skulle ma
                findes efter
            """,
            "norwegian": """
                den det en et ei og eller men ikke ingen intet er var vaere ble blir har hadde jeg du han hun vi dere de dem
                seg meg deg ham henne oss min din sin sitt sine av for med pa til fra om under over mellom etter uten mot ved
                som at nar hvor hvordan hva hvem hvilken hvilket hvorfor denne dette disse ogsa mye mer kan skal skulle ma
                finnes
            """,
            "finnish": """
                ja tai mutta ei ole on oli olivat olla ovat mina sina han me te he se ne tama nama tuo joka jotka mika mita
                kuka missa milloin miksi miten kuin kun etta jos niin myos viela vain hyvin sen sita siita niiden tassa
                hanen kanssa ennen jalkeen ilman voi voidaan
            """,
            "polish": """
                i oraz lub albo ale nie jest sa byl byla bylo byly byc ma maja ja ty on ona ono my wy oni sie mu jej jego ich
                im w we z ze na do od dla przez przed po pod nad o u bez miedzy jak co kto gdzie kiedy dlaczego ktory ktora
                ktore ze czy tym tego tej ten ta to te tak rowniez tylko juz moze
            """,
            "czech": """
                a i nebo ale neni je jsou byl byla bylo byly byt ma maji ja ty on ona ono my vy oni se si mu jeho jeji jejich
                v ve z ze na do od pro pri pred po pod nad o u bez mezi jak co kdo kde kdy proc ktery ktera ktere ze aby
                kdyz tento tato toto tim toho tak take jen jiz muze
            """,
            "romanian": """
                un o unei unui si sau dar nu este sunt era erau fost fi are au avea eu tu el ea noi voi ei ele se isi lui lor
                sa de din la in pe cu fara pentru prin intre despre dupa catre ca care ce cine unde cand cum cat acest
                aceasta acesti aceste mai foarte si tot toate poate al ale ai cel cea
            """,
            "hungarian": """
                a az egy es vagy de nem van vannak volt voltak lesz en te o mi ti ok azt ezt ez azok ezek hogy ha mint is csak
                meg mar aki ami amely hol mikor miert hogyan melyik kell lehet szerint alatt utan elott nelkul kozott
                valamint illetve minden sem
            """,
            "turkish": """
                ve veya ama degil bir bu su o ben sen biz siz onlar ile icin gibi kadar daha en cok da de ki mi mu ne kim
                nerede nasil neden hangi ise olan olarak oldu olur var yok sonra once gore her tum ancak
            """,
            "indonesian": """
                yang dan atau tetapi tidak adalah ialah ini itu saya kamu dia kami kita mereka di ke dari pada dengan untuk
                oleh dalam sebagai akan telah sudah dapat bisa apa siapa mana kapan mengapa bagaimana juga lebih karena
                antara seperti para
            """,
        }.items()
    },
}

# A letter tells nothing: it may be a name, or what an apostrophe left.
_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _language, _words in FUNCTION_WORDS.items():
    for _word in (word for word in _words if len(word) > 1):
        _LANGUAGES[_word] = (*_LANGUAGES.get(_word, ()), _language)
_OWN = frozenset(word for word, languages in _LANGUAGES.items() if DEFAULT in languages)

_READ = 100  # words of a text that are looked at
_ENOUGH = 2  # function words of a language before it is believed,
_SHARE = 0.12  # and their share of the words (names hold some: Los Angeles, De Backer; prose has a third),
_LEAD = 1.3  # and how many times as many as the default's


def detect(words: Iterable[str], among: Collection[str] | None = None) -> str:
    """The language of folded words; ``english`` where too few of them tell. ``among``: no other one is considered."""
    read = list(islice(words, _READ))
    own, all_told = sum(map(_OWN.__contains__, read)), sum(map(_LANGUAGES.__contains__, read))
    if _LEAD * own >= all_told:
        return DEFAULT
    counts = Counter(language for word in read for language in _LANGUAGES.get(word, ()))
    best = max((n for n in counts if among is None or n in among), key=counts.__getitem__, default=DEFAULT)
    return best if counts[best] >= max(_ENOUGH, _SHARE * len(read), _LEAD * own) else DEFAULT
