"""Grammars: which texts a row may become, from a regular expression or a JSON schema."""

from specjax.grammar.grammar import Grammar, join, json_schema, regex

__all__ = ["Grammar", "join", "json_schema", "regex"]
