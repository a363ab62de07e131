# cython: language_level=3, boundscheck=False, wraparound=False
# cython: initializedcheck=False, auto_pickle=False, infer_types=False
"""The hot path of recording, compiled: what `python_recording` does, call by call.

A call of a cell is written down as a *signature*, a short row of integers: the cell, and
for each argument in order the array kind of a handle, the class of a number, the identity
of a parameter, or the number of what else decides the type; tuples and lists open and
close. One look-up in a hash table of signatures finds what is known of the call; then the
node is appended to the columns of the tape.

Whatever is not met here (other arguments, keywords, calls that are new) goes to
`Recorder._analyse`, as in Python. Objects whose addresses are part of a signature are
kept alive by the table, so that no other object can have them.
"""

from collections import defaultdict

from cpython cimport array
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcmp, memcpy


cdef extern from *:
    """
    /* What records in this thread, or NULL: a reference, let go when it is replaced. */
    static _Thread_local PyObject *current_recorder = NULL;
    """
    PyObject *current_recorder

cdef extern from "Python.h":
    ctypedef object (*newfunc)(PyObject *, PyObject *, PyObject *)
    ctypedef struct PyTypeObject:
        newfunc tp_new
    PyTypeObject *Py_TYPE(PyObject *)
    int Py_EnterRecursiveCall(const char *)
    void Py_LeaveRecursiveCall()

# What a token of a signature stands for, in its lowest four bits; addresses of objects
# are multiples of 16.
cdef enum:
    KIND = 0  # the array kind of a handle
    PART = 1  # the address of a part of the parameters
    NUMBER = 2  # the class of a number
    INTERNED = 3  # the number of an object that decides the type
    PADDED = 4  # the length of a padded list
    MARK = 5  # the beginning or the end of a tuple or a list
    SHIFT = 4

cdef enum:
    TUPLE = (0 << SHIFT) | MARK
    LIST = (1 << SHIFT) | MARK
    END = (2 << SHIFT) | MARK

cdef enum:
    FEW_TOKENS = 96  # longer rows of integers are on the heap
    FEW_OPERANDS = 48
    FEW_EXTERNALS = 16
    MOST_NUMBERS = 16

# What outputs a cell returns.
cdef enum:
    LEAF = 0
    FLAT_TUPLE = 1
    OTHER = 2

VERSION = 5  # that of `recording_bases`, counted up where the two change together

# Python's side of recording, see `connect`.
cdef object REJECT_FOREIGN = None
cdef object AS_VALUES = None
cdef object NODE_KEY = None
cdef object RNG = None
cdef type HANDLE = None
cdef type PARAMETER = None
cdef type ARRAY = None
cdef tuple NUMBERS = ()
cdef PyObject *NUMBER_TYPES[MOST_NUMBERS]
cdef int NUM_NUMBERS = 0
cdef int64_t MISSING = -1
cdef tuple NOTHING = ()


def connect(
    type context, type handle, type parameter, type ndarray, numbers, node_key, missing,
    rng, reject_foreign, as_values
):
    """Hands over the objects of Python that recording looks for in calls."""
    global HANDLE, PARAMETER, ARRAY, NUMBERS, NUM_NUMBERS, NODE_KEY, MISSING
    global RNG, REJECT_FOREIGN, AS_VALUES
    assert issubclass(handle, HandleSlots) and len(numbers) <= MOST_NUMBERS
    HANDLE, PARAMETER, ARRAY = handle, parameter, ndarray
    NODE_KEY, MISSING, RNG, REJECT_FOREIGN = node_key, missing, rng, reject_foreign
    AS_VALUES = as_values
    NUMBERS = tuple(sorted(numbers, key=lambda each: each is not int))
    NUM_NUMBERS = len(NUMBERS)
    for k in range(NUM_NUMBERS):
        NUMBER_TYPES[k] = <PyObject *>NUMBERS[k]
    # Each call of a cell looks at it: an attribute of `threading.local` takes 35 ns.
    context.recorder = property(get_recorder, set_recorder)


def get_recorder(context):
    """Returns what records in this thread, or None."""
    return None if current_recorder == NULL else <object>current_recorder


