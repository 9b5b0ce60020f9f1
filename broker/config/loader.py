"""Reading the settings of a broker: four layers, checked as a whole; broker.config.schema says what can be set."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct

from broker.config.authenticator import Authenticator
from broker.config.authenticator_check import AUTHENTICATORS, authenticator_problems
from broker.config.authorizer import Authorizer
from broker.config.authorizer_check import AUTHORIZERS, authorizer_problems
from broker.config.closing import closing_commands
from broker.config.http import http_problems
from broker.config.limit import Limit
from broker.config.limit_check import LIMIT_SETTINGS, limit_problems, limits_read
from broker.config.listener import Address, Listener, parse_address
from broker.config.listener_check import LISTENER_SETTINGS, listener_problems, listeners_read
from broker.config.schema import RENAMED, Archive, Config, Limits, Log, Mqtt, Shutdown
from broker.config.setting import ENVIRONMENT_PREFIX, Problem, Setting, settings_of, shown
from broker.config.typed_tables import TypedTables
from router.matching.topic_names import check_topic_filter
from router.sessions.queue_policy import POLICIES

__all__ = [
    "SECTIONS",
    "SETTINGS",
    "Address",
    "Archive",
    "Config",
    "ConfigError",
    "Limits",
    "Listener",
    "Log",
    "Mqtt",
    "Problem",
    "Setting",
    "Shutdown",
    "load",
    "parse_address",
    "parse_queue_rule",
    "rendered",
]

# Not settings, though they look like it: the switches of setup.py and of the tests, the password of `shoal pub` and
# `shoal sub`, and what Kubernetes puts into every container beside a service named "shoal" (SHOAL_SERVICE_HOST,
# SHOAL_PORT, SHOAL_PORT_1883_TCP_ADDR).
FOREIGN_VARIABLES = (
    "SHOAL_CHECKED",
    "SHOAL_LINETRACE",
    "SHOAL_PASSWORD",
    "SHOAL_PORT",
    "SHOAL_TEST_BROKER",
    "SHOAL_YARDSTICK",
)
FOREIGN_PREFIXES = ("SHOAL_SERVICE_", "SHOAL_PORT_")


class ConfigError(Exception):
    """All problems of a configuration at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def parse_queue_rule(text: str) -> tuple[bytes, str]:
    """Return the topic filter and the policy of `FILTER: POLICY`. Raises ValueError."""
    topic_filter, _, policy = text.rpartition(":")
    if policy.strip() not in POLICIES:
        raise ValueError("a topic filter, a colon and one of " + ", ".join(POLICIES))
    encoded = topic_filter.encode("utf-8", "surrogatepass")
    wrong = check_topic_filter(encoded)
    if wrong is None and topic_filter.startswith("$share/"):
        wrong = "no topic name begins with $share"
    if wrong is not None:
        raise ValueError(f"a topic filter before the colon: {wrong}")
    return encoded, policy.strip()


