"""CUDA kernels with a loop over time around `advance`, one step of one state: of fixed length, or adaptive.

With fixed steps, a thread takes one trajectory through all its steps. With adaptive steps, every thread has its own
step size, and takes the next member of the ensemble when its current one is finished. The result of a member does not
depend on the thread that computes it, so results do not depend on the order in which threads finish. The arrays of
members are stored number by number, with members side by side; the states that adaptive steps store, member by member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torsor.backends.c_language import SCRATCH, CWriter, array, element
from torsor.backends.cuda import Kernel, Launch
from torsor.backends.cuda_prelude import prelude
from torsor.compiler.tape import Code

RESET = ("reset_q", "reset_v")  # states from which a stopped trajectory continues
# The numbers that the kernel of adaptive steps reads: the last time, the first step, tolerances, how steps change, and
# for stops: the halvings that find the time, the points per step that are checked, and the parabolas per turning point.
SETTINGS = (
    "end", "first", "rtol", "atol", "smallest", "safety", "shrink", "grow", "exponent", "halvings", "looks", "turns",
)  # fmt: skip


def staged(step: Kernel, stages: Sequence[Code], dynamics: Kernel) -> str:
    """The function `advance` of a step that is cut into stages; they call the kernel of the accelerations."""
    assert isinstance(step.code, Code)
    w, sizes, places, end = CWriter(step.bits), dict(step.inputs), [], 0
    own = [name for name, _ in step.inputs[5:]]
    for name, size in dynamics.inputs:  # computed by a stage, or given: the numbers of a trajectory
        if name in own:
            in_time = sizes[name] > size
            places.append(f"from({array(name)}, {{stage}} * {size})" if in_time else array(name))
        else:
            places.append(f"Row{{{{at + {end}}}}}" if end else "Row{{at}}")
            end += size
    scratch = ["tree", *SCRATCH] if dynamics.looped else []
    w.do(f"T at[{end}];")
    for k, code in enumerate(stages):
        found = array(f"a{k}")
        w.do(f"T {found}[{sizes['v']}];")
        for name, x in w.emit(code, element).items():
            w.do(f"at[{name[1]}] = {x};")
        w.do(f"state({', '.join([*(x.format(stage=k) for x in places), f'Row{{{found}}}', *scratch])});")
    w.run(step.code, lambda entry: element(entry, step.shape, step.inputs) if len(step.shape) > 1 else element(entry))
    return step.function("advance", w, looped=dynamics.looped)


@dataclass(frozen=True)
class RolloutKernel:
    """Many steps of an integrator: a loop over time around `advance`, one step of one state.

    step      the kernel whose text is `advance`: q, v, tau, gain, h, and numbers of every trajectory -> the next (q, v)
    stages    if the accelerations are not part of that text: the code of (q, v, tau) at each evaluation
    dynamics  the kernel that computes the accelerations in that case, straight-line code or loops
    apart     whether the accelerations are a separate function that all stages call
    """

    step: Kernel  # straight-line code: `Kernel.code` is a `Code`
    stages: tuple[Code, ...]
    dynamics: Kernel | None
    ends: Kernel | None = None  # q, v, numbers of members -> how far each stop condition is exceeded
    reset: bool = False  # whether stopped trajectories continue from another state
    apart: bool = False

    @property
    def looped(self) -> bool:
        return self.dynamics is not None and self.dynamics.looped

    @property
    def bits(self) -> int:
        return self.step.bits

    @property
    def numbers(self) -> tuple[str, ...]:
        """The inputs of a step that are numbers of a trajectory: all after q, v, tau, gain and h."""
        return tuple(name for name, _ in self.step.inputs[5:])

    @property
    def in_time(self) -> tuple[str, ...]:
        """The inputs of a step that may change in time."""
        return ("tau", "gain", *(name for name in self.numbers if name == "external"))

    def source(self, launch: Launch | None = None) -> str:
        launch = launch or Launch()
        dynamics = self.dynamics.state(inline=not self.apart) if self.dynamics else ""
        parts = [prelude(self.bits, self.step.trig), dynamics, self.advance()]
        parts += [self.ends.state("outside")] if self.ends else []
        return "\n".join((*parts, self._entry(launch)))

    def advance(self) -> str:
        """The function `advance`: one step of one state."""
        return self.step.state("advance") if self.dynamics is None else staged(self.step, self.stages, self.dynamics)

    def _entry(self, launch: Launch) -> str:
        """The kernel.  States x = (q, v) are stored with trajectories side by side: out[stored][number][trajectory]."""
        sizes, threads = dict(self.step.inputs), launch.threads
        nq, nv = sizes["q"], sizes["v"]
        strided, width = (
            "const T* __restrict__ {name}, const long long {name}_step, const long long {name}_stride",
            sizes["tau"],
        )
        parameters = [strided.format(name=name) for name in ("q", "v", "tau")]
        # strides from the values of one step to those of the next; 0: constant in time
        parameters += [f"const long long {name}_time" for name in self.in_time]
        parameters.append("const T* __restrict__ gain, const long long gain_step")
        parameters.append("const T* __restrict__ h, T* __restrict__ out")
        parameters.append("const long long count, const int steps, const int every")
        now = {name: f" + t * {name}_time" if name in self.in_time else "" for name in self.numbers}
        reads = {name: f"Read{{{name} + b * {name}_step{now[name]}, {name}_stride}}" for name in self.numbers}
        parameters += [strided.format(name=name) for name in self.numbers]
        own = "".join(f"{x}, " for x in reads.values())
        gain = "Table<T>{gain + b * gain_step + t * gain_time}"
        arrays = f"Row{{x}}, Row{{x + {nq}}}, Row{{u}}, {gain}, Table<T>{{h}}, {own}Row{{y}}"
        ends = self._ends(nq, nv, reads)
        parameters += ["int* __restrict__ why, int* __restrict__ when"] if ends else []
        parameters += [strided.format(name=name) for name in RESET] if self.reset else []
        before, head = [], f"long long b = (long long)blockIdx.x * {threads} + threadIdx.x"
        if self.dynamics and self.looped:
            loop, scratch = self.dynamics.loop_text(threads)
            parameters += loop
            before += scratch
            arrays += f", tree, {', '.join(SCRATCH)}"
        for_k = "for (int k = 0; k < {0}; ++k)"
        lines = [
            *before,
            f"for ({head}; b < count; b += {'all' if self.looped else 'count'}) {{",
            f"  T x[{nq + nv}], y[{nq + nv}], u[{width}];",
            f"  {for_k.format(nq)} x[k] = q[b * q_step + k * q_stride];",
            f"  {for_k.format(nv)} x[{nq} + k] = v[b * v_step + k * v_stride];",
            "  int left = every;",
            "  T* to = out + b;",
            *["  int reason = 0, first = -1, t = -1, *because = why + b;", "  bool frozen = false;"][: 2 * bool(ends)],
            *ends,
            "#pragma unroll 1",
            f"  for ({'' if ends else 'int '}t = 0; t < steps; ++t) {{",
            f"    {for_k.format(width)} u[k] = tau[b * tau_step + t * tau_time + k * tau_stride];",
            f"    {'if (!frozen) ' * bool(ends)}advance({arrays});",
            f"    {'if (!frozen) ' * bool(ends)}{for_k.format(nq + nv)} x[k] = y[k];",
            *(f"  {line}" for line in ends),
            "    if (--left) continue;",
            "    left = every;",
            f"    {for_k.format(nq + nv)} to[k * count] = x[k];",
            f"    to += {nq + nv} * count;",
            *(["    *because = reason;", "    because += count;", *["    reason = 0;"] * self.reset] if ends else []),
            "  }",
            *["  when[b] = first;"] * bool(ends),
            "}",
        ]
        body = "\n".join(line if line.startswith("#") else f"  {line}" for line in lines)
        return f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join(parameters)}) {{\n{body}\n}}\n'

    def _ends(self, nq: int, nv: int, reads: Mapping[str, str]) -> list[str]:
        """After step t: check whether a trajectory stops, and freeze or reset it."""
        if self.ends is None:
            return []
        count, own = self.ends.shape[0], "".join(f"{reads[name]}, " for name, _ in self.ends.inputs[2:])
        lines = [f"  T gone[{count}];", f"  outside(Row{{x}}, Row{{x + {nq}}}, {own}Row{{gone}});"]
        lines.append("  bool stops = false;")
        lines.append(f"  for (int k = {count - 1}; k >= 0; --k) if (gone[k] > 0) {{ stops = true; reason = k + 1; }}")
        lines.append("  if (stops && first < 0) first = t + 1;")
        if self.reset:
            for name, start, size in zip(RESET, (0, nq), (nq, nv)):
                to = f"x[{start} + k] = {name}[b * {name}_step + k * {name}_stride]"
                lines.append(f"  if (stops) for (int k = 0; k < {size}; ++k) {to};")
        else:
            lines.append("  if (stops) frozen = true;")
        return ["  if (!frozen) {", *(f"  {line}" for line in lines), "  }"]


@dataclass(frozen=True)
class AdaptiveKernel:
    """Adaptive steps of members whose numbers differ.

    stages    the code of (q, v, tau) at each evaluation of accelerations (`lowering.cut`)
    step      the kernel of the result of a step, the rows of `torsor.ensembles.engine.embedded`; its inputs are q, v,
              tau, gain, h and the numbers of a member
    dynamics  the kernel of the forward dynamics, straight-line code or loops; its last inputs are a member's numbers
    codes     the `status` of a member that is finished, diverged, needs too small a step, or was stopped by the first
              condition (one more for the second, and so on)
    stops     the kernel of how far a state is beyond each stop condition, from q, v and the numbers of a member
    """

    stages: tuple[Code, ...]
    step: Kernel
    dynamics: Kernel
    codes: tuple[int, int, int, int]
    stops: Kernel | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The arrays of members."""
        return tuple(name for name, _ in self.step.inputs if name != "h")

    def source(self, launch: Launch | None = None) -> str:
        dynamics = self.dynamics.state(inline=False)  # inlined at every stage, it took 1.7 times as long
        stops = self.stops.state("outside", inline=False) if self.stops else ""
        parts = prelude(64, "accurate"), dynamics, stops, self.advance(), self._entry(launch or Launch())
        return "\n".join(parts)

    def advance(self) -> str:
        """The function `advance`: one step of one member."""
        return staged(self.step, self.stages, self.dynamics)

    def _entry(self, launch: Launch) -> str:
        """The kernel."""
        sizes, threads = dict(self.step.inputs), launch.threads
        nq, width, (ok, diverged, stuck, stopped) = sizes["q"], sizes["q"] + sizes["v"], self.codes
        parameters = [f"const T* __restrict__ {array(name)}" for name in self.given]
        parameters += ["const T* __restrict__ settings", "const T* __restrict__ times"]
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
            "stuck": stuck, "stopped": stopped - 1, "stops": prod(self.stops.shape) if self.stops else 0,
        }  # fmt: skip
        words |= {name: text.format(**words) if self.stops else "" for name, text in WATCH.items()}
        words["reason"] = self._reason(nq)
        text = LOOP.format(advance=f"advance({', '.join([*arrays, 'Row{r}', *scratch])});", **words)
        head = f'extern "C" __global__ void {launch.bounds}\nkernel({", ".join([*parameters, *loop])}) {{\n'
        return head + "".join(f"  {line}\n" for line in lines) + text + "}\n"

    def _reason(self, nq: int) -> str:
        """`reason(x)`: the number, from 1, of the first stop condition that a state meets; 0 if it meets none."""
        if self.stops is None:
            return ""
        numbers, size = (
            (f"Read{{{array(name)} + b, count}}" for name, _ in self.stops.inputs[2:]),
            prod(self.stops.shape),
        )
        return f"""auto outside_at = [&](T* x, T* excess) {{
      outside({", ".join(["Row{x}", f"Row{{x + {nq}}}", *numbers, "Row{excess}"])});
    }};
    auto reason = [&](T* x) -> int {{
      T excess[{size}];
      outside_at(x, excess);
      for (int k = 0; k < {size}; ++k) if (excess[k] > 0) return k + 1;
      return 0;
    }};"""


