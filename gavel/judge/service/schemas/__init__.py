"""What the service takes, answers and stores, as plain data.

ScoreRequest.model_validate_json(body)

score_bodies      `POST /v1/score`                 judgement_record  a judgement as its store gives it
member_bodies     one member of a group            group_record      a group as its store gives it
stored_verdict    the whole result of judging      key_scope         what an API key may do
numbers           numbers of requests and settings, taken as what they are
"""
