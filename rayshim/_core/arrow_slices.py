"""Arrow arrays that are slices of larger ones.

Arrow pickles the buffers of an array whole, however little of them a slice shows:
ten rows of a table of a gigabyte would travel as a gigabyte. Such arrays are copied
first; all others leave as they are, without a copy. Tables, record batches and
chunked arrays are pickled as arrays and need nothing of their own.
"""

from __future__ import annotations

import sys
from typing import Any

#: Excess up to this is not worth a copy.
_TOLERATED_BYTES = 4096


def reducers() -> dict[type, Any]:
    """One reducer for each array class, none while pyarrow is not loaded."""
    library = getattr(sys.modules.get("pyarrow"), "lib", None)
    base = getattr(library, "Array", None)
    if base is None:
        return {}
    classes = [kind for kind in vars(library).values() if isinstance(kind, type)]
    return {kind: reduce_array for kind in classes if issubclass(kind, base)}


def reduce_array(array: Any) -> Any:
    """Arrow's own reduction, of a compact copy if most of the buffers is unused."""
    if array.get_total_buffer_size() > 2 * array.nbytes + _TOLERATED_BYTES:
        import pyarrow

        array = pyarrow.concat_arrays([array])
    return array.__reduce__()
