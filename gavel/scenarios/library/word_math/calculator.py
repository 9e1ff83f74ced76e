"""A calculator: exact arithmetic over an expression, which is read and never run.

    calculate("(3 + 4) * 2,500 / 7")   # "2500"
    calculate("10 / 4")                # "2.5"

Python's own parser reads the expression into a tree, of which only numbers and arithmetic are followed: names, calls,
attributes and everything else are refused, so nothing that an agent writes is ever evaluated as code.
"""

import ast
import re
from decimal import Decimal
from fractions import Fraction

MAX_CHARACTERS = 200
_MAX_BITS = 512
"""Of a numerator or denominator on the way."""
_MAX_EXPONENT = 20
_DIGITS = 10
"""Significant digits that are shown of a number that is not whole."""


def calculate(expression: str) -> str:
    """The value as a whole number, or as a decimal with ten significant digits.

    `^` is a power, `×`, `÷` and `−` are understood, and commas between thousands are left out. Raises `ValueError` for
    what is no arithmetic, too long or too large, and `ZeroDivisionError`.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {MAX_CHARACTERS} characters")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", expression.strip())
    text = text.translate({ord("×"): "*", ord("÷"): "/", ord("−"): "-", ord("^"): "**", ord("$"): None})
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is no arithmetic expression") from error
    value = _value(tree.body)
    if value.denominator == 1:
        return str(value.numerator)
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.{_DIGITS}g}"


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as number):
            return _bounded(Fraction(number))
        case ast.Constant(value=float()):
            return _bounded(Fraction(ast.unparse(node)))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return _bounded(_combined(_value(left), operator, _value(right)))
        case _:
            pass
    raise ValueError(f"{ast.unparse(node)!r} is no number and no arithmetic: use + - * / // % ** and brackets")


def _combined(left: Fraction, operator: ast.operator, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow() if right.denominator == 1 and abs(right) <= _MAX_EXPONENT:
            return left ** int(right)
        case ast.Pow():
            raise ValueError(f"an exponent is a whole number from -{_MAX_EXPONENT} to {_MAX_EXPONENT}")
        case _:
            raise ValueError("use + - * / // % ** and brackets")


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ValueError("a number on the way is too large")
    return value
