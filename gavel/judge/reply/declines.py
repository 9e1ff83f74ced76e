"""Declining: sentences in which a judge says that it did not judge, in a dozen languages.

declines("I'm sorry, but I can't assess this one.")     "I'm sorry, but I can't assess this one."
declines("The agent could not assess the damage.")      "": it is about the agent's work
"""

import re
from collections.abc import Iterator

from gavel.judge.reply.grades import unquoted_sentences

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
_AT_START = (
    # English
    r"(?:(?:I['’]?m|I am|we['’]re|we are) )?(?:(?:very|so) )?sorry\b",
    (
        r"(?:could not|couldn['’]t|cannot|can['’]t|unable to|not able to|failed to|impossible to) (?:be )?(?:\w+"
        rf" )?(?:{_JUDGING}\w*\W*$|(?:{_JUDGING}|{_SEEING})\w* (?:\w+ ){{0,2}}{_THING})"
    ),
    (
        r"(?:not|never) (?:yet )?(?:been )?(?:evaluated|scored|assessed|rated|judged|graded|reviewed|ranked|read"
        r"|seen)\b"
    ),
    r"(?:unscored|unevaluated|unrated|ungraded|unjudged|unassessed|unread)\b",
    r"(?:no|without) (?:evaluation|assessment|score|rating|judge?ment)\b(?! of)",
    r"skipped\W*$",
    r"skipped (?:for|due to|because of|owing to) (?:\w+ )?(?:length|size|policy|safety|content|time|token|budget)",
    (
        r"(?:content|text|transcript|trajectory|attempt|explanation|evaluation|member|this (?:content|one|trajectory"
        r"|attempt)) (?:was |is |has been )?(?:redacted|filtered|blocked|withheld|removed|moderated|flagged"
        r"|suppressed|refused)\b"
    ),
    (
        r"(?:redacted|filtered|blocked|withheld|removed|moderated) (?:by|due to|for) (?:\w+ )?(?:safety|policy"
        r"|moderat|content|filter|guideline|provider|guard)"
    ),
    (
        r"(?:\w+ ){0,3}\w*(?:error|exception|failure)\W{1,3}(?:\w+ ){0,3}(?:context|tokens?|max\w*|length|time-?(?:d["
        r" -]?)?out|internal|server|overloaded|rate limit|connection|service|upstream|quota)\b[^.]{0,40}$"
    ),
    r"(?:context|token|max\w*) (?:\w+ ){0,2}(?:exceeded|limit|reached)\b",
    r"time-?(?:d )?out\W*$",
    (
        r"(?:random|default|fallback|dummy|placeholder|arbitrary|neutral|made[- ]up|guessed?) (?:\w+ )?(?:score"
        r"|rating|value|number|grade)s?\b"
    ),
    # German, Dutch
    r"nicht (?:bewertet|beurteilt|gelesen|auswertbar|bewertbar|geprüft)\b",
    r"keine (?:bewertung|beurteilung)\b",
    r"(?:es )?tut mir (?:sehr )?leid",
    r"leider kann ich",
    r"niet beoordeeld",
    # Spanish, Portuguese, Italian
    r"(?:no|sin) (?:evaluad|calificad|puntuad|valorad|evaluar|calificar|puntuar)",
    r"lo siento",
    r"não avaliad",
    r"(?:desculpe|lamento)\b",
    r"non valutat",
    r"mi dispiace",
    # French
    r"non (?:évalué|noté|jugé)",
    r"(?:je suis )?désolée?\b",
    r"pas (?:évalué|noté)",
    # Russian, Polish, Turkish
    r"не (?:оцен|проанализ|рассмотр)",
    r"(?:извините|простите|к сожалению, я)",
    r"без оценки",
    r"nie oceni",
)
"""The judge says that it did not judge, at the beginning of a sentence: what follows the signs before it."""
_AT_A_WORD = (
    # English
    rf"(?:I|we)(?:['’]m| am)? (?:\w+ )?{_NOT} (?:\w+ )?{_JUDGING}\w*(?! (?:whether|if|how|why))",
    (
        rf"(?:I|we) (?:\w+ )?{_NOT} (?:\w+ )?(?:{_SEEING}\w*|help with|assist with|engage with|comment on) (?:\w+"
        rf" ){{0,2}}{_THING}"
    ),
    (
        r"(?:evaluation|scoring|assessment|grading|judging)(?: (?:was|is|has been))? (?:skipped|declined|refused"
        r"|blocked|impossible|unavailable|not possible|failed|aborted|omitted|pending)"
    ),
    (
        r"(?:I|we) (?:\w+ )?(?:assign|g[ia]ve?|us|put|enter)\w* (?:\w+ ){0,3}(?:random|default|fallback|dummy"
        r"|placeholder|arbitrary)\b"
    ),
    r"(?:I|we) (?:\w+ )?(?:assumed|guessed|defaulted|made up)\b[^.\d]{0,20}(?:\d|score|number)",
    r"(?:against|violates|under) (?:my|our) (?:\w+ )?(?:polic|guideline|rule)",
    r"as an ai\b",
    # German, Dutch
    r"kann (?:ich )?(?:[\wäöüß]+ ){0,4}nicht (?:bewert|beurteil|einschätz|einseh)",
    (
        r"(?:konnte|kann|könnte|können|konnten) (?:[\wäöüß]+ ){0,3}nicht (?:bewertet|beurteilt|gelesen|eingesehen"
        r"|ausgewertet) werden"
    ),
    r"bewertung (?:ist )?nicht möglich",
    # Spanish, Portuguese, Italian
    (
        r"no (?:puedo|pude|podemos|he podido|es posible|fue posible|se pudo|se puede|se ha podido) (?:evaluar"
        r"|calificar|valorar|juzgar|puntuar)"
    ),
    (
        r"no (?:puedo|pude|he podido) (?:leer|ver|analizar|acceder a) (?:este|esta|el|la) (?:tray|intento|conten"
        r"|transcr)"
    ),
    r"não (?:posso|consigo|pude|foi possível|é possível) (?:avaliar|pontuar|julgar)",
    r"non (?:posso|riesco a|ho potuto|è possibile|è stato possibile) (?:valut|giudic)",
    # French
    r"je ne (?:peux|puis|saurais|pourrai) (?:pas )?(?:\w+ )?(?:évaluer|noter|juger|lire|l['’]évaluer|la juger)",
    r"impossible (?:d['’]évaluer|de (?:noter|juger|lire) (?:cet|ce|la))",
    r"n['’]a (?:pas pu|pu) être (?:évalu|not|lu)",
    # Russian, Polish, Turkish
    r"не (?:могу|можем|смог|смогла|удалось|получилось) (?:\w+ )?(?:оцени|прочита|разобра|судить|проанализ)",
    r"невозможно оценить",
    r"nie (?:mogę|można|udało się) oceni",
    r"değerlendir(?:emiyorum|ilemedi|ilmedi)",
)
"""The same at the beginning of a word."""
_ANYWHERE = (
    # English
    (
        rf"{_SHOWN}\w* (?:\w+ ){{0,2}}(?:could not|couldn['’]t|cannot|can['’]t|was not|were not|is not|wasn['’]t"
        rf"|isn['’]t) (?:be )?(?:\w+ )?(?:{_JUDGING}|readable|visible|loaded|(?:read|seen|parsed|accessed|loaded"
        r"|displayed)\b)"
    ),
    (
        r"[;,:(–—-]\s*(?:default|fallback|dummy|placeholder|random|arbitrary) (?:score|rating|value|number"
        r"|grade)s?\W*$"
    ),
)
"""The same within a word."""

_UNSPACED = re.compile(
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
_BEGINNING = re.compile(rf"\W*(?:{'|'.join(_AT_START)})", re.IGNORECASE)
_WITHIN = re.compile(rf"\b(?:{'|'.join(_AT_A_WORD)})|{'|'.join(_ANYWHERE)}", re.IGNORECASE)


def declines(text: str) -> str:
    """The sentence in which the judge says that it did not judge; empty = there is none."""
    for sentence in unquoted_sentences(text):
        for found in _declining(sentence):
            if _FIRST_PERSON.match(found[0]) or not _ACTOR.search(sentence[: found.start()][-80:]):
                return sentence.strip()
    return ""


def _declining(sentence: str) -> Iterator[re.Match[str]]:
    if found := _BEGINNING.match(sentence):
        yield found
    if found := _WITHIN.search(sentence):
        yield found
    if not sentence.isascii() and (found := _UNSPACED.search(sentence)):
        yield found
