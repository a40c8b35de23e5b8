"""CUDA kernels that move the members of an ensemble: a thread takes a member through all its steps, then the next one.

Adaptive steps have a step size per thread.  Which thread takes a member does not change what becomes of it, so results
do not depend on the order in which threads arrive.

The arrays of members lie number by number, members side by side.  The states that are stored lie member by member.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from torsor.backends.c_language import SCRATCH, CWriter, array, element
from torsor.backends.cuda import Kernel, Launch
from torsor.backends.cuda_prelude import prelude
from torsor.compiler.tape import Code

# The numbers that the kernel reads: the last time, the first step (or all of them), tolerances, how steps change, and
# how often one is halved to find where a member stops.
SETTINGS = ("end", "first", "rtol", "atol", "smallest", "safety", "shrink", "grow", "exponent", "halvings")


@dataclass(frozen=True)
class MembersKernel:
    """Steps of an integrator for members whose numbers differ.

    stages    the code of (q, v, tau) wherever a step needs accelerations (`torsor.motion.rollout.cut`)
    step      the kernel of what a step gives; its inputs are q, v, tau, gain, h and the numbers of a member.  Its rows
              are the new state (q, v) and, for adaptive steps, those of `torsor.ensembles.engine.embedded`
    dynamics  the kernel of the forward dynamics, straight line or loops; its last inputs are the numbers of a member
    codes     what `status` says of a member that arrived, diverged, had too small a step, or stopped by the first
              condition (one more by the second, and so on)
    stops     the kernel of how far a state is beyond each stop condition, from q, v and the numbers of a member
    """

    stages: tuple[Code, ...]
    step: Kernel
    dynamics: Kernel
    codes: tuple[int, int, int, int]
    stops: Kernel | None = None

    @property
    def adaptive(self) -> bool:
        return len(self.step.shape) > 1

    @property
    def given(self) -> tuple[str, ...]:
        """The arrays of members."""
        return tuple(name for name, _ in self.step.inputs if name != "h")

    def source(self, launch: Launch | None = None) -> str:
        dynamics = self.dynamics.state(inline=False)  # written out at every stage, it took 1.7 times as long
        stops = self.stops.state("outside", inline=False) if self.stops else ""
        parts = prelude(64, "accurate"), dynamics, stops, self.advance(), self._entry(launch or Launch())
        return "\n".join(parts)

    def advance(self) -> str:
        """The function `advance`: one step of one member."""
        assert isinstance(self.step.code, Code)
        w, sizes = CWriter(64), dict(self.step.inputs)
        nq, nv = sizes["q"], sizes["v"]
        states = [name for name, _ in self.dynamics.inputs if name not in sizes or name in ("q", "v", "tau")]
        starts = [0, *(nq + k * nv for k in range(len(states)))]
        places = {name: f"Row{{at + {start}}}" for name, start in zip(states, starts)}
        scratch = ["tree", *SCRATCH] if self.dynamics.looped else []
        w.do(f"T at[{starts[-1]}];")
        for k, code in enumerate(self.stages):
            own = array(f"a{k}")
            w.do(f"T {own}[{nv}];")
            for name, x in w.emit(code, element).items():
                w.do(f"at[{name[1]}] = {x};")
            arrays = [places.get(name, array(name)) for name, _ in self.dynamics.inputs]
            w.do(f"state({', '.join([*arrays, f'Row{{{own}}}', *scratch])});")
        w.run(self.step.code, lambda entry: element(entry, self.step.shape, self.step.inputs))
        return self.step.function("advance", w, looped=self.dynamics.looped)

    def _entry(self, launch: Launch) -> str:
        """The kernel."""
        sizes, threads = dict(self.step.inputs), launch.threads
        nq, width, (ok, diverged, stuck, stopped) = sizes["q"], sizes["q"] + sizes["v"], self.codes
        parameters = [f"const T* __restrict__ {array(name)}" for name in self.given]
        parameters += ["const T* __restrict__ settings", "const T* __restrict__ times", "const int* __restrict__ ends"]
        parameters += ["const int stored", "T* __restrict__ out", "signed char* __restrict__ status"]
        parameters += ["unsigned long long* __restrict__ next", "const long long count"]
        parameters += ["T* __restrict__ when"] if self.stops else []
        loop, before = self.dynamics.loop_text(threads) if self.dynamics.looped else ([], [])
        own = {"q": "Row{y}", "v": f"Row{{y + {nq}}}", "h": "Row{&now}"}
        arrays = [own.get(name, f"Read{{{array(name)} + b, count}}") for name, _ in self.step.inputs]
        scratch = ["tree", *SCRATCH] if self.dynamics.looped else []
        lines = [
            *before,
            *(f"const T {name} = settings[{k}];" for k, name in enumerate(SETTINGS)),
            f"long long b = (long long)blockIdx.x * {threads} + threadIdx.x;",
            f"T y[{width}], r[{prod(self.step.shape)}], now = first;",
        ]
        words: dict[str, Any] = {
            "nq": nq, "nv": sizes["v"], "width": width, "threads": threads, "ok": ok, "diverged": diverged,
            "stuck": stuck, "stopped": stopped - 1,
        }  # fmt: skip
        words |= {name: text.format(**words) for name, text in self._watching.items()} | {"reason": self._reason(nq)}
        text = (ADAPTIVE if self.adaptive else FIXED).format(
            advance=f"advance({', '.join([*arrays, 'Row{r}', *scratch])});", **words
        )
        head = f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join([*parameters, *loop])}) {{\n'
        return head + "".join(f"  {line}\n" for line in lines) + text + "}\n"

    @property
    def _watching(self) -> dict[str, str]:
        """The parts of the kernel that look at stop conditions."""
        if self.stops is None:
            return dict.fromkeys(WATCH_FIXED, "")
        return WATCH_ADAPTIVE if self.adaptive else WATCH_FIXED

    def _reason(self, nq: int) -> str:
        """`reason(x)`: the number of the first stop condition that a state meets, from 1 on; 0 if there is none."""
        if self.stops is None:
            return ""
        numbers, size = (
            (f"Read{{{array(name)} + b, count}}" for name, _ in self.stops.inputs[2:]),
            prod(self.stops.shape),
        )
        return f"""auto reason = [&](T* x) -> int {{
      T excess[{size}];
      outside({", ".join(["Row{x}", f"Row{{x + {nq}}}", *numbers, "Row{excess}"])});
      for (int k = 0; k < {size}; ++k) if (excess[k] > 0) return k + 1;
      return 0;
    }};"""


# Steps of length `first`; row k is stored after ends[k] of them.  A member that stops stays where it is.
FIXED = """\
  for (; b < count; b += (long long)gridDim.x * {threads}) {{
    for (int k = 0; k < {nq}; ++k) y[k] = in_q[k * count + b];
    for (int k = 0; k < {nv}; ++k) y[{nq} + k] = in_v[k * count + b];
    T* to = out + b * stored * {width};
    int sound = 1, done = 0;
    {reason}
    {at_start}
    for (int row = 0; row < stored; ++row) {{
#pragma unroll 1
      for (; done < ends[row]; ++done) {{
        {in_step}
        {advance}
        for (int k = 0; k < {width}; ++k) y[k] = r[k];
        {after}
      }}
      for (int k = 0; k < {width}; ++k) {{
        *to++ = y[k];
        sound &= y[k] - y[k] == 0;
      }}
    }}
    status[b] = sound ? {ok} : {diverged};
    {at_end}
  }}
