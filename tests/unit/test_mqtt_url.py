"""What URLs of brokers say: any that can be written is read back, and any text is one or is refused in a sentence."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.cli.mqtt_url import PORTS, TRANSPORTS, MqttUrl, Way, parse_url

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
HOSTS = st.one_of(st.lists(LABEL, min_size=1, max_size=3).map(".".join), st.ip_addresses().map(str))


@given(
    st.sampled_from(sorted(TRANSPORTS)),
    HOSTS,
    st.none() | st.integers(1, 65535),
    st.none() | TEXT,
    st.none() | st.binary(max_size=8),
    TEXT.filter(bool),
    st.booleans(),
)
def test_what_is_written_is_read_back(
    scheme: str, host: str, port: int | None, user: str | None, password: bytes | None, topic: str, upper: bool
) -> None:
    user = None if user == "" else user
    transport = TRANSPORTS[scheme]
    place = (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")
    said = ("" if user is None else quote(user, safe="")) + ("" if password is None else ":" + quote(password, safe=""))
    authority = f"{said}@{place}" if said else place
    expected = Way(transport, host, PORTS[transport] if port is None else port)
    url = f"{scheme.upper() if upper else scheme}://{authority}"
    assert parse_url(f"{url}/{quote(topic)}", with_topic=True) == MqttUrl(expected, user, password, topic)
    assert parse_url(url) == MqttUrl(expected, user, password)
    assert str(expected) in (place, f"{place}:{expected.port}")


@given(st.one_of(st.text(), st.text(alphabet="mqtwsunix:/@[]%.0123456789#?", max_size=30)), st.booleans())
@example("mqtt://[::1", False)
@example("mqtt://a:b@", True)
@example("unix://x", False)
@example("ws://h/\u20ac", False)
def test_any_text_is_a_url_or_is_refused(text: str, with_topic: bool) -> None:
    try:
        url = parse_url(text, with_topic=with_topic)
    except ValueError as error:
        assert not str(error).endswith(".")
    else:
        assert (url.way.transport == "unix") == text.lower().startswith("unix:")
        assert url.way.transport == "unix" or 0 < url.way.port < 65536
        assert bool(url.topic) == with_topic


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("localhost:1883", "expected mqtt[s]://HOST"),
        ("http://here", "expected mqtt[s]://HOST"),
        ("mqtt://", "expected a host name or an IP address"),
        ("mqtt://ada@", "expected a host name or an IP address"),
        ("mqtt://h:", "expected a port from 1 to 65535, found ''"),
        ("mqtt://h:0", "expected a port from 1 to 65535, found '0'"),
        ("mqtt://h:65536", "expected a port from 1 to 65535"),
        ("mqtt://h:1x", "expected a port from 1 to 65535"),
        ("mqtt://h:\u0661", "expected a port from 1 to 65535"),
        ("mqtt://::1", "expected brackets around the IPv6 address"),
        ("mqtt://[::g]", "expected an IPv6 address between the brackets"),
        ("mqtt://[::1]1883", "expected a port behind the brackets"),
        ("mqtt://a b", "expected a host name"),
        ("mqtt://a%62", "expected a host name"),
        ("mqtt://u%:p@h", "the user has a % that is not followed by two hexadecimal digits"),
        ("mqtt://u:%4@h", "the password has a %"),
        ("mqtt://%ff@h", "the user is not UTF-8"),
        ("mqtt://h/topic", "A topic goes with -t, or with -L"),
        ("ws://h/a b", "percent-encode it"),
        ("unix://relative", "expected an absolute path"),
        ("unix://", "expected an absolute path"),
    ],
)
def test_a_wrong_url_is_refused_in_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_url(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mqtt://h", "expected a topic behind mqtt://h/"),
        ("mqtts://u:p@h:1/", "expected a topic behind mqtts://h:1/"),
        ("mqtt://h/a%", "the topic has a %"),
        ("mqtt://h/%80", "the topic is not UTF-8"),
        ("unix:///run/s", "use --url unix://PATH and -t"),
    ],
)
def test_a_url_that_should_have_a_topic_and_has_none_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse_url(text, with_topic=True)
    assert "u:p" not in str(caught.value)


def test_a_password_is_in_no_sentence() -> None:
    for text in ("ftp://ada:secret@here", "mqtt://ada:secret@here:x", "ada:secret@here"):
        with pytest.raises(ValueError, match="expected") as caught:
            parse_url(text)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("ws://h", Way("ws", "h", 8083)),
        ("ws://h/", Way("ws", "h", 8083, "/")),
        ("wss://h/a/b?token=x%20y", Way("wss", "h", 8084, "/a/b?token=x%20y")),
        ("ws://h/a#b", Way("ws", "h", 8083, "/a")),
        ("unix:///run/s%20.sock", Way("unix", path="/run/s%20.sock")),
        ("mqtt://h/", Way("tcp", "h", 1883)),
        ("mqtt://[fe80::1%eth0]:7", Way("tcp", "fe80::1%eth0", 7)),
    ],
)
def test_what_is_a_path_and_what_is_none(text: str, way: Way) -> None:
    assert parse_url(text).way == way


def test_a_topic_may_begin_with_a_slash_and_have_wildcards() -> None:
    assert parse_url("mqtt://h//a/%2B/#", with_topic=True).topic == "/a/+/#"
