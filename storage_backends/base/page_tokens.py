"""Tokens of pages: text that says where the next page begins. Its checksum covers what was asked for too, so
another listing refuses it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

from .checksum import crc32c_of
from .codec import DecodeError, Decoder, Encoder
from .errors import InvalidArgument, shown

TOKEN_MAX = 20_000
"""Characters of a token: room for the longest key of a table in base64."""


def check_token(token: object, foreign: str) -> str | None:
    """Raises ``InvalidArgument``, with the text ``foreign`` if no page can have given it."""
    if token is not None and not isinstance(token, str):
        raise InvalidArgument(f"token is a str that a page gave, not {shown(token)}")
    # A request cannot have such a text.
    if token is not None and (len(token) > TOKEN_MAX or not token.isascii()):
        raise InvalidArgument(foreign)
    return token


def encode_token(asked: bytes, body: bytes) -> str:
    """``asked``: what the next page must be asked for with, besides the token."""
    return urlsafe_b64encode(Encoder().u32(crc32c_of((asked, body))).raw(body).finish()).decode()


def decode_token(asked: bytes, token: str) -> bytes:
    """The body of a token. Raises ``DecodeError`` if no page that was asked for so gave it."""
    try:
        fields = Decoder(urlsafe_b64decode(token.encode("ascii")))
    except (Base64Error, UnicodeEncodeError) as error:
        raise DecodeError(str(error)) from error

    checksum, body = fields.u32(), fields.rest()
    if checksum != crc32c_of((asked, body)):
        raise DecodeError("of another listing")
    return body
