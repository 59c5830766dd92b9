"""Calls in a thread of the loop's executor, where the system may have no thread left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from mq.threads import refuse

__all__ = ["to_thread"]

Result = TypeVar("Result")


async def to_thread(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """What asyncio.to_thread does. Raises InsufficientResources where there can be no more threads."""
    try:
        return await asyncio.to_thread(function, *arguments, **options)
    except RuntimeError as error:
        refuse(error, "a thread of the loop's executor")
