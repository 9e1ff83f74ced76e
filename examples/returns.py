import gavel

ORDERS = {str(number): {"item": "lamp", "days": number % 61} for number in range(1000, 1200)}


def look_up_order(order_id: str) -> dict:
    """Look up an order."""
    return ORDERS[order_id]


def refund(order_id: str) -> str:
    """Refund an order. Cannot be undone."""
    return f"refunded {ORDERS[order_id]['item']}"


returns = gavel.Scenario(
    name="returns",
    system="You run the returns desk.",
    tools=[look_up_order, refund],
    tasks=[gavel.Task(user=f"I want my money back for order {number}.") for number in ORDERS],
    rubric="""
- calls refund when days <= 30 (weight 3).
- calls refund only after look_up_order.
- calls look_up_order and refund only with order_id from the request.
- says "sorry", "cannot" or "can not" when days > 30.
- ends with a message to the customer.""",
    max_turns=4,
)

if __name__ == "__main__":
    gavel.run(returns)  # python returns.py train, python returns.py evaluate: as with `gavel`
