"""A contract for import-linter: private modules belong to their package.

`chainrule.<package>._name` is imported only by modules of `chainrule.<package>`. Other packages import from
`chainrule.<package>` (public) or `chainrule.<package>.internal`. The modules right below `chainrule` with an
underscore (`chainrule._trees`) are the ground, and are there for all packages.
"""

from importlinter import Contract, ContractCheck, output


class PrivateModulesContract(Contract):
    """No module imports a private module of another package."""

    def check(self, graph, verbose):
        """Look at every import of a private module."""
        found = sorted(
            (importer, imported)
            for imported in graph.modules
            if (package := _private_to(imported)) is not None
            for importer in graph.find_modules_that_directly_import(imported)
            if _package(importer) != package
        )
        return ContractCheck(kept=not found, metadata={"found": found})

    def render_broken_contract(self, check):
        """Say what to import instead."""
        for importer, imported in check.metadata["found"]:
            output.print_error(
                f"{importer} imports {imported}, which is private to {_package(imported)}; "
                f"import from {_package(imported)} or {_package(imported)}.internal",
                bold=False,
            )


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _private_to(module: str) -> str | None:
    """The package that a module is private to, if it is one of ours and private."""
    root, *parts = module.split(".")
    is_ours = root == "chainrule" and len(parts) > 1 and not parts[0].startswith("_")
    return _package(module) if is_ours and any(part.startswith("_") for part in parts[1:]) else None
