"""XLA's typed FFI: a handler through which XLA runs every program of this process, and the table of programs.

XLA calls the handler with the arrays of a call and one number, the key of a program. The key is a hash of what the
program computes, because JAX caches executables on disk: an address would differ in the next process. The handler
finds the program's record in a table. On a CPU it runs the kernel over the batch, on XLA's threads if the batch is
large. The calling thread also works, so a busy thread pool cannot block it. A row of cotangents becomes one array per
input: blocks of rows are split while they are in the processor's cache. For a GPU there is a second handler, which
queues the kernel on XLA's stream; XLA may record this in a CUDA graph.

A handler is LLVM IR, compiled and cached on disk like every kernel. The structures are those of XLA's header
xla/ffi/api/c_api.h, version 0.1; XLA accepts handlers of all versions from 0.1 to its own.

    record   key | kernel | its data | number of arrays | number of core strides | threads | states per piece |
             bytes of one state of every array | core strides | number of parts | bytes of every part
    on a GPU key | cuLaunchKernel | the kernel | number of arrays | of parameters | blocks | threads per block | shared
             bytes | bytes of every array | parameters: the number of an array, or the address of a constant
    table    mask | one word per slot: the address of a record, or 0; the search starts at slot (key & mask)
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torsor.backends import codegen
from torsor.backends.cuda_launch import driver

if TYPE_CHECKING:
    from torsor.backends.cpu import Program
    from torsor.backends.gpu import CudaProgram

MOST_ARRAYS, MOST_STRIDES, MOST_PARAMETERS = 32, 64, 128
PIECE = 2048  # states that a thread takes at a time
PIECES = 4  # a batch of fewer pieces than this runs on one thread
BLOCK = 1 << 15  # bytes of rows that are split at a time
FEWEST_ROWS = 8  # at least, in a block
FIRST_SLOTS = 256
TABLE = 0x7457AB1E0F0F57A7  # a placeholder for the address of the table, replaced when the handler is loaded


def _text(name: str, message: str) -> str:
    """A string constant."""
    return f'@{name} = private constant [{len(message) + 1} x i8] c"{message}\\00"'


def _beginning(traits: int, record: str) -> str:
    """The first lines of a handler: answer a query for its traits, find the program and the arrays of the call."""
    return f"""\
  %asked = call i1 @asked(ptr %frame, i32 {traits})
  br i1 %asked, label %finished, label %find
finished:
  ret ptr null
find:
  %record = call ptr @program(ptr %frame)
  %missing = icmp eq ptr %record, null
  br i1 %missing, label %not_loaded, label %counts
not_loaded:
  %error.unknown = call ptr @failed(ptr %frame, ptr @unknown)
  ret ptr %error.unknown
counts:
  %given.at = getelementptr %frame, ptr %frame, i32 0, i32 5, i32 2
  %given = load i64, ptr %given.at
  %inputs.at = getelementptr %frame, ptr %frame, i32 0, i32 5, i32 4
  %inputs = load ptr, ptr %inputs.at
  %results.at = getelementptr %frame, ptr %frame, i32 0, i32 6, i32 2
  %results = load i64, ptr %results.at
  %outputs.at = getelementptr %frame, ptr %frame, i32 0, i32 6, i32 4
  %outputs = load ptr, ptr %outputs.at
  %arrays.at = getelementptr %{record}, ptr %record, i32 0, i32 3
  %arrays = load i64, ptr %arrays.at"""


COMMON = f"""
%version = type {{ i64, ptr, i32, i32 }}
%extension = type {{ i64, i32, ptr, ptr }}
%metadata = type {{ i64, %version, i32, i64 }}
%arrays = type {{ i64, ptr, i64, ptr, ptr }}
%attributes = type {{ i64, ptr, i64, ptr, ptr, ptr }}
%frame = type {{ i64, ptr, ptr, ptr, i32, %arrays, %arrays, %attributes, ptr }}
%scalar = type {{ i32, ptr }}
%buffer = type {{ i64, ptr, i32, ptr, i64, ptr }}
%error = type {{ i64, ptr, ptr, i32 }}
%destroy = type {{ i64, ptr, ptr }}
%schedule = type {{ i64, ptr, ptr, ptr, ptr }}

@table = private unnamed_addr constant i64 {TABLE}, align 8
{_text("unknown", "torsor: this program is not loaded in this process: make its function first")}
{_text("arrays_differ", "torsor: the arrays of this call are not those of its program")}


; An error of XLA with a message.  Of XLA's functions, 6 words precede Error_Create.
define private ptr @failed(ptr %frame, ptr %message) nounwind {{
  %args = alloca %error
  store %error {{ i64 28, ptr null, ptr null, i32 9 }}, ptr %args
  %text = getelementptr %error, ptr %args, i32 0, i32 2
  store ptr %message, ptr %text
  %create = call ptr @function(ptr %frame, i64 0)
  %made = call ptr %create(ptr %args)
  ret ptr %made
}}