"""
WATCH_FIXED = {
    "at_start": "int why = reason(y), last = 0;",
    "in_step": "if (why) continue;",
    "after": "if ((why = reason(y))) last = done + 1;",
    "at_end": """\
if (why) status[b] = {stopped} + why;
    when[b] = why ? last * first : __longlong_as_double(0x7ff8000000000000ll);""",
}

# The rows of r: the new state, h times its rate at the start and at the end, the last term of the continuous extension,
# the error.  A thread whose member has arrived takes the next one: those beside it go on with theirs.
ADAPTIVE = """\
  const T nothing = __longlong_as_double(0x7ff8000000000000ll);
  T t = 0, h = 0;
  int row = 0, sound = 1, has_member = 0;
#pragma unroll 1
  while (1) {{
    T* const to = out + b * stored * {width};
    {reason}
    if (!has_member) {{
      if (b >= count) break;
      for (int k = 0; k < {nq}; ++k) y[k] = in_q[k * count + b];
      for (int k = 0; k < {nv}; ++k) y[{nq} + k] = in_v[k * count + b];
      t = 0, h = first, row = 0, sound = 1, has_member = 1;
      for (; row < stored && times[row] <= 0; ++row)
        for (int k = 0; k < {width}; ++k) to[row * {width} + k] = y[k];
      {at_start}
    }}
    now = h < end - t ? h : end - t;
    {advance}
    T size = 0;
    for (int k = 0; k < {width}; ++k) {{
      const T ratio = r[4 * {width} + k] / (atol + rtol * MAX(ABS(y[k]), ABS(r[k])));
      size += ratio * ratio;
    }}
    size = SQRT(size / {width});
    const int accepted = size <= 1;
    T factor = size > 0 ? safety * pow(size, -exponent) : grow;
    factor = size - size == 0 ? factor < shrink ? shrink : factor > grow ? grow : factor : shrink;
    h = now * factor;
    if (accepted) {{
      auto between = [&](const T s, const int k) -> T {{
        const T change = r[k] - y[k], bend = r[{width} + k] - change, tail = change - r[2 * {width} + k] - bend;
        const T inside = bend + s * (tail + (1 - s) * r[3 * {width} + k]);
        return s >= 1 ? r[k] : y[k] + s * (change + (1 - s) * inside);
      }};
      T until = t + now;
      {in_step}
      for (; row < stored && times[row] <= until * (1 + 1e-15); ++row) {{
        const T s = (times[row] - t) / now;
        for (int k = 0; k < {width}; ++k) {{
          const T value = between(s, k);
          to[row * {width} + k] = value;
          sound &= value - value == 0;
        }}
      }}
      {after}
      for (int k = 0; k < {width}; ++k) y[k] = r[k];
      t += now;
      if (has_member && row == stored) {{
        status[b] = sound ? {ok} : {diverged};
        {at_end}
        has_member = 0;
      }}
    }} else if (h < smallest) {{
      status[b] = size - size == 0 ? {stuck} : {diverged};
      for (; row < stored; ++row)
        for (int k = 0; k < {width}; ++k) to[row * {width} + k] = nothing;
      {at_end}
      has_member = 0;
    }}
    if (!has_member) b = (long long)atomicAdd(next, 1ull);
  }}
