"""The words by which prose around a reply's JSON takes scores back, rescales them or names its own parts, by language.

Structure is judged first (numbers, tags, headings, further JSON); these words only decide where a sentence has none.
"""

import re

_START, _END = r"(?<![^\W\d_])", r"(?![^\W\d_])"


def _words(*parts: str) -> re.Pattern[str]:
    return re.compile(rf"{_START}(?:{'|'.join(parts)})", re.IGNORECASE)


def _stems(latin: str, other: str) -> re.Pattern[str]:
    """Stems at the beginning of a word, and characters of languages that do not separate words."""
    return re.compile(rf"{_START}(?:{latin})|{other}", re.IGNORECASE)


SCORE_TALK = _stems(
    r"scor|rating|rated?\b|grad(?:e|ing)|marks?\b|points?\b|scale|values?\b|numbers?\b|figures?\b|label|ids?\b"
    r"|json|object"
    r"|above|below|following|answer|verdict|judge?ment|evaluat|results?\b|assess|ranking|reward|percent|out of"
    r"|bewert|punkt|noten?\b|skala|werte?\b|zahl|puntu|punto|nota\b|escala|calific|valor|échelle|points|noté|valeur"
    r"|оцен|балл|шкал|числ|значен|voto|punteggi|scala|pontua",
    r"分|评|評|得点|点数|スコア|점수|평가|点|数值|درجة|अंक",
)
"""Words for the scores themselves."""

SCALE = _stems(
    r"scor|rating|rated?\b|grad(?:e|ing)|marks?\b|points?\b|stars?\b|scale|range[sd]?\b|likert|skala|bewert"
    r"|punkt|noten?\b"
    r"|escala|calific|puntu|échelle|not(?:e|é)s?\b|barème|шкал|оцен|балл|scala|punteggi|pontua",
    r"分|评|評|点|スコア|採点|スケール|量表|점|척도",
)

MEANING = _words(
    r"penalt(?:y|ies)|badness|demerits?|error (?:score|rate|level|mass)s?|fail\w* (?:prob|rate|chance|likel"
    r"|score|risk)\w*",
    r"(?:probabilit|likelihood|chance|odds|risk)\w* (?:of|that|to|it|they|each)",
    r"percentiles?|quantiles?|z-?scores?|logits?|log-?odds|severity|distances? (?:from|to)|regret",
    r"inver(?:se|ted?|sion)|revers\w*|negat\w*|opposite|flipped|upside|one minus|complements?\b|deficit",
    r"log(?:arithmic)? scale|hundredths|thousandths|deciles?|per ?mille|golf|percent\w*|stars\b|letter grades?"
    r"|likert|(?:five|ten|seven|hundred|four|three|5|10|7"
    r"|100)[- ]?(?:point|star|step)s?",
    r"(?:out of|to|of|through) (?:five|ten|seven|twenty|(?:a |one )?hundred)(?! (?:attempt|trajector|of))",
    r"prozent\w*|prozentual|porcentaje|por ciento|pour ?cent\w*|процент\w*|strafpunkt\w*|fehler(?:punkt|quote)\w*",
    r"penaliz\w*|penalidad|штраф\w*|вероятност\w*|wahrscheinlichkeit\w*|probabilidad|probabilité",
)
"""Other meanings and scales of numbers than quality from 0 to 1."""
MEANING_UNSPACED = re.compile(r"百分|满分|滿分|満点|分制|点満点|扣分|罚分|概率|越低|越小|颠倒|相反|反向|倒数|逆")

