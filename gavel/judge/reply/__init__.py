"""What the judge answered: a reply becomes scores by label, or an error that the judge can repair.

    read_verdict('```json\\n{"scores": [{"trajectory_id": "W7QX", "score": "80%",}]}```', ["W7QX"])
    -> Verdict(scores={"W7QX": Scored(0.8)}, repairs={"comma": 1, "fence": 1, "number": 1})
    read_verdict('{"scores": [{"trajectory_id": "W7QX", "score": 8}]}', ["W7QX"])
    -> VerdictError: the score of W7QX is 8, not from 0 to 1

A reply is taken only when its final object is complete and is the last thing said but for closing words, and nothing
outside closed thoughts restates, corrects, contradicts or rescales a score; all else is refused and asked for again.

`thoughts` finds reasoning, `lenient_json` repairs syntax, `forms` finds entries in a value, `answer` the final ones,
`verdict` matches scores to labels, `criteria` combines scores by criterion, `attempts` replaces labels by numbers.

What a reply says beside the scores is checked in three ways:
- of members: `claims` (numbers), `rankings`, `opinions`, `comparisons` and `praise` compare it with the scores, in
  prose and, over the whole group, in `explanations` (`grades`, `declines`, `tone`) and in `fields` that nobody asked
  for (`columns`), where `positions` puts labels for "the second one";
- of the numbers themselves: `surroundings`, `headings` and `closings` take only what they understand;
- by words in `words.toml`, by language (`lexicon`), and in `vocabulary`.
"""