# The rows of r: the new state, h times its rate at the start and at the end, the last term of the continuous extension,
# the error.  A thread whose member is finished takes the next one while its neighbours continue with theirs.
LOOP = """\
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
# If a step leaves the bounds, bisection finds the time; the state at that time is stored for all later times.
WATCH = {
    "at_start": """\
if (const int why = reason(y)) {{
        for (; row < stored; ++row)
          for (int k = 0; k < {width}; ++k) to[row * {width} + k] = y[k];
        status[b] = {stopped} + why, when[b] = 0;
        has_member = 0, b = (long long)atomicAdd(next, 1ull);
        continue;
      }}""",
    "in_step": """\
T stop[{width}], e[3][{stops}], low = 0, high = 1;
      auto look = [&](const T s, T* x) {{
        for (int k = 0; k < {width}; ++k) stop[k] = between(s, k);
        outside_at(stop, x);
      }};
      int leaves = 0;
      outside_at(y, e[0]);
      for (int part = 1; part <= looks && !leaves; ++part) {{
        T *e0 = e[(part + 1) % 3], *e1 = e[(part + 2) % 3], *e2 = e[part % 3];
        look(part / looks, e2);
        low = (part - 1) / looks, high = part / looks;
        for (int j = 0; j < {stops}; ++j) leaves |= e2[j] > 0;
        for (int j = 0; part > 1 && j < {stops}; ++j) {{
          T fa = e0[j], fb = e1[j], fc = e2[j], x[{stops}];
          if (!(fb <= 0 && fb >= fa && fb >= fc && 2 * fb > (fa < fc ? fa : fc))) continue;
          T a = (part - 2) / looks, b = (part - 1) / looks, c = part / looks;
          for (int turn = 0; turn < turns; ++turn) {{
            const T left = (b - a) * (fb - fc), right = (b - c) * (fb - fa);
            const T s = left != right ? b - ((b - a) * left - (b - c) * right) / (2 * (left - right)) : b;
            look(s, x);
            if (x[j] > 0 && s < high) leaves = 1, low = (part - 2) / looks, high = s;
            if (x[j] > 0 || !(x[j] > fb)) break;
            if (s < b) c = b, fc = fb; else a = b, fa = fb;
            b = s, fb = x[j];
          }}
        }}
      }}
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
