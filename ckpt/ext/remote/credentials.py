"""Credentials where other tools write them: the profiles of the AWS tools, and the
login of the Azure CLI.

obstore itself reads the environment, the login of gcloud, and asks the cloud that a
machine belongs to.
"""

from __future__ import annotations

import os
import shutil
from configparser import ConfigParser, Error
from importlib import import_module

from ckpt.model.errors import CkptError
from ckpt.model.text import show

_OWN = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SKIP_SIGNATURE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that say where the credentials are: obstore reads them."""
_PROFILE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
_LOGIN = (
    "sso_session",
    "sso_start_url",
    "role_arn",
    "credential_process",
    "login_session",
)
"""Settings of a profile whose credentials have to be asked for."""
_KEYS = (
    ("access_key_id", "aws_access_key_id"),
    ("secret_access_key", "aws_secret_access_key"),
    ("token", "aws_session_token"),
)
_AZURE = (
    "KEY",
    "SAS",
    "TOKEN",
    "CLIENT_ID",
    "IDENTITY",
    "MSI",
    "FEDERATED",
    "SKIP_SIGNATURE",
    "EMULATOR",
    "AZURE_CLI",
)
"""Parts of the variables that say how Azure is logged in to."""


def options_of(scheme: str) -> dict[str, object]:
    """The options of a store that the environment alone does not give. Raises
    CkptError.
    """
    if scheme == "s3":
        return _of_profile()
    if scheme == "az" and _azure_cli() is not None:
        return {"use_azure_cli": True}
    return {}


def looked_at(scheme: str) -> str:
    """The places in which credentials were looked for, for people."""
    if scheme == "s3":
        return ", ".join(
            (
                "AWS_ACCESS_KEY_ID",
                "AWS_PROFILE",
                *map(_short_path, _aws_files()),
                "the machine's role",
            )
        )
    if scheme == "gs":
        login = "~/.config/gcloud/application_default_credentials.json"
        return (
            f"GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, {login}, the "
            "machine's account"
        )
    return (
        "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, "
        "AZURE_STORAGE_SAS_TOKEN, az login, the machine's identity"
    )


def _aws_files() -> tuple[str, str]:
    """The two files of the AWS tools: the credentials, and the settings."""
    return (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
        or os.path.join("~", ".aws", "credentials"),
        os.environ.get("AWS_CONFIG_FILE") or os.path.join("~", ".aws", "config"),
    )


def _short_path(path: str) -> str:
    # A home of `/` would shorten every path.
    home = os.path.expanduser("~")
    if home == "/" or not path.startswith(f"{home}{os.sep}"):
        return path
    return f"~{path[len(home) :]}"


def _of_profile() -> dict[str, object]:
    """The options that the profile of the AWS tools gives. Raises CkptError where it
    cannot be used.
    """
    # A profile that was named wins over the keys of the environment, as in the AWS
    # tools.
    named = next(filter(None, map(os.environ.get, _PROFILE)), None)
    if named is None and any(map(os.environ.get, _OWN)):
        return {}
    name = named or "default"
    keys, settings = (_profile_settings(path, name) for path in _aws_files())
    if named is not None and not keys and not settings:
        places = " and ".join(map(_short_path, _aws_files()))
        raise CkptError(
            f"there is no profile {show(name, 60)}",
            hint=f"AWS_PROFILE; looked at {places}",
        )
    # The file of credentials wins over the one of settings.
    every = {**settings, **keys}
    options: dict[str, object] = {}
    # obstore reads the environment itself: only what it lacks is added.
    is_region_set = bool(
        os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    )
    if not is_region_set and every.get("region"):
        options["region"] = every["region"]
    is_endpoint_set = any(
        map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    )
    if not is_endpoint_set and every.get("endpoint_url"):
        options["endpoint"] = every["endpoint_url"]
    found = {ours: every[theirs] for ours, theirs in _KEYS if every.get(theirs)}
    if "access_key_id" in found and "secret_access_key" in found:
        return {**options, **found}
    login = next((setting for setting in _LOGIN if setting in every), None)
    # Neither keys nor a login: obstore looks for the role of the machine.
    if login is None:
        return options
    try:
        provider = import_module("obstore.auth.boto3").Boto3CredentialProvider
        session = import_module("boto3").Session
    except ImportError:
        problem = f"the profile {show(name, 60)} logs in by {login}"
        raise CkptError(
            problem, hint="pip install boto3, or set AWS_ACCESS_KEY_ID and its secret"
        ) from None
    try:
        return {**options, "credential_provider": provider(session(profile_name=name))}
    # The text of an error of a login may hold a secret.
    except Exception as error:
        problem = (
            f"the profile {show(name, 60)} gives no credentials "
            f"({show(type(error).__name__, 40)})"
        )
        raise CkptError(problem, hint="log in again") from None


def _profile_settings(path: str, name: str) -> dict[str, str]:
    """The settings of a profile in a file. The settings file writes `[profile
    NAME]`.
    """
    # `%` stands in passwords and is no interpolation.
    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except (Error, OSError, ValueError):
        raise CkptError(
            f"{_short_path(path)} cannot be read as a file of profiles"
        ) from None
    for section in (name, f"profile {name}"):
        if parser.has_section(section):
            return dict(parser.items(section))
    return {}


def _azure_cli() -> str | None:
    """The Azure CLI, where nothing else says how to log in."""
    # Any of these variables says how to log in; obstore reads them.
    names = (
        key for key, value in os.environ.items() if key.startswith("AZURE_") and value
    )
    if any(part in name for name in names for part in _AZURE):
        return None
    return shutil.which("az")
