"""Explanations: whether a judge's own words beside a score say that there is none, or that it is another one.

"I'm sorry, but I can't assess this one."     the judge declines: its score is none
"<why>", "TODO", "explanation for W7QX"       the form was copied: its score is a part of the form
"Refunded too early, so I give it 0.4."       another score than the entry's own
"The agent said 5, then 7; a tool said 0.3"   about the agent's work: any number may stand there
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from gavel.judge.reply.claims import ORDINAL, Said
from gavel.judge.reply.clauses import named
from gavel.judge.reply.columns import SEVERITY
from gavel.judge.reply.grades import QUOTED, SENTENCES, explains_otherwise, gives_another_score
from gavel.judge.reply.lexicon import pattern, source
from gavel.judge.reply.opinions import contradiction
from gavel.judge.reply.praise import verdicts, verdicts_contradict

_ACTOR = re.compile(
    r"\b(?:agent|assistant|customer|user|tool|model|bot|it|they|he|she|which|agente|agenten|asistente|cliente|outil"
    r"|агент\w*|клиент\w*|ассистент\w*)\b|代理|助手|智能体|客户|用户|工具|エージェント|ツール|顧客|에이전트",
    re.IGNORECASE,
)
"""Who acts in a trajectory: what follows in the sentence is about its work."""

_FIRST_PERSON = re.compile(r"(?:I|we|je|ich)\b", re.IGNORECASE)

_NOT = (
    r"(?:can['’]?t|cannot|can not|could not|couldn['’]t|won['’]t|will not|(?:am|was|are|were) (?:unable|not able"
    r"|not allowed|not permitted) to"
    r"|must decline to|decline to|declined to|refuse to|refused to|have not|haven['’]t|did not|didn['’]t|do not"
    r"|don['’]t)"
)
_JUDGING = r"(?:assess|evaluat|judg|scor|grad|rat(?:e|ed|ing)\b|rank|review)"
_SEEING = r"(?:read|see|seen|view|access|pars|load|open|process|analy[sz]|display|handl)"
_SHOWN = r"(?:trajector|transcript|attempt|candidate|rollout|this (?:content|one|text|entry|conversation|material))"
_THING = (
    r"(?:trajector|transcript|attempt|content|candidate|rollout|conversation|entry|one\b|member\b|material|text\b"
    r"|request)"
)
_DECLINES = re.compile(
    rf"\b(?:I|we)(?:['’]m| am)? (?:\w+ )?{_NOT} (?:\w+ )?{_JUDGING}\w*(?! (?:whether|if|how|why))"
    rf"|\b(?:I|we) (?:\w+ )?{_NOT} (?:\w+ )?(?:{_SEEING}\w*|help with|assist with|engage with|comment on)"
    rf" (?:\w+ ){{0,2}}{_THING}"
    r"|^\W*(?:(?:I['’]?m|I am|we['’]re|we are) )?(?:(?:very|so) )?sorry\b"
    rf"|^\W*(?:could not|couldn['’]t|cannot|can['’]t|unable to|not able to|failed to|impossible to) (?:be )?(?:\w+ )?"
    rf"(?:{_JUDGING}\w*\W*$|(?:{_JUDGING}|{_SEEING})\w* (?:\w+ ){{0,2}}{_THING})"
    rf"|{_SHOWN}\w* (?:\w+ ){{0,2}}(?:could not|couldn['’]t|cannot|can['’]t|was not|were not|is not|wasn['’]t"
    rf"|isn['’]t) (?:be )?(?:\w+ )?(?:{_JUDGING}|readable|visible|loaded|(?:read|seen|parsed|accessed|loaded"
    rf"|displayed)\b)"
    r"|^\W*(?:not|never) (?:yet )?(?:been )?(?:evaluated|scored|assessed|rated|judged|graded|reviewed|ranked"
    r"|read|seen)\b"
    r"|^\W*(?:unscored|unevaluated|unrated|ungraded|unjudged|unassessed|unread)\b"
    r"|^\W*(?:no|without) (?:evaluation|assessment|score|rating|judge?ment)\b(?! of)"
    r"|\b(?:evaluation|scoring|assessment|grading|judging)(?: (?:was|is|has been))? (?:skipped|declined|refused|blocked"
    r"|impossible|unavailable|not possible|failed|aborted|omitted|pending)"
    r"|^\W*skipped\W*$|^\W*skipped (?:for|due to|because of|owing to) (?:\w+ )?(?:length|size|policy|safety"
    r"|content|time"
    r"|token|budget)"
    r"|^\W*(?:content|text|transcript|trajectory|attempt|explanation|evaluation|member|this (?:content|one|trajectory"
    r"|attempt))"
    r" (?:was |is |has been )?(?:redacted|filtered|blocked|withheld|removed|moderated|flagged|suppressed|refused)\b"
    r"|^\W*(?:redacted|filtered|blocked|withheld|removed|moderated) (?:by|due to|for) (?:\w+ )?(?:safety|policy"
    r"|moderat|content|filter|guideline|provider|guard)"
    r"|^\W*(?:\w+ ){0,3}\w*(?:error|exception|failure)\W{1,3}(?:\w+ ){0,3}(?:context|tokens?|max\w*|length"
    r"|time-?(?:d[ -]?)?out"
    r"|internal|server|overloaded|rate limit|connection|service|upstream|quota)\b[^.]{0,40}$"
    r"|^\W*(?:context|token|max\w*) (?:\w+ ){0,2}(?:exceeded|limit|reached)\b|^\W*time-?(?:d )?out\W*$"
    r"|^\W*(?:random|default|fallback|dummy|placeholder|arbitrary|neutral|made[- ]up|guessed?) (?:\w+ )?(?:score|rating"
    r"|value|number|grade)s?\b"
    r"|[;,:(–—-]\s*(?:default|fallback|dummy|placeholder|random|arbitrary) (?:score|rating|value|number|grade)s?\W*$"
    r"|\b(?:I|we) (?:\w+ )?(?:assign|g[ia]ve?|us|put|enter)\w* (?:\w+ ){0,3}(?:random|default|fallback|dummy"
    r"|placeholder|arbitrary)\b"
    r"|\b(?:I|we) (?:\w+ )?(?:assumed|guessed|defaulted|made up)\b[^.\d]{0,20}(?:\d|score|number)"
    r"|\b(?:against|violates|under) (?:my|our) (?:\w+ )?(?:polic|guideline|rule)|\bas an ai\b"
    # German, Dutch
    r"|\bkann (?:ich )?(?:[\wäöüß]+ ){0,4}nicht (?:bewert|beurteil|einschätz|einseh)"
    r"|\b(?:konnte|kann|könnte|können|konnten) (?:[\wäöüß]+ ){0,3}nicht (?:bewertet|beurteilt|gelesen|eingesehen"
    r"|ausgewertet) werden"
    r"|^\W*nicht (?:bewertet|beurteilt|gelesen|auswertbar|bewertbar|geprüft)\b|^\W*keine (?:bewertung|beurteilung)\b"
    r"|^\W*(?:es )?tut mir (?:sehr )?leid|^\W*leider kann ich|\bbewertung (?:ist )?nicht möglich|^\W*niet beoordeeld"
    # Spanish, Portuguese, Italian
    r"|\bno (?:puedo|pude|podemos|he podido|es posible|fue posible|se pudo|se puede|se ha podido) (?:evaluar|calificar"
    r"|valorar|juzgar|puntuar)"
    r"|\bno (?:puedo|pude|he podido) (?:leer|ver|analizar|acceder a) (?:este|esta|el|la) (?:tray|intento|conten"
    r"|transcr)"
    r"|^\W*(?:no|sin) (?:evaluad|calificad|puntuad|valorad|evaluar|calificar|puntuar)|^\W*lo siento"
    r"|\bnão (?:posso|consigo|pude|foi possível|é possível) (?:avaliar|pontuar|julgar)|^\W*não avaliad"
    r"|^\W*(?:desculpe|lamento)\b|\bnon (?:posso|riesco a|ho potuto|è possibile|è stato possibile) (?:valut|giudic)"
    r"|^\W*non valutat|^\W*mi dispiace"
    # French
    r"|\bje ne (?:peux|puis|saurais|pourrai) (?:pas )?(?:\w+ )?(?:évaluer|noter|juger|lire|l['’]évaluer|la juger)"
    r"|\bimpossible (?:d['’]évaluer|de (?:noter|juger|lire) (?:cet|ce|la))|^\W*non (?:évalué|noté|jugé)"
    r"|\bn['’]a (?:pas pu|pu) être (?:évalu|not|lu)|^\W*(?:je suis )?désolée?\b|^\W*pas (?:évalué|noté)"
    # Russian, Polish, Turkish
    r"|\bне (?:могу|можем|смог|смогла|удалось|получилось) (?:\w+ )?(?:оцени|прочита|разобра|судить|проанализ)"
    r"|^\W*не (?:оцен|проанализ|рассмотр)|\bневозможно оценить|^\W*(?:извините|простите|к сожалению, я)"
    r"|^\W*без оценки|\bnie (?:mogę|można|udało się) oceni|^\W*nie oceni|\bdeğerlendir(?:emiyorum|ilemedi|ilmedi)",
    re.IGNORECASE,
)
"""The judge says that it did not judge."""
_DECLINES_UNSPACED = re.compile(
    r"无法(?:对.{0,10})?(?:评估|评价|评分|打分|评判|读取|解析|處理)(?=此|该|这|本|轨迹|内容|[。，,.;；!！]|$)"
    r"|無法(?:評估|評價|評分|打分)|(?:不能|拒绝|不便|不予)(?:对.{0,10})?(?:评估|评价|评分|打分|评判)"
    r"|(?:未|没有|尚未)(?:进行|被|能)?(?:评估|评价|评分|打分|评判|評分|評估)|(?:抱歉|对不起|很遗憾)[，,]?(?:我|无法|不能)"
    r"|^\W*(?:该|此|本)?(?:内容|轨迹|文本)(?:已)?(?:被|因|由于).{0,12}(?:过滤|屏蔽|拦截|删除|审查|隐藏)"
    r"|(?:默认|随机|占位)(?:分数|评分|得分|分值|值)|不适用"
    r"|(?:評価|採点|判定|判断)(?:は|が|を)?(?:することが)?(?:できま|できな|出来ま|出来な|しません|していま|不能|不可|不可能)"
    r"|未(?:評価|採点)|^\W*申し訳|(?:既定|デフォルト|仮)の(?:点数|値|スコア)"
    r"|(?:평가|채점)(?:를|을)?\s?(?:할 수 없|하지 (?:못|않)|불가|되지 않|거부)|미(?:평가|채점)|^\W*죄송"
    r"|لا (?:أستطيع|يمكنني|يمكن) تقييم|تعذر (?:تقييم|قراءة)|لم يتم التقييم|मूल्यांकन (?:नहीं|संभव नहीं)"
)

_FORM_WORD = (
    r"(?:explanations?|explain|reason(?:ing)?s?|rationale|justification|comment|text|description|summary|sentences?"
    r"|begründung|erklärung|explicación|justificación|motivo|explication|raison|пояснение|объяснение|обоснование)"
)
_PLACEHOLDER = re.compile(
    rf"(?:(?:your|the|an?|my|some|sample|example|short|brief|insert|add|write|put|one|two|or|few|1-2|concise|dummy"
    rf"|placeholder|detailed) )*{_FORM_WORD}(?: (?:text|string|here|goes|to|be|added|follows|tbd|placeholder))*"
    r"(?: (?:for|of|about|why|on|über|de|para|zu) (?:the )?(?:trajectory |attempt |candidate )?(?:member|label"
    r"|id|\d)(?: here)?)?"
    r"|(?:one or two|1-2) sentences about what decided the score|why,? in a few words"
    r"|to ?do|tbd|tba|fix ?me|string|str|placeholder|lorem ipsum.*|dummy(?: text)?|sample(?: text)?"
    r"|example(?: text)?|xxx+"
    r"|foo|bar|null|undefined|nan|n ?/ ?a|not (?:applicable|available|provided|specified)|to be (?:added|filled in|done"
    r"|determined)"
    r"|(?:解释|说明|理由|原因|评语|説明|解説|理由をここに|설명|이유)|占位符?|待定|待补充?|(?:在此|此处|这里)填写.{0,6}|示例.{0,4}",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"[\s\"'`*_.,:;!。：]+$|^[\s\"'`*_.,:;!]+")
_WRAPPED = re.compile(r"\s*(?:<[^<>]{1,120}>|\[[^\[\]]{1,120}\]|\{\{?[^{}]{1,120}\}\}?|\$\{?\w+\}?)[\s.]*")
_DOTS = re.compile(r"[\s.…?_*-]*[.…?_][\s.…?_*-]*")


def declines(text: str) -> str:
    """The sentence in which the judge says that it did not judge; empty = there is none."""
    for sentence in SENTENCES.split(QUOTED.sub(" ", text)):
        for declining in (_DECLINES, _DECLINES_UNSPACED):
            found = declining.search(sentence)
            if found and (_FIRST_PERSON.match(found[0]) or not _ACTOR.search(sentence[: found.start()][-80:])):
                return sentence.strip()
    return ""


def is_placeholder(text: str, said: Said) -> bool:
    """Whether a text is a part of the form, not filled in."""
    if not text.strip():
        return False
    if _WRAPPED.fullmatch(text) or _DOTS.fullmatch(text):
        return True
    return bool(len(text) < 200 and _PLACEHOLDER.fullmatch(_MARKUP.sub("", _with_members(text.casefold(), said))))


def problem_with_explanation(text: str, said: Said, label: str) -> str:
    """What is wrong with the explanation of a member's score; empty = nothing."""
    shown = text if len(text) <= 60 else text[:60] + "…"
    if is_placeholder(text, said):
        return f'the explanation of {label.upper()} is a placeholder ("{shown}")'
    if sentence := declines(text):
        return f'the explanation of {label.upper()} says that it was not judged ("{sentence[:60]}")'
    if gives_another_score(text, said, label):
        return f'the explanation of {label.upper()} gives another score ("{shown}")'
    if found := _has_second_thoughts(said.mention.sub("member", text)):
        return f'the explanation of {label.upper()} has second thoughts ("{found[:60]}")'
    if found := contradiction(QUOTED.sub(" ", text), said.of_criterion(label), label):
        return f'the explanation of {label.upper()} contradicts its score ("{found.strip()[:60]}")'
    return ""


