"""Hides the commands that need TFX if TFX is not installed, and says in one line how to get them."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from typer.core import TyperGroup

from components.installed import INSTALL_TFX, is_installed, require_package

NEED_TFX = frozenset({"run", "follow", "compile", "parity", "metadata", "lineage"})
"""Commands that import TFX, TensorFlow Transform or ML Metadata."""


class InstalledCommands(TyperGroup):
    """A group that only has the commands that the installed packages can run.

    Contexts and commands are typed as Any: they are classes of click, and newer releases of typer contain click.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """List the commands that work, and name the others below the help."""
        names = super().list_commands(ctx)
        if is_installed("tfx"):
            return names
        left_out = [name for name in names if name in NEED_TFX]
        self.epilog = escape(f"{', '.join(left_out)} need TFX: {INSTALL_TFX}.")
        return [name for name in names if name not in NEED_TFX]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Find a command by its name.

        Raises:
          ConfigError: the command needs TFX, which is not installed.
        """
        if cmd_name in NEED_TFX:
            require_package("tfx", f"`{cmd_name}` needs TFX, which is not installed")
        return super().get_command(ctx, cmd_name)