def load(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    *,
    authenticator_given: bool = False,
    origins: dict[str, str] | None = None,
) -> Config:
    """Return the settings that defaults, a TOML file, the environment and flags give, later layers first.

    Args:
        file: a TOML file, or None for none.
        environ: variables such as SHOAL_MQTT__RECEIVE_MAXIMUM; those without the prefix SHOAL_ are not looked at.
        flags: dotted keys to values, such as {"log.level": "debug"}.
        authenticator_given: the embedding program brings an Authenticator, so that anonymous clients are its affair.
        origins: gets the layer in words of each setting and kind of table that a layer gives.

    Raises:
        ConfigError: with every problem of every layer.
    """
    problems: list[Problem] = []
    values: dict[str, tuple[Any, str]] = {}
    for key, (found, where, strict) in _layers(file, environ, flags, problems):
        if key == "listener":
            values[key] = listeners_read(found, where, problems), where
            values.setdefault("listen", ((), where))
            continue
        if key == "authenticator":
            values[key] = AUTHENTICATORS.read(found, where, problems), where
            # One that could not be read is one problem, not a second one at every address.
            authenticator_given = True
            continue
        if key == "authorizer":
            values[key] = AUTHORIZERS.read(found, where, problems), where
            continue
        if key == "limit":
            values[key] = limits_read(found, where, problems), where
            continue
        setting = SETTINGS.get(key)
        if key in SECTIONS:
            problems.append(Problem(where, key, shown(found), "a table"))
            continue
        if key in RENAMED:
            problems.append(Problem(where, key, "a setting of earlier versions", RENAMED[key]))
            continue
        if setting is None:
            problems.append(Problem(where, key, "an unknown setting", _suggestion(key)))
            continue
        try:
            values[key] = msgspec.convert(found, setting.kind, strict=strict), where
        except msgspec.ValidationError:
            problems.append(Problem(where, key, shown(found), setting.expected))
    config = _built({key: value for key, (value, _) in values.items()})
    given = {key: where for key, (_, where) in values.items()}
    if origins is not None:
        origins.update(given)
    # An allow_anonymous that could not be read is one problem, not a second one at every address.
    someone_vouches = authenticator_given or any(problem.key == "allow_anonymous" for problem in problems)
    problems.extend(_problems_of_the_whole(config, given, someone_vouches, closing_commands(file, flags)))
    if problems:
        raise ConfigError(problems)
    return config


def _layers(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], problems: list[Problem]
) -> Iterator[tuple[str, tuple[Any, str, bool]]]:
    """Yield (key, (value, the layer in words, whether its type must match)), in the order in which layers count."""
    if file is not None:
        for key, written in _flattened(_read_toml(file, problems)):
            yield key, (written, f"file {file}", True)
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable in FOREIGN_VARIABLES or variable.startswith(FOREIGN_PREFIXES):
            continue
        key = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("__", ".")
        text = environ[variable]
        is_list = key in SETTINGS and isinstance(SETTINGS[key].default, tuple)
        value: Any = _list_of(text) if is_list else text
        yield key, (value, f"environment {variable}", False)
    for key, given in flags.items():
        yield key, (given, f"flag --{key.replace('.', '-').replace('_', '-')}", True)


