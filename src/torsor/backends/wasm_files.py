"""The files of a function exported in WebAssembly: the module, JavaScript that calls it, vectors and an example."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends.c99 import MARK, comment, joint_table, meaning, quoted
from torsor.backends.wasm import Module, WasmArray, WasmKernel
from torsor.compiler.request import Request
from torsor.files import made

TOLERANCE = {64: 1e-12, 32: 1e-4}  # of the example: WebAssembly has no fused multiply-add and rounds differently

SCRIPT = """\
const arrays = ARRAYS;
const output = OUTPUT;

/** The function: (INPUTS) -> the output. Its arrays are views of the module's memory, and overwritten by the next call.
 *  `source`: the bytes of NAME.wasm, or where they are. */
export async function load(source = new URL("./NAME.wasm", import.meta.url)) {
  const env = { sin: Math.sin, cos: Math.cos }; // of angles beyond 1e9 rad
  const { instance } = await WebAssembly.instantiate(source instanceof URL ? await read(source) : source, { env });
  const view = ({ at, size }) => new NUMBERS(instance.exports.memory.buffer, at, size);
  const inputs = Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, view(array)]));
  const out = view(output), places = Object.values(inputs);
  const call = (...given) => {
    if (given.length !== places.length) throw new TypeError(`NAME takes (INPUTS), not ${given.length} arrays`);
    given.forEach((x, k) => {
      const { length } = places[k];
      if (x.length !== length) throw new TypeError(`NAME: array ${k} has ${x.length} numbers, not ${length}`);
      places[k].set(x);
    });
    instance.exports.NAME();
    return out;
  };
  return Object.assign(call, { inputs, output: out, shape: output.shape, parts: output.parts });
}

async function read(url) {
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`${url}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}
"""

EXAMPLE = """\
import { readFile } from "node:fs/promises";
import { load } from "./NAME.mjs";

const call = await load();
const { states, outputs } = JSON.parse(await readFile(new URL("./NAME_vectors.json", import.meta.url)));
let worst = 0;
outputs.forEach((expected, k) => {
  const found = call(...states[k]);
  const largest = Math.max(...expected.map(Math.abs), Number.MIN_VALUE);
  expected.forEach((x, i) => { worst = Math.max(worst, Math.abs(found[i] - x) / largest); });
});
console.log(`NAME: ${outputs.length} states, largest relative error ${worst}`);
process.exit(worst <= TOLERANCE ? 0 : 1);
"""


@dataclass(frozen=True)
class WasmFunction:
    """A function of one model in WebAssembly."""

    request: Request
    name: str

    @cached_property
    def _made(self) -> tuple[bytes, dict[str, WasmArray], WasmArray]:
        module = Module()
        exported = module.export(self.name, WasmKernel.of(self.request))
        return module.to_bytes("\n".join(self.about())), exported.inputs, exported.out

    @property
    def module(self) -> bytes:
        return self._made[0]

    def about(self) -> list[str]:
        request, model = self.request, self.request.model
        lines = [
            f"{self.name}: {request.algorithm.name} of the model {quoted(model.name)}, {request.dtype}.",
            f"{MARK} {made()['torsor']}. Generated: change the model and export again instead of editing.",
            "",
            "Arrays, in SI units; matrices row by row; spatial vectors angular first, in the body's frame:",
            *(f"  {name:<12} {size:>6} numbers: {meaning(name)}" for name, size in request.input_sizes),
            f"  {'out':<12} {prod(request.shape):>6} numbers: the result, shape {request.shape}",
        ]
        if parts := request.parts:
            shapes = ", ".join(f"{name} {shape}" for name, shape in parts.items())
            lines.append(f"  {'':<12} {'':>6} one after the other: {shapes}")
        return [*lines, "", *joint_table(model)]

    def script(self) -> str:
        """The JavaScript module."""
        _, inputs, out = self._made
        arrays = {name: dict(at=x.at, size=prod(x.shape)) for name, x in inputs.items()}
        output = dict(at=out.at, size=prod(out.shape), shape=list(out.shape))
        if parts := self.request.parts:
            output |= {"parts": {name: list(shape) for name, shape in parts.items()}}
        words = {
            "ARRAYS": json.dumps(arrays), "OUTPUT": json.dumps(output), "INPUTS": ", ".join(arrays),
            "NUMBERS": f"Float{self.request.bits}Array", "NAME": self.name,
        }  # fmt: skip
        return comment(self.about()) + _filled(SCRIPT, words)

    def example(self) -> str:
        head = comment([f"{MARK}: runs {self.name} on its test vectors with Node."])
        return head + _filled(EXAMPLE, {"NAME": self.name, "TOLERANCE": str(TOLERANCE[self.request.bits])})

    def vectors(self, states: Sequence[NDArray[Any]], expected: NDArray[Any]) -> str:
        """Inputs, and outputs of torsor's CPU program; `states`: (count, ...) for each input."""
        count = len(expected)
        rows = [[np.ravel(x[k]).tolist() for x in states] for k in range(count)]
        outputs = [np.ravel(x).tolist() for x in expected]
        return json.dumps({"about": MARK, "states": rows, "outputs": outputs}) + "\n"

    def readme(self) -> str:
        name, inputs = self.name, ", ".join(self.request.inputs)
        return f"""\
{MARK}.

  {name}.wasm          the function
  {name}.mjs           loads it: import {{ load }} from "./{name}.mjs"; const f = await load(); f({inputs})
  {name}_vectors.json  inputs and expected outputs
  example.mjs          runs the function on them: node example.mjs
"""

    def files(self, states: Sequence[NDArray[Any]], expected: NDArray[Any], last: str) -> dict[str, str | bytes]:
        """The content of each file; `last`: the version and time of writing."""
        end = f"/* {last} */\n"
        return {
            f"{self.name}.wasm": self.module,
            f"{self.name}.mjs": self.script() + end,
            f"{self.name}_vectors.json": self.vectors(states, expected),
            "example.mjs": self.example() + end,
            "README.txt": self.readme() + end,
        }


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text
