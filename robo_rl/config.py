"""Configuration trees between frozen dataclasses, plain dicts and TOML.

A tree is frozen dataclasses, mappings with string keys, tuples and scalars. What reads is strict:
an unknown key or a value of another type is a `ConfigError` that names the key's whole path. A
field declared with `field(metadata={"toml": False})` is neither written nor read: whatever made
the default makes it again.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

NONE = "none"
"""TOML has no null: a field that may be None takes this string, and is written as it."""

_ABSENT: Any = object()
_MAPPINGS = (Mapping, dict)
_SEQUENCES = (tuple, list, Sequence)


class ConfigError(ValueError):
    """A configuration that cannot be read: what came, what is accepted, and where."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error's sentence: "; did you mean 'x'?", or "" where nothing is close."""
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def to_dict(cfg: Any) -> dict[str, Any]:
    """The tree as dicts, lists and scalars, ready for JSON or `dump_toml`."""
    if not _is_dataclass(cfg) and not isinstance(cfg, Mapping):
        raise TypeError(f"{type(cfg).__name__} is no dataclass or mapping: {cfg!r}")
    plain: dict[str, Any] = _plain(cfg, "")
    return plain


def override(cfg: T, mapping: Mapping[str, Any], where: str = "") -> T:
    """A copy of a dataclass with the fields in mapping replaced, at any depth.

    A mapping of dataclasses (a table of reward terms) is overridden key by key, each by the type
    of the value that is there, and takes no new key; a mapping of scalars takes new keys.

    Args:
        mapping: field names to values, nested as the configuration is.
        where: the path of cfg itself, which errors begin with.
    """
    assert _is_dataclass(cfg)
    _check_table(mapping, where or type(cfg).__name__)
    hints = _settable(type(cfg))
    changes = {}
    for key, value in mapping.items():
        path = _join(where, key)
        _check_key(key, hints, path)
        changes[key] = _convert(value, hints[key], getattr(cfg, key), path)
    return _construct(partial(dataclasses.replace, cfg, **changes), where or type(cfg).__name__)  # type: ignore[type-var]


