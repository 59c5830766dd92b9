"""Access control of a cluster: accounts with rights to topics and groups, for brokers of 4.9 and of 5.3.

Both read plain_acl.yml: 4.9 checks requests by it, 5.3 makes users and rules of it at its first start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.cluster.programs import Version

PROVIDERS = "org.apache.rocketmq.auth"


@dataclass(frozen=True, slots=True)
class Account:
    """An access key with its secret. Rights are "PUB", "SUB" or "PUB|SUB"; what is not named is denied."""

    access_key: str
    secret_key: str
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    is_admin: bool = False

    def __post_init__(self) -> None:
        # A broker of 4.9 with a shorter one does not start.
        for key in (self.access_key, self.secret_key):
            assert len(key) > 6, f"{key!r} has {len(key)} characters; RocketMQ wants more than 6"


ADMIN = Account("rocketmq-admin", "secret-of-admin", is_admin=True)


@dataclass(frozen=True, slots=True)
class Access:
    """The accounts of a cluster. The admin may do everything; the brokers use it among each other."""

    accounts: tuple[Account, ...] = ()
    admin: Account = ADMIN

    def configure(self, home: Path, version: Version) -> Mapping[str, object]:
        """Write plain_acl.yml below a broker's home; what its configuration file says then."""
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "plain_acl.yml").write_text(self._plain_acl())
        if version == "4.9":
            return {"aclEnable": "true"}
        keys = {"accessKey": self.admin.access_key, "secretKey": self.admin.secret_key}
        user = {"username": self.admin.access_key, "password": self.admin.secret_key}
        return {
            "authenticationEnabled": "true",
            "authenticationProvider": f"{PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider":
                f"{PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider",
            "authorizationEnabled": "true",
            "authorizationProvider": f"{PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
            "authorizationMetadataProvider":
                f"{PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider",
            "migrateAuthFromV1Enabled": "true",
            "initAuthenticationUser": json.dumps(user),
            "innerClientAuthenticationCredentials": json.dumps(keys),
            "authConfigPath": home / "auth",
        }  # fmt: skip

    def _plain_acl(self) -> str:
        # JSON is YAML: no value needs an escape of its own.
        accounts = [
            {
                "accessKey": account.access_key,
                "secretKey": account.secret_key,
                "whiteRemoteAddress": "",
                "admin": account.is_admin,
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "DENY",
                "topicPerms": [f"{topic}={right}" for topic, right in account.topics.items()],
                "groupPerms": [f"{group}={right}" for group, right in account.groups.items()],
            }
            for account in (self.admin, *self.accounts)
        ]
        return json.dumps({"globalWhiteRemoteAddresses": [], "accounts": accounts}, indent=1) + "\n"
