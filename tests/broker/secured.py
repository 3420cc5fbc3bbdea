"""A broker of Kafka 4 with a listener of each security protocol, and users for SASL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from broker.broker import KAFKA_4, Broker
from server.security.certificates import Certificates

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
_SECURITY = "org.apache.kafka.common.security"


@contextmanager
def secured_broker(
    folder: Path, certificates: Certificates, users: Mapping[str, str], config: Mapping[str, Any]
) -> Iterator[Broker]:
    """Run the broker. users: passwords by name, for PLAIN and SCRAM. config: further settings."""
    key_store = folder / "keystore.pem"
    key = serialization.load_pem_private_key(certificates.server_key.read_bytes(), None)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key_store.write_bytes(pkcs8 + certificates.server.read_bytes())
    plain = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    modules = {
        "plain": f"{_SECURITY}.plain.PlainLoginModule required {plain};",
        "scram-sha-256": f"{_SECURITY}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{_SECURITY}.scram.ScramLoginModule required;",
        "oauthbearer": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";',
    }
    protocols = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", *_PROTOCOLS))
    settings: dict[str, Any] = {
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": key_store,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **config,
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        for mechanism, module in modules.items():
            settings[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = module
    with Broker(folder, settings, kafka=KAFKA_4, listeners=_PROTOCOLS) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        for name, password in users.items():
            for scram in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                refused = admin.alter_user_scram_credentials(
                    [UserScramCredentialUpsertion(name, scram, password)]
                )
                assert refused == {name: None}
        admin.close()
        yield broker
