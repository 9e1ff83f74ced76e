"""MCP servers over standard input and output that behave as their first argument says, in the standard library alone.

    python mcp_servers.py good|silent|exits|chatty|slow|dies|odd|bare

They speak the protocol's version 2025-06-18 with its handshake.
"""

import json
import os
import sys
import time

KIND = sys.argv[1]
STATE = {"count": 0}


def tool(name: str, description: str = "", **properties: str) -> dict:
    fields = {key: {"type": kind} for key, kind in properties.items()}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"name": name, "description": description, "inputSchema": schema}


def text(value: str) -> dict:
    return {"content": [{"type": "text", "text": value}]}


TOOLS = [
    tool("add", "Add to the count.", amount="integer"),
    tool("shop.orders/list", "List orders."),
    tool("shop_orders_list", "The same name once made plain."),
    tool("refuse", "Always fails."),
    tool("picture", "An image."),
    tool("table", "Structured."),
    tool("environment", "What this process may see."),
    tool("pid", "This process."),
]


def called(name: str, arguments: dict) -> dict:
    match name:
        case "add":
            if not isinstance(arguments.get("amount"), int):
                return text("amount must be a number") | {"isError": True}
            STATE["count"] += arguments["amount"]
            return text(str(STATE["count"]))
        case "refuse":
            return text("not today") | {"isError": True}
        case "picture":
            return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
        case "table":
            return {"content": [], "structuredContent": {"rows": [1, 2]}}
        case "environment":
            return text(json.dumps(sorted(os.environ)))
        case "pid":
            return text(str(os.getpid()))
        case _:
            return text(name)


def answer(message: dict) -> dict | None:
    method, params = message["method"], message.get("params") or {}
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "test", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": "2025-06-18", **about}
        case "tools/list":
            return {"tools": TOOLS if KIND != "bare" else []}
        case "tools/call":
            if KIND == "slow":
                time.sleep(30)
            if KIND == "dies":
                print("out of luck", file=sys.stderr, flush=True)
                os._exit(3)
            if KIND == "odd":
                return {"content": "this is no list"}
            return called(params["name"], params.get("arguments") or {})
        case _:
            return None


def main() -> None:
    if KIND == "exits":
        sys.exit("no database at shop.db")
    for line in sys.stdin:
        if KIND == "silent":
            continue
        message = json.loads(line)
        if "id" not in message:
            continue
        if KIND == "chatty":
            print("Listening on stdio …")
        result = answer(message)
        reply: dict = {"jsonrpc": "2.0", "id": message["id"]}
        reply |= {"error": {"code": -32601, "message": "Method not found"}} if result is None else {"result": result}
        print(json.dumps(reply), flush=True)


main()
