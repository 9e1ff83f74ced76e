"""`gavel judge …`: the commands around the judge itself."""

from gavel.cli.lazy_commands import lazy_app

app = lazy_app(
    "judge",
    "Draft a rubric, and test the judge itself.",
    "gavel.cli.judge_",
    {
        "rubric": "Draft a rubric for a job with a judge model.",
        "golden": "Check a judge and its prompts on groups of known order, and name the verdicts that changed.",
        "simulate": "Measure the engine on a simulated judge: agreement with the truth, and biases. No model, no key.",
        "report": "Compare a judge with a reference, with other judges and with itself, and look for its biases.",
    },
    add_completion=False,
    pretty_exceptions_enable=False,
)
