"""Who may connect, and what others on the network can read: TLS, and SASL by a file of users."""