def set_recorder(context, recorder):
    """Replaces what records in this thread."""
    global current_recorder
    cdef PyObject *old = current_recorder
    if recorder is None:
        current_recorder = NULL
    else:
        Py_INCREF(recorder)
        current_recorder = <PyObject *>recorder
    if old != NULL:
        Py_DECREF(<object>old)


cdef class HandleSlots:
    """The fields of a handle."""

    cdef public object _recorder
    cdef public int64_t _value
    cdef public int _kind


cdef class TapeColumns:
    """The columns of a tape, to which recording appends."""

    cdef public array.array node_type
    cdef public array.array operands
    cdef public array.array external_rows
    cdef public object externals  # a dict that makes what it lacks
    cdef public int64_t num_values
    cdef public Py_ssize_t node_limit

    def clear_columns(self):
        """Makes all of them empty."""
        self.node_type = array.array("i")
        self.operands = array.array("q")  # values of a server may be many
        self.external_rows = array.array("i")
        self.externals = defaultdict(list)


cdef class KnownType:
    """What recording needs of a type, and how to build its output handles."""

    cdef readonly int id
    cdef readonly int num_outputs
    cdef readonly tuple external_kinds
    cdef tuple output_kinds
    cdef int first_kind
    cdef int second_kind
    cdef int form
    cdef object outputs

    def __init__(self, int id, tuple external_kinds, tuple output_kinds, form, outputs):
        self.id = id
        self.external_kinds = external_kinds
        self.output_kinds = output_kinds
        self.num_outputs = len(output_kinds)
        self.first_kind = output_kinds[0]
        self.second_kind = output_kinds[1] if self.num_outputs > 1 else 0
        self.form = {"leaf": LEAF, "tuple": FLAT_TUPLE}.get(form, OTHER)
        self.outputs = outputs


cdef struct Entry:
    uint64_t hash
    Py_ssize_t length
    int64_t *tokens  # NULL where the place is free
    PyObject *known  # a reference is in `pinned`


cdef uint64_t hash_of(int64_t *tokens, Py_ssize_t length) noexcept:
    cdef uint64_t found = 0x9E3779B97F4A7C15ULL ^ <uint64_t>length
    cdef Py_ssize_t k
    for k in range(length):
        found = (found ^ <uint64_t>tokens[k]) * 0xFF51AFD7ED558CCDULL
        found ^= found >> 32
    return found


cdef class SignatureTable:
    """Calls met before: a hash table from signatures to what is known of them."""

    cdef Entry *entries
    cdef uint64_t room  # a power of two
    cdef uint64_t used
    cdef list pinned
    cdef dict interned

    def __cinit__(self):
        self.room = 64
        self.entries = <Entry *>PyMem_Malloc(self.room * sizeof(Entry))
        if self.entries == NULL:
            raise MemoryError
        for k in range(self.room):
            self.entries[k].tokens = NULL
        self.pinned = []
        self.interned = {}

    def __dealloc__(self):
        if self.entries != NULL:
            for k in range(self.room):
                PyMem_Free(self.entries[k].tokens)
            PyMem_Free(self.entries)

    def __len__(self):
        return self.used

    cdef int64_t number(self, object key) except -1:
        """Numbers an object by its equality."""
        cdef PyObject *found = PyDict_GetItemWithError(self.interned, key)
        if found != NULL:
            return <int64_t><object>found
        number = len(self.interned)
        self.interned[key] = number
        return number

    cdef Entry *place(self, int64_t *tokens, Py_ssize_t length, uint64_t hash) noexcept:
        """Returns the entry of a signature, or the free one where it belongs."""
        cdef uint64_t at = hash & (self.room - 1)
        cdef Entry *entry
        while True:
            entry = &self.entries[at]
            if entry.tokens == NULL or (
                entry.hash == hash
                and entry.length == length
                and memcmp(entry.tokens, tokens, length * sizeof(int64_t)) == 0
            ):
                return entry
            at = (at + 1) & (self.room - 1)

    cdef int insert(
        self, int64_t *tokens, Py_ssize_t length, uint64_t hash, KnownType known,
        object parts
    ) except -1:
        cdef Entry *entry
        cdef int64_t *copied
        if 2 * self.used >= self.room:
            self.grow()
        entry = self.place(tokens, length, hash)
        if entry.tokens != NULL:  # another thread was faster
            return 0
        copied = <int64_t *>PyMem_Malloc(length * sizeof(int64_t))
        if copied == NULL:
            raise MemoryError
        try:
            self.pinned.append((known, parts))
        except BaseException:
            PyMem_Free(copied)
            raise
        memcpy(copied, tokens, length * sizeof(int64_t))
        entry.hash, entry.length = hash, length
        entry.known, entry.tokens = <PyObject *>known, copied
        self.used += 1
        return 0

    cdef int grow(self) except -1:
        cdef uint64_t old_room = self.room
        cdef Entry *old = self.entries
        cdef Entry *wide = <Entry *>PyMem_Malloc(2 * old_room * sizeof(Entry))
        if wide == NULL:
            raise MemoryError
        self.room = 2 * old_room
        self.entries = wide
        for k in range(self.room):
            wide[k].tokens = NULL
        for k in range(old_room):
            if old[k].tokens != NULL:
                self.place(old[k].tokens, old[k].length, old[k].hash)[0] = old[k]
        PyMem_Free(old)
        return 0