def _list_of(text: str) -> Any:
    """Return a list as people write it into the environment: its items between commas, or as JSON or TOML has it."""
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text  # which is no list: that is the problem
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_toml(file: Path, problems: list[Problem]) -> dict[str, Any]:
    import tomllib  # here, as below, because a broker without a file, or without a mistake, does not need it

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(Problem(f"file {file}", "", str(error.strerror), "a readable file"))
    except UnicodeDecodeError as error:
        problems.append(Problem(f"file {file}", "", f"a byte that is not UTF-8 at {error.start}", "TOML in UTF-8"))
    except (ValueError, RecursionError) as error:
        from broker.config.mosquitto_conf import recognised

        said = recognised(file)
        if said:
            problems += [Problem(f"file {file}{where}", key, found, expected) for where, key, found, expected in said]
            return {}
        # TOMLDecodeError is a ValueError; a number of thousands of digits and arrays nested as deep are none of TOML's.
        problems.append(Problem(f"file {file}", "", str(error), "TOML"))
    return {}


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and (value or name in SECTIONS):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _suggestion(key: str) -> str:
    import difflib

    close = difflib.get_close_matches(key, SETTINGS, n=1)
    if not close:
        # A right name in the wrong table, or in none.
        close = [known for known in SETTINGS if known.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    if close:
        return f"{close[0]} perhaps"
    section = key.partition(".")[0] + "." if key.partition(".")[0] in SECTIONS else ""
    known_here = [known for known in SETTINGS if known.startswith(section) and (section or "." not in known)]
    return "one of " + ", ".join(known_here if section else known_here + list(SECTIONS))


def _built(values: Mapping[str, Any]) -> Config:
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (top.setdefault(section, {}) if section else top)[name] = value
    for section, kind in SECTIONS.items():
        top[section] = kind(**top.get(section, {}))
    return Config(**top)


def _problems_of_the_whole(
    config: Config, origins: Mapping[str, str], authenticator_given: bool, closing: Sequence[str]
) -> Iterator[Problem]:
    """Yield what is wrong though each value alone is in its range."""

    def problem(key: str, found: Any, expected: str) -> Problem:
        # A table's is known by the name of all of its kind: "listener 2.address".
        return Problem(origins.get(key, origins.get(key.partition(" ")[0], "default")), key, shown(found), expected)

    yield from listener_problems(config, problem, authenticator_given, closing)
    yield from authenticator_problems(config.authenticator, problem)
    yield from limit_problems(config.limit, problem)
    yield from authorizer_problems(config.authorizer, problem)
    for text in config.mqtt.queue_rules:
        try:
            parse_queue_rule(text)
        except ValueError as error:
            yield problem("mqtt.queue_rules", text, str(error))
    yield from http_problems(config.http, bool(config.authenticator), problem)
    prefix = config.mqtt.auto_id_prefix
    if not prefix.isprintable():
        yield problem("mqtt.auto_id_prefix", prefix, "printable characters")
    for text in config.archive.topic_filters:
        wrong = check_topic_filter(text.encode("utf-8", "surrogatepass"))
        if wrong is None and text.split("/", 1)[0] in ("$share", "$replay", "$SYS", "$shoal"):
            wrong = "what begins with $share, $replay, $SYS or $shoal is not archived"
        if wrong is not None:
            yield problem("archive.topic_filters", text, f"topic filters: {wrong}")


SECTIONS: dict[str, type[Struct]] = {
    field.name: get_args(field.type)[0]
    for field in msgspec.structs.fields(Config)
    if isinstance(get_args(field.type)[0], type) and issubclass(get_args(field.type)[0], Struct)
}
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in settings_of(Config)}


def rendered(config: Config) -> str:
    """Return a TOML file that gives every setting; those at their default are commented out."""
    lines = [
        "# Shoal's settings, each with its meaning, range and default. docs/configuration.md says which of them",
        "# can change while the broker runs.",
        "# Take the # from a name to set it.",
        "# What a flag or an environment variable says counts more: mqtt.receive_maximum is also",
        "# SHOAL_MQTT__RECEIVE_MAXIMUM, and a list in the environment is separated by commas, or JSON.",
    ]
    section = ""
    for setting in SETTINGS.values():
        if setting.key.rpartition(".")[0] != section:
            section = setting.key.rpartition(".")[0]
            lines += ["", "", f"[{section}]", f"# {SECTIONS[section].__doc__}"]
        owner = getattr(config, section) if section else config
        value = getattr(owner, setting.key.rpartition(".")[2])
        unit = f" {setting.unit}" if setting.unit else ""
        lines += ["", f"# {setting.text}", f"# Expected: {setting.expected}{unit}. Default: {shown_default(setting)}."]
        name = setting.key.rpartition(".")[2]
        if value is None:
            lines.append(f"#{name} = {_toml(get_args(setting.kind)[1].examples[0])}")
        else:
            lines.append(f"{'#' if value == setting.default else ''}{name} = {_toml(value)}")
    return (
        "\n".join(
            [
                *lines,
                *_rendered_listeners(config.listener),
                *_rendered_authenticators(config.authenticator),
                *_rendered_authorizers(config.authorizer),
                *_rendered_limits(config.limit),
            ]
        )
        + "\n"
    )


