"""Settings: four layers, one check of the whole, and every problem named."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.authenticator import (
    AUTHENTICATOR_TYPES,
    PUBLIC_ALGORITHMS,
    SECRET_ALGORITHMS,
    JwtTable,
    PasswordFileTable,
)
from broker.config.authorizer import AclFileTable
from broker.config.listener_check import anonymous_allowed
from broker.config.loader import (
    SETTINGS,
    Address,
    Config,
    ConfigError,
    Limits,
    Log,
    Mqtt,
    load,
    parse_address,
    rendered,
)
from broker.config.schema import RENAMED, Http, Shutdown

DEPLOYED = Path(__file__).resolve().parents[2] / "deploy" / "shoal.toml"


def problems_of(
    file: Path | None = None, environ: dict[str, str] | None = None, flags: dict[str, Any] | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, flags or {})
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [str(problem) for problem in caught.value.problems]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "shoal.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_given_means_the_defaults() -> None:
    assert load(None, {"PATH": "/bin"}, {}) == Config()


def test_each_layer_counts_more_than_the_one_before(tmp_path: Path) -> None:
    file = written(
        tmp_path, 'data_dir = "file"\n[mqtt]\nreceive_maximum = 1\ninflight_max = 1\n[log]\nlevel = "error"\n'
    )
    environ = {"SHOAL_MQTT__INFLIGHT_MAX": "2", "SHOAL_LOG__LEVEL": "warning"}
    config = load(file, environ, {"log.level": "debug"})
    assert (config.data_dir, config.mqtt.receive_maximum) == ("file", 1)
    assert config.mqtt.inflight_max == 2
    assert config.log.level == "debug"


def test_all_problems_of_all_layers_are_reported_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, "worker = 2\n[mqtt]\nreceive_maximum = 0\n[shutdown]\ndrain_s = nan\n")
    environ = {"SHOAL_LIMITS__ROUTE_CACHE_MAX": "many", "SHOAL_LOG__LEVL": "debug"}
    assert problems_of(file, environ, {"log.level": "loud"}) == [
        f"file {file}: worker: found an unknown setting, expected workers perhaps",
        f"file {file}: mqtt.receive_maximum: found 0, expected a whole number from 1 to 65535",
        f"file {file}: shutdown.drain_s: found NaN, expected a number from 0 to 3600",
        'environment SHOAL_LIMITS__ROUTE_CACHE_MAX: limits.route_cache_max: found "many", '
        "expected a whole number from 8 to 100000000",
        "environment SHOAL_LOG__LEVL: log.levl: found an unknown setting, expected log.level perhaps",
        'flag --log-level: log.level: found "loud", expected one of debug, info, warning, error',
    ]


def test_a_setting_of_an_earlier_version_is_told_its_new_name(tmp_path: Path) -> None:
    file = written(tmp_path, "[mqtt]\nserver_keep_alive_s = 30\n")
    assert problems_of(file, {"SHOAL_MQTT__SERVER_KEEP_ALIVE_S": "30"}) == [
        f"{where}: mqtt.server_keep_alive_s: found a setting of earlier versions, expected mqtt.keep_alive_max_s, "
        "which changes only a keep alive that is longer, or none"
        for where in (f"file {file}", "environment SHOAL_MQTT__SERVER_KEEP_ALIVE_S")
    ]


def test_every_setting_of_an_earlier_version_is_gone_and_what_stands_for_it_is_there() -> None:
    for old, new in RENAMED.items():
        assert old not in SETTINGS
        assert new.partition(",")[0] in SETTINGS


def test_a_prefix_that_no_client_identifier_may_have_is_named() -> None:
    (problem,) = problems_of(flags={"mqtt.auto_id_prefix": "a\0b"})
    assert problem.endswith('mqtt.auto_id_prefix: found "a\\u0000b", expected printable characters')


def test_a_name_in_the_wrong_table_is_led_to_the_right_one(tmp_path: Path) -> None:
    file = written(tmp_path, "receive_maximum = 5\n")
    assert problems_of(file)[0].endswith("expected mqtt.receive_maximum perhaps")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mqtt = 3\n", "mqtt: found 3, expected a table"),
        ("[tls]\n", "tls: found an unknown setting"),
        ("[limits]\nconnect_timeout_s = true\n", "limits.connect_timeout_s: found true, expected a number"),
        ('[limits]\nconnections_max = "5"\n', 'limits.connections_max: found "5", expected a whole number'),
        ('listen = "tcp://127.0.0.1:1883"\n', "listen: found"),
        ("listen = []\n", "listen: found []"),
        ('[log]\nfile = ""\n', 'log.file: found "", expected a text that is not empty'),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, text: str, found: str) -> None:
    (problem,) = problems_of(written(tmp_path, text))
    assert found in problem


def test_a_file_that_cannot_be_read_or_parsed_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert problems_of(missing) == [f"file {missing}: found No such file or directory, expected a readable file"]
    broken = written(tmp_path, "workers =\n")
    assert problems_of(broken)[0].startswith(f"file {broken}: found Invalid value (at line 1, column 10)")
    broken.write_bytes(b"\xff")
    assert problems_of(broken) == [f"file {broken}: found a byte that is not UTF-8 at 0, expected TOML in UTF-8"]


@pytest.mark.parametrize("text", ["workers = " + "9" * 5000, "listen = " + "[" * 5000 + "]" * 5000])
def test_a_value_beyond_all_measure_is_a_problem_and_no_traceback(tmp_path: Path, text: str) -> None:
    (problem,) = problems_of(written(tmp_path, text))
    assert problem.endswith("expected TOML")


def test_a_long_value_is_cut_in_its_problem() -> None:
    (problem,) = problems_of(environ={"SHOAL_LOG__LEVEL": "x" * 100_000})
    assert len(problem) < 300


def test_variables_of_the_build_and_of_kubernetes_are_no_settings() -> None:
    environ = {
        "SHOAL_CHECKED": "1",
        "SHOAL_PORT": "tcp://10.0.0.1:1883",
        "SHOAL_PORT_1883_TCP_PORT": "1883",
        "SHOAL_SERVICE_HOST": "10.0.0.1",
    }
    assert load(None, environ, {}) == Config()


def test_the_environment_gives_lists_and_truth() -> None:
    environ = {"SHOAL_LISTEN": "tcp://0.0.0.0:1, tcp://[::]:2", "SHOAL_ALLOW_ANONYMOUS": "true"}
    config = load(None, environ, {})
    assert config.listen == ("tcp://0.0.0.0:1", "tcp://[::]:2")
    assert config.allow_anonymous is True


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:1883", "tcp://[::]:1883", "tcp://192.0.2.1:1883", "tcp://host:1"])
def test_an_open_address_needs_authentication_or_permission(address: str) -> None:
    (problem,) = problems_of(flags={"listen": (address,)})
    assert address in problem
    assert "allow_anonymous = true" in problem
    assert load(None, {}, {"listen": (address,), "allow_anonymous": True}).listen == (address,)
    assert load(None, {}, {"listen": (address,)}, authenticator_given=True).listen == (address,)


@pytest.mark.parametrize("topic_filter", ["a/#/b", "", "a\0", "$share/g/a", "$replay/-1h/a", "$SYS/#", "\ud800"])
def test_what_is_no_topic_filter_is_not_archived(topic_filter: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {}, {"archive.topic_filters": ["sensors/#", topic_filter]})
    assert [problem.key for problem in caught.value.problems] == ["archive.topic_filters"]
    assert str(caught.value).count("topic filters: ") == 1
    assert load(None, {"SHOAL_ARCHIVE__TOPIC_FILTERS": "sensors/#, +"}, {}).archive.topic_filters == ("sensors/#", "+")


def test_a_broker_to_which_nobody_could_connect_is_refused() -> None:
    (problem,) = problems_of(flags={"allow_anonymous": False})
    assert problem.startswith("flag --allow-anonymous: allow_anonymous: found false, expected true or unset")
    assert load(None, {}, {"allow_anonymous": False}, authenticator_given=True).allow_anonymous is False


def test_an_unreadable_permission_is_one_problem_and_not_one_more_per_address() -> None:
    environ = {"SHOAL_ALLOW_ANONYMOUS": "maybe", "SHOAL_LISTEN": "tcp://0.0.0.0:1883"}
    assert problems_of(environ=environ) == [
        'environment SHOAL_ALLOW_ANONYMOUS: allow_anonymous: found "maybe", expected true or false'
    ]


def test_an_address_may_be_given_once_but_any_free_port_often() -> None:
    (problem,) = problems_of(flags={"listen": ("tcp://[::1]:1883", "tcp://[::1]:1883")})
    assert "each address once" in problem
    assert len(load(None, {}, {"listen": ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")}).listen) == 2


@pytest.mark.parametrize(
    ("text", "address", "loopback"),
    [
        ("tcp://127.0.0.1:1883", Address("127.0.0.1", 1883), True),
        ("tcp://[::1]:0", Address("::1", 0), True),
        ("tcp://localhost:65535", Address("localhost", 65535), True),
        ("tcp://127.8.8.8:1", Address("127.8.8.8", 1), True),
        ("tcp://0.0.0.0:1883", Address("0.0.0.0", 1883), False),
        ("tcp://broker.example:1883", Address("broker.example", 1883), False),
        ("tcp://[fe80::1]:1883", Address("fe80::1", 1883), False),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address, loopback: bool) -> None:
    assert parse_address(text) == address
    assert str(address) == text
    assert address.is_loopback is loopback


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:1883",
        "ssl://127.0.0.1:1883",
        "unix://",
        "tcp://127.0.0.1",
        "tcp://:1883",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:٣",
        "tcp://::1:1883",
        "tcp://[::1:1883",
        "tcp://[localhost]:1883",
        "tcp://a b:1883",
        "tcp://user@host:1883",
    ],
)
def test_what_is_no_address_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="^expected "):
        parse_address(text)
    assert problems_of(flags={"listen": (text,)})


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    assert parse_address(str(address)) == address


toml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*SETTINGS, "mqtt", "x.y"]), toml_values, max_size=4))
def test_any_values_give_a_config_or_named_problems(flags: dict[str, Any]) -> None:
    try:
        config = load(None, {}, flags)
    except ConfigError as error:
        assert error.problems
        assert {problem.key for problem in error.problems} <= {*SETTINGS, "mqtt", "x.y"}
    else:
        assert load(None, {}, {"data_dir": config.data_dir}).data_dir == config.data_dir


def test_every_setting_describes_itself_in_one_sentence() -> None:
    for setting in SETTINGS.values():
        assert setting.text.endswith("."), setting.key
        assert "\n" not in setting.text, setting.key
        assert setting.expected, setting.key


def test_the_deployed_file_shows_every_setting_with_its_default() -> None:
    text = DEPLOYED.read_text(encoding="utf-8")
    assert text == rendered(Config()), "python -m broker.config.loader > deploy/shoal.toml"
    assert load(DEPLOYED, {}, {}) == Config()


def test_every_line_of_the_deployed_file_may_be_uncommented(tmp_path: Path) -> None:
    text = DEPLOYED.read_text(encoding="utf-8")
    config = load(written(tmp_path, re.sub(r"^#(?=\w)", "", text, flags=re.MULTILINE)), {}, {})
    # Those that have no default show an example instead.
    assert config == Config(
        allow_anonymous=True,
        http=Http(listen="127.0.0.1:9641"),
        log=Log(file="shoal.log"),
        mqtt=Mqtt(response_information="answers/{client_identifier}", server_reference="mqtt.example.org:1883"),
        shutdown=Shutdown(server_reference="mqtt.example.org:1883"),
    )


@given(st.integers(1, 65_535), st.text(min_size=1, max_size=20), st.floats(0.25, 3600), st.booleans())
def test_a_rendered_config_is_read_back_as_it_was(
    receive_maximum: int, data_dir: str, connect_timeout_s: float, anonymous: bool
) -> None:
    config = Config(
        data_dir=data_dir,
        allow_anonymous=True if anonymous else None,
        mqtt=Mqtt(receive_maximum=receive_maximum),
        limits=Limits(connect_timeout_s=connect_timeout_s),
    )
    text = rendered(config)
    assert tomllib.loads(text)["mqtt"].get("receive_maximum", 1024) == receive_maximum
    assert tomllib.loads(text).get("data_dir", "shoal-data") == data_dir
    assert tomllib.loads(text)["limits"].get("connect_timeout_s", 10.0) == connect_timeout_s


# [[authenticator]] ----------------------------------------------------------------------------------------------------


def authenticators(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "shoal.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    return [str(problem).removeprefix(f"file {file}: ") for problem in caught.value.problems]


TYPES = ", ".join(AUTHENTICATOR_TYPES)
JWT = '[[authenticator]]\ntype = "jwt"\n'


@pytest.mark.parametrize(("text", "said"), [
    ('[[authenticator]]\ntype = "passwords"\nfile = "u"', 'authenticator 1.type: found "passwords", expected one of '
     f"{TYPES}"),
    ('[[authenticator]]\nfile = "u"', f"authenticator 1.type: found nothing, expected one of {TYPES}"),
    ('[[authenticator]]\ntype = []', f"authenticator 1.type: found [], expected one of {TYPES}"),
    ('[[authenticator]]\ntype = "password_file"', "authenticator 1.file: found nothing, expected a text that is not "
     "empty"),
    ('[[authenticator]]\ntype = "password_file"\nfile = ""', 'authenticator 1.file: found "", expected a text that is '
     "not empty"),
    ('[[authenticator]]\ntype = "password_file"\nfile = 3', "authenticator 1.file: found 3, expected a text that is "
     "not empty"),
    ('[[authenticator]]\ntype = "password_file"\nfile = "a"\n\n[[authenticator]]\ntype = "password_file"\nfile = "b"\n'
     'path = "c"', "authenticator 2.path: found an unknown setting, expected those of password_file: name, file"),
    (f"{JWT}", "authenticator 1.algorithms: found nothing, expected a list of one or more texts"),
    (f'{JWT}algorithms = "ES256"', "authenticator 1.keys: found [], expected files with public keys, or jwks_url"),
    (f'{JWT}algorithms = "HS256"', "authenticator 1.keys: found [], expected secret_file, or keys"),
    (f'{JWT}algorithms = []\nkeys = "k"', "authenticator 1.algorithms: found [], expected a list of one or more texts"),
    (f'{JWT}algorithms = ["none"]\nkeys = "k"', 'authenticator 1.algorithms: found "none", expected some of '
     f"{', '.join(PUBLIC_ALGORITHMS + SECRET_ALGORITHMS)}"),
    (f'{JWT}algorithms = ["ES256", "HS256"]\nkeys = "k"', 'authenticator 1.algorithms: found ["ES256", "HS256"], '
     "expected either those with a secret, HS256, HS384, HS512, or those with a public key: who has the public one "
     "must not be able to sign. Two tables may stand side by side"),
    (f'{JWT}algorithms = "ES256"\nkeys = "k"\nsecret_file = "s"', 'authenticator 1.secret_file: found "s", expected '
     "algorithms with a secret: HS256, HS384, HS512"),
    (f'{JWT}algorithms = "ES256"\nkeys = "k"\nclaims = {{a = "${{x}}"}}', 'authenticator 1.claims.a: found "${x}", '
     "expected a text in which ${username} and ${clientid} stand for the client's"),
    (f'{JWT}algorithms = "ES256"\nkeys = "k"\nclaims = {{a = 5}}', 'authenticator 1.claims: found {"a": 5}, expected '
     "a table of texts"),
    (f'{JWT}algorithms = "ES256"\nkeys = "k"\nclaims = {{a = "${{username}}"}}', "authenticator 1.claims.a: found "
     '"${username}", expected no ${username}: the user name is the claim sub. With user_claim = "" it is the '
     "CONNECT's"),
    (f'{JWT}algorithms = "ES256"\nkeys = "k"\nuser_claim = ""', 'authenticator 1.user_claim: found "", expected a '
     'claim, or a claim in `claims` that is "${username}": nobody would vouch for the user name of a CONNECT'),
    (f'{JWT}algorithms = "ES256"\njwks_url = "ftp://id"', 'authenticator 1.jwks_url: found "ftp://id", expected '
     "http:// or https://, a host, and no user name or password"),
    ('[[authenticator]]\ntype = "http"', "authenticator 1.urls: found nothing, expected a list of one or more texts"),
    ('[[authenticator]]\ntype = "http"\nurls = "http://a:b@c/"', 'authenticator 1.urls: found "http://...@c/", '
     "expected http:// or https://, a host, and no user name or password"),
    ('[[authenticator]]\ntype = "password_file"\nname = "a"\nfile = "f"\n[[authenticator]]\ntype = "password_file"\n'
     'name = "a"\nfile = "g"', 'authenticator 2.name: found "a", expected each name once'),
    ('[[listener]]\naddress = "tcp://127.0.0.1:1"\nauthenticators = ["b"]\n[[authenticator]]\ntype = "password_file"\n'
     'name = "a"\nfile = "f"', 'listener 1.authenticators: found "b", expected names of [[authenticator]] tables: a'),
    ("authenticator = 3", "authenticator: found 3, expected tables: [[authenticator]]"),
])  # fmt: skip
def test_a_wrong_authenticator_is_one_problem_that_names_its_table(tmp_path: Path, text: str, said: str) -> None:
    # And not a second one at an address that nobody guards.
    assert authenticators(tmp_path, f'listen = ["tcp://0.0.0.0:1883"]\n{text}') == [said]


def test_an_authenticator_is_read_closes_every_address_and_is_written_again(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text(
        'listen = ["tcp://0.0.0.0:1883", "tcp://127.0.0.1:1"]\n[[authenticator]]\ntype = "password_file"\n'
        'file = "users"\n[[authenticator]]\ntype = "jwt"\nalgorithms = ["ES256", "EdDSA"]\nkeys = "a.pem"\n'
        'claims = {client = "${clientid}", "a b" = "\\u007f"}\nleeway_s = 2\n',
        encoding="utf-8",
    )
    config = load(file, {}, {})
    assert config.authenticator == (
        PasswordFileTable(file="users"),
        JwtTable(
            algorithms=("ES256", "EdDSA"),
            keys=("a.pem",),
            claims={"client": "${clientid}", "a b": "\x7f"},
            leeway_s=2.0,
        ),
    )
    assert [anonymous_allowed(config, listener) for listener in config.listeners] == [False, False]
    again = tmp_path / "again.toml"
    again.write_text(rendered(config), encoding="utf-8")
    assert load(again, {}, {}) == config
    assert load(file, {}, {"allow_anonymous": False}).allow_anonymous is False


# [[authorizer]] -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "said"), [
    ('[[authorizer]]\ntype = "acl"\nfile = "u"', 'authorizer 1.type: found "acl", expected one of acl_file, '
     "rules_file, http"),
    ('[[authorizer]]\nfile = "u"', "authorizer 1.type: found nothing, expected one of acl_file, rules_file, http"),
    ('[[authorizer]]\ntype = "acl_file"', "authorizer 1.file: found nothing, expected a text that is not empty"),
    ('[[authorizer]]\ntype = "acl_file"\nfile = 3', "authorizer 1.file: found 3, expected a text that is not empty"),
    ('[[authorizer]]\ntype = "acl_file"\nfile = "a"\npath = "c"', "authorizer 1.path: found an unknown setting, "
     "expected those of acl_file: name, file, subscribe, shadow"),
    ('[[authorizer]]\ntype = "acl_file"\nname = "a"\nfile = "f"\n[[authorizer]]\ntype = "rules_file"\nname = "a"\n'
     'file = "g"', 'authorizer 2.name: found "a", expected each name once'),
    ('[[listener]]\naddress = "tcp://127.0.0.1:1"\nauthorizers = ["b"]\n[[authorizer]]\ntype = "acl_file"\nfile = "f"',
     'listener 1.authorizers: found "b", expected names of [[authorizer]] tables: none of them has a name'),
    ('[[authorizer]]\ntype = "http"', "authorizer 1.urls: found nothing, expected a list of one or more texts"),
    ('[[authorizer]]\ntype = "http"\nurls = "http://a:b@c/"', 'authorizer 1.urls: found "http://...@c/", expected '
     "http:// or https://, a host, and no user name or password"),
    ("authorizer = 3", "authorizer: found 3, expected tables: [[authorizer]]"),
])  # fmt: skip
def test_a_wrong_authorizer_is_one_problem_that_names_its_table(tmp_path: Path, text: str, said: str) -> None:
    assert authenticators(tmp_path, text) == [said]


def test_an_authorizer_is_read_and_written_again(tmp_path: Path) -> None:
    file = tmp_path / "shoal.toml"
    file.write_text('[[authorizer]]\ntype = "acl_file"\nfile = "acl.conf"\n', encoding="utf-8")
    config = load(file, {}, {})
    assert config.authorizer == (AclFileTable(file="acl.conf"),)
    # Rules are no proof of who a client is: they do not close a listener.
    assert [anonymous_allowed(config, listener) for listener in config.listeners] == [True]
    again = tmp_path / "again.toml"
    again.write_text(rendered(config), encoding="utf-8")
    assert load(again, {}, {}) == config


def test_an_open_address_is_answered_with_what_secures_it() -> None:
    (problem,) = problems_of(flags={"listen": ("tcp://0.0.0.0:1883",)})
    for named in (
        "\n    shoal passwd users ann\n    printf ",
        "\n    shoal serve --config shoal.toml --listen tcp://0.0.0.0:1883\n",
        "[[authenticator]]",
        'type = "password_file"',
        "allow_anonymous = true",
        "[[authorizer]]",
        'type = "acl_file"',
    ):
        assert named in problem
