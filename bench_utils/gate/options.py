"""What a gate is asked for, whatever it judges."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench_utils.gate.acceptance import Acceptance, names
from bench_utils.gate.rule import Rule
from bench_utils.settings import FILES, Settings


@dataclass(frozen=True)
class Options:
    """What a gate is asked for. `claims`: the benchmarks' folder below the project; `select`: case patterns."""

    settings: Settings
    budget_s: float
    claims: str = "benchmarks"
    select: Sequence[str] = ()
    min_effect: float | None = None
    accepted: Sequence[Acceptance] = ()
    results: Path = Path("results")
    rule: Rule = field(default_factory=Rule)

    def wants(self, key: str) -> bool:
        """Whether a case was chosen: every one is where none was named."""
        return not self.select or any(names(pattern, key) for pattern in self.select)

    @property
    def environ(self) -> dict[str, str]:
        """The settings as the sides' processes read them; files by their absolute paths, for they run elsewhere."""
        chosen = {name: value for name, value in asdict(self.settings).items() if value}
        for name in ("model", "draft", *FILES):
            if name in chosen and Path(chosen[name]).exists():
                chosen[name] = str(Path(chosen[name]).resolve())
        return {f"CLAIMS_{name.upper()}": value for name, value in chosen.items()}
