"""What one thread's compiled loop tells another's, which looks for it: the first number of an array, written after all that was
written before it and read before all that is read after it, on every processor."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def tell(_, array, value):  # type: ignore[no-untyped-def]
    """To an int64 array."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.store_atomic(args[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64), code


@intrinsic
def told(_, array):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        place = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(place, "acquire", 8, typ=ir.IntType(64))

    return types.int64(array), code
