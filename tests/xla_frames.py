"""Calls a handler of XLA's typed FFI as XLA does, from structures of c_api.h that are laid out here."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p

import numpy as np

EXECUTE, METADATA = 3, 1
TYPES = {"float32": 11, "float64": 12}
ERROR_CREATE, STREAM_GET, FUNCTIONS = 0, 4, 18


def structure(name, *fields):
    """A structure as all of XLA's begin: its size and its extensions."""
    return type(name, (ctypes.Structure,), {"_fields_": [("size", c_size_t), ("extension", c_void_p), *fields]})


Version = structure("Version", ("major", c_int32), ("minor", c_int32))
Api = structure("Api", ("version", Version), ("internal", c_void_p), ("functions", c_void_p * FUNCTIONS))
Buffer = structure("Buffer", ("type", c_int32), ("data", c_void_p), ("rank", c_int64), ("axes", c_void_p))
Arrays = structure("Arrays", ("count", c_int64), ("types", c_void_p), ("arrays", c_void_p))
Attributes = structure(
    "Attributes", ("count", c_int64), ("types", c_void_p), ("names", c_void_p), ("attributes", c_void_p)
)
Frame = structure(
    "Frame", ("api", c_void_p), ("context", c_void_p), ("stage", c_int32), ("args", Arrays), ("results", Arrays),
    ("attributes", Attributes), ("future", c_void_p),
)  # fmt: skip
Failure = structure("Failure", ("message", c_char_p), ("code", c_int32))
Question = structure("Question", ("context", c_void_p), ("stream", c_void_p))


class Metadata(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", Version), ("traits", c_uint32), ("state", c_int64)]


class Scalar(ctypes.Structure):
    _fields_ = [("type", c_int32), ("value", c_void_p)]


class About(ctypes.Structure):
    """A request for the version and the traits."""

    _fields_ = [("size", c_size_t), ("type", c_int32), ("next", c_void_p), ("metadata", c_void_p)]


def call(address, key, inputs, outputs, stream=7):
    """What the handler says: None, or the message of its error; `stream`: None for an error instead of a stream."""
    kept, messages = [], []

    def buffers(arrays):
        found = []
        for x in arrays:
            axes = (c_int64 * x.ndim)(*x.shape)
            buffer = Buffer(ctypes.sizeof(Buffer), None, TYPES[x.dtype.name], x.ctypes.data, x.ndim,
                            ctypes.addressof(axes))  # fmt: skip
            kept.extend((axes, buffer, x))
            found.append(ctypes.addressof(buffer))
        table = (c_void_p * max(1, len(found)))(*found)
        kept.append(table)
        return Arrays(ctypes.sizeof(Arrays), None, len(found), None, ctypes.addressof(table))

    @ctypes.CFUNCTYPE(c_void_p, POINTER(Failure))
    def create(failure):
        messages.append(failure.contents.message.decode())
        return 1

    @ctypes.CFUNCTYPE(c_void_p, POINTER(Question))
    def get_stream(question):
        assert question.contents.context == 77
        if stream is None:
            messages.append("no stream")
            return 1
        question.contents.stream = stream
        return None

    functions = (c_void_p * FUNCTIONS)()
    functions[ERROR_CREATE] = ctypes.cast(create, c_void_p).value
    functions[STREAM_GET] = ctypes.cast(get_stream, c_void_p).value
    api = Api(ctypes.sizeof(Api), None, Version(ctypes.sizeof(Version), None, 0, 3), None, functions)
    value = c_int64(key)
    scalar = Scalar(4, ctypes.addressof(value))
    attributes = (c_void_p * 1)(ctypes.addressof(scalar))
    frame = Frame(
        ctypes.sizeof(Frame), None, ctypes.addressof(api), 77, EXECUTE, buffers(inputs), buffers(outputs),
        Attributes(ctypes.sizeof(Attributes), None, 1, None, None, ctypes.addressof(attributes)), None,
    )  # fmt: skip
    failed = ctypes.CFUNCTYPE(c_void_p, c_void_p)(address)(ctypes.addressof(frame))
    assert bool(failed) == bool(messages)
    return messages[0] if messages else None


def traits(address):
    """The version that a handler reports, and its traits."""
    metadata = Metadata(ctypes.sizeof(Metadata), Version(ctypes.sizeof(Version), None, 9, 9), 9)
    about = About(ctypes.sizeof(About), METADATA, None, ctypes.addressof(metadata))
    frame = Frame(ctypes.sizeof(Frame), ctypes.addressof(about))
    assert ctypes.CFUNCTYPE(c_void_p, c_void_p)(address)(ctypes.addressof(frame)) is None
    return (metadata.version.major, metadata.version.minor), metadata.traits


def empty(shape, dtype):
    return np.full(shape, np.nan, dtype)