; The function of XLA's API with this number; Error_Create is 0.
define private ptr @function(ptr %frame, i64 %number) nounwind {{
  %api.at = getelementptr %frame, ptr %frame, i32 0, i32 2
  %api = load ptr, ptr %api.at
  %first = getelementptr {{ i64, ptr, %version, ptr }}, ptr %api, i64 1
  %at = getelementptr ptr, ptr %first, i64 %number
  %function = load ptr, ptr %at
  ret ptr %function
}}

; The record of a key, or null.
define private ptr @record_of(i64 %key) nounwind {{
entry:
  %word = load volatile i64, ptr @table
  %place = inttoptr i64 %word to ptr
  %table = load atomic ptr, ptr %place acquire, align 8
  %mask = load i64, ptr %table
  %slots = getelementptr i64, ptr %table, i64 1
  br label %look
look:
  %k = phi i64 [ %key, %entry ], [ %k.next, %other ]
  %slot = and i64 %k, %mask
  %at = getelementptr ptr, ptr %slots, i64 %slot
  %record = load atomic ptr, ptr %at acquire, align 8
  %none = icmp eq ptr %record, null
  br i1 %none, label %done, label %compare
compare:
  %own = load i64, ptr %record
  %same = icmp eq i64 %own, %key
  br i1 %same, label %done, label %other
other:
  %k.next = add i64 %k, 1
  br label %look
done:
  ret ptr %record
}}

; Whether XLA does not want a run: before the first, it asks for the version and for traits.
define private i1 @asked(ptr %frame, i32 %own) nounwind {{
entry:
  %extension.at = getelementptr %frame, ptr %frame, i32 0, i32 1
  %extension = load ptr, ptr %extension.at
  %plain = icmp eq ptr %extension, null
  br i1 %plain, label %stage, label %more
more:
  %kind.at = getelementptr %extension, ptr %extension, i32 0, i32 1
  %kind = load i32, ptr %kind.at
  %about = icmp eq i32 %kind, 1
  br i1 %about, label %answer, label %stage
answer:
  %metadata.at = getelementptr %extension, ptr %extension, i32 0, i32 3
  %metadata = load ptr, ptr %metadata.at
  %major = getelementptr %metadata, ptr %metadata, i32 0, i32 1, i32 2
  store i32 0, ptr %major
  %minor = getelementptr %metadata, ptr %metadata, i32 0, i32 1, i32 3
  store i32 1, ptr %minor
  %traits = getelementptr %metadata, ptr %metadata, i32 0, i32 2
  store i32 %own, ptr %traits
  ret i1 true
stage:
  %stage.at = getelementptr %frame, ptr %frame, i32 0, i32 4
  %number = load i32, ptr %stage.at
  %other = icmp ne i32 %number, 3
  ret i1 %other
}}

; How many bytes a buffer of XLA has.
define private i64 @bytes(ptr %buffer) nounwind {{
entry:
  %type.at = getelementptr %buffer, ptr %buffer, i32 0, i32 2
  %rank.at = getelementptr %buffer, ptr %buffer, i32 0, i32 4
  %axes.at = getelementptr %buffer, ptr %buffer, i32 0, i32 5
  %type = load i32, ptr %type.at
  %rank = load i64, ptr %rank.at
  %axes = load ptr, ptr %axes.at
  %double = icmp eq i32 %type, 12
  %item = select i1 %double, i64 8, i64 4
  br label %multiply
multiply:
  %axis = phi i64 [ 0, %entry ], [ %axis.next, %more ]
  %size = phi i64 [ %item, %entry ], [ %size.next, %more ]
  %whole = icmp sge i64 %axis, %rank
  br i1 %whole, label %end, label %more
more:
  %length.at = getelementptr i64, ptr %axes, i64 %axis
  %length = load i64, ptr %length.at
  %size.next = mul i64 %size, %length
  %axis.next = add i64 %axis, 1
  br label %multiply
end:
  ret i64 %size
}}

; The record of the program of a call, or null.
define private ptr @program(ptr %frame) nounwind {{
  %attributes.at = getelementptr %frame, ptr %frame, i32 0, i32 7, i32 5
  %attributes = load ptr, ptr %attributes.at
  %attribute = load ptr, ptr %attributes
  %value.at = getelementptr %scalar, ptr %attribute, i32 0, i32 1
  %value = load ptr, ptr %value.at
  %key = load i64, ptr %value
  %record = call ptr @record_of(i64 %key)
  ret ptr %record
}}
"""

PIECES_OF_A_JOB = f"""
%record = type {{ i64, ptr, ptr, i64, i64, i64, i64, [0 x i64] }}
; record | states | next state | states that are done | threads that use it | addresses | strides | of parts
%job = type {{ ptr, i64, i64, i64, i64, [{MOST_ARRAYS} x ptr], [{MOST_ARRAYS + MOST_STRIDES} x i64],
               [{MOST_ARRAYS} x ptr] }}