def problems_with_explanations(explanations: Mapping[str, str], said: Said) -> Iterator[str]:
    """What is wrong with the explanations, by label in lower case: each alone, and beside the others."""
    for label, text in explanations.items():
        yield from filter(None, (explains_otherwise(text, said, label), problem_with_explanation(text, said, label)))
    if all_the_same(explanations, said):
        yield "its scores differ, yet their explanations are all the same"
    for part in said.by_criterion():
        own = {label: text for label, text in explanations.items() if label in part.scores}
        if contrary := verdicts_contradict({label: verdicts(text, part, label) for label, text in own.items()}, part):
            yield f"its explanations contradict its scores: {contrary}"
        if _measures_otherwise(own, part):
            yield "its explanations give the scores another meaning"
    if swapped := _about_another(explanations, said):
        yield f"the explanation of {swapped.upper()} is about another member"


_SELF_CORRECTING = re.compile(
    r"\b(?:I|we) (?:\w+ly )?(?:mixed|swapp|confus|misread|misl|misj|overr|underr|overe|undere|forgot|retract"
    r"|take (?:it|that) back"
    r"|was (?:too|wrong|mistaken)|must correct)|\bmy (?:first|earlier|initial|previous) (?:reading|score"
    r"|impression|verdict|rating)"
    r"|\b(?:score|rating|grade|mark)s? (?:is |was |seems |are )?(?:far |much |a bit |slightly )?too (?:high|low"
    r"|generous|harsh|lenient)"
    r"|\b(?:text|explanation|entry|verdict|notes?|reasons?) (?:of|for|about) member\b|\bmember['’]s (?:text"
    r"|explanation|entry|verdict)\b",
    re.IGNORECASE,
)
"""What a judge says of itself, or of another member's entry."""