_LESS = (
    r"lower|smaller|less|fewer|lowest|smallest|low|minimal|small|nearer (?:to )?(?:0|zero)|closer (?:to )?(?:0|zero)"
    r"|niedriger\w*|kleiner\w*|geringer\w*|weniger|menor|menos|más baj[oa]|plus (?:bas|petit|faible)\w*|moins"
    r"|меньш\w*"
    r"|ниже|чем меньше|più bass[oa]|minore|más pequeñ[oa]|mais baix[oa]"
)
_MORE = (
    r"higher|greater|larger|bigger|more|highest|high|closer to (?:1|one)|höher\w*|größer\w*|mayor|más alt[oa]"
    r"|plus (?:haut|élevé|grand)\w*"
    r"|больш\w*|выше|più alt[oa]|maggiore"
)
_GOOD = (
    r"better|best|good|great|excellent|perfect|ideal|flawless|optimal|preferred|preferable|superior|wins?\b"
    r"|success|stronger|strongest|top"
    r"|besser|beste?n?\b|gut|sehr gut|perfekt|ausgezeichnet|mejor(?:es)?|bien|buen[oa]?|excelente|perfecto"
    r"|mieux|meilleure?s?|parfait|bon\b|excellent"
    r"|лучш\w*|хорош\w*|отличн\w*|идеальн\w*|miglior\w*|ottim\w*|buono|melhor\w*|bom\b|优|好|佳|完美|良|最高|満点|좋"
)
_BAD = (
    r"worse|worst|bad|poor|terrible|awful|useless|fail\w*|weak\w*|inferior|lowest|wrong|broken|none|nothing"
    r"|schlecht\w*|mangelhaft|ungenügend|peor(?:es)?|mal[oa]?|pobre|deficiente|pire|mauvais\w*|nul\b|хуж\w*"
    r"|худш\w*|плох\w*|ужасн\w*"
    r"|peggior\w*|pessim\w*|scarso|pior\w*|ruim|差|坏|劣|最低|悪|不良|나쁨"
)
_GAP = r"[^.!?\n]{0,40}?"
LOWER_IS_BETTER = re.compile(
    rf"{_START}(?:{_LESS})(?:\W|_){{1,4}}(?:[\w'-]+(?:\W|_){{1,3}}){{0,5}}?(?:{_GOOD})"
    rf"|{_START}(?:{_MORE})(?:\W|_){{1,4}}(?:[\w'-]+(?:\W|_){{1,3}}){{0,5}}?(?:{_BAD})"
    r"|越[低小少].{0,4}越?[好优佳]|越[高大].{0,4}越?[差坏]|(?:低|小さ)い?(?:ほど|方).{0,6}[良い好優]|낮을수록.{0,6}좋",
    re.IGNORECASE,
)
HIGHER_IS_BETTER = re.compile(rf"(?:{_MORE})[_ ](?:is[_ ])?(?:{_GOOD})", re.IGNORECASE)
_POLE = (
    r"(?:\s*(?:=|:|->|→|\(|,|—|–|means?|meaning|is|are|being|for|stands? for|denotes?"
    r"|heißt|bedeutet|ist|für|significa|es|signifie|est|означает|это|表示|为|是|代表|意味))"
)
BOUND_IS = re.compile(
    rf"(?<![\w.,%])(?P<bound>[01](?:[.,]0+)?)(?![\w%])(?![.,]\d){_POLE}\s*(?:(?:the|a|an|very|el|la|der|die|das"
    rf"|le|sehr|muy|самый|最)\s*)?(?:(?P<good>{_GOOD})|(?P<bad>{_BAD}))",
    re.IGNORECASE,
)
IS_BOUND = re.compile(
    rf"(?:(?P<good>{_GOOD})|(?P<bad>{_BAD}))(?:\s+\w{{1,12}}){{0,2}}?\s*(?:=|:|->|→|\b(?:is|are|being|means"
    rf"|gets?|receives?|at|ist|bei"
    rf"|es|est|это)\b|为|是)\s*(?P<bound>[01](?:[.,]0+)?)(?![\w%])(?![.,]\d)",
    re.IGNORECASE,
)

