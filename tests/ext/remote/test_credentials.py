"""Credentials where other tools write them: the profiles of AWS, the login of Azure,
the token of Hugging Face.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt.ext.remote import credentials, hub
from ckpt.ext.remote.credentials import looked_at, options_of
from ckpt.model.errors import CkptError

KEYS = "[default]\naws_access_key_id = own\naws_secret_access_key = s%cret\n"
CONFIG = (
    "[default]\nregion = eu-west-1\n[profile work]\nregion = us-west-2\nendpoint_url = "
    "https://minio\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "HF_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path


def put(home: Path, keys: str = "", config: str = "") -> None:
    (home / ".aws" / "credentials").write_text(keys)
    (home / ".aws" / "config").write_text(config)


def test_nothing_is_there() -> None:
    assert options_of("s3") == {} and options_of("az") == {} and options_of("gs") == {}


def test_the_default_profile(home: Path) -> None:
    put(
        home,
        KEYS,
        f"{CONFIG}[profile x]\n".replace(
            "[default]\n", "[default]\naws_access_key_id = settings\n"
        ),
    )
    assert options_of("s3") == {
        "region": "eu-west-1",
        "access_key_id": "own",
        "secret_access_key": "s%cret",
    }


def test_a_profile_by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (
        "[work]\naws_access_key_id = job\naws_secret_access_key = x\naws_session_token "
        "= t\n"
    )
    put(home, KEYS + more, CONFIG)
    monkeypatch.setenv("AWS_PROFILE", "work")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    found = {"access_key_id": "job", "secret_access_key": "x", "token": "t"}
    assert options_of("s3") == {
        "region": "us-west-2",
        "endpoint": "https://minio",
        **found,
    }
    monkeypatch.setenv("AWS_REGION", "here")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://there")
    assert options_of("s3") == found, "the environment says the rest"


def test_the_environment_comes_before_the_default_profile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, KEYS, CONFIG)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    assert options_of("s3") == {}


def test_other_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "keys").write_text(KEYS)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(home / "keys"))
    assert options_of("s3")["access_key_id"] == "own"
    assert "~/keys, ~/.aws/config" in looked_at("s3")


def test_a_profile_that_is_not_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, KEYS, CONFIG)
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(CkptError) as error:
        options_of("s3")
    says = (
        "there is no profile none (AWS_PROFILE; looked at ~/.aws/credentials and "
        "~/.aws/config)"
    )
    assert str(error.value) == says


def test_a_damaged_file(home: Path) -> None:
    put(home, "aws_access_key_id = x\n")
    with pytest.raises(
        CkptError, match=r"^~/.aws/credentials cannot be read as a file of profiles$"
    ):
        options_of("s3")


@pytest.mark.parametrize("setting", credentials._LOGIN)
def test_a_profile_that_logs_in_needs_boto3(
    setting: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(home, "", f"[default]\n{setting} = x\n")

    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(credentials, "import_module", missing)
    with pytest.raises(CkptError) as error:
        options_of("s3")
    assert str(error.value).startswith(
        f"the profile default logs in by {setting} (pip install boto3"
    )


def test_a_profile_that_logs_in_by_boto3(home: Path) -> None:
    pytest.importorskip("boto3")
    (home / "give").write_text(
        '#!/bin/sh\necho \'{"Version": 1, "AccessKeyId": "asked", "SecretAccessKey": '
        '"x"}\'\n'
    )
    (home / "give").chmod(0o700)
    put(
        home,
        "",
        f"[default]\nregion = eu-west-1\ncredential_process = {home / 'give'}\n",
    )
    options = options_of("s3")
    provider = options["credential_provider"]
    assert callable(provider) and provider()["access_key_id"] == "asked"
    assert options["region"] == "eu-west-1"


def test_boto3_without_credentials_is_one_error(home: Path) -> None:
    pytest.importorskip("boto3")
    put(home, "", "[default]\ncredential_process = /does/not/exist\n")
    with pytest.raises(CkptError, match="the profile default gives no credentials"):
        credential = options_of("s3")["credential_provider"]
        assert credential is None


def test_the_azure_cli(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "az").write_text("#!/bin/sh\n")
    (home / "az").chmod(0o700)
    assert options_of("az") == {"use_azure_cli": True}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    assert options_of("az") == {"use_azure_cli": True}
    for name in (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_CLIENT_ID",
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            assert options_of("az") == {}, name


def test_the_token_of_hugging_face(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub._find_token() is None
    path = home / ".cache" / "huggingface" / "token"
    path.parent.mkdir(parents=True)
    path.write_text("stored\n")
    assert hub._find_token() == "stored"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert hub._find_token() is None
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    (home / "other").write_text("other")
    monkeypatch.setenv("HF_TOKEN_PATH", str(home / "other"))
    assert hub._find_token() == "other"
    monkeypatch.setenv("HF_TOKEN", "of the environment")
    assert hub._find_token() == "of the environment"
    monkeypatch.setenv("HF_TOKEN", "")
    assert hub._find_token() is None, "an empty one says that none is to be sent"


@pytest.mark.parametrize("name", ["HF_HOME", "XDG_CACHE_HOME"])
def test_where_the_token_lies(
    name: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(home / "moved"))
    inner = "token" if name == "HF_HOME" else os.path.join("huggingface", "token")
    assert hub.token_path() == str(home / "moved" / inner)
