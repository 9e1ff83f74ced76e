"""Text that speaks to a judge: asks for a score, forges a verdict or the prompt's structure, or sets rules aside.

The patterns look for an address *and* what is asked, so that a dialogue about judges, marks or instructions is not
taken for an appeal to its own judge. They read text in the form of
`normalize_for_matching`. Their gaps are bounded, so the time is linear, and a group of patterns is tried only near
one of its words.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from gavel.judge.prompt.sanitize import normalize_for_matching

_ESCAPED = re.compile(r"\\[nrt\"/]")
"""Escapes of JSON in arguments and results; left in, they would run into the words behind them."""


@dataclass(frozen=True, slots=True)
class _Appeals:
    """Patterns with gaps of up to 50 characters, `~` any and `…` within a sentence; `<word>` is one of `_WORDS`."""

    stems: Sequence[str]
    """One of them occurs in whatever a pattern finds."""
    patterns: Sequence[str]
    reach: int = 250
    """How far from a stem what is found may begin or end, in characters."""

    def could_be_in(self, words: str) -> bool:
        """Of a text's different words, of which there are far fewer than words."""
        return any(all(part in words for part in stem.split()) for stem in self.stems)

    def found_in(self, text: str) -> bool:
        return any(
            _compiled(pattern).search(text, start, end)
            for start, end in _near(text, self.stems, self.reach)
            for pattern in self.patterns
        )


def _near(text: str, words: Sequence[str], reach: int) -> Iterator[tuple[int, int]]:
    """The parts of the text around the words, in order; none overlaps another."""
    start, end = 0, -1
    for place in sorted(chain.from_iterable(_places(text, word) for word in words)):
        if end < 0 or place - reach > end:
            if end >= 0:
                yield start, end
            start = max(0, place - reach)
        end = place + reach
    if end >= 0:
        yield start, end


def _places(text: str, word: str) -> Iterator[int]:
    place = text.find(word)
    while place >= 0:
        yield place
        place = text.find(word, place + 1)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    whole = re.sub(r"<(\w+)>", lambda word: _WORDS[word[1]], pattern)
    within = whole.replace("…", r"(?:[^.!?\n]|\.(?=\w)){0,50}?")
    return re.compile(within.replace("~", r"[\s\S]{0,50}?"), re.MULTILINE)


_JUDGE = r"(?:judges?|graders?|evaluators?|assessors?|scorers?|(?:reward|judge|grading|scoring) model)\b"
_WORDS = {
    "start": r"(?:^|[.!?:;,>*#\]\)\"'“”(-])\s{0,3}",
    "judge": _JUDGE,
    "to_judge": r"(?:dear|attention|attn|hey|hello|hi|notes? (?:to|for)|message (?:to|for)|instructions? (?:to|for)|@)"
    rf"\W{{0,3}}(?:(?:ai|llm|the|all|my|any|automated) ){{0,3}}{_JUDGE}",
    "score": r"\b(?:give|assign|award|grant|score|rate|grade|mark|rank|return|output|choose|select|prefer)\b",
    "top": r"\b(?:(?:highest|maximum|max|perfect|full|top|best|lowest|zero|minimum)(?: possible)? "
    r"(?:scor|mark|rating|grade|reward|point|credit)|(?:1\.0|10 ?/ ?10|100 ?%|100 ?/ ?100|5 ?/ ?5)"
    r"|score (?:of |is |= ?|to |: ?)?(?:1|10|100)\b|zero\b|0\.0|as (?:the )?(?:best|winner))",
    "attempt": r"\b(?:trajector(?:y|ies)|rollouts?)\b",
    "own": r"\b(?:this|my|our|the (?:above|following|present|current)) (?:\w+ )?"
    r"(?:trajectory|rollout|attempt|transcript|response|completion|submission|output)\b",
}