def _rendered_listeners(listeners: Sequence[Listener]) -> Iterator[str]:
    """Yield the tables of listeners; without one, what such a table can have."""
    yield from (
        "",
        "",
        f"# {(Listener.__doc__ or '').splitlines()[0]}",
        "# There may be any number of these tables; where there is one, `listen` has no default.",
    )
    for setting in LISTENER_SETTINGS.values():
        unit = f" {setting.unit}" if setting.unit else ""
        default = "" if setting.default is msgspec.NODEFAULT else f" Default: {shown_default(setting)}."
        yield f"#   {setting.key}: {setting.text} Expected: {setting.expected}{unit}.{default}"
    for listener in listeners:
        yield from ("", "[[listener]]")
        for setting in LISTENER_SETTINGS.values():
            value = getattr(listener, setting.key)
            if value != setting.default:
                yield f"{setting.key} = {_toml(value)}"
    if not listeners:
        yield from (
            "",
            "# [[listener]]",
            '# address = "tls://0.0.0.0:8883"',
            '# certfile = "server.crt"',
            '# keyfile = "server.key"',
        )


def _rendered_authenticators(authenticators: Sequence[Authenticator]) -> Iterator[str]:
    """Yield the tables of authenticators; without one, what such a table can have."""
    yield from (
        "",
        "",
        "# Who is asked, in the order of the tables, who a client is; the first that knows it decides,",
        "# and who is known to none is refused. There may be any number of these tables.",
    )
    yield from _rendered_typed(AUTHENTICATORS, authenticators)
    if not authenticators:
        yield from ("", "# [[authenticator]]", '# type = "password_file"', '# file = "users"')


def _rendered_typed(known: TypedTables[Any], tables: Sequence[Any]) -> Iterator[str]:
    """Yield what tables of each type can have, and those that there are."""
    for kind, struct in known.types.items():
        yield f'# type = "{kind}": {(struct.__doc__ or "").splitlines()[0]}'
        for setting in known.settings[kind].values():
            unit = f" {setting.unit}" if setting.unit else ""
            default = "" if setting.default is msgspec.NODEFAULT else f" Default: {shown_default(setting)}."
            yield f"#   {setting.key}: {setting.text} Expected: {setting.expected}{unit}.{default}"
    for table in tables:
        kind = str(table.__struct_config__.tag)
        yield from ("", f"[[{known.name}]]", f"type = {_toml(kind)}")
        for setting in known.settings[kind].values():
            if getattr(table, setting.key) != setting.default:
                yield f"{setting.key} = {_toml(getattr(table, setting.key))}"


def _rendered_authorizers(authorizers: Sequence[Authorizer]) -> Iterator[str]:
    """Yield the tables of authorizers; without one, what such a table can have."""
    yield from (
        "",
        "",
        "# Who is asked, in the order of the tables, what a client may do; the first that has a rule",
        "# for it decides, and what none has a rule for is refused. There may be any number of these tables;",
        "# without one, clients may do everything.",
    )
    yield from _rendered_typed(AUTHORIZERS, authorizers)
    if not authorizers:
        yield from ("", "# [[authorizer]]", '# type = "acl_file"', '# file = "acl.conf"')


def _rendered_limits(limits: Sequence[Limit]) -> Iterator[str]:
    """Yield the tables of limits; without one, what such a table can have."""
    yield from (
        "",
        "",
        "# What some clients may have more or less of than others: the first table that fits a client holds.",
    )
    for setting in LIMIT_SETTINGS.values():
        unit = f" {setting.unit}" if setting.unit else ""
        default = shown_default(setting)
        yield f"#   {setting.key}: {setting.text} Expected: {setting.expected}{unit}. Default: {default}."
    for limit in limits:
        yield from ("", "[[limit]]")
        for setting in LIMIT_SETTINGS.values():
            if getattr(limit, setting.key) != setting.default:
                yield f"{setting.key} = {_toml(getattr(limit, setting.key))}"
    if not limits:
        yield from ("", "# [[limit]]", '# users = ["gateway"]', "# messages_per_second_max = 1000")


def shown_default(setting: Setting) -> str:
    """Return a default as a TOML file has it."""
    if setting.default is None:
        return "unset"
    return _toml(setting.default) + (f" {setting.unit}" if setting.unit else "")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    # Numbers, booleans, lists of texts and texts are written in TOML as in JSON, but for U+007F, which TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


if __name__ == "__main__":
    print(rendered(Config()), end="")
