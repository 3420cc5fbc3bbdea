"""Foundations that several layers share. They are private: users do not import them."""
