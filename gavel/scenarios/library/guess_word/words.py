"""Everyday English words of five letters, and the marks of a guess."""

WORDS = tuple(
    """
about above actor admit adult after again agent agree ahead alarm album alert alike alive allow alone along alter among
angel anger angle angry apart apple apply arena argue arise armor arrow aside asset audio avoid awake award aware badly
baker basic basin batch beach beard beast begin being belly below bench berry birth black blade blame blank blast blend
bless blind block blood bloom board boast bonus boost booth bound brain brake brand brave bread break breed brick bride
brief bring broad brook broom brown brush build bunch burst cabin cable camel candy canoe cargo carry carve catch cause
cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill choir chord civil claim
clash class clean clear clerk click cliff climb clock close cloth cloud coach coast coral couch count court cover crack
craft crane crash cream creek crime crisp cross crowd crown crude curve cycle daily dairy dance dealt decay delay dense
depth diary dirty ditch dizzy donor doubt dozen draft drain drama dream dress drift drill drink drive eager eagle early
earth eight elbow elder elect empty enemy enjoy enter entry equal error essay event every exact exist extra faint fairy
faith false fancy fault favor feast fence fever fiber field fifth fight final first flame flash fleet flesh float flock
flood floor flour fluid flute focus force forge forty found frame fresh front frost fruit funny ghost giant glass globe
glory glove grace grade grain grand grant grape graph grass grave great green greet grief group grove guard guess guest
guide habit happy harsh heart heavy hedge hello hobby honey honor horse hotel house human humor hurry image index inner
input issue ivory jewel joint judge juice kneel knife knock label labor large laser later laugh layer learn lemon level
light limit linen liver local logic loose lower loyal lucky lunch magic major maple march marsh match maybe mayor medal
melon mercy merge merit metal meter midst minor mixed model money month moral motor mount mouse mouth movie music nerve
never night noble noise north novel nurse ocean offer olive onion opera orbit order organ other outer owner paint panel
panic paper party paste patch pause peace peach pearl pedal penny phase phone photo piano piece pilot pitch place plain
plane plant plate plaza point polar porch pound power press price pride prime print prize proof proud pulse pupil queen
quest quick quiet quilt quite radar radio raise ranch range rapid ratio reach ready realm rebel refer reply rider ridge
rifle right rigid rival river roast robin rocky rough round route royal rural salad salty sauce scale scarf scene scent
score scout scrap seize sense serve seven shade shake shape share sharp sheep sheet shelf shell shift shine shirt shock
shore short shout sight silly since skill skirt slate sleep slice slide slope small smart smell smile smoke snake solar
solid solve sorry sound south space spare spark speak spear speed spell spend spice spike spoon sport spray squad stack
staff stage stain stair stamp stand start state steam steel steep stern stick stiff still stock stone stool storm story
stove straw strip study stuff style sugar sunny super surge sweet swift swing sword table taste teach thank theme thick
thing think third thorn those three throw thumb tiger tight timer title toast today token tooth topic torch total touch
tough tower trace track trade trail train trait treat trend trial tribe trick truck trunk trust truth twice twist uncle
under union unity upper urban usual vague valid value vapor vault venue verse video visit vital vivid vocal voice wagon
waste watch water whale wheat wheel where which while white whole width woman world worry worth wound wrist write wrong
yacht yield young youth
""".split()  # noqa: SIM905
)


def marks_of(guess: str, word: str) -> str:
    """One mark for each letter of the guess: `+` right, `?` elsewhere in the word, `-` not in it, or not once more.

    A letter is marked as often as the word has it, right places first: `speed` for `erase` is `?-??-`.
    """
    left = [letter for letter, other in zip(word, guess, strict=True) if letter != other]
    marks: list[str] = []
    for letter, wanted in zip(guess, word, strict=True):
        if letter == wanted:
            marks.append("+")
        elif letter in left:
            left.remove(letter)
            marks.append("?")
        else:
            marks.append("-")
    return "".join(marks)