CORRECTS = _words(
    r"wait\b|oops|whoops|my (?:bad|mistake|error)|scratch that|corrections?\b|corrected|correcting|errat(?:um"
    r"|a)|apolog",
    r"on (?:second|further|closer) (?:thought|reflection|look|inspection|reading|consideration)|hold on\b"
    r"|hang on\b|hmm+",
    r"let me (?:re|correct|fix|check|change|adjust|amend|revise|swap|try|double|look|update|start)",
    r"i (?:\w+ly )?(?:mixed|swap|switch|confus|misread|misl|misj|miss|mis\w+|reversed|inverted|flipped|meant"
    r"|take|retract"
    r"|forgot|need|should|must|now|realiz|realis|notic|overl|underr|overr|was (?:too|wrong|mistaken)"
    r"|got (?:\w+ )*wrong|change|correct)",
    r"i(?:'|’)?(?:d| would| will|ll) (?:now|rather|change|lower|raise|swap|revise|correct|adjust|put|make|give"
    r"|rate|score)",
    r"(?:should|ought to|must|needs? to) (?:be |get |read |receive |rank|score |go to|have (?:been|gotten|got"
    r"|received|scored))",
    r"(?:mixed|mixing|mix)[- ]?up|other way a?round|wrong way|vice versa|interchang|transpos|mislabel|typo\b"
    r"|take (?:that|it|this) back",
    r"please (?:ignore|disregard|use|swap|note that)|ignore (?:the|that|my|this)|disregard|re-?scor|re-?scal"
    r"|recalibrat|reconsider|rethink",
    r"moves? (?:up|down)|notch|retract|overrul|supersed|not (?:my )?final|provisional|tentativ|placeholder"
    r"|deserv|too (?:low|high"
    r"|generous|harsh|lenient)",
    r"(?:bump|raise|lower|increase|decrease|reduce|add|subtract|deduct|multiply|divide|scale|double|halve)\b.{0,30}\b"
    r"(?:each|every|all|by|it|them|everything|scores?|one|two|both)\b|underrat|overrat|upgrad|downgrad",
)
"""Words that take back or change a score, wherever they stand."""
MAY_CORRECT = _words(
    r"actually|sorry|mistaken?\b|error\b|wrong|swap|switch|revers|invert|flip|instead|updat|replac|adjust|revis"
    r"|amend|invalid",
)
"""Words that do so in a sentence about the scores."""
MAY_TURN = _words(
    r"again\b|(?:double-?|re-?)check|verify\b|rather|final|redo|fix|change|however|but|not\b|no\b|n't|minus"
    r"|plus|half|double|unless|except|draft|preliminary",
)
"""Words that may do so in a sentence that follows the scores."""
CORRECTS_ELSEWHERE = _stems(
    r"korrektur|korrigier|berichtig|vertausch|verwechs|umgekehrt|moment\b|halt\b|entschuldig|sorry|tut mir leid"
    r"|irrtum|statt(?:dessen)?\b"
    r"|eigentlich|sollte\b|müsste|geirrt|fehler|revidier|perd[oó]n|disculp|correg|correcci|correct|confund"
    r"|intercambi|equivo|invert|al revés|en realidad"
    r"|deber[ií]a|espera\b|más bien|pardon|désol|corrig|échang|inters?ver|erreur|attend|plutôt|devrait|en fait"
    r"|извин|исправ|поправ|перепут|ошиб|наоборот"
    r"|подожд|погод|должн|точнее|на самом деле|scus|corregg|scambi|invece|dovrebbe|desculp|troc|dever"
    r"|na verdade|przepra|popraw|pomyl|zamien|düzelt|yanlış",
    r"抱歉|更正|纠正|修正|订正|訂正|弄反|搞反|反了|搞错|弄错|搞混|弄混|混淆|颠倒|互换|对调|调换|等等|等一下|应该|應該|应为|应是|改为|其实|實際|实际上|不对|错了|間違|逆で"
    r"|逆に|入れ替|失礼|すみません|申し訳|実は|待って|べき|죄송|정정|수정|바뀌|잘못|반대|아니|تصحيح|عذر|خطأ|सुधार|गलत",
)
POLITE = re.compile(
    r"let me know|feel free|i can (?:go into|give|provide) more|if you wish|hope (?:this|that|it|these)|happy"
    r" to|glad to|would you like|if you(?:'d"
    r"|’d)? (?:need|want|have|would|like|prefer|require)"
    r"|(?:don't|do not|don’t) hesitate|thank(?!s to)|good luck|best regards|cheers|any questions|anything else",
    re.IGNORECASE,
)
FAREWELL = re.compile(
    r"viel erfolg|grüße|gruß|saludos|cordialement|bonne journée|cordiali|atenciosamente|abraços|с уважением"
    r"|espero que|ich hoffe|hoffe,? da|j['’]espère|надеюсь|希望.{0,12}(?:帮|有用|满意)|以上|谢谢|謝謝"
    r"|gracias|danke|merci|спасибо|ありがとう|お役に|grazie|obrigad|请告诉我|如有|如果您|si necesita|si tienes|si tiene"
    r"|wenn (?:du|sie)|disposi[cçz]ion|verfügung|disposição|beschikking"
    r"|falls (?:du|sie)|n['’]hésit|"
    r"если (?:у вас|вам|нуж)|se hai|spero|감사|도움",
    re.IGNORECASE,
)
NO_ANSWER = _words(
    r"random|arbitrary|dummy|fake|made[- ]up|filler|mock|todo\b|tbd\b|maybe|perhaps|not sure|unsure"
    r"|let['’]s say|disagree|n['’]t share|do not share",
    r"refuse|demand(?!é)|assert\b|skeleton|not equal|(?:i|we) (?:\w+ )?(?:cannot|can['’]t)|unable|i (?:wonder"
    r"|suspect|would guess)"
    r"|another (?:judge|reviewer|grader|model)|iteration"
    r"|impression",
    r"rough(?:ly)?\b|first (?:pass|guess|draft|try)|prelim|guess\b|something like|for (?:example"
    r"|instance)|examples?\b|hypothe|imagin"
    r"|counterfact|templat|placeholder|bad (?:grader|judge)|naive|worst.case|best.case|not (?:my|yet|final)"
    r"|for now|so far"
    r"|sample|illustrat|let me (?:try|think|see)|hmm|draft|provisional|leaning|alternativ",
    r"entwurf|beispiel|vorläufig|ejemplo|borrador|provisional|exemple|brouillon|пример|черновик|esempio|exemplo",
)
"""Words before an object that say that it is not the answer."""
HYPOTHETICAL = _words(
    r"for \w+ only|maybe|perhaps|initial|e\.g|suppos|wrong|incorrect|strict|lenient|otherwise|opposite"
    r"|not (?:the|a|be)\b"
    r"|n['’]t|never|rather than|instead of"
    r"|previous|old\b|earlier|before|if\b|would have|would (?:be|get|look)|could (?:be|have)|might|had\b|were\b"
    r"|without|schema|like this|such as"
    r"|another (?:judge|grader)|someone|thinking|ignor|disregard",
    r"vielleicht|wenn\b|wäre|hätte|würde|etwa\b|quizás|tal vez|si\b|sería|peut-être|serait|возможно|если\b"
    r"|было бы|наверное|forse|talvez",
)
"""Words that do so in a sentence that introduces the object."""
HYPOTHETICAL_UNSPACED = re.compile(
    r"也许|可能|例如|比如|假设|如果|草稿|初步|示例|大概|暂定|もし|例えば|仮に|たぶん|만약|예를|아마"
)
INTRODUCES = _stems(
    r"scor|verdict|json|answer|result|rating|grad(?:e|ing)s?\b|i judge|judg(?:e?ment|ing)|evaluat|assess"
    r"|higher is better|output|respon|object"
    r"|reply|final|conclusion|ranking|rewards?\b"
    r"|here|sure|below|follow|request|okay|ok\b|done|submit|bewert|punkt|ergebnis|hier|antwort|puntua|aquí"
    r"|resultad|respuesta|calific|voici|réponse"
    r"|résultat|évaluat|notes\b|оцен|вот|ответ|результат|итог|ecco|punteggi|risposta|pontua|aqui|resposta",
    r"结果|评分|分数|以下|答案|回答|如下|採点|スコア|結果|以下|回答|점수|결과|다음",
)
"""Words of a line, ending in a colon, that introduces the answer."""
ABOUT_SCORES = _words(
    r"scor(?:e|es|ing)\b|numbers?\b|values?\b|verdicts?\b|ratings?\b|json|object|above|below|evaluations?\b"
    r"|results?\b|answers?\b|figures?\b"
)
HARMLESS_ABOUT_SCORES = re.compile(
    r"\bscore[sd]? (?:higher|lower) than\b|\b(?:received|got|gets|has|earned) the (?:highest|lowest)\b"
    r"|\bdiffers?\b|^the higher the\b|\bconcludes?\b|\bhigher (?:is|means)\b|\breflects?\b|\bbased on\b"
    r"|\brelative\b|\bfollow(?:s|ed)? the\b|\brange from\b|\bfrom member\b"
    r"|\bfrom (?:0|zero)\b|\bbetween\b"
    r"|\b(?:have|has|had) been (?:scored|evaluated|rated|judged)\b|\bdetailed explanation\b|\baccording to\b"
    r"|\btakes? into account\b|\bend of\b"
    r"|\bcomplete\b|\bscored (?:by|on|relative|against|according)\b|\bconsiders?\b|\bcompared?\b|\bthat (?:is"
    r"|was) (?:all|my)\b|\bassigned\b|\bevidence\b"
    r"|\bjudged by\b|\bare in\b|\bgets?\b|\bin line with\b|\bconsistent with\b|\bgoes from\b|\bthe (?:right"
    r"|correct|final|same|wrong) (?:answer|result)\b"
    r"|\b(?:its|an|the agent's|the customer's|tool) (?:\w+ )?(?:answer|results?)\b|\bare on\b|^scores?:"
    r"|^(?:the )?scores? are\b",
    re.IGNORECASE,
)
"""What a sentence after the object may say of the scores."""
FIRST_PERSON = re.compile(r"\b(?:i|i['’]\w+|me|my|we|let['’]?s|let me|todo|next)\b", re.IGNORECASE)
HARMLESS_FIRST_PERSON = re.compile(
    r"\bi (?:have |mainly |also |only |first )?(?:hope|compared|judged|scored|looked|considered|weighed"
    r"|evaluated|focus(?:s)?ed|based|rewarded|gave|checked"
    r"|assessed|ranked|penali[sz]ed|prioriti[sz]ed|took|found|noted|used|valued|read|reviewed)\b"
    r"|\bmy (?:evaluation|assessment|verdict|reasoning|reasons) (?:is|are|follows|was)\b",
    re.IGNORECASE,
)
VERB = re.compile(
    r"\b(?:is|was|are|were|did|does|do|has|had|have|made|came|took|got|gave|goes|went|won|beats?|never|only"
    r"|found|kept|told|left|ran|(?!less\b)\w{3,}(?:ed|es|s))\b",
    re.IGNORECASE,
)
AS_GOOD = re.compile(
    r"\bequally\b|\btied\b|\ball (?:the same|equal|alike)\b|\bidentical\b|\bindistinguishable\b|\bno difference\b",
    re.IGNORECASE,
)
SYMBOLS = re.compile(r"[★☆⭐👍👎↑↓⬆⬇▲▼½⅓⅔¼¾✓✗✔✘✅❌±÷×]")
LETTER_GRADE = re.compile(r"member\W{0,3}[:=(–-]\s*[A-F][+−-]?(?=\s*(?:[,;.)|]|$))")
CLOSER_TO_FAULTS = re.compile(
    r"closer to (?:1|one)\b[^.\n]{0,30}(?:mistake|error|flaw|fault|problem)|\b1 ?- ?[a-z]\b|!=|≠", re.IGNORECASE
)
OTHER_SCORES = re.compile(
    r"(?<![^\W\d_])(?P<of>[^\W\d_]{1,40})\s{1,9}(?:scores?|ratings?)\s*[*_]*[:：]\s*[*_]*$", re.IGNORECASE
)
SCORES_OF = frozenset(
    {
        *("the", "my", "final", "your", "here", "these", "are", "following", "overall", "relative", "quality"),
        *("evaluation", "trajectory", "attempt", "resulting", "corresponding", "individual", "normalized"),
        *("normalised", "numeric", "requested", "computed", "assigned", "and", "with", "of", "judge", "rubric"),
        *("json", "own", "all", "their", "its", "so", "are", "comparative", "reward", "agent", "performance"),
        *("as", "given", "respective", "below", "de", "les", "mes", "vos", "nos", "voici", "le", "los", "mis"),
    }
)
"""What scores may be called in a line that introduces them."""
TOPIC = re.compile(
    r"attempts?|scale\b|trajector|agents?\b|candidates?|rollouts?|difference|policy|rubric|evaluat|explanation|reason"
    r"|judg|\border\b|shown|quality|checking|\bdone"
    r"|that(?: is|['’]s) \W?all|\bno further comments?\b|\bend\b|thank|correctness|regards|complete|conclu"
    r"|scored?\b|scores\b|higher|verif"
    r"|looked|\bbest\b|\bworst\b|\bno (?:other )?answer",
    re.IGNORECASE,
)
"""What closing words that name no member are about."""
DENOTES = re.compile(
    r"\b(?:numbers?|values?|figures?|scores?|entries|digits?)\b[^.\n]{0,20}\b(?:denotes?|represents?|measures?"
    r"|means?|indicates?|express(?:es)?|stands? for|encodes?|counts?|tracks?"
    r"|quantif\w+|are (?:the|their))\b(?P<what>.*)",
    re.IGNORECASE,
)
QUALITY = re.compile(
    r"quality|how (?:well|good)|rubric|performance|best|success|goal|correct|member|overall|follow|relative|rank",
    re.IGNORECASE,
)
NO_QUALITY = re.compile(
    r"worse|fail|bad|error|distance|cost|effort|length|difficult|risk|doubt|uncertain|inverse|wrong", re.IGNORECASE
)
STAND_FOR = re.compile(
    r"member\W{0,3}(?:=|(?:stands? for|means|refers to|denotes|is really|is actually|in truth)\b)\W{0,3}member"
    r"|each other['’]?s\b"
    r"|(?:labels?|names?|ids?|entries)\b.{0,40}\b(?:exchang|swap|switch|interchang|mixed|revers|wrong)",
    re.IGNORECASE,
)
EXPLAINS_OTHERWISE = re.compile(
    r"\b(?:should|must|ought to|needs? to|deserves?)\b(?: (?:be|get|have been|receive|read|rather|only|really|a"
    r"|about|scored?|rated|at))*"
    r" (?P<n>[01]?[.,]\d+|[01](?![\w.,]))(?!\s?[\w%])",
    re.IGNORECASE,
)
"""A score that an explanation gives instead of the entry's own."""
FINAL = re.compile(
    r"(?:(?:my|the|and|so|here|is|are|now|therefore|final|answer|scores?|verdict|json|output|results?|ratings?"
    r"|evaluation|judge?ment|response|version"
    r"|object|endgültig\w*|ergebnis\w*|bewertung\w*|finale?|respuesta|resultado|puntuaciones|réponse|résultat"
    r"|итог\w*|ответ\w*|оценк\w*)\b[\s:*_#`\-=>.\"']*)+",
    re.IGNORECASE,
)
FINAL_MARK = re.compile(r"final|endgültig|итог|最终|最終", re.IGNORECASE)
NUMBER_WORD = re.compile(
    r"\b(?:zero|nought|two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|hundred|tenths?|percent"
    r"|quarters?|half|full marks|top marks|perfect ten"
    r"|point (?:zero|one|two|three|four|five|six|seven|eight|nine)|null|zwei|drei|vier|fünf|sechs|sieben|acht"
    r"|neun|zehn|cero|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez)\b"
    r"|[一二三四五六七八九十]成|零点|〇",
    re.IGNORECASE,
)
BENIGN_HEADING = re.compile(
    r"trajector|attempt|candidate|rollout|comparison|compar|evaluat|assess|observ|differ|strength|weak|review"
    r"|summar|overview|finding|detail|key"
    r"|criteri|rubric|note|feedback|result|score|final|answer|verdict|output|json|rating|grad|judge?ment"
    r"|conclusion|response|ranking|breakdown|context"
    r"|task|goal|pros|cons|correctness|accuracy|efficien|quality|tool|policy|overall|explanation|rationale"
    r"|justif|bewert|ergebnis|evalua|resultad|puntuac"
    r"|résultat|évaluat|оцен|результ|итог|评|结果|分数|結果",
    re.IGNORECASE,
)
"""Words in headings that are not of thoughts."""
ANSWER_HEADING = re.compile(
    r"answer|final|output|scor|verdict|json|judge?ment|rating|grad(?:e|ing)|result|conclusion|reward|response"
    r"|bewertung|ergebnis|respuesta|resultado"
    r"|puntuac|réponse|résultat|ответ|оцен|результат|итог|答案|结果|评分|最终|結果|採点",
    re.IGNORECASE,
)
SCALE_KEY = re.compile(
    r"scale|range|\bunits?\b|direction|polarity|out.?of|denominator|maximum|highest|possible|legend|interpret"
    r"|semantic|orientation|normali[sz]|sort|base\b"
    r"|skala|escala|échelle|шкал|分制|量表|スケール|max.?(?:score|point|rating)|(?:score|rating|points?).?(?:type|max"
    r"|min|system|format|mode)|^(?:max|of|total|top|best|worst)$",
    re.IGNORECASE,
)
TEXT_KEY = re.compile(
    r"summary|notes?\b|comment|remark|overall|best|winner|worst|rank|conclu|verdict|analy|explan|reason|justif"
    r"|rational|task|title|name|model|judge\b|rubric"
    r"|method|approach|observ|recommend|feedback|language|date|\bid|think|thought|compar|differ|strength|weak"
    r"|descri|message|text|evaluat|assess|role|content",
    re.IGNORECASE,
)
"""Names of fields that may hold prose beside the scores."""
STATE_KEY = re.compile(
    r"^(?:status|state|type|kind|stage|phase|version|mode)$|error|warning|valid|draft|final|complete|dummy"
    r"|example|mock|preliminary",
    re.IGNORECASE,
)
"""Fields that say whether the scores count."""
GOOD_STATES = frozenset(
    {
        *("ok", "success", "final", "complete", "completed", "done", "scored", "evaluation", "finished", "valid"),
        *("scores", "verdict", "function", "tool_use", "tool_call", "object", "json", "message", "text", "output"),
    }
)
PENALTY_KEY = re.compile(
    r"penal|deduct|bonus|loss|error|offset|delta|multipl|factor|divis|shift|malus|discount|adjust", re.IGNORECASE
)
CORRECTION_KEY = re.compile(
    r"correct(?:ed|ion)|revis|updat|amend|adjust|\bnew|override|actual|fixed|\bafter|calibrat|rescor|reconsider"
    r"|errat|swap|replac|retract|supersed"
    r"|should|intended|real.?score|true.?score|\bv\d|\bfinal|korrig|korrekt|correg|corrig|исправ|更正|修正|訂正",
    re.IGNORECASE,
)
COUNT_KEY = re.compile(
    r"confiden|certain|count|num|total|steps?|turns?|calls?|tokens?|length|time|second|index|version|rank"
    r"|position|weight|probab|order|\bn\b|\bid|mean|average|spread|stdev",
    re.IGNORECASE,
)
OWN_THOUGHTS_KEY = re.compile(
    r"think|thought|reason|analys|explan|rationale|scratch|reflect|chain|justif|why", re.IGNORECASE
)
