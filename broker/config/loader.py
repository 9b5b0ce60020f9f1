"""Reading the settings of a broker: four layers, checked as a whole; broker.config.schema says what can be set."""

import ipaddress
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from broker.config.schema import RENAMED, Archive, Config, Limits, Log, Mqtt, Shutdown
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
    "Log",
    "Mqtt",
    "Problem",
    "Setting",
    "Shutdown",
    "is_loopback",
    "load",
    "parse_address",
    "parse_queue_rule",
    "rendered",
]

ENVIRONMENT_PREFIX = "SHOAL_"

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


class Setting(Struct, frozen=True):
    """One setting as it describes itself.

    Attributes:
        key: dotted, as in a TOML file: `mqtt.receive_maximum`.
        kind: the annotated type that a value converts to.
        default: the value if no layer gives one; None means unset.
        text: one sentence.
        expected: the range of values in words.
        unit: "bytes", "seconds", "milliseconds" or "" for a plain number or word.
    """

    key: str
    kind: Any
    default: Any
    text: str
    expected: str
    unit: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.key.upper().replace(".", "__")


class Problem(Struct, frozen=True):
    """One thing that is wrong with a configuration: where, which key, what was found and what was expected."""

    where: str
    key: str
    found: str
    expected: str

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        return f"{self.where}: {key}found {self.found}, expected {self.expected}"


class ConfigError(Exception):
    """All problems of a configuration at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Address(Struct, frozen=True):
    """Where to listen or connect.

    Attributes:
        host: a name or an IP address, IPv6 without brackets.
        port: 0..65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that `tcp://HOST:PORT` names; ValueError with one sentence if it names none."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme != "tcp":
        raise ValueError(f"expected tcp://HOST:PORT, found {text!r}")
    host, separator, port = rest.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"expected a port from 0 to 65535 at the end of {text!r}")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ValueError(f"expected an IPv6 address between the brackets of {text!r}") from None
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"expected brackets around the IPv6 address in {text!r}")
    if not host or any(character.isspace() or character in "/@[]?#" for character in host):
        raise ValueError(f"expected a host name or an IP address in {text!r}")
    return Address(host, int(port))


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


def is_loopback(address: Address) -> bool:
    """Return whether only this machine can reach an address. Any host name but localhost counts as reachable."""
    if address.host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return False


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any], *, authenticator_given: bool = False
) -> Config:
    """Return the settings that defaults, a TOML file, the environment and flags give, later layers first.

    Args:
        file: a TOML file, or None for none.
        environ: variables such as SHOAL_MQTT__RECEIVE_MAXIMUM; those without the prefix SHOAL_ are not looked at.
        flags: dotted keys to values, such as {"log.level": "debug"}.
        authenticator_given: the embedding program brings an Authenticator, so that anonymous clients are its affair.

    Raises:
        ConfigError: with every problem of every layer.
    """
    problems: list[Problem] = []
    values: dict[str, tuple[Any, str]] = {}
    for key, (found, where, strict) in _layers(file, environ, flags, problems):
        setting = SETTINGS.get(key)
        if key in SECTIONS:
            problems.append(Problem(where, key, _shown(found), "a table"))
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
            problems.append(Problem(where, key, _shown(found), setting.expected))
    config = _built({key: value for key, (value, _) in values.items()})
    origins = {key: where for key, (_, where) in values.items()}
    # An allow_anonymous that could not be read is one problem, not a second one at every address.
    someone_vouches = authenticator_given or any(problem.key == "allow_anonymous" for problem in problems)
    problems.extend(_problems_of_the_whole(config, origins, someone_vouches))
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
        value: Any = [part.strip() for part in text.split(",") if part.strip()] if is_list else text
        yield key, (value, f"environment {variable}", False)
    for key, given in flags.items():
        yield key, (given, f"flag --{key.replace('.', '-').replace('_', '-')}", True)


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