; Where a record says how many parts a row has; their bytes follow.
define private ptr @parts(ptr %record) nounwind {{
  %arrays.at = getelementptr %record, ptr %record, i32 0, i32 3
  %arrays = load i64, ptr %arrays.at
  %strides.at = getelementptr %record, ptr %record, i32 0, i32 4
  %strides = load i64, ptr %strides.at
  %place = add i64 %arrays, %strides
  %at = getelementptr %record, ptr %record, i32 0, i32 7, i64 %place
  ret ptr %at
}}

; n states of a job, from the first on, whose results go to `rows` or, if that is null, to the result.
define private void @compute(ptr %job, i64 %first, i64 %n, ptr %rows) nounwind {{
entry:
  %args = alloca [{MOST_ARRAYS} x ptr]
  %n.at = alloca i64
  store i64 %n, ptr %n.at
  %record = load ptr, ptr %job
  %arrays.at = getelementptr %record, ptr %record, i32 0, i32 3
  %arrays = load i64, ptr %arrays.at
  br label %address
address:
  %k = phi i64 [ 0, %entry ], [ %k.next, %address ]
  %base.at = getelementptr %job, ptr %job, i32 0, i32 5, i64 %k
  %base = load ptr, ptr %base.at
  %step.at = getelementptr %job, ptr %job, i32 0, i32 6, i64 %k
  %step = load i64, ptr %step.at
  %offset = mul i64 %first, %step
  %start = getelementptr i8, ptr %base, i64 %offset
  %arg.at = getelementptr ptr, ptr %args, i64 %k
  store ptr %start, ptr %arg.at
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %arrays
  br i1 %more, label %address, label %output
output:
  %elsewhere = icmp ne ptr %rows, null
  %last = sub i64 %arrays, 1
  %result.at = getelementptr ptr, ptr %args, i64 %last
  %own = load ptr, ptr %result.at
  %result = select i1 %elsewhere, ptr %rows, ptr %own
  store ptr %result, ptr %result.at
  %kernel.at = getelementptr %record, ptr %record, i32 0, i32 1
  %kernel = load ptr, ptr %kernel.at
  %data.at = getelementptr %record, ptr %record, i32 0, i32 2
  %data = load ptr, ptr %data.at
  %steps = getelementptr %job, ptr %job, i32 0, i32 6
  call void %kernel(ptr %args, ptr %n.at, ptr %steps, ptr %data)
  ret void
}}

; n pieces of memory of `bytes` each, `step` bytes apart, side by side.  Up to 63 bytes behind each are read; behind the
; last one, nothing is written.
define private void @gather(ptr %from, i64 %step, ptr %to, i64 %bytes, i64 %n) nounwind {{
entry:
  %size = mul i64 %bytes, %n
  %end = getelementptr i8, ptr %to, i64 %size
  br label %one
one:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %from.offset = mul i64 %k, %step
  %source = getelementptr i8, ptr %from, i64 %from.offset
  %to.offset = mul i64 %k, %bytes
  %target = getelementptr i8, ptr %to, i64 %to.offset
  br label %some
some:
  %at = phi i64 [ 0, %one ], [ %at.vector, %vector ], [ %at.word, %word ]
  %source.at = getelementptr i8, ptr %source, i64 %at
  %target.at = getelementptr i8, ptr %target, i64 %at
  %target.end = getelementptr i8, ptr %target.at, i64 64
  %room = icmp ule ptr %target.end, %end
  br i1 %room, label %vector, label %word
vector:
  %wide = load <16 x i32>, ptr %source.at, align 4
  store <16 x i32> %wide, ptr %target.at, align 4
  %at.vector = add i64 %at, 64
  %vector.more = icmp slt i64 %at.vector, %bytes
  br i1 %vector.more, label %some, label %next
word:
  %narrow = load i32, ptr %source.at, align 4
  store i32 %narrow, ptr %target.at, align 4
  %at.word = add i64 %at, 4
  %word.more = icmp slt i64 %at.word, %bytes
  br i1 %word.more, label %some, label %next
next:
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %n
  br i1 %more, label %one, label %done
done:
  ret void
}}

