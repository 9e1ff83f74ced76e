"""A scenario's file and its neighbours, whose names installed and other modules have too."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavel.scenarios.scenario import OwnImports, find_scenario

FILE = """
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.task import Task

def early() -> str:
    \"\"\"Says something.\"\"\"
    {imports}
    return {gives}

mine = Scenario("mine", system="", tasks=[Task(user="hello")], tools=[early])
"""


@pytest.fixture(autouse=True)
def _imports_as_before() -> Iterator[None]:
    modules = set(sys.modules)
    finders = [finder for finder in sys.meta_path if not isinstance(finder, OwnImports)]  # other tests leave some
    sys.meta_path[:] = finders
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.meta_path[:] = finders


def desk(folder: Path, imports: str, gives: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "desk.py"
    file.write_text(FILE.format(imports=imports, gives=gives))
    return file


async def said(file: Path) -> str:
    result = await find_scenario(str(file)).toolbox.call("early", "{}")
    assert not result.error, result.content
    return result.content


@pytest.mark.parametrize("neighbour", ["prompts_of_mine.py", "prompts_of_mine/__init__.py", "prompts_of_mine/inner.py"])
@pytest.mark.parametrize(
    "words", ["from {0} import WORDS", "import importlib; WORDS = importlib.import_module('{0}').WORDS"]
)
async def test_an_import_inside_a_tool_finds_the_neighbour(tmp_path: Path, neighbour: str, words: str) -> None:
    file = tmp_path / "desk" / neighbour
    file.parent.mkdir(parents=True)
    file.write_text("WORDS = 'from next door'")
    module = "prompts_of_mine.inner" if neighbour.endswith("inner.py") else "prompts_of_mine"
    assert await said(desk(tmp_path / "desk", words.format(module), "WORDS")) == "from next door"


async def test_the_own_neighbour_comes_before_one_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prompts_of_mine.py").write_text("WORDS = 'from the working directory'")
    file = desk(tmp_path / "desk", "from prompts_of_mine import WORDS", "WORDS")
    (tmp_path / "desk" / "prompts_of_mine.py").write_text("WORDS = 'from next door'")
    assert await said(file) == "from next door"


async def test_a_neighbour_of_a_neighbour_is_found_when_it_is_first_used(tmp_path: Path) -> None:
    file = desk(tmp_path / "desk", "from helper_of_mine import words", "words()")
    (tmp_path / "desk" / "helper_of_mine.py").write_text(
        "def words():\n    import more_of_mine\n    return more_of_mine.WORDS"
    )
    (tmp_path / "desk" / "more_of_mine.py").write_text("WORDS = 'two doors on'")
    assert await said(file) == "two doors on"


def test_an_environment_in_the_folder_keeps_its_own_imports(tmp_path: Path) -> None:
    (tmp_path / "words_of_desk.py").write_text("")
    sys.meta_path.insert(0, OwnImports(tmp_path))
    library = tmp_path / ".venv" / "lib" / "site-packages" / "some_library.py"
    with pytest.raises(ModuleNotFoundError):
        exec(compile("import words_of_desk", library, "exec"), {"__name__": "some_library"})
    exec(compile("import words_of_desk", tmp_path / "helpers" / "words.py", "exec"), {"__name__": "words"})
