"""`chainrule completion`: scripts by which shells complete commands and options.

A script holds all names, so that a shell completes without starting Python.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from chainrule.cli._main import COMMANDS, flags_of, make_parser
from chainrule.cli._output import write_result


def add_arguments(parser: ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="The shell that reads the script")
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    flags = {name: flags_of(make_parser(name)) for name in COMMANDS}
    script = _SCRIPTS[options.shell](flags)
    write_result(options, {"script": script}, script)
    return 0


def _bash(flags: Mapping[str, list[str]]) -> str:
    firsts = " ".join(dict.fromkeys(name.partition(" ")[0] for name in flags))
    groups = _groups(flags)
    seconds = "".join(
        f'    {group}) words="{" ".join(names)}" ;;\n' for group, names in groups.items()
    )
    cases = "".join(
        f'    {_pattern(name)}) words="{" ".join(known)}" ;;\n' for name, known in flags.items()
    )
    return f"""_chainrule() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [[ $COMP_CWORD -eq 1 ]]; then
    COMPREPLY=($(compgen -W "{firsts} --help --version" -- "$word"))
    return
  fi
  if [[ $COMP_CWORD -eq 2 ]]; then
    case "${{COMP_WORDS[1]}}" in
{seconds}    esac
    if [[ -n $words ]]; then
      COMPREPLY=($(compgen -W "$words" -- "$word"))
      return
    fi
  fi
  if [[ $word != -* ]]; then
    COMPREPLY=($(compgen -f -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}" in
{cases}  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o filenames -F _chainrule chainrule
"""


def _groups(flags: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """First word → second words, of the commands with two."""
    groups: dict[str, list[str]] = {}
    for name in flags:
        group, _, second = name.partition(" ")
        if second:
            groups.setdefault(group, []).append(second)
    return groups


def _pattern(name: str) -> str:
    """What two words match for this command."""
    return f'"{name}"' if " " in name else f'"{name} "*'


def _zsh(flags: Mapping[str, list[str]]) -> str:
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(flags)}"


def _fish(flags: Mapping[str, list[str]]) -> str:
    lines = []
    for name, known in flags.items():
        first, _, second = name.partition(" ")
        help = COMMANDS[name].help.replace("'", "\\'")
        if second:
            lines.append(f"complete -c chainrule -n __fish_use_subcommand -a {first}")
            lines.append(
                f"complete -c chainrule -n '__fish_seen_subcommand_from {first}' -a {second} -d '{help}'"
            )
        else:
            lines.append(f"complete -c chainrule -n __fish_use_subcommand -a {first} -d '{help}'")
        condition = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        lines += [f"complete -c chainrule -n '{condition}' -l {flag[2:]}" for flag in known]
    return "\n".join(dict.fromkeys(lines)) + "\n"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