def from_dict(cls: type[T], mapping: Mapping[str, Any], where: str = "") -> T:
    """A dataclass tree from what `to_dict` gave, or any mapping with its required fields."""
    _check_table(mapping, where or cls.__name__)
    hints = _settable(cls)
    # A table inside may be partial: its other fields are as this class sets them.
    defaults = {f.name: _default(f) for f in _fields(cls) if _is_dataclass(_default(f))}
    values = {}
    for key, value in mapping.items():
        path = _join(where, key)
        _check_key(key, hints, path)
        values[key] = _convert(value, hints[key], defaults.get(key, _ABSENT), path)
    required = [f.name for f in _fields(cls) if _default(f) is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigError(f"{where or cls.__name__}: missing {', '.join(missing)}")
    return _construct(partial(cls, **values), where or cls.__name__)


def flatten(mapping: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The tree's leaves by their whole path, "task.rewards.locomotion.track_velocity.weight"."""
    leaves: dict[str, Any] = {}
    for key, value in mapping.items():
        path = _join(where, key)
        leaves |= flatten(value, path) if isinstance(value, Mapping) else {path: value}
    return leaves


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with the leaves of both, above's where both have one."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge(old, value)
        merged[key] = value
    return merged


def load_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of its bytes, grammar, numbers or depth
        raise ConfigError(f"{path} is not TOML: {error}") from error


def dump_toml(mapping: Mapping[str, Any]) -> str:
    """A table as TOML text: scalars first, then one section a nested table; None as "none"."""
    return "\n".join(_toml_lines(mapping, "")).strip() + "\n"


def _plain(value: Any, where: str) -> Any:
    if _is_dataclass(value):
        return {
            f.name: _plain(getattr(value, f.name), _join(where, f.name))
            for f in _fields(type(value))
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, _join(where, str(key))) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    for scalar in (bool, int, float, str):
        if isinstance(value, scalar):
            return scalar(value)
    if value is None:
        return None
    raise TypeError(
        f"{where} is a {type(value).__name__}, which TOML cannot hold; leave the field out with "
        'field(metadata={"toml": False})'
    )


def _convert(value: Any, hint: Any, current: Any, where: str) -> Any:
    """Value as its annotation wants it; current is what it replaces, or _ABSENT."""
    if _is_dataclass(value):
        return _instance(value, hint, where)
    if _is_dataclass(current) and isinstance(value, Mapping):
        return override(current, value, where)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return _convert_union(value, hint, current, where)
    if origin is Literal:
        return _convert_literal(value, get_args(hint), where)
    if origin in _MAPPINGS or hint in _MAPPINGS:
        return _convert_mapping(value, hint, current, where)
    if origin in _SEQUENCES or hint in _SEQUENCES:
        return _convert_sequence(value, hint, current, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _mismatch(value, f"a table of {hint.__name__}'s fields", where)
        return from_dict(hint, value, where)
    return _convert_scalar(value, hint, where)


def _convert_scalar(value: Any, hint: Any, where: str) -> Any:
    if hint is Any:
        return value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where} is an integer of more than the 64 bits that TOML has")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:
            raise _mismatch(value, "a number", where)
        return float(value)
    if hint is Path and isinstance(value, str | Path):
        return Path(value)
    if hint in (bool, int, str) and type(value) is hint:
        return value
    raise _mismatch(value, _name(hint), where)


def _convert_union(value: Any, hint: Any, current: Any, where: str) -> Any:
    members = get_args(hint)
    if NoneType in members and (value is None or value == NONE):
        return None
    for member in members:
        if member is NoneType:
            continue
        try:
            return _convert(value, member, current, where)
        except ConfigError as error:
            failure = error
    # With one member besides None its own message says more: it may lie deep in a table.
    if len([member for member in members if member is not NoneType]) == 1:
        raise failure
    raise _mismatch(value, _name(hint), where)


def _convert_literal(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    hint = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
    accepted = ", ".join(map(repr, choices))
    raise ConfigError(f"{where} is {value!r}; one of {accepted} is accepted{hint}")


def _convert_mapping(value: Any, hint: Any, current: Any, where: str) -> Any:
    _check_table(value, where)
    item_hint = (get_args(hint) or (str, Any))[1]
    merged = {} if current is _ABSENT or current is None else dict(current)
    for key, item in value.items():
        path = _join(where, key)
        if key not in merged and current is not _ABSENT and not _holds_scalars(item_hint):
            _check_key(key, merged, path)
        merged[key] = _convert(item, item_hint, merged.get(key, _ABSENT), path)
    return merged


def _convert_sequence(value: Any, hint: Any, current: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise _mismatch(value, "a list", where)
    args = get_args(hint) or (Any, ...)
    if get_origin(hint) is tuple and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise ConfigError(f"{where} has {len(value)} items, {value!r}; it takes {len(args)}")
        hints = list(args)
    else:
        hints = [args[0]] * len(value)
    same_length = isinstance(current, tuple | list) and len(current) == len(value)
    items = current if same_length else [_ABSENT] * len(value)
    return tuple(
        _convert(item, item_hint, old, f"{where}[{i}]")
        for i, (item, item_hint, old) in enumerate(zip(value, hints, items, strict=True))
    )


def _instance(value: Any, hint: Any, where: str) -> Any:
    """A dataclass given as such, from Python rather than TOML."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    concrete = [m for m in members if isinstance(m, type) and dataclasses.is_dataclass(m)]
    if concrete and not isinstance(value, tuple(concrete)):
        raise _mismatch(value, _name(hint), where)
    return value


def _holds_scalars(hint: Any) -> bool:
    """Whether a value of this annotation can be made without a value to start from."""
    if hint is Any or hint in (bool, int, float, str, Path, NoneType):
        return True
    if get_origin(hint) is Literal:
        return True
    items = [item for item in get_args(hint) if item is not Ellipsis]
    return bool(items) and all(map(_holds_scalars, items))


def _construct(make: Callable[[], T], where: str) -> T:
    try:
        return make()
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_table(value: Any, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _mismatch(value, "a table", where)


def _check_key(key: str, known: Iterable[str], path: str) -> None:
    names = list(known)
    if key not in names:
        accepted = ", ".join(names) or "nothing"
        raise ConfigError(f"unknown key {path}; known: {accepted}{did_you_mean(key, names)}")


def _mismatch(value: Any, accepted: str, where: str) -> ConfigError:
    return ConfigError(f"{where} is {value!r} ({type(value).__name__}); {accepted} is accepted")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(cls: Any) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.init and f.metadata.get("toml", True)]


def _settable(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in _fields(cls)}


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def _name(hint: Any) -> str:
    if hint is NoneType:
        return f'"{NONE}"'
    members = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_name, members))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _toml_lines(table: Mapping[str, Any], path: str) -> Iterable[str]:
    scalars = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (scalars or not table):
        yield f"[{path}]"
    for key, value in scalars.items():
        yield f"{_toml_key(key)} = {_toml_value(value)}"
    if scalars:
        yield ""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _toml_lines(value, _join(path, _toml_key(key)))


def _toml_key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "a").replace("-", "a").isalnum()
    return key if bare else _toml_value(key)


def _toml_value(value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's; only DEL is forbidden raw in TOML and not in JSON.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        items = (f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items())
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    raise TypeError(f"TOML cannot hold a {type(value).__name__}: {value!r}")
