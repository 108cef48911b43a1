"""A copy of a tree keeps the order, the sharing and the cycles of all that an edit does
not change.
"""

from __future__ import annotations

from ckpt.model.dtypes import BY_NAME
from ckpt.model.nodes import Dict, Global, Node, Opaque, PersistentId, Tagged, dict_of
from ckpt.model.tensors import Composite, Storage, TensorRef, tensor_ref
from ckpt.pickle.edit import DROPPED, Edit, EditInPlace

FLOAT, HALF = BY_NAME["float32"], BY_NAME["float16"]


class Halved(Edit):
    """Gives each storage of float32 elements of half their size."""

    def storage(self, storage: Storage) -> Storage:
        return storage._replace(dtype=HALF, nbytes=storage.nbytes // 2)


class Without(Edit):
    """Drops one node, and puts a text in the place of each number."""

    def __init__(self, dropped: Node) -> None:
        super().__init__()
        self._dropped = dropped

    def instead(self, node: Node) -> Node | None:
        return DROPPED if node is self._dropped else None

    def leaf(self, node: Node) -> Node:
        return str(node) if isinstance(node, int) else node


def float_ref() -> TensorRef:
    """Return a view of six of eight elements that is a Parameter, conjugate and
    negative.
    """
    storage = Storage("0", "cpu", FLOAT, 32, None)
    made = tensor_ref(storage, FLOAT, (2, 3), (3, 1), 1, True)
    return made._replace(is_parameter=True, conj=True, neg=True)


def test_a_view_of_another_storage_keeps_all_but_the_dtype() -> None:
    old = float_ref()
    new = Halved().copy(old)
    assert isinstance(new, TensorRef) and new.dtype is HALF and new.storage.nbytes == 16
    assert (new.shape, new.stride, new.offset, new.extent) == (
        (2, 3),
        (3, 1),
        1,
        (2, 14),
    )
    assert (new.requires_grad, new.is_parameter, new.is_buffer, new.conj, new.neg) == (
        True,
        True,
        False,
        True,
        True,
    )
    assert Edit().copy(old) is old


def test_an_id_of_a_storage_of_another_dtype_names_no_class() -> None:
    """The class of the old storage would give its bytes another meaning."""
    named = PersistentId(("storage", "the class", "0", "cpu", 8), 5)
    named.meaning = float_ref().storage
    kept, made = Edit().copy(named), Halved().copy(named)
    assert isinstance(kept, PersistentId) and (kept.pid, kept.meaning) == (
        named.pid,
        named.meaning,
    )
    assert isinstance(made, PersistentId) and made.pid is None and made.offset == 5
    assert isinstance(made.meaning, Storage) and made.meaning.dtype is HALF


def test_shared_nodes_stay_shared_and_cycles_stay_cycles() -> None:
    shared: Node = [1, "a"]
    root = Dict()
    root.set(["one", "two", "self", "pair"], [shared, shared, root, (shared, 2)])
    edit = Edit()
    made = edit.copy(root)
    assert isinstance(made, Dict) and made is not root and made.keys == root.keys
    one, two, itself, pair = made.values
    assert one is two and one == shared and one is not shared and itself is made
    assert isinstance(pair, tuple) and pair[0] is one and pair[1] == 2
    assert edit.copy(root) is made


def test_what_is_dropped_is_none_and_keys_are_no_leaves() -> None:
    gone: Node = [7]
    root = Dict()
    root.set([1, 2, "c"], [gone, 5, (6, gone)])
    made = Without(gone).copy(root)
    assert isinstance(made, Dict)
    assert made.keys == [1, 2, "c"] and made.values == [None, "5", ("6", None)]


class Swapped(EditInPlace):
    """Puts a text in the place of some nodes."""

    def __init__(self, gone: Node) -> None:
        super().__init__()
        self._gone = gone

    def instead(self, node: Node) -> Node | None:
        return "new" if node is self._gone else None


def test_an_edit_in_place_keeps_the_containers_and_their_sharing() -> None:
    gone: Node = [7]
    shared: Node = [gone, 1]
    pair: Node = (gone, shared)
    root = dict_of(
        [("one", shared), ("two", (pair, pair)), ("same", (1, 2)), ("self", None)]
    )
    root.values = [*root.values[:3], root]
    kept = root.values[2]
    assert Swapped(gone).copy(root) is root
    one, two, same, itself = root.values
    assert one is shared and shared == ["new", 1] and itself is root and same is kept
    assert isinstance(two, tuple) and two[0] is two[1] and two[0] == ("new", shared)


def test_an_edit_in_place_keeps_the_meaning_of_calls_but_for_tags() -> None:
    """The value of a call with a tag is its argument, which may be another one now."""
    gone = Opaque("reduce", Global("builtins", "list"), (), None, 3)
    tagged = Opaque(
        "reduce",
        Global("torch.jit._pickle", "restore_type_tag"),
        (gone, "List[int]"),
        None,
        5,
    )
    tagged.meaning = Tagged(gone)
    tensor = Opaque(
        "reduce", Global("torch._utils", "_rebuild_tensor_v2"), (gone,), None, 7
    )
    tensor.meaning = float_ref()
    meaning = tensor.meaning
    Swapped(gone).copy([tagged, tensor])
    assert isinstance(tagged.meaning, Tagged) and tagged.meaning.root == "new"
    assert tagged.args == ("new", "List[int]")
    assert tensor.meaning is meaning and tensor.args == ("new",)


def test_the_parts_of_a_tensor_move_to_other_storages() -> None:
    part = float_ref()
    old = Composite("sparse_coo", FLOAT, (2, 3), (("values", part),))
    new = Halved().copy([old])
    assert isinstance(new, list) and isinstance(new[0], Composite)
    ((name, moved),) = new[0].parts
    assert name == "values" and moved.dtype is HALF and moved.storage.nbytes == 16
    assert Edit().copy(old) is old
