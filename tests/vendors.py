"""What the servers of vendors answer when something is wrong, as they publish it or were seen to answer."""

from tests.endpoint import Answer, Request, says

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def openai_error(status: int, message: str, code: str | None = None, kind: str = "invalid_request_error", **more):
    """OpenAI's envelope, which most compatible servers copy."""
    headers = more.pop("headers", {})
    return Answer({"error": {"message": message, "type": kind, "param": None, "code": code} | more}, status, headers)


QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, "
    "read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."
)

PERMANENT = {
    "openai: wrong key": openai_error(401, "Incorrect API key provided: sk-nope.", "invalid_api_key"),
    "openai: quota": openai_error(429, QUOTA, "insufficient_quota", "insufficient_quota"),
    "openai: no such model": openai_error(404, "The model `gpt-x` does not exist.", "model_not_found"),
    "openai: no such region": openai_error(
        403, "Country, region, or territory not supported", "unsupported_country_region_territory", "request_forbidden"
    ),
    "openrouter: no credits": Answer({"error": {"message": "Insufficient credits", "code": 402}}, 402),
    "openrouter: no such model": Answer({"error": {"message": "foo/bar is not a valid model ID", "code": 400}}, 400),
    "deepseek: no balance": openai_error(402, "Insufficient Balance", "invalid_request_error", "unknown_error"),
    "anthropic: no credit": Answer(
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "Your credit balance is too low to access the Anthropic API.",
            },
        },
        400,
    ),
    "vllm: no such model": Answer(
        {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}, 404
    ),
    "a proxy: forbidden, in HTML": Answer(b"<html><h1>403 Forbidden</h1></html>", 403, {"Content-Type": "text/html"}),
}
"""Nothing but a person can mend these."""

PASSING = {
    "openai: rate limit": openai_error(
        429, "Rate limit reached for o3: Limit 30000, Used 29999.", "rate_limit_exceeded", "tokens"
    ),
    "openai: server error": openai_error(500, "The server had an error.", None, "server_error"),
    "anthropic: overloaded": Answer(
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529
    ),
    "nginx: bad gateway": Answer(
        b"<html><h1>502 Bad Gateway</h1></html>", 502, {"Content-Type": "text/html; charset=utf-8"}
    ),
    "cloudflare: time-out": Answer(b"error code: 524", 524, {"Content-Type": "text/plain"}),
    "a proxy: 200 with an error": Answer({"error": {"message": "Sorry, high demand", "type": "overloaded"}}),
    "a proxy: 200 with an error and a status": Answer({"error": {"message": "Provider returned error", "code": 502}}),
    "a proxy: 200 with an error in words": Answer({"error": "Sorry, high demand"}),
    "a proxy: 200 with a page": Answer(b"<html>We are busy</html>", 200, {"Content-Type": "text/html"}),
    "200 with null": Answer(None),
    "200 without choices": Answer({"id": "1", "object": "chat.completion"}),
    "reset in mid-body": Answer(says("x" * 5000).body, breaks_off=True),
}
"""These pass when asked again."""

REFUSALS = {
    "azure: filtered prompt": openai_error(
        400,
        "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "content_filter",
        innererror={"code": "ResponsibleAIPolicyViolation"},
    ),
    "openai: flagged prompt": openai_error(
        400, "Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "invalid_prompt"
    ),
    "openrouter: moderation": Answer(
        {"error": {"code": 403, "message": "Your chosen model requires moderation and your input was flagged"}}, 403
    ),
}
"""These are about one prompt, and may not stop a run."""


def takes_no(name: str, instead: str = "") -> Answer:
    """OpenAI's refusal of a parameter."""
    hint = f" Use '{instead}' instead." if instead else ""
    return openai_error(
        400, f"Unsupported parameter: '{name}' is not supported with this model.{hint}", "unsupported_parameter",
        param=name,
    )  # fmt: skip


def retry_after(value: str, status: int = 429) -> Answer:
    return openai_error(status, "Rate limit reached", "rate_limit_exceeded", "tokens", headers={"Retry-After": value})


def picky(*refused: Answer, good: Answer):
    """A server that refuses each of the parameters in the answers' `param`, and answers the rest."""

    def step(request: Request) -> Answer:
        wrong = [answer for answer in refused if answer.body["error"]["param"] in request]
        return wrong[0] if wrong else good

    return step
