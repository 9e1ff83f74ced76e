"""Plain data of the service: `bodies` over HTTP, `records` as the store takes and gives them."""
