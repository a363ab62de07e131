import ast
import sys
from pathlib import Path


def test_the_readers_import_numpy_and_the_standard_library_only(
    project_root: Path,
) -> None:
    for file in (project_root / "edbatch" / "data").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif not isinstance(node, ast.Import):
                continue
            for name in names:
                top = name.partition(".")[0]
                assert top in {"edbatch", "numpy"} | sys.stdlib_module_names, (
                    f"{file.name} imports {name}"
                )