; n states of a job, from the first on, whose rows are cut into parts.
define private void @cut(ptr %job, i64 %first, i64 %n, ptr %parts) nounwind {{
entry:
  %rows = alloca [{BLOCK + 64} x i8], align 64
  %count = load i64, ptr %parts
  %record = load ptr, ptr %job
  %arrays.at = getelementptr %record, ptr %record, i32 0, i32 3
  %arrays = load i64, ptr %arrays.at
  %last = sub i64 %arrays, 1
  %row.at = getelementptr %record, ptr %record, i32 0, i32 7, i64 %last
  %row = load i64, ptr %row.at
  %most = udiv i64 {BLOCK}, %row
  %end = add i64 %first, %n
  br label %block
block:
  %at = phi i64 [ %first, %entry ], [ %at.next, %block.done ]
  %left = sub i64 %end, %at
  %fewer = icmp slt i64 %left, %most
  %size = select i1 %fewer, i64 %left, i64 %most
  call void @compute(ptr %job, i64 %at, i64 %size, ptr %rows)
  br label %part
part:
  %p = phi i64 [ 0, %block ], [ %p.next, %part ]
  %offset = phi i64 [ 0, %block ], [ %offset.next, %part ]
  %p.next = add i64 %p, 1
  %bytes.at = getelementptr i64, ptr %parts, i64 %p.next
  %bytes = load i64, ptr %bytes.at
  %to.at = getelementptr %job, ptr %job, i32 0, i32 7, i64 %p
  %to = load ptr, ptr %to.at
  %before = mul i64 %at, %bytes
  %target = getelementptr i8, ptr %to, i64 %before
  %source = getelementptr i8, ptr %rows, i64 %offset
  call void @gather(ptr %source, i64 %row, ptr %target, i64 %bytes, i64 %size)
  %offset.next = add i64 %offset, %bytes
  %p.more = icmp slt i64 %p.next, %count
  br i1 %p.more, label %part, label %block.done
block.done:
  %at.next = add i64 %at, %size
  %more = icmp slt i64 %at.next, %end
  br i1 %more, label %block, label %done
done:
  ret void
}}

; n states of a job, from the first on.
define private void @piece(ptr %job, i64 %first, i64 %n) nounwind {{
  %record = load ptr, ptr %job
  %parts = call ptr @parts(ptr %record)
  %count = load i64, ptr %parts
  %whole = icmp eq i64 %count, 0
  br i1 %whole, label %row, label %several
row:
  call void @compute(ptr %job, i64 %first, i64 %n, ptr null)
  ret void
several:
  call void @cut(ptr %job, i64 %first, i64 %n, ptr %parts)
  ret void
}}

"""

DIRECT = """
; Some states of a job, for callers other than XLA.
define void @kernel(ptr %job, i64 %first, i64 %n) nounwind {
  call void @piece(ptr %job, i64 %first, i64 %n)
  ret void
}
"""

HOST = f"""
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()

; Whether array k of a job is a buffer of XLA; notes its address and the bytes from state to state, 0 if all share one.
define private i1 @take(ptr %job, ptr %record, i64 %k, ptr %buffer, i64 %count) nounwind {{
entry:
  %type.at = getelementptr %buffer, ptr %buffer, i32 0, i32 2
  %data.at = getelementptr %buffer, ptr %buffer, i32 0, i32 3
  %rank.at = getelementptr %buffer, ptr %buffer, i32 0, i32 4
  %axes.at = getelementptr %buffer, ptr %buffer, i32 0, i32 5
  %type = load i32, ptr %type.at
  %data = load ptr, ptr %data.at
  %rank = load i64, ptr %rank.at
  %axes = load ptr, ptr %axes.at
  %double = icmp eq i32 %type, 12
  %item = select i1 %double, i64 8, i64 4
  %own = load i64, ptr %axes
  %bytes.at = getelementptr %record, ptr %record, i32 0, i32 7, i64 %k
  %bytes = load i64, ptr %bytes.at
  br label %multiply
multiply:
  %axis = phi i64 [ 1, %entry ], [ %axis.next, %more ]
  %size = phi i64 [ %item, %entry ], [ %size.next, %more ]
  %whole = icmp sge i64 %axis, %rank
  br i1 %whole, label %compare, label %more
more:
  %length.at = getelementptr i64, ptr %axes, i64 %axis
  %length = load i64, ptr %length.at
  %size.next = mul i64 %size, %length
  %axis.next = add i64 %axis, 1
  br label %multiply
compare:
  %fits = icmp eq i64 %size, %bytes
  %each = icmp eq i64 %own, %count
  %one = icmp eq i64 %own, 1
  %known = or i1 %each, %one
  %step = select i1 %each, i64 %bytes, i64 0
  %base.at = getelementptr %job, ptr %job, i32 0, i32 5, i64 %k
  store ptr %data, ptr %base.at
  %step.at = getelementptr %job, ptr %job, i32 0, i32 6, i64 %k
  store i64 %step, ptr %step.at
  %good = and i1 %fits, %known
  ret i1 %good
}}