_APPEALS = (
    # English: an address and an order; without an address, an order about what nobody but a judge would call so.
    _Appeals(
        ("judge", "grader", "evaluator", "assessor", "scorer", "reward model", "grading model", "scoring model"),
        (
            r"<start>(?:(?:ai|llm|the|all) )?<judge>\s?[:,!—-]~<score>…(?:<top>|<attempt>)",
            r"<to_judge>~<score>…(?:<top>|<attempt>)",
            r"(?:<to_judge>|<start><judge>\s?[:,!])…(?:<top>|<own>…(?:correct|best|perfect))",
            r"\b(?:as|to|for|are) (?:the|an?|my) (?:ai |llm |impartial |fair )?<judge>~<own>…<top>",
            r"\b(?:system|admin|developer|override)\W{1,4}~<judge>~<score>…<top>",
        ),
    ),
    _Appeals(
        ("es this", "ing this"),
        (r"\b(?:ai|llm|model|whoever|system)(?: \w+)? (?:grad|scor|judg|evaluat)(?:es|ing) this~<score>…<top>",),
    ),
    _Appeals(
        ("trajector", "rollout"),
        (
            r"(?:<start>|\b(?:please|must|should|now|and|to) )<score>(?: \w+){0,3} <attempt>…(?:<top>|\b[01]\b)",
            r"\b(?:this|my|the) <attempt>~(?:deserves|must|should|has to|is to|gets|wins)\b…(?:<top>|scored|rated)",
            r"</?trajector(?:y|ies)\b",
            r"trajectory id\W{1,6}\w{1,20}\W[\s\S]{0,300}?score\W{1,4}\d",
            r"score\W{1,4}\d[\s\S]{0,300}?trajectory id\W{1,6}\w",
        ),
        reach=400,
    ),
    _Appeals(
        ("attempt", "transcript", "response", "completion", "submission", "output"),
        (r"(?:<start>|\bplease )<score> <own>…<top>",),
        reach=100,
    ),
    _Appeals(
        ("¦",),
        (
            r"^\s{0,8}¦\w{1,12} (?:trajectory|end of|start \w|goes on|conversation \d|note:|tools$|call |result:"
            r"|\w+: )",
        ),
    ),
    _Appeals(
        ("verdict",),
        (
            r"\b(?:final|my|judge's|official) verdict\W{1,4}(?:is\W{1,3})?(?:\[\[[ab]\]\]|1\.0|10/10|score)",
            r"\bverdict\W{1,6}\{~score\W{1,4}\d",
        ),
    ),
    _Appeals(
        ("im start|>system", "header id|>system", "<|system|>", "<<sys>>", "[system prompt]", "[inst]"),
        (
            r"(?:im start\|>system|header id\|>system|<\|system\|>|<{2}sys>{2}|\[system prompt\]|\[inst\])"
            r"[\s\S]{0,200}?\b(?:scor|judg|grad|rubric|trajector|evaluat)",
        ),
    ),
    _Appeals(
        ("ignor", "disregard", "forget", "overrid", "bypass"),
        (
            r"(?:<start>|\b(?:please|must|now|and|then|always) )(?:ignore|disregard|forget|override|bypass)"
            r"(?: (?:all|any|every|the|your|of|these|those)){0,3}"
            r"(?: (?:previous|prior|above|earlier|preceding|system|scoring|grading|judging|evaluation|given)){1,2}"
            r"(?: (?!and\b)\w+)? (?:instruction|rubric|rule|criteri|guideline|prompt|direction)",
            r"(?:<start>|\b(?:please|must|now|always) )(?:ignore|disregard|forget|override) (?:the|your|this) rubric",
        ),
    ),
    _Appeals(("rubric",), (r"\b(?:new|updated|revised|actual|real) (?:\w+ )?rubric\W{1,3}~(?:<score>|<top>)",)),
    # Chinese
    _Appeals(
        ("满分", "滿分", "最高分", "最高的分", "高分", "1.0", "10分", "100分", "1分"),
        (
            r"(?:评委|裁判|评审|评分|评判|评估|打分|评价者|判官|評審|評分|評委)[^。\n]{0,15}(?:[:,!、]|请|必须|务必|应|請|必須)"
            r"[^。\n]{0,25}(?:满分|滿分|最高分|最高的分|高分|1\.0|100?分|1分)",
            r"(?:请|必须|务必|应该|一定要|請|必須)[^。\n]{0,6}(?:给|为|对|将|把|給)[^。\n]{0,8}"
            r"(?:轨迹|回答|答案|解答|回复|軌跡)[^。\n]{0,12}(?:满分|滿分|最高分|高分|1\.0|100?分|1分)",
        ),
    ),
    _Appeals(
        ("忽略", "无视", "無視", "忘记", "忘掉", "不要理会"),
        (
            r"(?:忽略|无视|無視|忘记|忘掉|不要理会)(?:掉)?(?:你)?(?:所有|全部|一切)?(?:之前|以上|上述|先前|前面|上面|此前|评分|評分|系统)"
            r"[^。\n我]{0,8}(?:指令|指示|规则|規則|提示|标准|標準)",
        ),
    ),
    # Japanese
    _Appeals(
        ("満点", "最高点", "最高得点", "最高スコア", "1.0", "10点", "100点"),
        (
            r"(?:審査員|評価者|採点者|裁判官|審判|ジャッジ|評価モデル|採点モデル)[^。\n]{0,40}"
            r"(?:満点|最高点|最高得点|最高スコア|1\.0|100?点)[^。\n]{0,15}(?:ください|下さい|せよ|与えよ|付けよ|つけよ|すること)",
            r"(?:軌跡|この回答|この応答|この解答)に?は?[^。\n]{0,15}(?:満点|最高点|最高得点|最高スコア|1\.0|100?点)"
            r"[^。\n]{0,8}(?:ください|下さい|せよ)",
        ),
    ),
    _Appeals(
        ("無視", "忘れ"),
        (
            r"(?:以前|これまで|上記|前)の?[^。\n私]{0,8}(?:指示|命令|ルール|基準|プロンプト)[^。\n]{0,8}"
            r"(?:無視して(?:ください|下さい)|無視せよ|無視しろ|忘れてください|忘れろ)",
        ),
    ),
    # Korean
    _Appeals(
        ("만점", "최고 점수", "최고점", "1.0", "10점", "100점"),
        (
            r"(?:심사위원|심판|평가자|채점자|판사)[^.\n]{0,40}(?:만점|최고 점수|최고점|1\.0|100?점)[^.\n]{0,15}"
            r"(?:주세요|주십시오|부여|줘|하라|매겨)",
        ),
    ),
    _Appeals(("무시", "잊"), (r"(?:이전|위|앞)의?~(?:지시|명령|규칙|지침|프롬프트)~(?:무시하|무시해|잊어)",)),
    # Russian, Ukrainian
    _Appeals(
        ("судья", "судьи", "суддя", "судді", "оценщик", "проверяющ", "эксперт", "траектори", "траєкторі"),
        (
            r"(?:\b(?:судья|судьи|суддя|судді|оценщик|оценщики|эксперт|эксперты|проверяющии)\s?[,:!—-]"
            r"|\b(?:уважаем\w+|дорог\w+|шановн\w+|внимание|увага|для)\W{1,3}"
            r"(?:судья|судьи|судеи|суддя|судді|оценщик\w*|эксперт\w*|проверяющ\w+))"
            r"~\b(?:постав|дай|присво|выстав|оцен|оціні)\w*~(?:максимальн|высш|наивысш|наивищ|\b1[.,]0|10/10|100)",
            r"\b(?:постав|дай|присво|выстав|оцен|оціні)\w*~(?:траектори|траєкторі)\w+~"
            r"(?:максимальн|высш|наивысш|наивищ|\b1[.,]0|10/10|100)",
        ),
    ),
    _Appeals(
        ("игнорир", "забуд", "ігнору"),
        (
            r"\b(?:игнорируи|игнорируите|проигнорируи|проигнорируите|забудь|забудьте|ігноруи|ігноруите) "
            r"(?:(?:все|всі|любые|эти|свои) )?(?:предыдущ|прежн|вышеуказанн|попередн|системн)\w+ "
            r"(?:инструкц|указани|правил|критери|інструкці)",
        ),
    ),
    # Spanish, Portuguese, Italian
    _Appeals(
        ("juez", "jueces", "evaluador", "calificador", "juiz", "avaliador", "giudice", "valutatore"),
        (
            r"(?:(?:<start>|\b)(?:juez|jueza|jueces|evaluador|calificador|juiz|juiza|avaliador|giudice|valutatore)\s?[:!]"
            r"|<start>(?:juez|jueza|jueces|evaluador|calificador|juiz|avaliador|giudice|valutatore),"
            r"|\b(?:estimad[oa]|querid[oa]|atencion|car[oa]|prezad[oa]|atencao|attenzione|nota (?:para|al|per))\W{1,3}"
            r"(?:(?:el|la|o|a|il|al) )?(?:senor |sr\.? )?"
            r"(?:juez|jueces|evaluador|calificador|juiz|avaliador|giudice|valutatore)\w*)"
            r"~\b(?:d[ae]|dale|dar|asign|otorg|calific|puntu|pon|atribu|avali|assegn|dai|dia|valut|premi)\w*~"
            r"(?:maxim[oa]|massimo|mas alta|mais alta|piu alto|perfect|\b1[.,]0|\b10/10|\b100)",
        ),
    ),
    _Appeals(
        ("ignor", "olvida", "esquec", "dimentic"),
        (
            r"\b(?:ignora|ignore|ignoren|ignorad|olvida|olvide|esqueca|dimentica) "
            r"(?:(?:todas|todos|tutte|las|los|as|os|le|sus|tus|suas) ){0,2}"
            r"(?:(?:anteriores|previas|precedenti) )?"
            r"(?:instrucciones|instrucoes|istruzioni|reglas|regras|criterios|rubrica) "
            r"(?:anteriores|previas|precedenti|de evaluacion|de avaliacao|del sistema|arriba)",
        ),
    ),
    # French
    _Appeals(
        ("juge", "evaluateur", "correcteur", "jury"),
        (
            r"(?:(?:<start>|\b)(?:juges?|evaluateurs?|correcteurs?)\s?[:!]|<start>(?:juges?|evaluateurs?|correcteurs?),"
            r"|\b(?:chers?|chere|attention|note (?:au|aux|pour le)|message (?:au|aux))\W{1,3}"
            r"(?:(?:le|les|au) )?(?:juges?|evaluateurs?|correcteurs?|membres du jury))"
            r"~\b(?:donne|attribue|accorde|note|mets|mettez|evalue)\w*~"
            r"(?:maxim|meilleure note|note la plus|plus haute|plus elev|parfait|\b1[.,]0|\b10/10|\b20/20|\b100)",
            r"\b(?:donnez?|attribuez?|accordez?|notez?) ~trajectoire\b~(?:maxim|meilleure|plus haute|\b1[.,]0|\b10/10)",
        ),
    ),
    _Appeals(
        ("ignor", "oubli"),
        (
            r"\b(?:ignorez?|oubliez?) (?:(?:toutes|tous|les|vos|tes) ){0,2}"
            r"(?:instructions?|consignes?|regles|criteres) (?:precedent|ci-dessus|anterieur|du systeme|d'evaluation)",
        ),
    ),
    # German, Dutch
    _Appeals(
        ("richter", "bewerter", "gutachter", "prufer", "juror", "rechter", "beoordelaar"),
        (
            r"(?:(?:<start>|\b)(?:richter|bewerter|gutachter|prufer|juroren|beoordelaar)(?:in)?\s?[:!]"
            r"|<start>(?:richter|bewerter|gutachter|prufer|beoordelaar)(?:in)?,"
            r"|\b(?:lieber?|liebe|geehrter?|achtung|hinweis (?:an|fur)|beste|nachricht an|aandacht)\W{1,3}"
            r"(?:(?:den|die|der|das|de|herr|frau) )?(?:richter|bewerter|gutachter|prufer|juroren|beoordelaar)\w*)"
            r"~(?:\b(?:gib|geben|vergib|vergeben|bewerte|bewerten|geef|beoordeel)\b)~"
            r"(?:hochst|maximal|voll\w* punkt|bestnote|hoogst|\b1[.,]0|\b10/10|\b100)",
        ),
    ),
    _Appeals(
        ("ignorier", "vergiss", "vergess", "missachte", "negeer"),
        (
            r"\b(?:ignoriere|ignorieren|vergiss|vergessen|missachte|negeer)(?: sie)?(?: (?:alle|die|deine|ihre|de))*"
            r" (?:vorherigen|bisherigen|obigen|vorigen|fruheren|vorangegangenen|vorige|eerdere) "
            r"(?:anweisung|instru[kc]tie|instruktion|regel|kriteri|vorgabe)",
        ),
    ),
    # Arabic, Persian
    _Appeals(
        ("القاضي", "المقيم", "الحكم", "المصحح", "داور", "ارزیاب"),
        (
            r"(?:القاضي|المقيم|الحكم|المصحح|داور|ارزیاب)~(?:اعط|أعط|امنح|قيم|ضع|بده|بدهید|دهید)\b~"
            r"(?:الدرجة الكاملة|اعلى|أعلى|الكاملة|القصوى|كاملة|1\.0|10/10|100|کامل)",
            r"(?:داور|ارزیاب)~(?:نمره کامل|بالاترین|1\.0|۱)~(?:بده|بدهید|دهید)",
        ),
    ),
    _Appeals(
        ("تجاهل", "نادیده"),
        (
            r"تجاهل (?:جميع |كل )?(?:التعليمات|القواعد|الاوامر|الأوامر|المعايير) (?:السابقة|اعلاه|أعلاه)",
            r"(?:دستورات|دستورالعمل)~(?:قبلی|بالا)~نادیده",
        ),
    ),
    # Hindi
    _Appeals(
        ("न्यायाधीश", "मूल्यांकनकर्ता", "निर्णायक", "परीक्षक"),
        (
            r"(?:न्यायाधीश|मूल्यांकनकर्ता|निर्णायक|परीक्षक)~(?:पूरे अंक|पूर्ण अंक|सर्वोच्च|उच्चतम|अधिकतम|1\.0|10/10|100)"
            r"~(?:दें|दो|दीजिए|देना)",
        ),
    ),
    _Appeals(("निर्देश",), (r"(?:पिछले|उपरोक्त)~निर्देश~(?:अनदेखा|नजरअंदाज|भूल)",)),
)


def addresses_judge(text: str) -> bool:
    """Whether the text speaks to a judge, in any of the languages known here."""
    plain = _ESCAPED.sub("\n", normalize_for_matching(text).replace("_", " "))
    words = "\n".join(set(plain.split()))
    return any(appeals.could_be_in(words) and appeals.found_in(plain) for appeals in _APPEALS)
