"""Replies of many kinds from which no number may come, written one by one, each with its name."""

import json

LABELS = ("K7QX", "W3RT", "M4TD")
MAP = dict(zip(LABELS, (0.9, 0.2, 0.5), strict=True))
OTHER_MAP = dict(zip(LABELS, (0.3, 0.6, 0.1), strict=True))


def _whole(scores: dict[str, float]) -> str:
    entries = [{"trajectory_id": label, "explanation": "why", "score": score} for label, score in scores.items()]
    return json.dumps({"scores": entries})


WHOLE, OTHER = _whole(MAP), _whole(OTHER_MAP)
FLAT, OTHER_FLAT = json.dumps(MAP), json.dumps(OTHER_MAP)

REFUSED = {
    "quoted other judge": f"Another reviewer gave these marks, which I do not share:\n{OTHER}",
    "user supplied": f"You asked me to check the following verdict.\n\n{OTHER}\n\nI disagree with it.",
    "disagree after": f"{OTHER}\n\nThat verdict would be unfair.",
    "strike": f"~~{OTHER}~~",
    "strike2": f"~~{OTHER}~~\n\nK7QX is better than that.",
    "refusal after": f"{WHOLE}\nI'm not confident in any of this; treat as unscored.",
    "one is doubt": f"{WHOLE}\nI could not see W3RT at all, its number is made up.",
    "random": f"I can't evaluate these, so here are random numbers:\n{WHOLE}",
    "random2": f"{WHOLE}\nThese numbers are arbitrary.",
    "dummy": f"Dummy values:\n{WHOLE}",
    "placeholder after": f"{WHOLE}\n(placeholders)",
    "TODO": f"{WHOLE}\nTODO: fill in real scores.",
    "todo2": f"// TODO replace\n{WHOLE}",
    "python assign update": f"scores = {FLAT}\nscores['K7QX'] = 0.1",
    "python swap": f"scores = {FLAT}\nscores['K7QX'], scores['W3RT'] = scores['W3RT'], scores['K7QX']",
    "python code": (f"```python\nscores = {FLAT}\nfor k in scores: scores[k] = 1 - scores[k]\nprint(scores)\n```"),
    "js": f"const s = {FLAT};\ns.K7QX -= 0.5;",
    "diff": f"- {FLAT}\n+ {OTHER_FLAT}",
    "git diff broken": f"- {FLAT}\n+ {OTHER_FLAT[:-10]}",
    "arrow": f"{WHOLE}\nK7QX: 0.9 -> 0.4",
    "arrow2": f"{WHOLE}\nK7QX ↓, W3RT ↑",
    "word nums": f"{WHOLE}\nMake that nine tenths for W3RT.",
    "word nums2": f"{WHOLE}\nK7QX: zero point one",
    "emoji": f"{WHOLE}\nK7QX 👎 W3RT 👍",
    "less": f"{WHOLE}\nK7QX a bit less, W3RT a bit more.",
    "tie": f"{WHOLE}\nIn the end all three are equally good.",
    "invert statement": f"{WHOLE}\nHere a high number means a bad attempt.",
    "loss": f"The following losses were computed (closer to zero is preferable).\n{WHOLE}",
    "err": f"Error of each attempt:\n{WHOLE}",
    "cost": f"Cost per attempt, normalised:\n{WHOLE}",
    "rank frac": f"Rank divided by count (first place = lowest):\n{WHOLE}",
    "dist": f"Distance to the ideal answer:\n{WHOLE}",
    "school": f"German school grades, scaled: 1,0 sehr gut, 6,0 ungenügend.\n{WHOLE}",
    "pct rank": f"Numbers denote how much worse than the reference each one is.\n{WHOLE}",
    "uncert": f"My uncertainty about each attempt:\n{WHOLE}",
    "weights": f"Weights of the attempts in the blend:\n{WHOLE}",
    "similarity": f"Similarity between each attempt and the worst one:\n{WHOLE}",
    "crit only": f"Scores for politeness only:\n{WHOLE}",
    "half": f"{WHOLE}\n\nThe above is for style; overall scores follow",
    "two part": f"Part 1 (tone):\n{WHOLE}\n\nPart 2 (facts):\n{OTHER}",
    "two part cut": f"Part 1 (tone):\n{WHOLE}\n\nPart 2 (facts):\n",
    "cut words": f"{WHOLE}\n\nNext I will double-check K7QX",
    "cut words2": f"{WHOLE}\n\nLet me verify.",
    "recheck": f"{WHOLE}\n\nChecking again: K7QX did not call",
    "yaml after": f"{WHOLE}\n---\nK7QX: .1\nW3RT: .8",
    "yaml2": f"{WHOLE}\nscores:\n  - id: K7QX\n    score: 0.1",
    "xml after": f'{WHOLE}\n<score id="K7QX">0.1</score>',
    "xml before": f'<score id="K7QX">0.1</score>\n{WHOLE}',
    "csv": f"{WHOLE}\nid,score\nK7QX,0.1\nW3RT,0.8",
    "toml": f"{WHOLE}\nK7QX = 0.1",
    "latex": f"{WHOLE}\n$\\text{{K7QX}} = \\frac{{1}}{{10}}$",
    "boxed": f"{WHOLE}\n\\boxed{{K7QX: 0.1}}",
    "html table": f"{WHOLE}\n<table><tr><td>K7QX</td><td>0.1</td></tr></table>",
    "unicode frac": f"{WHOLE}\nK7QX ½, W3RT ¾",
    "stars": f"{WHOLE}\nK7QX ★★☆☆☆ W3RT ★★★★★",
    "letters": f"{WHOLE}\nK7QX: F, W3RT: A+",
    "letters before": f"K7QX: D-, W3RT: A\n{WHOLE}",
    "fullwidth": f"{WHOLE}\nK7QX：０．１",
    "arabic": f"{WHOLE}\nK7QX: ٠٫١",
    "roman": f"{WHOLE}\nPlaces: W3RT I, M4TD II, K7QX III",
    "ranking contra": f"{WHOLE}\nRanking: W3RT, M4TD, K7QX (best to worst)",
    "ranking contra2": f"Best to worst: W3RT, M4TD, K7QX.\n{WHOLE}",
    "ordinal rank": f"{WHOLE}\n1st W3RT, 2nd M4TD, 3rd K7QX",
    "winner": f"{WHOLE}\nWinner: W3RT",
    "winner2": f"{WHOLE}\nI would pick W3RT.",
    "winner3": f"The best attempt is W3RT, hands down.\n{WHOLE}",
    "inv key": f'{{"scores": {FLAT}, "semantics": "0 means flawless"}}',
    "neg key": f'{{"scores": {FLAT}, "is_loss": true}}',
    "errata": f'{{"scores": {FLAT}, "errata": {{"K7QX": 0.1}}}}',
    "patch": (f'{{"scores": {FLAT}, "patch": [{{"op": "replace", "path": "/K7QX", "value": 0.1}}]}}'),
    "delta": f'{{"scores": {FLAT}, "delta": {{"K7QX": -0.5}}}}',
    "multiplier": f'{{"scores": {FLAT}, "multiplier": 10}}',
    "offset": f'{{"scores": {FLAT}, "offset": -0.1}}',
    "status": f'{{"scores": {FLAT}, "status": "draft"}}',
    "final false": f'{{"scores": {FLAT}, "final": false}}',
    "is_draft": f'{{"scores": {FLAT}, "is_draft": true}}',
    "confidence none": f'{{"scores": {FLAT}, "valid": false}}',
    "error": f'{{"scores": {FLAT}, "error": "could not read W3RT"}}',
    "type example": f'{{"type": "example", "scores": {FLAT}}}',
    "entry invalid": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "valid": false}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "valid": false}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "valid": false}]}'
    ),
    "entry penalty": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "penalty": 0.3}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "penalty": 0.3}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "penalty": 0.3}]}'
    ),
    "entry scale": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "of": 5}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "of": 5}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "of": 5}]}'
    ),
    "entry rank contra": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "rank": 3}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "rank": 1}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "rank": 2}]}'
    ),
    "score obj": (
        '{"scores": [{"trajectory_id": "K7QX", "score": {"value": 0.9, "max": 5}}, '
        '{"trajectory_id": "W3RT", "score": {"value": 0.2, "max": 5}}, {"trajectory_id": '
        '"M4TD", "score": {"value": 0.5, "max": 5}}]}'
    ),
    "expl corrects": (
        '{"scores": '
        '[{"trajectory_id": "K7QX", "explanation": "The score should be 0.4, not this.", "score": 0.9}, '
        '{"trajectory_id": "W3RT", "explanation": "The score should be 0.4, not this.", "score": 0.2}, '
        '{"trajectory_id": "M4TD", "explanation": "The score should be 0.4, not this.", "score": 0.5}]}'
    ),
    "reasoning last": f'{{"scores": {FLAT}, "final_reasoning": "On reflection K7QX should get 0.1."}}',
    "think no bracket": f"think\nK7QX seems fine. {OTHER}",
    "thinking emoji": f"🤔 K7QX is maybe good\n{OTHER}",
    "cot plain": f"Okay, so I need to score these. K7QX... hmm. Let's say {OTHER}",
    "dots": f"…maybe\n{OTHER}\n…",
    "italics thought": f"*I wonder whether this is right:* {OTHER}",
    "paren": f"(first thoughts: {OTHER})",
    "step": f"Step 1: initial scores\n{OTHER}\nStep 2: refine them",
    "step2": f"## Step 1: first impression\n{OTHER}\n\n## Step 2: refinement\n",
    "attempt heading": f"## First impression\n{OTHER}",
    "iter": f"Iteration 1:\n{OTHER}",
    "v0": f"v0:\n{OTHER}",
    "json comment": f'{{"scores": {FLAT} /* swapped by mistake */}}',
    "json comment2": '{\n "K7QX": 0.9, // wait, this is W3RT\'s\n "W3RT": 0.2,\n "M4TD": 0.5\n}',
    "before correction": f"K7QX and W3RT are listed under each other's names below.\n{WHOLE}",
    "before correction2": f"Note: labels of the first two are exchanged in the JSON.\n{WHOLE}",
    "mapping": f"(K7QX stands for W3RT and W3RT for K7QX.)\n{WHOLE}",
    "mapping2": f"A = K7QX, B = W3RT. A: 0.2, B: 0.9\n{WHOLE}",
    "zh rank": f"{WHOLE}\n最好的是W3RT。",
    "ja": f"{WHOLE}\nやっぱりW3RTの方が上です。",
    "de": f"{WHOLE}\nBesser W3RT vor K7QX setzen.",
    "fr": f"{WHOLE}\nK7QX mérite moins.",
    "es": f"{WHOLE}\nW3RT merece más.",
    "ru": f"{WHOLE}\nW3RT заслуживает большего.",
    "pt": f"{WHOLE}\nTroque K7QX por W3RT.",
    "ko": f"{WHOLE}\nK7QX와 W3RT의 점수를 바꿔 주세요.",
    "hi": f"{WHOLE}\nइन अंकों को उलट दें।",
    "ar": f"{WHOLE}\nاعكس الدرجات.",
    "tr": f"{WHOLE}\nK7QX ve W3RT yer değiştirmeli.",
    "it": f"{WHOLE}\nAnzi, W3RT è il migliore.",
    "nl": f"{WHOLE}\nEigenlijk moet W3RT hoger.",
    "pl": f"{WHOLE}\nZamień dwa pierwsze.",
    "nl scale": f"Schaal van 1 (slecht) tot 10 (goed):\n{WHOLE}",
    "pl scale": f"Skala od 1 do 10:\n{WHOLE}",
    "zh scale": f"十分制：\n{WHOLE}",
    "ja scale": f"10点満点で採点しました。\n{WHOLE}",
    "ko scale": f"10점 만점:\n{WHOLE}",
    "hi scale": f"10 में से अंक:\n{WHOLE}",
    "tr scale": f"10 üzerinden puanlar:\n{WHOLE}",
    "sum": f"{WHOLE}\nSum them with the previous round's.",
    "avg": f"{WHOLE}\nAveraged with a second pass these become lower.",
    "keep pending": f"{WHOLE}\nPending a second look.",
    "subject to change": f"{WHOLE}\nSubject to change.",
    "WIP": f"{WHOLE}\n(WIP)",
    "caveat": f"{WHOLE}\nTake K7QX down a notch.",
    "notch": f"{WHOLE}\nW3RT moves up.",
    "opp": f"{WHOLE}\nRead it the other way.",
    "mirror": f"{WHOLE}\nMirror the values.",
    "complement": f"{WHOLE}\nUse one minus each value.",
    "order": f"{WHOLE}\nThe list is in reverse.",
    "list wrong": f"{WHOLE}\nThe ids got shuffled.",
    "shifted": f"{WHOLE}\nEvery id is off by one row.",
    "rotate": f"{WHOLE}\nRotate the ids by one.",
    "not yours": f"{WHOLE}\nThis is for a different task.",
    "old task": f"These belong to the last group:\n{WHOLE}",
    "copy": f"Copied from the prompt:\n{WHOLE}",
    "template2": f"Output skeleton:\n{WHOLE}",
    "echo": f"The format is\n{WHOLE}",
    "think tag w attr newline": f"<think\n type='x'>{OTHER}",
    "no close bracket": f"<think {OTHER}",
    "curly tag": f"{{% think %}}\n{OTHER}",
    "colon fence": f"::: think\n{OTHER}\n",
    "tilde fence": f"~~~thoughts\n{OTHER}\n~~~",
    "fence text thinking": f"```text\nthinking: {OTHER}\n```",
    "fence open thinking": f"```markdown\n# Thinking\n{OTHER}",
    "md details": f"<details>\n<summary>Scratch</summary>\n\n{OTHER}\n\n</details>",
    "xml unknown wrap": f"<brouillon>{OTHER}</brouillon>",
    "xml unknown wrap2": f"<first>\n{OTHER}\n</first>\n<second>\n",
    "two tags": f"<try1>{OTHER}</try1><try2>",
    "answer draft tag": f"<answer_draft>{OTHER}</answer_draft>",
    "answer cut": f"<answer>{OTHER}</answer>\n<answer>",
    "answer twice": f"<answer>{OTHER}</answer>\n<answer>{WHOLE}</answer>",
    "tool draft": f'<tool_call>{{"name":"simulate","arguments":{OTHER}}}</tool_call>\n<tool_call>',
    "role": f"Assistant (thinking): {OTHER}",
    "me": f"Me: {OTHER}\nUser: no, wrong\nMe:",
    "dialog": f"User: what if W3RT had looked?\nJudge: {OTHER}",
    "qa": f"Q: what would a lazy judge answer?\nA: {OTHER}",
    "quoted str": f'The string "{OTHER}" is what the attempt wants me to say.',
    "injected": f"M4TD contains this text: {OTHER}",
    "inj2": f"One attempt tells me to output:\n{OTHER}\nI will not.",
    "inj3": f"I refuse to output the demanded\n{OTHER}",
    "const": f"const example = {OTHER};",
    "func": f"def scores():\n    return {OTHER}",
    "assert": f"assert scores != {OTHER}",
    "if code": f"if strict:\n    scores = {OTHER}\nelse:\n    scores =",
    "math": f"score = (1 - x) with x as in\n{OTHER}",
    "range brackets": f"Scale [1;5].\n{WHOLE}",
    "bounds": f"min=1, max=5\n{WHOLE}",
    "bounds2": f"Bereich: 1..10\n{WHOLE}",
    "max ten": f"Ten is the maximum.\n{WHOLE}",
    "of20": f"Notes sur 20 :\n{WHOLE}",
    "mille": f"In per mille:\n{WHOLE}",
    "log": f"Log scale.\n{WHOLE}",
    "unit": f"Unit: hundredths\n{WHOLE}",
    "dec": f"Deciles:\n{WHOLE}",
    "bad first": f"0 stands for a flawless attempt.\n{WHOLE}",
    "bad second": f"A flawless attempt gets 0.\n{WHOLE}",
    "bad third": f"The closer to 1, the more mistakes.\n{WHOLE}",
    "mist": f"Share of mistakes per attempt:\n{WHOLE}",
    "mist2": f"Scores count mistakes.\n{WHOLE}",
    "fault": f"Scores measure fault.\n{WHOLE}",
    "p0": f"P(bad) for each:\n{WHOLE}",
    "harm": f"Harmfulness scores:\n{WHOLE}",
    "sus": f"Suspicion scores:\n{WHOLE}",
    "diff, again": f"Difficulty ratings:\n{WHOLE}",
    "worst": f"Badness rating of each:\n{WHOLE}",
    "uncertain": f"Confidence ratings:\n{WHOLE}",
    "len": f"Length scores:\n{WHOLE}",
    "sc key": f'{{"harm_scores": {FLAT}}}',
    "sc key2": f'{{"badness": {FLAT}}}',
    "lbl": f'{{"scores": {FLAT}, "labels": {{"K7QX": "W3RT", "W3RT": "K7QX"}}}}',
    "alias": f'{{"scores": {FLAT}, "aliases": {{"K7QX": "W3RT", "W3RT": "K7QX"}}}}',
    "zero": f'{{"scores": {FLAT}, "zero_means": "perfect"}}',
    "ideal": f'{{"ideal": 0, "scores": {FLAT}}}',
    "target": f'{{"target": 0, "scores": {FLAT}}}',
    "best 0": f'{{"best": 0, "worst": 1, "scores": {FLAT}}}',
    "transform": f'{{"transform": "1-x", "scores": {FLAT}}}',
    "apply": f'{{"apply": "x10", "scores": {FLAT}}}',
    "superseded": f'{{"superseded_by": "next message", "scores": {FLAT}}}',
    "next": f'{{"scores": {FLAT}, "next": "I will recheck W3RT"}}',
    "list two": f"[{FLAT},{OTHER_FLAT}]",
    "list two w": f'{{"runs": [{{"scores": {FLAT}}}, {{"scores": {OTHER_FLAT}}}]}}',
    "judges": f'{{"judge_a": {FLAT}, "judge_b": {OTHER_FLAT}}}',
    "rounds": f'{{"round_1": {OTHER_FLAT}, "round_2": null}}',
    "rounds2": f'{{"round_1": {OTHER_FLAT}}}',
    "pass": f'{{"first_pass": {OTHER_FLAT}}}',
    "crit": f'{{"style": {OTHER_FLAT}}}',
    "hyp": f'{{"if_verified": {OTHER_FLAT}}}',
    "hyp2": f'{{"scores_if_verified": {OTHER_FLAT}}}',
    "hyp3": f'{{"example_scores": {OTHER_FLAT}}}',
    "entry two": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "score_after_review": 0.3}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "score_after_review": 0.6}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "score_after_review": 0.1}]}'
    ),
    "entry list": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "history": [0.1, 0.2]}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "history": [0.1, 0.2]}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "history": [0.1, 0.2]}]}'
    ),
    "entry label": (
        '{"scores": [{"trajectory_id": "K7QX", "score": 0.9, "actual_id": "W3RT"}, '
        '{"trajectory_id": "W3RT", "score": 0.2, "actual_id": "M4TD"}, '
        '{"trajectory_id": "M4TD", "score": 0.5, "actual_id": "K7QX"}]}'
    ),
}
