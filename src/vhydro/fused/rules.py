"""What every primitive does to cells."""

from vhydro.fused.cells import Value, converted, elementwise, select
from vhydro.fused.choices import part_at, part_put, scattered, taken
from vhydro.fused.factors import lower_factor, triangular_solution, upper_factor
from vhydro.fused.flat import Op, UnsupportedError
from vhydro.fused.shapes import (
    broadcast,
    concatenated,
    iota,
    moved,
    padded,
    parted,
    reshaped,
    sliced,
    squeezed,
    stacked,
    tiled,
    unstacked,
)
from vhydro.fused.sums import JOINED, contracted, reduced

SIMPLE = {  # done entry by entry
    "add", "add_any", "sub", "mul", "div", "rem", "max", "min", "neg", "exp", "exp2", "log", "log1p", "expm1", "sqrt",
    "rsqrt", "cbrt", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "abs", "sign",
    "floor", "ceil", "round", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "xor", "pow", "integer_pow",
    "square", "logistic", "erf", "erf_inv", "is_finite", "clamp", "nextafter", "shift_left", "shift_right_logical",
}  # fmt: skip


def ruled(op: Op, inputs: list[Value], lanes: int, memory) -> list[Value]:
    """The outputs of one operation; `memory` does what needs all particles at once."""
    name = op.name
    if name in SIMPLE:
        return [elementwise(op, inputs)]
    if name == "select_n":
        return [select(inputs)]
    if name == "convert_element_type":
        return [converted(inputs[0], op.params["new_dtype"])]
    if name == "broadcast_in_dim":
        return [broadcast(op, inputs, lanes)]
    if name == "reshape":
        return [reshaped(inputs[0], tuple(int(s) for s in op.params["new_sizes"]), lanes)]
    if name == "squeeze":
        return [squeezed(inputs[0], tuple(int(a) for a in op.params["dimensions"]))]
    if name == "transpose":
        return [moved(inputs[0], tuple(int(a) for a in op.params["permutation"]))]
    if name == "slice":
        return [sliced(op, inputs[0], lanes)]
    if name == "concatenate":
        return [concatenated(op, inputs)]
    if name == "stack":
        return [stacked(inputs, op.params["axis"])]
    if name == "unstack":
        return unstacked(inputs[0], op.params["axis"])
    if name == "split":
        return parted(inputs[0], op.params["sizes"], op.params["axis"], lanes)
    if name == "tile":
        return [tiled(op, inputs[0])]
    if name == "pad":
        return [padded(op, inputs)]
    if name == "iota":
        return [iota(op, lanes, memory.arange)]
    if name in JOINED:
        return [reduced(op, inputs[0], memory.across)]
    if name == "dot_general":
        return [contracted(op, inputs, memory.across)]
    if name == "gather":
        return [taken(op, inputs, lanes)]
    if name in ("scatter", "scatter-add"):
        return [scattered(op, inputs)]
    if name == "dynamic_slice":
        return [part_at(op, inputs, lanes)]
    if name == "dynamic_update_slice":
        return [part_put(inputs)]
    if name == "triangular_solve":
        return [triangular_solution(op, inputs)]
    if name == "qr":
        return upper_factor(inputs[0])
    if name == "cholesky":
        return [lower_factor(inputs[0])]
    raise UnsupportedError(f"the operation {name}")