cdef struct Call:
    # What is known of a call so far. Rows begin on the C stack and move to the heap.
    int64_t *tokens
    Py_ssize_t num_tokens, token_room
    int64_t *operands
    Py_ssize_t num_operands, operand_room
    PyObject **externals  # borrowed from the arguments
    Py_ssize_t num_externals, external_room
    int64_t *few_tokens
    int64_t *few_operands
    PyObject **few_externals
    bint has_arrays


cdef void *wider(
    void *row, void *few, Py_ssize_t length, Py_ssize_t *room
) except NULL:
    """Returns a copy of a row of 64-bit items with twice the room."""
    cdef void *wide = PyMem_Malloc(2 * room[0] * sizeof(int64_t))
    if wide == NULL:
        raise MemoryError
    memcpy(wide, row, length * sizeof(int64_t))
    room[0] *= 2
    if row != few:
        PyMem_Free(row)
    return wide


cdef inline int add_token(Call *call, int64_t token) except -1:
    if call.num_tokens == call.token_room:
        call.tokens = <int64_t *>wider(
            call.tokens, call.few_tokens, call.num_tokens, &call.token_room
        )
    call.tokens[call.num_tokens] = token
    call.num_tokens += 1
    return 0


cdef inline int add_operand(Call *call, int64_t value) except -1:
    if call.num_operands == call.operand_room:
        call.operands = <int64_t *>wider(
            call.operands, call.few_operands, call.num_operands, &call.operand_room
        )
    call.operands[call.num_operands] = value
    call.num_operands += 1
    return 0


cdef inline int add_external(Call *call, PyObject *value) except -1:
    if call.num_externals == call.external_room:
        call.externals = <PyObject **>wider(
            call.externals, call.few_externals, call.num_externals, &call.external_room
        )
    call.externals[call.num_externals] = value
    call.num_externals += 1
    return 0


cdef int number_type(PyObject *kind) noexcept:
    cdef int k
    for k in range(NUM_NUMBERS):
        if NUMBER_TYPES[k] == kind:
            return k
    return -1


cdef inline int append32(array.array column, int value) except -1:
    return array.extend_buffer(column, <char *>&value, 1)


cdef inline int append_node(TapeColumns tape, int type_id) except -1:
    if len(tape.node_type) >= tape.node_limit:
        tape.refuse_node()
    return append32(tape.node_type, type_id)