; Piece after piece of a job, until none is left.
define private void @work(ptr %job) nounwind {{
entry:
  %record = load ptr, ptr %job
  %size.at = getelementptr %record, ptr %record, i32 0, i32 6
  %size = load i64, ptr %size.at
  %count.at = getelementptr %job, ptr %job, i32 0, i32 1
  %count = load i64, ptr %count.at
  %next = getelementptr %job, ptr %job, i32 0, i32 2
  %done = getelementptr %job, ptr %job, i32 0, i32 3
  br label %take
take:
  %first = atomicrmw add ptr %next, i64 %size monotonic
  %any = icmp slt i64 %first, %count
  br i1 %any, label %compute, label %end
compute:
  %left = sub i64 %count, %first
  %last = icmp slt i64 %left, %size
  %n = select i1 %last, i64 %left, i64 %size
  call void @piece(ptr %job, i64 %first, i64 %n)
  %before = atomicrmw add ptr %done, i64 %n release
  br label %take
end:
  ret void
}}

; A thread is done with a job; the last one releases it.
define private void @leave(ptr %job) nounwind {{
  %users = getelementptr %job, ptr %job, i32 0, i32 4
  %before = atomicrmw sub ptr %users, i64 1 acq_rel
  %last = icmp eq i64 %before, 1
  br i1 %last, label %release, label %end
release:
  call void @free(ptr %job)
  br label %end
end:
  ret void
}}

define private void @task(ptr %job) nounwind {{
  call void @work(ptr %job)
  call void @leave(ptr %job)
  ret void
}}

; A job on several threads, of which this is one.  ThreadPool_Schedule is function 11, Error_Destroy 2.
define private void @spread(ptr %frame, ptr %job, i64 %threads) nounwind {{
entry:
  %args = alloca %schedule
  %refused = alloca %destroy
  %context.at = getelementptr %frame, ptr %frame, i32 0, i32 3
  %context = load ptr, ptr %context.at
  store %schedule {{ i64 40, ptr null, ptr null, ptr null, ptr null }}, ptr %args
  %args.context = getelementptr %schedule, ptr %args, i32 0, i32 2
  store ptr %context, ptr %args.context
  %args.task = getelementptr %schedule, ptr %args, i32 0, i32 3
  store ptr @task, ptr %args.task
  %args.job = getelementptr %schedule, ptr %args, i32 0, i32 4
  store ptr %job, ptr %args.job
  %users = getelementptr %job, ptr %job, i32 0, i32 4
  store i64 %threads, ptr %users
  %schedule = call ptr @function(ptr %frame, i64 11)
  %destroy = call ptr @function(ptr %frame, i64 2)
  br label %start
start:
  %k = phi i64 [ 1, %entry ], [ %k.next, %started ]
  %more = icmp slt i64 %k, %threads
  br i1 %more, label %ask, label %join
ask:
  %error = call ptr %schedule(ptr %args)
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %give_up, label %started
give_up:
  store %destroy {{ i64 24, ptr null, ptr null }}, ptr %refused
  %refused.error = getelementptr %destroy, ptr %refused, i32 0, i32 2
  store ptr %error, ptr %refused.error
  call void %destroy(ptr %refused)
  call void @leave(ptr %job)
  br label %started
started:
  %k.next = add i64 %k, 1
  br label %start
join:
  call void @work(ptr %job)
  %count.at = getelementptr %job, ptr %job, i32 0, i32 1
  %count = load i64, ptr %count.at
  %done.at = getelementptr %job, ptr %job, i32 0, i32 3
  br label %wait
wait:
  %done = load atomic i64, ptr %done.at acquire, align 8
  %all = icmp sge i64 %done, %count
  br i1 %all, label %end, label %others
others:
  %yielded = call i32 @sched_yield()
  br label %wait
end:
  call void @leave(ptr %job)
  ret void
}}

