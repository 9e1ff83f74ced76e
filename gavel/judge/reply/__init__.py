"""What the judge answered: a reply becomes scores by label, or an error that the judge can repair.

    read_verdict('```json\\n{"scores": [{"trajectory_id": "W7QX", "score": "80%",}]}```', ["W7QX"])
    -> Verdict(scores={"W7QX": Scored(0.8)}, repairs={"comma": 1, "fence": 1, "number": 1})
    read_verdict('{"scores": [{"trajectory_id": "W7QX", "score": 8}]}', ["W7QX"])
    -> VerdictError: the score of W7QX is 8, not from 0 to 1

`lenient_json` repairs syntax, `verdict` matches scores to labels, `criteria` combines scores by criterion into one.
"""