cdef class TapeWriter:
    """The fields of what writes on a tape for one instance, and the call of a cell."""

    cdef public TapeColumns tape
    cdef public object types
    cdef public int64_t _instance
    cdef public int64_t _keys
    cdef public SignatureTable _memory

    def call(self, CellCall cell not None, tuple args not None, dict kwargs not None):
        """Records one call of a cell; see `Recorder.call` in Python.

        Args:
            cell: The cell.
            args: Positional arguments, pytrees of handles, parameters and arrays.
            kwargs: Keyword arguments, likewise.

        Returns:
            The structure of the cell's output, with handles as leaves.
        """
        return record(self, cell, args, kwargs)

    cdef int scan(self, PyObject *arg, Call *call) except -1:
        """Reads one argument into the signature; 0 if it needs the general analysis."""
        cdef PyObject *kind = <PyObject *>Py_TYPE(arg)
        cdef HandleSlots handle
        cdef int number
        if kind == <PyObject *>HANDLE:
            handle = <HandleSlots>arg
            if handle._recorder is not self:
                REJECT_FOREIGN(handle)
            add_token(call, (<int64_t>handle._kind << SHIFT) | KIND)
            add_operand(call, handle._value)
            return 1
        if kind == <PyObject *>tuple or kind == <PyObject *>list:
            add_token(call, TUPLE if kind == <PyObject *>tuple else LIST)
            if Py_EnterRecursiveCall(b" while calling a Python object"):
                return -1  # the error is set
            try:
                if not self.scan_items(<object>arg, call):
                    return 0
            finally:
                Py_LeaveRecursiveCall()
            add_token(call, END)
            return 1
        if kind == <PyObject *>PARAMETER:
            add_token(call, <int64_t>arg | PART)
            return 1
        number = number_type(kind)
        if number >= 0:
            add_token(call, (<int64_t>number << SHIFT) | NUMBER)
            add_external(call, arg)
            return 1
        if kind == <PyObject *>ARRAY:
            facts = ("array", (<object>arg).shape, (<object>arg).dtype)
            add_token(call, (self._memory.number(facts) << SHIFT) | INTERNED)
            add_external(call, arg)
            call.has_arrays = True
            return 1
        return 0

    cdef int scan_items(self, object items, Call *call) except -1:
        """Reads the elements of a tuple or a list."""
        cdef Py_ssize_t k
        if type(items) is tuple:
            for k in range(PyTuple_GET_SIZE(items)):
                if not self.scan(<PyObject *>PyTuple_GET_ITEM(items, k), call):
                    return 0
            return 1
        k = 0
        while k < PyList_GET_SIZE(items):
            if not self.scan(<PyObject *>PyList_GET_ITEM(items, k), call):
                return 0
            k += 1
        return 1

    cdef int scan_special(self, CellCall cell, tuple args, Call *call) except -1:
        """As `scan`, all arguments of a cell that has padded or static ones."""
        static, special = cell.static_positions, cell.special
        for position, arg in enumerate(args):
            if position not in special:
                if not self.scan(<PyObject *>arg, call):
                    return 0
            elif position in static:
                facts = ("static", cell.constant(arg, static[position]))
                add_token(call, (self._memory.number(facts) << SHIFT) | INTERNED)
            elif not self.scan_padded(cell, arg, call):
                return 0
        return 1

    cdef int scan_padded(self, object cell, object elements, Call *call) except -1:
        cdef Py_ssize_t length, count, first, width, start, operand, leaf, k
        cdef int64_t *found
        if type(elements) is not list or not elements:
            return 0
        count = len(elements)
        length = cell.padded_length(count)
        add_token(call, (<int64_t>length << SHIFT) | PADDED)
        first, operand = call.num_tokens, call.num_operands
        width = 0
        for k in range(count):
            if k >= len(<list>elements):
                return 0
            start = call.num_tokens
            externals = call.num_externals
            element = (<list>elements)[k]
            if has_part(element):
                element = AS_VALUES(self, element)
            if not self.scan(<PyObject *>element, call):
                return 0
            if call.num_externals != externals:
                return 0
            if k == 0:
                width = call.num_tokens - first
                continue
            # Elements that differ: the analysis says how.
            if call.num_tokens - start != width or memcmp(
                call.tokens + start, call.tokens + first, width * sizeof(int64_t)
            ):
                return 0
            call.num_tokens = start
        width = (call.num_operands - operand) // count
        if width == 0:
            return 1
        found = <int64_t *>PyMem_Malloc(width * count * sizeof(int64_t))
        if found == NULL:
            raise MemoryError
        try:
            memcpy(found, call.operands + operand, width * count * sizeof(int64_t))
            call.num_operands = operand
            for leaf in range(width):
                for k in range(count):
                    add_operand(call, found[k * width + leaf])
                for k in range(length - count):
                    add_operand(call, MISSING)
        finally:
            PyMem_Free(found)
        return 1

    cdef int append_number(self, PyObject *kind, object value) except -1:
        """Appends a number, or the two of a key, as an external input."""
        cdef TapeColumns tape = self.tape
        cdef PyObject *rows = PyDict_GetItemWithError(tape.externals, <object>kind)
        if rows == NULL:
            rows = <PyObject *>tape.externals[<object>kind]
        append32(tape.external_rows, <int>PyList_GET_SIZE(<object>rows))
        (<list>rows).append(value)
        return 0

    cdef int append_externals_of(
        self, KnownType known, Call *call, bint takes_key
    ) except -1:
        cdef Py_ssize_t k
        if call.has_arrays:
            values = [<object>call.externals[k] for k in range(call.num_externals)]
            if takes_key:
                values.append(NODE_KEY)
            self.append_externals(known.external_kinds, values)
            return 0
        for k in range(call.num_externals):
            self.append_number(
                <PyObject *>PyTuple_GET_ITEM(known.external_kinds, k),
                <object>call.externals[k],
            )
        if takes_key:
            key = (self._instance, self._keys)
            self.append_number(
                <PyObject *>PyTuple_GET_ITEM(known.external_kinds, call.num_externals),
                key,
            )
            self._keys += 1
        return 0

    cdef object outputs_of(self, KnownType known):
        """Counts the values of a new node, and returns handles for them."""
        cdef int64_t first = self.tape.num_values
        cdef Py_ssize_t k
        cdef list found
        self.tape.num_values = first + known.num_outputs
        if known.form == LEAF:
            return new_handle(self, first, known.first_kind)
        if known.form == FLAT_TUPLE:
            if known.num_outputs == 2:
                return (
                    new_handle(self, first, known.first_kind),
                    new_handle(self, first + 1, known.second_kind),
                )
            found = []
            for k in range(known.num_outputs):
                found.append(new_handle(self, first + k, known.output_kinds[k]))
            return tuple(found)
        return known.outputs(self, first)