; What XLA calls.
define ptr @kernel(ptr %frame) nounwind {{
entry:
  %here = alloca %job
{_beginning(0, "record")}
  %parts = call ptr @parts(ptr %record)
  %part.count = load i64, ptr %parts
  %uncut = icmp eq i64 %part.count, 0
  %part.more = sub i64 %part.count, 1
  %more.results = select i1 %uncut, i64 0, i64 %part.more
  %given.wanted = add i64 %arrays, %more.results
  %given.all = add i64 %given, %results
  %as_many = icmp eq i64 %given.all, %given.wanted
  br i1 %as_many, label %sizes, label %wrong
wrong:
  %error.arrays = call ptr @failed(ptr %frame, ptr @arrays_differ)
  ret ptr %error.arrays
sizes:
  %result = load ptr, ptr %outputs
  %axes.at = getelementptr %buffer, ptr %result, i32 0, i32 5
  %axes = load ptr, ptr %axes.at
  %count = load i64, ptr %axes
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %finished, label %threads
threads:
  %threads.at = getelementptr %record, ptr %record, i32 0, i32 5
  %most = load i64, ptr %threads.at
  %size.at = getelementptr %record, ptr %record, i32 0, i32 6
  %size = load i64, ptr %size.at
  %enough = mul i64 %size, {PIECES}
  %large = icmp sge i64 %count, %enough
  %several = icmp sgt i64 %most, 1
  %many = and i1 %large, %several
  br i1 %many, label %shared, label %prepare
shared:
  %size.job = getelementptr %job, ptr null, i64 1
  %bytes.job = ptrtoint ptr %size.job to i64
  %memory = call ptr @malloc(i64 %bytes.job)
  %granted = icmp ne ptr %memory, null
  br label %prepare
prepare:
  %spread = phi i1 [ false, %threads ], [ %granted, %shared ]
  %own = phi ptr [ %here, %threads ], [ %memory, %shared ]
  %job = select i1 %spread, ptr %own, ptr %here
  store ptr %record, ptr %job
  %count.at = getelementptr %job, ptr %job, i32 0, i32 1
  store i64 %count, ptr %count.at
  %next.at = getelementptr %job, ptr %job, i32 0, i32 2
  store i64 0, ptr %next.at
  %done.at = getelementptr %job, ptr %job, i32 0, i32 3
  store i64 0, ptr %done.at
  br label %operand
operand:
  %k = phi i64 [ 0, %prepare ], [ %k.next, %operand.good ]
  %is_input = icmp slt i64 %k, %given
  %buffer.at = getelementptr ptr, ptr %inputs, i64 %k
  %at = select i1 %is_input, ptr %buffer.at, ptr %outputs
  %buffer = load ptr, ptr %at
  %good = call i1 @take(ptr %job, ptr %record, i64 %k, ptr %buffer, i64 %count)
  br i1 %good, label %operand.good, label %operand.bad
operand.bad:
  br i1 %spread, label %operand.free, label %wrong
operand.free:
  call void @free(ptr %job)
  br label %wrong
operand.good:
  %k.next = add i64 %k, 1
  %k.end = select i1 %uncut, i64 %arrays, i64 %given
  %more = icmp slt i64 %k.next, %k.end
  br i1 %more, label %operand, label %results.cut
results.cut:
  br i1 %uncut, label %strides, label %row
row:
  %row.at = getelementptr %record, ptr %record, i32 0, i32 7, i64 %given
  %row.bytes = load i64, ptr %row.at
  %row.step = getelementptr %job, ptr %job, i32 0, i32 6, i64 %given
  store i64 %row.bytes, ptr %row.step
  %row.base = getelementptr %job, ptr %job, i32 0, i32 5, i64 %given
  store ptr null, ptr %row.base
  br label %part
part:
  %p = phi i64 [ 0, %row ], [ %p.next, %part.good ]
  %part.buffer.at = getelementptr ptr, ptr %outputs, i64 %p
  %part.buffer = load ptr, ptr %part.buffer.at
  %p.next = add i64 %p, 1
  %wanted.at = getelementptr i64, ptr %parts, i64 %p.next
  %wanted.state = load i64, ptr %wanted.at
  %wanted = mul i64 %wanted.state, %count
  %found = call i64 @bytes(ptr %part.buffer)
  %part.fits = icmp eq i64 %found, %wanted
  br i1 %part.fits, label %part.good, label %operand.bad
part.good:
  %part.data.at = getelementptr %buffer, ptr %part.buffer, i32 0, i32 3
  %part.data = load ptr, ptr %part.data.at
  %part.at = getelementptr %job, ptr %job, i32 0, i32 7, i64 %p
  store ptr %part.data, ptr %part.at
  %parts.left = icmp slt i64 %p.next, %part.count
  br i1 %parts.left, label %part, label %strides
strides:
  %strides.at = getelementptr %record, ptr %record, i32 0, i32 4
  %stride.count = load i64, ptr %strides.at
  %end = add i64 %arrays, %stride.count
  br label %stride
stride:
  %s = phi i64 [ %arrays, %strides ], [ %s.next, %copy ]
  %s.more = icmp slt i64 %s, %end
  br i1 %s.more, label %copy, label %run
copy:
  %from = getelementptr %record, ptr %record, i32 0, i32 7, i64 %s
  %stride.value = load i64, ptr %from
  %to = getelementptr %job, ptr %job, i32 0, i32 6, i64 %s
  store i64 %stride.value, ptr %to
  %s.next = add i64 %s, 1
  br label %stride
run:
  br i1 %spread, label %together, label %alone
together:
  call void @spread(ptr %frame, ptr %job, i64 %most)
  ret ptr null
alone:
  call void @piece(ptr %job, i64 0, i64 %count)
  ret ptr null
}}
"""

DEVICE = f"""
%launch = type {{ i64, ptr, ptr, i64, i64, i64, i64, i64, [0 x i64] }}
%stream = type {{ i64, ptr, ptr, ptr }}

{_text("refused", "torsor: the GPU refused a kernel (cuLaunchKernel): it runs on the device that was current")}