@cache
def _second_thoughts() -> re.Pattern[str]:
    starts = r"(?:^|(?<=[.!?…]\s)|(?<=[。！？…\n])|(?<=[—–-]\s))\W{0,4}"
    return re.compile(
        rf"{starts}(?:{source('interrupts')}\s?(?:[,:;.!?…，：；。！？、]|[—–-]\s)|{source('rereads')})", re.IGNORECASE
    )


def _has_second_thoughts(text: str) -> str:
    """The words with which a judge interrupts itself, at the beginning of a sentence."""
    bare = QUOTED.sub(" ", text)
    found = _second_thoughts().search(bare) or _SELF_CORRECTING.search(bare)
    return found[0].strip() if found else ""


_HEAD = re.compile(
    r"^\W{0,3}(?:(?:this (?:is|one is)|explanation|reasons?|verdict|scores?|notes?) (?:about|for|of|on)"
    r" )?(?:trajectory |attempt |candidate |response )?\W{0,3}",
    re.IGNORECASE,
)
_TOLD_APART = re.compile(
    r"\b(?:than|while|whereas|but|unlike|like|same|similar|as well|also|too|only|both|more|less|better|worse"
    r"|instead|here"
    r"|this (?:one|attempt|trajectory)|whose|'s)\b|['’]s\b",
    re.IGNORECASE,
)