def _shown(found: Any) -> str:
    text = json.dumps(found, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def _built(values: Mapping[str, Any]) -> Config:
    top: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        (top.setdefault(section, {}) if section else top)[name] = value
    for section, kind in SECTIONS.items():
        top[section] = kind(**top.get(section, {}))
    return Config(**top)


def _problems_of_the_whole(config: Config, origins: Mapping[str, str], authenticator_given: bool) -> Iterator[Problem]:
    """Yield what is wrong though each value alone is in its range."""

    def problem(key: str, found: Any, expected: str) -> Problem:
        return Problem(origins.get(key, "default"), key, _shown(found), expected)

    seen: set[Address] = set()
    for text in config.listen:
        try:
            address = parse_address(text)
        except ValueError as error:
            yield problem("listen", text, str(error).partition(" ")[2])
            continue
        if address in seen and address.port != 0:
            yield problem("listen", text, "each address once")
        seen.add(address)
        if not authenticator_given and config.allow_anonymous is None and not is_loopback(address):
            yield problem(
                "listen",
                text,
                "a loopback address, because there is no authentication; allow_anonymous = true lets everybody in",
            )
    for text in config.mqtt.queue_rules:
        try:
            parse_queue_rule(text)
        except ValueError as error:
            yield problem("mqtt.queue_rules", text, str(error))
    prefix = config.mqtt.auto_id_prefix
    if not prefix.isprintable():
        yield problem("mqtt.auto_id_prefix", prefix, "printable characters")
    for text in config.archive.topic_filters:
        wrong = check_topic_filter(text.encode("utf-8", "surrogatepass"))
        if wrong is None and text.split("/", 1)[0] in ("$share", "$replay", "$SYS"):
            wrong = "what begins with $share, $replay or $SYS is not archived"
        if wrong is not None:
            yield problem("archive.topic_filters", text, f"topic filters: {wrong}")
    if not authenticator_given and config.allow_anonymous is False:
        yield problem(
            "allow_anonymous", False, "true or unset, because there is no authentication and nobody could connect"
        )


def _settings(struct: type[Struct], prefix: str = "") -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        kind, meta = get_args(field.type)
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _settings(kind, f"{field.name}.")
        else:
            yield Setting(
                prefix + field.name,
                field.type,
                field.default,
                meta.description,
                _in_words(kind, meta),
                _unit(field.name),
            )


def _in_words(kind: Any, meta: Meta) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "a list of one or more texts" if meta.min_length else "a list of texts"
    if kind is bool:
        return "true or false"
    if kind is str:
        if meta.max_length is not None:
            return f"a text of up to {meta.max_length} characters"
        return "a text that is not empty"
    number = "a whole number" if kind is int else "a number"
    return f"{number} from {meta.ge} to {meta.le}"


def _unit(name: str) -> str:
    if "_bytes" in name or name.startswith("bytes_"):
        return "bytes"
    if name.endswith("_ms"):
        return "milliseconds"
    return "seconds" if name.endswith("_s") else ""


SECTIONS: dict[str, type[Struct]] = {
    field.name: get_args(field.type)[0]
    for field in msgspec.structs.fields(Config)
    if isinstance(get_args(field.type)[0], type) and issubclass(get_args(field.type)[0], Struct)
}
SETTINGS: dict[str, Setting] = {setting.key: setting for setting in _settings(Config)}


def rendered(config: Config) -> str:
    """Return a TOML file that gives every setting; those at their default are commented out."""
    lines = [
        "# Shoal's settings, each with its meaning, range and default. All are read once, at the start.",
        "# Take the # from a name to set it.",
        "# What a flag or an environment variable says counts more: mqtt.receive_maximum is also",
        "# SHOAL_MQTT__RECEIVE_MAXIMUM, and a list in the environment is separated by commas.",
    ]
    section = ""
    for setting in SETTINGS.values():
        if setting.key.rpartition(".")[0] != section:
            section = setting.key.rpartition(".")[0]
            lines += ["", "", f"[{section}]", f"# {SECTIONS[section].__doc__}"]
        owner = getattr(config, section) if section else config
        value = getattr(owner, setting.key.rpartition(".")[2])
        unit = f" {setting.unit}" if setting.unit else ""
        lines += ["", f"# {setting.text}", f"# Expected: {setting.expected}{unit}. Default: {_default(setting)}."]
        name = setting.key.rpartition(".")[2]
        if value is None:
            lines.append(f"#{name} = {_toml(get_args(setting.kind)[1].examples[0])}")
        else:
            lines.append(f"{'#' if value == setting.default else ''}{name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "unset"
    return _toml(setting.default) + (f" {setting.unit}" if setting.unit else "")


def _toml(value: Any) -> str:
    # Numbers, booleans, lists of texts and texts are written in TOML as in JSON, but for U+007F, which TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


if __name__ == "__main__":
    print(rendered(Config()), end="")