; What XLA calls; 1: it may be recorded.  Stream_Get is function 4.
define ptr @kernel(ptr %frame) nounwind {{
entry:
  %addresses = alloca [{MOST_ARRAYS} x ptr]
  %parameters = alloca [{MOST_PARAMETERS} x ptr]
  %question = alloca %stream
{_beginning(1, "launch")}
  %given.all = add i64 %given, %results
  %right = icmp eq i64 %given.all, %arrays
  br i1 %right, label %array, label %wrong
wrong:
  %error.arrays = call ptr @failed(ptr %frame, ptr @arrays_differ)
  ret ptr %error.arrays
array:
  %k = phi i64 [ 0, %counts ], [ %k.next, %good ]
  %is_input = icmp slt i64 %k, %given
  %place = sub i64 %k, %given
  %input.at = getelementptr ptr, ptr %inputs, i64 %k
  %output.at = getelementptr ptr, ptr %outputs, i64 %place
  %buffer.at = select i1 %is_input, ptr %input.at, ptr %output.at
  %buffer = load ptr, ptr %buffer.at
  %bytes = call i64 @bytes(ptr %buffer)
  %wanted.at = getelementptr %launch, ptr %record, i32 0, i32 8, i64 %k
  %wanted = load i64, ptr %wanted.at
  %fits = icmp eq i64 %bytes, %wanted
  br i1 %fits, label %good, label %wrong
good:
  %data.at = getelementptr %buffer, ptr %buffer, i32 0, i32 3
  %data = load ptr, ptr %data.at
  %address.at = getelementptr ptr, ptr %addresses, i64 %k
  store ptr %data, ptr %address.at
  %k.next = add i64 %k, 1
  %more = icmp slt i64 %k.next, %arrays
  br i1 %more, label %array, label %constants
constants:
  %count.at = getelementptr %launch, ptr %record, i32 0, i32 4
  %count = load i64, ptr %count.at
  br label %parameter
parameter:
  %p = phi i64 [ 0, %constants ], [ %p.next, %parameter ]
  %index = add i64 %arrays, %p
  %what.at = getelementptr %launch, ptr %record, i32 0, i32 8, i64 %index
  %what = load i64, ptr %what.at
  %is_array = icmp ult i64 %what, %arrays
  %number = select i1 %is_array, i64 %what, i64 0
  %own = getelementptr ptr, ptr %addresses, i64 %number
  %constant = inttoptr i64 %what to ptr
  %value = select i1 %is_array, ptr %own, ptr %constant
  %value.at = getelementptr ptr, ptr %parameters, i64 %p
  store ptr %value, ptr %value.at
  %p.next = add i64 %p, 1
  %p.more = icmp slt i64 %p.next, %count
  br i1 %p.more, label %parameter, label %on_stream
on_stream:
  %context.at = getelementptr %frame, ptr %frame, i32 0, i32 3
  %context = load ptr, ptr %context.at
  store %stream {{ i64 32, ptr null, ptr null, ptr null }}, ptr %question
  %question.context = getelementptr %stream, ptr %question, i32 0, i32 2
  store ptr %context, ptr %question.context
  %ask = call ptr @function(ptr %frame, i64 4)
  %error = call ptr %ask(ptr %question)
  %failed = icmp ne ptr %error, null
  br i1 %failed, label %no_stream, label %queue
no_stream:
  ret ptr %error
queue:
  %stream.at = getelementptr %stream, ptr %question, i32 0, i32 3
  %stream = load ptr, ptr %stream.at
  %driver.at = getelementptr %launch, ptr %record, i32 0, i32 1
  %driver = load ptr, ptr %driver.at
  %kernel.at = getelementptr %launch, ptr %record, i32 0, i32 2
  %kernel = load ptr, ptr %kernel.at
  %blocks.at = getelementptr %launch, ptr %record, i32 0, i32 5
  %blocks = load i32, ptr %blocks.at
  %threads.at = getelementptr %launch, ptr %record, i32 0, i32 6
  %threads = load i32, ptr %threads.at
  %shared.at = getelementptr %launch, ptr %record, i32 0, i32 7
  %shared = load i32, ptr %shared.at
  %code = call i32 %driver(ptr %kernel, i32 %blocks, i32 1, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
                           ptr %stream, ptr %parameters, ptr null)
  %queued = icmp eq i32 %code, 0
  br i1 %queued, label %finished, label %not_queued
not_queued:
  %error.refused = call ptr @failed(ptr %frame, ptr @refused)
  ret ptr %error.refused
}}
"""


class _Programs:
    """The programs that XLA can run. They are never released, because executables outlive Python's objects."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: list[Any] = []
        self.records: dict[int, NDArray[np.int64]] = {}
        self.place = ctypes.c_void_p()  # the handler finds the table here; a larger table replaces it atomically
        self._grow(FIRST_SLOTS)

    def add(self, key: int, program: Any, record: Sequence[int]) -> None:
        """Let the handler run a program under this key; `record` is the words of its record after the key."""
        with self.lock:
            if key not in self.records:
                self.records[key] = np.array([key, *record], np.int64)
                self.kept.append(program)
                if 2 * len(self.records) > len(self.slots) - 1:
                    self._grow(2 * (len(self.slots) - 1))
                else:
                    self._enter(self.slots, key)

    def _grow(self, size: int) -> None:
        slots = np.zeros(1 + size, np.int64)
        slots[0] = size - 1
        for key in self.records:
            self._enter(slots, key)
        self.slots = slots
        self.kept.append(slots)
        self.place.value = slots.ctypes.data

    def _enter(self, slots: NDArray[np.int64], key: int) -> None:
        mask = int(slots[0])
        k = key & mask
        while slots[1 + k]:
            k = (k + 1) & mask
        slots[1 + k] = self.records[key].ctypes.data


