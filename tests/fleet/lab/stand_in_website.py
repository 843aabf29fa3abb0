"""Imitates HTCondor's website: serves the key of its package repository by HTTPS.

The packages themselves come from apt's stand-in. The machines trust the lab's certificate besides
those that the real machine trusts.
"""

from __future__ import annotations

import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from trialfleet.infra.manager.apt_repository import SITE

NAME = urlsplit(SITE).hostname or ""
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nstand-in\n-----END PGP PUBLIC KEY BLOCK-----\n"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Send the key, whatever version the path names."""
        if not self.path.startswith("/repo/keys/"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(KEY)))
        self.end_headers()
        self.wfile.write(KEY.encode())
        return None

    def log_message(self, *_words: object) -> None:
        """Keep quiet."""


def serve(address: str, folder: Path) -> str:
    """Serve in a thread of this process; return the certificate that machines must trust."""
    certificate = make_certificate(folder)
    server = ThreadingHTTPServer((address, 443), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return certificate.read_text().partition("-----BEGIN PRIVATE")[0]


def make_certificate(folder: Path) -> Path:
    """Write a self-signed certificate for the site, followed by its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(hours=1),
        not_valid_after=now + timedelta(days=2),
    )
    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    signed = (
        builder.add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = folder / "website.pem"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + private)
    return path