cdef inline HandleSlots new_handle(TapeWriter recorder, int64_t value, int kind):
    cdef HandleSlots handle = <HandleSlots>(<PyTypeObject *>HANDLE).tp_new(
        <PyObject *>HANDLE, <PyObject *>NOTHING, NULL
    )
    handle._recorder = recorder
    handle._value = value
    handle._kind = kind
    return handle


def handle_column(recorder, list items):
    """As `output_recording._handle_column`."""
    cdef HandleSlots handle
    cdef int kind = -1
    cdef list values = []
    for each in items:
        if type(each) is not HANDLE:
            return None
        handle = <HandleSlots>each
        if handle._recorder is not recorder or (kind >= 0 and handle._kind != kind):
            return None
        kind = handle._kind
        values.append(handle._value)
    return (kind, values) if values else None


cdef bint has_part(object tree) except -1:
    """Tells whether there is a parameter among arguments."""
    if type(tree) is not tuple and type(tree) is not list:
        return type(tree) is PARAMETER
    if Py_EnterRecursiveCall(b" while calling a Python object"):
        return -1  # the error is set
    try:
        for each in tree:
            if has_part(each):
                return True
    finally:
        Py_LeaveRecursiveCall()
    return False


cdef void parts_in(object tree, list found):
    """Lists the parts of the parameters among arguments that were scanned."""
    if type(tree) is tuple or type(tree) is list:
        for each in tree:
            parts_in(each, found)
    elif type(tree) is PARAMETER:
        found.append(tree)


