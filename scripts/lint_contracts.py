"""A contract for import-linter: private modules belong to their package.

`chainrule.<package>._name` is imported only by modules of `chainrule.<package>`. Other packages import from
`chainrule.<package>` (public) or `chainrule.<package>.internal`. What stands right below `chainrule` with an
underscore is the ground, and is there for all packages: its modules (`chainrule._trees`), and what its
packages (`chainrule._jaxpr`) export.
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
    is_private = root == "chainrule" and any(part.startswith("_") for part in parts[1:])
    return _package(module) if is_private else None
