"""``python -m assay COMMAND``: each command's module, and what it needs, is imported when the command is called."""

import sys
from importlib import import_module

from assay import __version__
from assay.errors import AssayError, in_words

COMMANDS = {
    "prepare": ("assay.cli.prepare", "Unpack the embedded models into the cache, once."),
    "ingest": ("assay.cli.ingest", "Read files and folders into an index."),
    "delete": ("assay.cli.delete", "Take documents out of an index."),
    "compact": ("assay.cli.compact", "Merge what many ingestions left."),
    "buckets": ("assay.cli.buckets", "Show, infer and set the buckets' schemas."),
    "search": ("assay.cli.search", "Search an index of this machine, or a running graph's."),
    "calibrate": ("deployments.calibrate", "Fit how a model reranks and grades, on labelled data."),
    "eval ranking": ("assay.cli.eval", "Measure how well searches rank, on judged queries."),
    "eval answers": ("deployments.evaluate", "Measure how good answers are, on questions whose answers are known."),
    "keys": ("assay.cli.keys", "Make, list and revoke API keys."),
    "batch": ("deployments.batch", "Answer a file of questions with a running graph."),
    "ask": ("assay.cli.ask", "Ask a running graph a question and watch it work."),
    "replay": ("assay.cli.replay", "Ask a kept answer's question again and show what differs."),
}

USAGE = f"""\
Assay {__version__}: agentic search over private document collections.

Usage: python -m assay COMMAND [OPTIONS]     (COMMAND --help says more)

""" + "".join(f"  {name:<14}{text}\n" for name, (_, text) in COMMANDS.items())


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(__version__)
        return 0
    words = 1 if argv[0] in COMMANDS else 2
    name = " ".join(argv[:words])
    if name not in COMMANDS:
        print(f"assay: no command '{name}'; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        run(name, argv[words:])
    except ModuleNotFoundError as e:
        if e.name is None or e.name.partition(".")[0] == "assay":
            raise
        print(f"assay: the package '{e.name}' is not installed: run `make install`", file=sys.stderr)
    except AssayError as e:
        print(f"assay: {in_words(e)}", file=sys.stderr)
    except OSError as e:  # a full disk, a folder that nobody may write to
        print(
            f"assay: {e.strerror or str(e) or type(e).__name__}" + (f": {e.filename}" if e.filename else ""),
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        return 130
    return 1


def run(name: str, words: list[str]) -> None:
    """Runs one command; ends in ``SystemExit``, as click's standalone mode does."""
    import typer

    function = getattr(import_module(COMMANDS[name][0]), name.split()[-1])
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    app(args=words, prog_name=f"python -m assay {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
