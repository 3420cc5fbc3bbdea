"""TLS, and SASL authentication with a users file."""
