import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.judge.prompt.sanitize import redact_secrets

LETTERS = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dF3hJ5kL7nP9rS1uX3"


@pytest.mark.parametrize(
    ("secret", "kind"),
    [
        (f"sk-{LETTERS}", "OpenAI key"),
        (f"sk-proj-{LETTERS}_{LETTERS}", "OpenAI key"),
        (f"sk-ant-api03-{LETTERS}", "Anthropic key"),
        (f"sk-or-v1-{LETTERS}", "OpenRouter key"),
        (f"AIza{LETTERS[:35]}", "Google key"),
        ("AKIAIOSFODNN7EXAMPLE", "AWS key"),
        (f"ghp_{LETTERS[:36]}", "GitHub token"),
        (f"github_pat_{LETTERS}", "GitHub token"),
        (f"glpat-{LETTERS[:20]}", "GitLab token"),
        ("xoxb-123456789012-abcdefGHIJ", "Slack token"),
        (f"sk_live_{LETTERS[:24]}", "Stripe key"),
        (f"hf_{LETTERS[:34]}", "Hugging Face token"),
        (f"gsk_{LETTERS}", "API key"),
        (f"npm_{LETTERS[:36]}", "API key"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmN", "token"),
        ("bob.o'x+tag@mail.example.co.uk", "e-mail address"),
        ("józef@przykład.pl", "e-mail address"),
        ("4111 1111 1111 1111", "card number"),
        ("5555-5555-5555-4444", "card number"),
        ("4111.1111.1111.1111", "card number"),
        ("4111_1111_1111_1111", "card number"),
        ("4111\u00a01111\u00a01111\u00a01111", "card number"),
        ("4111\u20131111\u20131111\u20131111", "card number"),
        ("4111  1111  1111  1111", "card number"),
        ("４１１１１１１１１１１１１１１１", "card number"),
        ("４１１１－１１１１－１１１１－１１１１", "card number"),
        ("378282246310005", "card number"),
        ("3782 822463 10005", "card number"),
        ("30569309025904", "card number"),
        ("6011000990139424", "card number"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "use {}, please", '{{"value": "{}"}}', "a\n{}\nb", "({})"])
def test_a_secret_becomes_its_kind(secret, kind, around):
    shown = redact_secrets(around.format(secret))
    assert f"[{kind}]" in shown
    assert secret[-8:] not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc123def456ghi789", "Authorization: Bearer [credentials]"),
        ("postgres://admin:p4ss@db:5432/x", "postgres://admin:[password]@db:5432/x"),
        ('{"api_key":"abcdefgh12345","n":1}', '{"api_key":"[secret]","n":1}'),
        ('"{\\"client_secret\\":\\"abcdefgh12345\\"}"', '"{\\"client_secret\\":\\"[secret]\\"}"'),
        ("password = hunter2hunter", "password = [secret]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE+/=\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----[private key]-----END RSA PRIVATE KEY-----",
        ),
        ("card 4111 1111 1111 1111 12/27 123", "card [card number] 12/27 123"),
        ("card 4111.1111.1111.1111 12/27", "card [card number] 12/27"),
        ("https://x.org/?to=jane.doe%40example.com&n=1", "https://x.org/?to=[e-mail address]&n=1"),
    ],
)
def test_only_the_secret_itself_is_replaced(text, shown):
    assert redact_secrets(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn-is-a-library-for-machine-learning",
        "the order 4111111111111112 and the time 1763782000123456",
        "max_tokens: 1234567890, token count: 7",
        "user@host, @property, a@b, x @ y.com",
        "basic training is for the bearer of good news",
        "password: {password}, token=$TOKEN",
        "https://example.com:8080/a@b",
        "Pi is 3.14159265358979323846.",
        "4111.111111111111 and 10.4111.1111.1111.1111 and 4111-1111-1111-1112",
        "2024-1111-2222-3333 is 100%40 of 4111/1111",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact_secrets(text) == text


@given(st.text())
def test_redaction_changes_nothing_twice(text):
    once = redact_secrets(text)
    assert redact_secrets(once) == once
