"""The fingerprint of a version in the layout of an engine.

A fingerprint is a table of texts and numbers, such as the data type, the number of ranks and the release of the engine.
An engine can use a version in place if its own fingerprint is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from ..errors import IncompatibleError
from ..models import Model

METADATA = "engine.key"
"""The name of the fingerprint among the texts of a version."""


def metadata(key: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text that a version carries."""
    return {METADATA: json.dumps(key, sort_keys=True)}


def matches(model: Model[Any]) -> bool:
    """Reports whether a version is in the layout of an engine, instead of that of checkpoints."""
    return METADATA in model.metadata


CHECKPOINT = {"checkpoint", "revision"}
"""The fields that name the checkpoint. The layout does not depend on them."""


def check(model: Model[Any], key: Mapping[str, Any], ignored: Set[str] = frozenset()) -> None:
    """Raises IncompatibleError with the differences unless the version was published for the same key.

    :param ignored: fields that may be different.
    """
    title = f"{model.name!r} version {model.version}"
    text = model.metadata.get(METADATA)
    if text is None:
        raise IncompatibleError(
            f"{title} is not in the layout of an engine: "
            f"publish it with `sharedtensor-py seed ENGINE MODEL --as {model.name}`"
        )
    try:
        published = json.loads(text)
        wrong = [
            f"{name} is {published.get(name)!r}, the engine's is {key.get(name)!r}"
            for name in sorted(set(published) | set(key))
            if name not in ignored and published.get(name) != key.get(name)
        ]
    except (ValueError, AttributeError, TypeError) as err:
        raise IncompatibleError(f"{title} has a damaged key: {err}") from err
    if wrong:
        raise IncompatibleError(f"{title} was published for another configuration: {'; '.join(wrong)}")
