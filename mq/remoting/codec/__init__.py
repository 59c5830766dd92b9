"""Encode and decode frames, headers and bodies. Pure: no socket, no thread, no clock.

    frame.py               a frame, and the decoding of a stream into frames
    json_header.py         the two encodings of a frame's header
    binary_header.py
    fields.py              declarations of requests and answers: typed header fields
    requests/              the table of requests, for both ends
    response_codes.py
    fastjson.py            fastjson's dialect of JSON
    json_body.py           declarations of JSON bodies
    bodies/                the JSON bodies
    batch.py records.py    bodies of messages
    text_properties.py     bodies that are Java properties
    registration.py        the compressed body of REGISTER_BROKER
    signature.py           ACL

Input from the other end is not trusted: every length is checked before anything is allocated, and every error
is a RemotingError.
"""
