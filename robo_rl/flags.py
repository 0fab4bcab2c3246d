"""A configuration tree as command-line flags: --task.rewards.locomotion.track-velocity.weight 2.

tyro makes flags of dataclasses, but a tree also has mappings, and fields whose annotation is a
protocol. So its shape is written down first as plain dataclasses, each leaf with the line of
documentation below its field. What is read is handed on as a TOML's tables are: `config.override`
checks it.
"""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

Field = tuple[str, Any, Any]
"""Name, annotation and default, as `make_dataclass` takes them."""


def parse(
    arguments: type, tables: Mapping[str, Any], argv: Sequence[str], *, prog: str
) -> tuple[Any, dict[str, Any]]:
    """What argv says: the arguments, and the leaves of the tables that it changes, nested.

    Args:
        arguments: a dataclass of what belongs to no table.
        tables: configurations by the name that their flags begin with; "" for none.
    """
    own = [f.name for f in dataclasses.fields(arguments)]
    fields: list[Field] = []
    for name, table in tables.items():
        fields += [_branch(name, table, "")] if name else _fields(table)
    bases = (arguments,)
    shape: Any = dataclasses.make_dataclass("train", fields, bases=bases, kw_only=True, frozen=True)
    shape.__doc__ = arguments.__doc__
    read = tyro.cli(shape, args=list(argv), prog=prog)
    changes = _changes(read)
    return read, {key: value for key, value in changes.items() if key not in own}


def documentation(cls: type) -> dict[str, str]:
    """The text below each field of a dataclass, by field; a base's where its own says nothing."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):  # a class made at run time has no source
            continue
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = below.value
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[ast.unparse(line.target)] = inspect.cleandoc(text.value)
    return found


def _fields(table: Any) -> Iterator[Field]:
    """The fields of a dataclass, or the items of a mapping, that a flag can set."""
    if isinstance(table, Mapping):
        for name, value in table.items():
            yield _branch(name, value, "")
        return
    hints, texts = get_type_hints(type(table)), documentation(type(table))
    for f in dataclasses.fields(table):
        if not f.init or not f.metadata.get("toml", True):
            continue
        value, text = getattr(table, f.name), texts.get(f.name, "")
        if _branches(value):
            yield _branch(f.name, value, text)
        else:
            yield f.name, _help(_plain(hints[f.name]), text), _default(value)


def _branch(name: str, table: Any, text: str) -> Field:
    shape = dataclasses.make_dataclass(name, list(_fields(table)), kw_only=True, frozen=True)
    summary = text or (inspect.getdoc(type(table)) or "").partition("\n")[0]
    shape.__doc__ = "" if isinstance(table, Mapping) else summary
    return name, _help(shape, shape.__doc__), dataclasses.field(default_factory=shape)


def _branches(value: Any) -> bool:
    """Whether a value holds fields of its own."""
    if isinstance(value, Mapping):
        return bool(value) and all(map(_branches, value.values()))
    return dataclasses.is_dataclass(value)


def _plain(hint: Any) -> Any:
    """The annotation as tyro reads it: a mapping is a dict."""
    if get_origin(hint) is Mapping:
        return dict[get_args(hint)]  # type: ignore[misc]
    return hint


def _help(hint: Any, text: str | None) -> Any:
    return Annotated[hint, tyro.conf.arg(help=" ".join((text or "").split()))]


def _default(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dataclasses.field(default_factory=lambda: dict(value))
    return dataclasses.field(default=value)


def _changes(read: Any) -> dict[str, Any]:
    """Leaves that differ from their default, nested."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(read):
        value = getattr(read, f.name)
        if dataclasses.is_dataclass(value):
            if below := _changes(value):
                changes[f.name] = below
        elif value != (
            f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        ):
            changes[f.name] = value
    return changes