def _about_another(explanations: Mapping[str, str], said: Said) -> str:
    """The member whose explanation begins with another's name, as if the two had been exchanged."""
    begun = list[str]()
    for label, text in explanations.items():
        members = named(text[:400], said)
        head = _HEAD.match(text)
        if not members or members[0].label not in said.scores or members[0].label == label:
            continue
        if len(re.findall(r"\w+", text)) <= 4 and not _TOLD_APART.search(text) and not re.search(r"\bas\b", text):
            return label
        if members[0].start > (head.end() if head else 0) or any(one.label == label for one in members):
            continue
        if re.match(r"\W{0,3}[:：)\]—–]", text[members[0].end :]):
            return label
        if not _TOLD_APART.search(text):
            begun.append(label)
    alike = len(begun) > 1 or (begun and len(named(explanations[begun[0]], said)) == 1)
    return begun[0] if alike else ""


_MEASURE = re.compile(
    r"\W{0,3}(?P<head>[^\W\d_]+(?: [^\W\d_]+){0,3})\s*(?P<sign>[:=]?)\s*(?P<value>\d*[.,]?\d+|[^\W\d_]+)"
)


def _measures_otherwise(explanations: Mapping[str, str], said: Said) -> bool:
    """Whether all explanations begin with a measure other than quality that rises with the scores.

    "Penalty 0.5: skipped a lookup" at 0.5, or "Severity of faults: high" at the highest score.
    """
    if len(explanations) < 2 or len(set(said.scores.values())) == 1:
        return False
    found = {label: _MEASURE.match(text) for label, text in explanations.items()}
    values, heads = dict[str, float](), set[str]()
    for label, measure in found.items():
        if measure is None:
            return False
        heads.add(measure["head"].casefold())
        value = measure["value"].casefold()
        if value[-1].isdigit():
            values[label] = float(value.replace(",", "."))
        elif value in SEVERITY:
            values[label] = SEVERITY[value]
    if len(heads) > 1 or len(values) < len(found) or not pattern("meaning").search(heads.pop()):
        return False
    ranked = sorted(values, key=lambda label: values[label])
    scores = [said.scores[label] for label in ranked]
    equal = all(said.are(value, label) for label, value in values.items())
    told = all(measure and measure["sign"] for measure in found.values())
    return equal or (told and scores == sorted(scores) and len(set(values.values())) > 1)


def all_the_same(explanations: Mapping[str, str], said: Said) -> bool:
    """Whether scores that differ have one and the same explanation, but for the names of members."""
    if len(explanations) < 2 or len(set(said.scores.values())) == 1:
        return False
    texts = {re.sub(r"\W+", " ", _with_members(text.casefold(), said)).strip() for text in explanations.values()}
    text = next(iter(texts))
    words = [word for word in text.split() if word != "member"]
    return len(texts) == 1 and (len(words) > 2 or (not text.isascii() and len(text) > 7))


def _with_members(text: str, said: Said) -> str:
    return re.sub(r"\s+", " ", ORDINAL.sub(" member ", said.mention.sub(" member ", text))).strip()