def on_host(program: Program, threads: int, parts: Sequence[int] = ()) -> list[int]:
    """The record of a program for a CPU (see above); `parts`: the sizes of the arrays into which its row is split."""
    shapes, item = [*program.request.input_shapes, program.shape], program.dtype.itemsize
    strides = [item * prod(shape[axis + 1 :]) for shape in shapes for axis in range(len(shape))]
    assert len(shapes) <= MOST_ARRAYS
    assert len(strides) <= MOST_STRIDES
    sizes = [item * prod(shape) for shape in shapes]
    cut = [len(parts), *(item * size for size in parts)]
    return [*program.entry, len(shapes), len(strides), threads, PIECE, *sizes, *strides, *cut]


class Cutter:
    """A program whose rows become one array per input, for callers other than XLA; see `can_cut`."""

    def __init__(self, program: Program, parts: Sequence[int]) -> None:
        self.program = program
        self.record = np.array([0, *on_host(program, 1, parts)], np.int64)
        text = PIECES_OF_A_JOB + DIRECT
        self.code = codegen.load(codegen.name_of(text), lambda: text)
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self.code.address)

    def job(self, inputs: Sequence[int], steps: Sequence[int], results: Sequence[int]) -> NDArray[np.int64]:
        """The job for `run`: addresses, and bytes from state to state of the inputs (0: all states share one)."""
        words = np.zeros(5 + 3 * MOST_ARRAYS + MOST_STRIDES, np.int64)
        bases, strides, parts = 5, 5 + MOST_ARRAYS, 5 + 2 * MOST_ARRAYS + MOST_STRIDES
        arrays, count = (int(x) for x in self.record[3:5])
        words[0] = self.record.ctypes.data
        words[bases : bases + len(inputs)] = inputs
        words[strides : strides + arrays] = [*steps, self.record[7 + len(inputs)]]
        words[strides + arrays : strides + arrays + count] = self.record[7 + arrays : 7 + arrays + count]
        words[parts : parts + len(results)] = results
        return words


def can_cut(parts: Sequence[int]) -> bool:
    """Whether rows can be split into parts of these sizes: a block must hold several rows."""
    return len(parts) <= MOST_ARRAYS and min(parts) > 0 and 8 * sum(parts) * FEWEST_ROWS <= BLOCK


def on_device(program: CudaProgram, sizes: Sequence[int]) -> tuple[list[int], int]:
    """The record of a program for a GPU, and the size of its scratch memory, which is another result for XLA.

    sizes   the number of states of each argument: that of the batch, or one for all
    """
    shapes, count, item = [*program.request.input_shapes, program.shape], max(sizes), program.dtype.itemsize
    states = [*sizes, count]
    steps = [prod(shape) if own == count else 0 for own, shape in zip(states, shapes)]
    rows = tuple(step == prod(shape) > 1 for step, shape in zip(steps, shapes))
    function, grid, shared, more, scratch = program.prepared(rows, count)
    arguments = [y for step in steps for y in (None, step, 1)] + [count, *more]
    constants = np.array([x for x in arguments if x is not None], np.int64)
    table().kept.append(constants)
    arrays, places = iter(range(len(arguments))), iter(range(constants.ctypes.data, 2**63, 8))
    parameters = [next(arrays) if x is None else next(places) for x in arguments]
    bytes_of = [item * own * prod(shape) for own, shape in zip(states, shapes)] + [item * scratch] * bool(scratch)
    assert len(bytes_of) <= MOST_ARRAYS
    assert len(parameters) <= MOST_PARAMETERS
    launch = ctypes.cast(driver(), ctypes.c_void_p).value
    assert launch
    return [launch, function, len(bytes_of), len(parameters), *grid, shared, *bytes_of, *parameters], scratch


@functools.cache
def table() -> _Programs:
    """The table of this process."""
    return _Programs()


@functools.cache
def handler(text: str) -> codegen.Loaded:
    """A handler, `HOST` or `DEVICE`, for `jax.ffi.register_ffi_target`."""
    text = COMMON + (PIECES_OF_A_JOB if text is HOST else "") + text
    return codegen.load(codegen.name_of(text), lambda: text, {TABLE: ctypes.addressof(table().place)})