"""
# Where a step leaves the bounds, the time is found by halving; the state there is stored for all times after it.
WATCH_ADAPTIVE = {
    "at_start": """\
if (const int why = reason(y)) {{
        for (; row < stored; ++row)
          for (int k = 0; k < {width}; ++k) to[row * {width} + k] = y[k];
        status[b] = {stopped} + why, when[b] = 0;
        has_member = 0, b = (long long)atomicAdd(next, 1ull);
        continue;
      }}""",
    "in_step": """\
T stop[{width}], low = 0, high = 1;
      const int leaves = reason(r) != 0;
      if (leaves) {{
        for (int halving = 0; halving < halvings; ++halving) {{
          const T middle = (low + high) / 2;
          for (int k = 0; k < {width}; ++k) stop[k] = between(middle, k);
          if (reason(stop)) high = middle; else low = middle;
        }}
        for (int k = 0; k < {width}; ++k) stop[k] = between(high, k);
        until = t + high * now;
      }}""",
    "after": """\
if (leaves) {{
        for (; row < stored; ++row)
          for (int k = 0; k < {width}; ++k) to[row * {width} + k] = stop[k];
        const int why = reason(stop);
        status[b] = {stopped} + (why ? why : 1), when[b] = until;
        has_member = 0;
      }}""",
    "at_end": "when[b] = nothing;",
}