cdef object record(TapeWriter self, CellCall cell, tuple args, dict kwargs):
    """Records one call: looks its signature up and appends a node."""
    cdef int64_t few_tokens[FEW_TOKENS]
    cdef int64_t few_operands[FEW_OPERANDS]
    cdef PyObject *few_externals[FEW_EXTERNALS]
    cdef Call call
    cdef bint takes_key = cell.takes_rng and cell.lacks_rng(args, kwargs)
    if takes_key and self.tape.keyless:
        cell.require_default_rng()
    if kwargs:
        return record_analysed(self, cell, args, kwargs, takes_key)
    call.tokens, call.few_tokens = few_tokens, few_tokens
    call.num_tokens, call.token_room = 0, FEW_TOKENS
    call.operands, call.few_operands = few_operands, few_operands
    call.num_operands, call.operand_room = 0, FEW_OPERANDS
    call.externals, call.few_externals = few_externals, few_externals
    call.num_externals, call.external_room = 0, FEW_EXTERNALS
    call.has_arrays = False
    try:
        return record_scanned(self, cell, args, &call, takes_key)
    finally:
        if call.tokens != few_tokens:
            PyMem_Free(call.tokens)
        if call.operands != few_operands:
            PyMem_Free(call.operands)
        if call.externals != few_externals:
            PyMem_Free(call.externals)


cdef inline object record_scanned(
    TapeWriter self, CellCall cell, tuple args, Call *call, bint takes_key
):
    cdef Py_ssize_t k
    cdef uint64_t hash
    cdef Entry *entry
    cdef KnownType known
    cdef TapeColumns tape
    add_token(call, <int64_t><PyObject *>cell)
    if cell.plain:
        for k in range(PyTuple_GET_SIZE(args)):
            if not self.scan(<PyObject *>PyTuple_GET_ITEM(args, k), call):
                return record_analysed(self, cell, args, {}, takes_key)
    elif not self.scan_special(cell, args, call):
        return record_analysed(self, cell, args, {}, takes_key)
    hash = hash_of(call.tokens, call.num_tokens)
    entry = self._memory.place(call.tokens, call.num_tokens, hash)
    if entry.tokens != NULL:
        known = <KnownType>entry.known
    else:
        named = {RNG: NODE_KEY} if takes_key else {}
        known = self._analyse(cell, args, named)[0]
        parts = [cell]
        parts_in(args, parts)
        self._memory.insert(call.tokens, call.num_tokens, hash, known, parts)
    tape = self.tape
    append_node(tape, known.id)
    if call.num_operands:
        array.extend_buffer(tape.operands, <char *>call.operands, call.num_operands)
    if call.num_externals or takes_key:
        self.append_externals_of(known, call, takes_key)
    return self.outputs_of(known)


cdef object record_analysed(
    TapeWriter self, CellCall cell, tuple args, dict kwargs, bint takes_key
):
    """Records a call by the general analysis of its arguments."""
    cdef KnownType known
    cdef int64_t operand
    named = kwargs | {RNG: NODE_KEY} if takes_key else kwargs
    known, operands, externals = self._analyse(cell, args, named)
    append_node(self.tape, known.id)
    for value in operands:
        operand = value
        array.extend_buffer(self.tape.operands, <char *>&operand, 1)
    if externals:
        self.append_externals(known.external_kinds, externals)
    return self.outputs_of(known)


cdef type COMPILED_CLASS = None  # the last class met that has `TapeWriter.call`


cdef bint has_compiled_call(object recorder) except -1:
    """Tells whether no subclass has a `call` of its own."""
    global COMPILED_CLASS
    if not isinstance(recorder, TapeWriter):
        return False
    if type(recorder).call is not TapeWriter.call:
        return False
    COMPILED_CLASS = type(recorder)
    return True


cdef class CellCall:
    """The call of a cell, and what it looks at."""

    cdef public bint plain
    cdef public bint takes_rng

    def __call__(self, *args, **kwargs):
        """Runs the function, or records a node while a model is recorded."""
        if current_recorder == NULL:
            return self._run_now(args, kwargs)
        recorder = <object>current_recorder
        if type(recorder) is COMPILED_CLASS or has_compiled_call(recorder):
            return record(<TapeWriter>recorder, self, args, kwargs)
        return recorder.call(self, args, kwargs)
