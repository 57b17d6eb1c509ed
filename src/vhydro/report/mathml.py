"""Equations for a browser: the LaTeX that laws are written in, as MathML, which needs no library."""

import re
from html import escape

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|[a-zA-Z]|\s+|.", re.DOTALL)
FUNCTIONS = {"\\sin": "sin", "\\cos": "cos"}
SYMBOLS = {"\\partial": "∂", "\\top": "⊤", "-": "−", "<": "&lt;", ">": "&gt;"}
MINUS, THIN, SIDE_BY_SIDE = "<mo>−</mo>", "<mspace width='0.17em'/>", ("</mi>", "</msup>", "</mstyle>", "</mrow>")
OPERATOR = ("<mo>", "<mo ")
NAMES = ("\\mathit", "\\text", "\\operatorname")


def mathml(line: str) -> str:
    """A line such as `H &= 0.5 p^2`, as a `<math>` element; what is no mathematics stays as text."""
    inner = "".join(_Reader(line.replace("&=", "=")).rest())
    return f"<math displaystyle='true'><mrow>{inner}</mrow></math>"


class _Reader:
    """Reads one element after the other, each with what is set above and below it."""

    def __init__(self, text: str):
        self.tokens = TOKEN.findall(text)
        self.at = 0

    def rest(self, end: str = "") -> list[str]:
        """Every element up to a closing token, which is read too."""
        out: list[str] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if end and token == end:
                self.at += 1
                break
            if token.isspace():
                self.at += 1
                continue
            element = self.scripted()
            if out and out[-1].endswith(("</mn>", *SIDE_BY_SIDE)) and not element.startswith(OPERATOR):
                out.append(THIN)
            if element == MINUS and (not out or out[-1].startswith(OPERATOR)):
                element = "<mo form='prefix'>−</mo>"
            out.append(element)
        return out

    def scripted(self) -> str:
        """An element with its index and its power."""
        base, under, over = self.element(), "", ""
        while self.at < len(self.tokens) and self.tokens[self.at] in "_^":
            is_power = self.tokens[self.at] == "^"
            self.at += 1
            script = self.element()
            under, over = (under, script) if is_power else (script, over)
        if under and over:
            return f"<msubsup>{base}{under}{over}</msubsup>"
        if under or over:
            return f"<msup>{base}{over}</msup>" if over else f"<msub>{base}{under}</msub>"
        return base

    def element(self) -> str:
        """One element: a number, a name, a sign, a group, a fraction or a mark over something."""
        while self.at < len(self.tokens) and self.tokens[self.at].isspace():
            self.at += 1
        if self.at >= len(self.tokens):
            return "<mrow></mrow>"
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            return f"<mrow>{''.join(self.rest('}'))}</mrow>"
        if token in "([":
            close = ")" if token == "(" else "]"
            inner = "".join(self.rest(close))
            return f"<mrow><mo stretchy='false'>{token}</mo>{inner}<mo stretchy='false'>{close}</mo></mrow>"
        if token in NAMES:
            return _name(self.raw(), upright=token != "\\mathit")
        if token == "\\tfrac":
            return f"<mstyle displaystyle='false'><mfrac>{self.digit()}{self.digit()}</mfrac></mstyle>"
        if token == "\\dot":
            return _rate(self.element())
        if token in FUNCTIONS:
            return f"<mi>{FUNCTIONS[token]}</mi><mo>&#x2061;</mo>"
        if token[0].isdigit():
            return _number(token)
        if token.isalpha():
            return f"<mi>{escape(token)}</mi>"
        if token in SYMBOLS or (len(token) == 1 and token in "+−=,|:/"):
            return f"<mo>{SYMBOLS.get(token, token)}</mo>"
        return f"<mtext>{escape(token)}</mtext>"

    def digit(self) -> str:
        """An argument of a fraction: a group, or one digit of a longer number."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if token.isdigit() and len(token) > 1:
            self.tokens[self.at] = token[1:]
            return f"<mn>{token[0]}</mn>"
        return self.element()

    def raw(self) -> str:
        """The text of a group as it is, whatever characters a name has."""
        if self.at >= len(self.tokens) or self.tokens[self.at] != "{":
            return ""
        depth, first = 0, self.at + 1
        while self.at < len(self.tokens):
            depth += {"{": 1, "}": -1}.get(self.tokens[self.at], 0)
            self.at += 1
            if not depth:
                break
        return "".join(self.tokens[first : self.at - (not depth)])


def _rate(element: str) -> str:
    """The rate of change: a dot over a letter, d/dt of a name."""
    if "class='name'" in element:
        return f"<mfrac><mrow><mi>d</mi>{element}</mrow><mrow><mi>d</mi><mi>t</mi></mrow></mfrac>"
    return f"<mover>{element}<mo>.</mo></mover>"  # as an accent some browsers put it into the letter


def _name(text: str, *, upright: bool) -> str:
    """A name in one piece; words stay upright and keep their spaces."""
    shown = escape(text)
    if text != text.strip() or " " in text:
        return f"<mtext>{shown.replace(' ', '&#xa0;')}</mtext>"
    kind = "mathvariant='normal'" if upright else "class='name'"
    return f"<mi {kind}>{shown}</mi>"


def _number(token: str) -> str:
    """A number; a power of ten is written as one."""
    digits, _, power = token.partition("e")
    if not power:
        return f"<mn>{digits}</mn>"
    ten = f"<msup><mn>10</mn><mn>{int(power)}</mn></msup>".replace("-", "−")
    return f"<mrow><mn>{digits}</mn><mo>×</mo>{ten}</mrow>"
